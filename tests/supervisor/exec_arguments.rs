//! The supervisor reads the arguments of an exec from the memory of the caller.

use guard::run::supervisor::fuzzing::arguments;

/// A process passes one long variable to an exec many times. guard must count each copy toward its limit on the size of
/// arguments and variables, and must report the error that the kernel has for this (E2BIG).
#[test]
fn repeated_environment_variable_counts_each_time() {
    let text = [b"GIT_X=".as_slice(), &[b'x'; 1 << 20], b"\0"].concat();
    let read = |times: usize| {
        let mut pointers = vec![text.as_ptr() as u64; times];
        pointers.push(0);
        arguments(std::process::id() as i32, 0, pointers.as_ptr() as u64, 1 << 20)
    };
    assert_eq!(read(7).unwrap().1.len(), 7);
    assert_eq!(read(9).unwrap_err().raw_os_error(), Some(libc::E2BIG));
}
