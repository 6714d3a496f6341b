//! Entry points for fuzz targets: reading exec arguments from the memory of a process.

use std::io;

use super::exec::process_memory::{Arguments, ProcessMemory};
use super::shim::protocol;

/// The argv and the environment variables that can affect a verdict: (argv, [(name, value)]).
pub type Read = (Vec<Vec<u8>>, Vec<(Vec<u8>, Vec<u8>)>);

fn parts(arguments: Arguments) -> Read {
    (arguments.argv, arguments.environment)
}

/// Reads argv and environment of an `execve` from the addresses of the two arrays. Fails if argv has more than `most`
/// bytes.
pub fn arguments(pid: i32, argv: u64, environment: u64, most: usize) -> io::Result<Read> {
    let mut remote = ProcessMemory::default();
    remote.attach(pid);
    remote.fetch([argv, environment].into_iter().filter(|&address| address != 0))?;
    remote.arguments(argv, environment, most, protocol::is_relevant).map(parts)
}

/// Reads argv and environment from the initial stack that the kernel builds for a new program.
pub fn started_with(pid: i32, stack: u64) -> io::Result<Read> {
    let mut remote = ProcessMemory::default();
    remote.attach(pid);
    remote.started_with(stack, protocol::is_relevant).map(parts)
}
