//! HTTP servers for programs of the same user on the same machine: `guard mcp --http` and `guard serve`.
//!
//! They listen on loopback or a unix socket. They refuse every other client that can reach the socket, web pages
//! included, before they read a byte of a request's body, and bound time and memory for every client.
#![forbid(unsafe_code)]

mod connection;
mod listening;
mod request_check;
mod socket;
mod stop;
mod token;

pub use connection::Listener;
pub(crate) use connection::{Service, serve};
pub use listening::{ListenError, Listening};
pub(crate) use request_check::{Refusal, RequestCheck};
pub use socket::{Socket, SocketError};
pub use stop::Stop;
pub use token::{Token, TokenError, TokenProblem};
