//! The shims on the run's PATH: their protocol, and the server that answers them.
pub mod protocol;
pub(crate) mod server;
