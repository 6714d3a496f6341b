//! Which clients a server of guard serves, and which directories they may name.
//!
//! `guard mcp --http` and `guard serve` listen for programs of the same user on the same machine. They refuse every
//! other client that can reach the socket, web pages included, before they read a byte of a request's body.
#![forbid(unsafe_code)]

mod listening;
mod request_check;
mod stop;
mod token;

pub use listening::{ListenError, Listening};
pub(crate) use request_check::{Refusal, RequestCheck, from_web_page};
pub use stop::Stop;
pub use token::{Token, TokenError, TokenProblem};
