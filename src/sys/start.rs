//! How guard starts, without what Rust's own start does and it has no use for: that looks for the stack in
//! `/proc/self/maps` and makes a second one, here and for every thread, to print a sentence when a stack overflows. It
//! ends the program either way.

use std::io;

/// Defines the `main` that the C library calls: a function from the arguments to an exit code.
#[macro_export]
macro_rules! start {
    ($run:path) => {
        // SAFETY: the one function of this name in a program, with the type that the C library expects.
        #[allow(unsafe_code, reason = "there is no other way to be called by the C library")]
        #[unsafe(no_mangle)]
        extern "C" fn main() -> std::ffi::c_int {
            $crate::sys::start::enter(|| $run(std::env::args_os()))
        }
    };
}

/// What has to be right before anything else, then the program.
pub fn enter(run: impl FnOnce() -> u8 + std::panic::UnwindSafe) -> std::ffi::c_int {
    if keep_standard_streams().is_err() {
        return 125;
    }
    // Whoever reads the output and goes away is an error of a write.
    // SAFETY: to ignore a signal runs no code of this program.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    std::panic::catch_unwind(run).map_or(101, std::ffi::c_int::from)
}

/// A stream that is closed would be the number of the next file that is opened, and what is printed would go there.
fn keep_standard_streams() -> io::Result<()> {
    for number in 0..3 {
        // SAFETY: plain integers.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0 {
            continue;
        }
        // SAFETY: a null-terminated path. The lowest free number is this one: those below are open.
        if unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
