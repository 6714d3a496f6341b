//! A unix socket that only its owner can use.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A unix socket that a server listens on. Dropping this value removes the socket's file.
#[derive(Debug)]
pub struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another server listens on this path.
    #[error("another server is already listening on {}", .0.display())]
    InUse(PathBuf),
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The operating system refused to create the socket or to listen on it.
    #[error("cannot listen on {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl Socket {
    /// Listens on a socket with mode 600. Replaces a socket on which no process listens any more. Fails if a process
    /// listens on the path, or if the path is not a socket.
    pub fn on(path: &Path) -> Result<Self, SocketError> {
        let cannot = |source: io::Error| SocketError::Io { path: path.to_path_buf(), source };
        match path.symlink_metadata() {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(SocketError::NotASocket(path.to_path_buf()));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => return Err(SocketError::InUse(path.to_path_buf())),
            Ok(_) => fs::remove_file(path).map_err(cannot)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(cannot)?;
        // Other users may connect before this line. The server refuses them by their user id when it accepts
        // connections.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        Ok(Self { listener, path: path.to_path_buf() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_replaces_only_one_that_nobody_listens_on() -> io::Result<()> {
        let directory = std::env::temp_dir().join(format!("guard-socket-{}", uuid::Uuid::now_v7()));
        fs::create_dir_all(&directory)?;
        let path = directory.join("s");
        let first = Socket::on(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(path.metadata()?.permissions().mode() & 0o777, 0o600);
        assert!(matches!(Socket::on(&path), Err(SocketError::InUse(_))));
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path)?);
        assert!(path.exists() && Socket::on(&path).is_ok());
        fs::write(&path, "")?;
        assert!(matches!(Socket::on(&path), Err(SocketError::NotASocket(_))));
        assert!(matches!(Socket::on(&directory.join("none/s")), Err(SocketError::Io { .. })));
        fs::remove_dir_all(&directory)
    }
}
