//! Reads another process's memory.

use std::io;

/// Copies several ranges (address, length) of another process's memory into one buffer and returns the number of copied
/// bytes. Stops at the first range that is not mapped, after [`MAX_RANGES`] ranges, or when `into` is full. Fails if
/// not even the first range can be read.
pub fn read(pid: i32, ranges: impl Iterator<Item = (u64, usize)>, into: &mut [u8]) -> io::Result<usize> {
    let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_RANGES];
    let (mut count, mut wanted) = (0, 0);
    for (slot, (address, length)) in remote.iter_mut().zip(ranges) {
        let length = length.min(into.len() - wanted);
        *slot = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length };
        wanted += length;
        count += 1;
    }
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: wanted };
    // SAFETY: `local` is one writable buffer of `wanted` bytes that lives through the call; `remote` are addresses in
    // the other process, which the kernel checks; both counts are right.
    let got = unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), count, 0) };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
}

/// The maximum number of ranges that one call of [`read`] can copy.
pub const MAX_RANGES: usize = 64;
