//! Reading another process's memory, and giving back what of this one's can be had again.

use std::io;

/// Copies from one process's memory at several places into one buffer, as far as it can be read: the number of bytes.
/// Reading stops at the first place that is not mapped. At most `MOST_PLACES` places.
pub fn read(pid: i32, places: impl Iterator<Item = (u64, usize)>, into: &mut [u8]) -> io::Result<usize> {
    let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_PLACES];
    let (mut count, mut wanted) = (0, 0);
    for (slot, (address, length)) in remote.iter_mut().zip(places) {
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

/// How many places one call reads.
pub const MOST_PLACES: usize = 64;

/// Gives back the memory that holds this program's code: what runs again is read again, from what the machine keeps of the
/// file anyway. For a process that has begun and will hardly do anything for long.
pub fn let_go_of_code() {
    // SAFETY: the callback has the type the loader wants, and no data is handed through.
    unsafe { libc::dl_iterate_phdr(Some(let_go_of_program), std::ptr::null_mut()) };
}

/// The first object is the program itself; its parts are given back unless they can ever be written, as those can that the
/// loader wrote addresses into.
unsafe extern "C" fn let_go_of_program(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut libc::c_void,
) -> libc::c_int {
    // As large as pages come.
    const PAGE: u64 = 64 << 10;
    // SAFETY: the loader hands over a description that lives through the call, with so many parts.
    let (base, parts) = unsafe {
        let object = &*object;
        (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)))
    };
    for part in parts.iter().filter(|part| part.p_type == libc::PT_LOAD && part.p_flags & libc::PF_W == 0) {
        let first = (base + part.p_vaddr).next_multiple_of(PAGE);
        let end = (base + part.p_vaddr + part.p_memsz) / PAGE * PAGE;
        if first < end {
            // SAFETY: whole pages of a part of a file that is mapped and cannot be written: they come back as they are.
            unsafe { libc::madvise(first as *mut libc::c_void, (end - first) as usize, libc::MADV_DONTNEED) };
        }
    }
    // No other objects.
    1
}
