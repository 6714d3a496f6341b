//! Stores secret bytes in separate memory pages. The kernel gives forked children zeros instead of these pages, and
//! excludes them from core dumps and, if possible, from swap. Dropping a secret overwrites it.

use std::ffi::{CString, OsStr};
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, ExitStatus, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

/// The maximum size of a secret, in bytes. A larger value is not an API key.
pub const LARGEST: usize = 16 << 10;

/// The maximum size of the output of a command that prints a secret, in bytes: the largest secret and a line end.
const LARGEST_OUTPUT: usize = LARGEST + 2;

/// Secret bytes in separate memory pages, which child processes do not inherit.
pub struct Secret {
    page: NonNull<std::ffi::c_void>,
    size: usize,
    length: usize,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The secret consists of white space only.
    #[error("the secret is empty")]
    Empty,
    /// The secret contains a character other than a visible ASCII character, or is too long.
    #[error(
        "the secret contains white space, control characters or non-ASCII characters, or is longer than 16 KiB"
    )]
    NotOneWord,
    /// A system call failed: guard could not allocate memory, start the command that prints the secret, or read its
    /// output.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The command that should print the secret has no output pipe, so guard cannot read the secret.
    #[error("guard cannot read the output of the command that prints the secret")]
    NoOutput,
    /// The command that should print the secret did not end within this time.
    #[error("the command that prints the secret did not end within {} seconds", .0.as_secs())]
    TimedOut(Duration),
    /// The command that should print the secret ended, but another process still has its output open.
    #[error("the command that prints the secret ended, but another process keeps its output open")]
    EndlessOutput,
    /// The command that should print the secret failed.
    #[error("the command that prints the secret failed with {0}")]
    Failed(ExitStatus),
}

// SAFETY: the page belongs to this value alone and is only read after it was filled.
unsafe impl Send for Secret {}

