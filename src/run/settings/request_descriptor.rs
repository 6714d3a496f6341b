//! Passes the settings of a run to another guard process.
//!
//! ```text
//!   guard exec: send ─► sealed memory file ─► inherited by `guard run --request-fd N`: receive
//! ```
//!
//! The receiver accepts only a memory file that nobody can change or extend any more, and that a process of its own
//! user created. Reading it cannot block. Whoever can pass such a file can also type the same options, so the
//! descriptor gives no right that the command line does not give.

use std::io;
use std::os::fd::OwnedFd;

use super::RunSettings;
use crate::sys::sealed_memory;

/// The maximum size of a request in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Why guard cannot use the descriptor with a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The descriptor is not open, is no sealed memory file of this user, is too large, or cannot be read.
    #[error("cannot read a request from descriptor {descriptor}: {problem}")]
    Descriptor {
        /// The number of the descriptor.
        descriptor: i32,
        /// Why guard cannot read it.
        problem: io::Error,
    },
    /// The content is not a request that this version of guard understands.
    #[error("the request is not valid: {0}")]
    Content(#[from] serde_json::Error),
}

/// Returns a descriptor with the settings, from which another guard process can [`receive`] them.
pub fn send(settings: &RunSettings) -> io::Result<OwnedFd> {
    let text = serde_json::to_vec(settings)?;
    if text.len() as u64 > MAX_BYTES {
        let message = format!("the request is larger than {} MiB", MAX_BYTES >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    sealed_memory::create(c"guard-request", &text)
}

/// Reads the settings from an inherited descriptor, and closes it.
pub fn receive(descriptor: i32) -> Result<RunSettings, RequestError> {
    let text = sealed_memory::take_inherited(descriptor, MAX_BYTES)
        .map_err(|problem| RequestError::Descriptor { descriptor, problem })?;
    Ok(serde_json::from_slice(&text)?)
}
