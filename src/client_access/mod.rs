//! Which clients a server of guard serves, and which directories they may name.
//!
//! `guard mcp --http` and `guard serve` listen for programs of the same user on the same machine. Everything else that can
//! reach the socket, web pages included, is refused before a byte of a request's body is read.
#![forbid(unsafe_code)]

mod listening;
mod request_check;
mod roots;
mod stop;
mod token;

pub use listening::{ListenError, Listening};
pub(crate) use request_check::{Refusal, RequestCheck, from_web_page};
pub use roots::{RootError, Roots};
pub use stop::Stop;
pub use token::{Token, TokenError, TokenProblem};
