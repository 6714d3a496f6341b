//! Memory files that nobody can change after their creation, with which one process passes bytes to another.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::check_int;

/// The seals that make the content final.
fn seals() -> SealFlag {
    SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL
}

/// Creates a sealed memory file with this content. The descriptor is marked close-on-exec.
pub fn create(name: &CStr, content: &[u8]) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(name, flags)?);
    file.write_all(content)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals()))?;
    Ok(file.into())
}

/// Reads the sealed memory file of at most `most` bytes that this process has inherited as `descriptor`, and closes the
/// descriptor. Fails without closing it if it is anything else, or belongs to another user. Does not block.
pub fn take_inherited(descriptor: i32, most: u64) -> io::Result<Vec<u8>> {
    let invalid = |problem| io::Error::new(io::ErrorKind::InvalidInput, problem);
    // Only memory files have seals. guard itself keeps none open, so no other value owns a descriptor that has them.
    // SAFETY: all arguments are plain integers.
    let found = check_int(unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) });
    let found = found.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => invalid("it is not a memory file"),
        _ => error,
    })?;
    if !SealFlag::from_bits_retain(found).contains(seals()) {
        return Err(invalid("it is not a sealed memory file"));
    }
    // SAFETY: the descriptor is open, and nothing else owns it (see above).
    let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    let data = file.metadata()?;
    if data.uid() != nix::unistd::geteuid().as_raw() {
        return Err(invalid("it belongs to another user"));
    }
    if data.len() > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {most} bytes")));
    }
    let mut content = vec![0; data.len() as usize];
    // The other process may share the position in the file, and has left it at the end.
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}