impl Secret {
    /// Copies these bytes into a new secret. The caller must clear the original.
    pub fn new(bytes: &[u8]) -> io::Result<Self> {
        let size = bytes.len().max(1).next_multiple_of(4096);
        let length = NonZeroUsize::new(size).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new anonymous mapping does not affect existing memory.
        let page = unsafe {
            mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)?
        };
        let secret = Self { page, size, length: bytes.len() };
        // SAFETY: the mapping belongs to this value alone, and has room for all bytes.
        unsafe {
            madvise(page, size, MmapAdvise::MADV_WIPEONFORK)?;
            madvise(page, size, MmapAdvise::MADV_DONTDUMP)?;
            // If the limit for locked memory is too small, the kernel may swap the page out.
            let _ = mlock(page, size);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.as_ptr().cast(), bytes.len());
        }
        Ok(secret)
    }

    /// Creates a secret from bytes that must be a single word of visible ASCII characters. Removes surrounding white
    /// space, and overwrites the input.
    pub fn one_word(mut bytes: Vec<u8>) -> Result<Self, SecretError> {
        let trimmed = bytes.trim_ascii();
        let result = if trimmed.is_empty() {
            Err(SecretError::Empty)
        } else if trimmed.len() > LARGEST || !trimmed.iter().all(u8::is_ascii_graphic) {
            Err(SecretError::NotOneWord)
        } else {
            Self::new(trimmed).map_err(SecretError::Io)
        };
        overwrite(&mut bytes);
        result
    }

    /// Creates a secret from the single word that a command prints. Redirects only the command's standard output. Kills
    /// the command if it does not end within `time_limit`.
    pub fn printed_by(command: &mut Command, time_limit: Duration) -> Result<Self, SecretError> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or(SecretError::NoOutput)?;
        let (to, from) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            // The buffer has room for the whole output. If it had to grow, a copy of the secret would stay in the freed
            // memory.
            let mut bytes = Vec::with_capacity(LARGEST_OUTPUT + 2);
            let read = output.take(LARGEST_OUTPUT as u64 + 1).read_to_end(&mut bytes);
            let _ = to.send(read.map(|_| bytes));
        });
        let deadline = Instant::now() + time_limit;
        let status = match super::process::wait_until(&mut child, deadline) {
            Ok(Some(status)) => status,
            unfinished => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(unfinished.err().map_or(SecretError::TimedOut(time_limit), SecretError::Io));
            }
        };
        // A process that the command started may still have the output open.
        let left = deadline.saturating_duration_since(Instant::now());
        let bytes = from.recv_timeout(left).map_err(|_| SecretError::EndlessOutput)?;
        // Wait for the thread: the caller may fork afterwards, and must have only one thread then.
        let _ = reader.join();
        let mut bytes = bytes?;
        if bytes.len() > LARGEST_OUTPUT {
            // guard has read only a part of the output. The command may have failed because nobody read the rest.
            overwrite(&mut bytes);
            return Err(SecretError::NotOneWord);
        }
        if !status.success() {
            return Err(SecretError::Failed(status));
        }
        Self::one_word(bytes)
    }

    /// Returns the secret's bytes. The caller must not store them anywhere else.
    pub fn expose(&self) -> &[u8] {
        // SAFETY: the mapping is as long as this value lives, and `length` bytes of it are filled.
        unsafe { std::slice::from_raw_parts(self.page.as_ptr().cast(), self.length) }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value alone, and no reference to it exists any more.
        unsafe {
            std::ptr::write_bytes(self.page.as_ptr().cast::<u8>(), 0, self.size);
            compiler_fence(Ordering::SeqCst);
            let _ = munmap(self.page, self.size);
        }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

fn overwrite(bytes: &mut [u8]) {
    bytes.fill(0);
    // Prevent the compiler from removing the `fill` above.
    std::hint::black_box(bytes);
}

/// Moves a variable from this process's environment into a [`Secret`], so that neither `/proc/self/environ` nor the
/// environment of a child contains it. Returns `None` if the variable is not set. The process must have only one
/// thread.
pub fn take_variable(name: &str) -> io::Result<Option<Secret>> {
    let c_name = CString::new(OsStr::new(name).as_bytes())?;
    // SAFETY: this process has only one thread, so no other code uses the environment meanwhile.
    unsafe {
        let value = libc::getenv(c_name.as_ptr());
        if value.is_null() {
            return Ok(None);
        }
        let length = libc::strlen(value);
        let secret = Secret::new(std::slice::from_raw_parts(value.cast(), length))?;
        // Overwrite the original value, because `/proc/self/environ` shows this memory.
        std::ptr::write_bytes(value.cast::<u8>(), b'*', length);
        compiler_fence(Ordering::SeqCst);
        std::env::remove_var(name);
        Ok(Some(secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_gets_zeros() {
        let secret = Secret::new(b"the key").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(secret.expose(), b"the key");
        // SAFETY: the child only reads its own memory and leaves at once.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let clean = secret.expose().iter().all(|byte| *byte == 0);
            // SAFETY: `_exit` ends the child without running any other code.
            unsafe { libc::_exit(i32::from(!clean)) };
        }
        let mut status = 0;
        // SAFETY: `pid` is a child of this process, and `status` a valid int.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0, "the child saw the secret");
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn a_secret_is_not_cut_off() {
        for (script, length) in [
            ("head -c 16384 /dev/zero | tr '\\0' k; echo", Some(16384)),
            ("head -c 16385 /dev/zero | tr '\\0' k", None),
            ("echo; head -c 16390 /dev/zero | tr '\\0' k", None),
            ("echo key; head -c 20000 /dev/zero | tr '\\0' '\\n'; echo more", None),
        ] {
            let printed =
                Secret::printed_by(Command::new("sh").args(["-c", script]), Duration::from_secs(60));
            match (printed, length) {
                (Ok(secret), Some(length)) => assert_eq!(secret.expose(), vec![b'k'; length]),
                (Err(SecretError::NotOneWord), None) => {}
                (printed, _) => panic!("{script}: {printed:?}"),
            }
        }
    }
}
