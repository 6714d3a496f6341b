//! Bytes that stay here: in a page of their own that a child process gets as zeros, that is never written to a core file
//! or to swap, and that is zeroed when it goes.

use std::ffi::{CString, OsStr};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

/// A secret in memory.
pub struct Secret {
    page: NonNull<std::ffi::c_void>,
    size: usize,
    length: usize,
}

// SAFETY: the page belongs to this value alone and is only read after it was filled.
unsafe impl Send for Secret {}

impl Secret {
    /// Keeps a copy of these bytes. What they were copied from is the caller's to clear.
    pub fn new(bytes: &[u8]) -> io::Result<Self> {
        let size = bytes.len().max(1).next_multiple_of(4096);
        let length = NonZeroUsize::new(size).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: an anonymous mapping of our own.
        let page = unsafe {
            mmap_anonymous(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)?
        };
        let secret = Self { page, size, length: bytes.len() };
        // SAFETY: advice about our own mapping.
        unsafe {
            madvise(page, size, MmapAdvise::MADV_WIPEONFORK)?;
            madvise(page, size, MmapAdvise::MADV_DONTDUMP)?;
            // The bound of locked memory may be small; then it can reach the swap.
            let _ = mlock(page, size);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.as_ptr().cast(), bytes.len());
        }
        Ok(secret)
    }

    /// The bytes, to be used and not kept.
    pub fn expose(&self) -> &[u8] {
        // SAFETY: the mapping is as long as this value lives, and `length` bytes of it are filled.
        unsafe { std::slice::from_raw_parts(self.page.as_ptr().cast(), self.length) }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody refers to any more.
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

/// Takes a variable out of this process's environment, so that neither `/proc/self/environ` nor a child has it. Must be
/// called while this process has one thread.
pub fn take_variable(name: &str) -> io::Result<Option<Secret>> {
    let c_name = CString::new(OsStr::new(name).as_bytes())?;
    // SAFETY: one thread: nobody else reads or changes the environment meanwhile.
    unsafe {
        let value = libc::getenv(c_name.as_ptr());
        if value.is_null() {
            return Ok(None);
        }
        let length = libc::strlen(value);
        let secret = Secret::new(std::slice::from_raw_parts(value.cast(), length))?;
        // The place where the kernel put it, which is what others would read.
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
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!clean)) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0, "the child saw the secret");
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
