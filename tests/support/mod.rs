//! The test kit: users, directories and repositories in which tests run guard, and the results of these runs.
//!
//! Every guard and git that the kit starts has a fixed PATH, HOME and locale, and inherits nothing else from the
//! environment of the user who runs the tests ([`isolated_command`]). A test that cannot run on this machine calls
//! [`skip`].

mod environment;
mod guard_binary;
pub(crate) mod http_client;
pub(crate) mod http_server;
mod isolation;
mod mounted_disk;
mod outcome;
mod policies;
mod postgres;
mod processes;
mod random;
mod repository;
mod sandbox;
mod scratch;
pub(crate) mod scripted_api;
mod skip;
mod task;
mod terminal;
mod user;
mod user_shell;
mod wait;

pub(crate) use environment::*;
pub(crate) use guard_binary::*;
pub(crate) use isolation::*;
pub(crate) use mounted_disk::*;
pub(crate) use outcome::*;
pub(crate) use policies::*;
pub(crate) use postgres::*;
pub(crate) use processes::*;
pub(crate) use random::*;
pub(crate) use repository::*;
pub(crate) use sandbox::*;
pub(crate) use scratch::*;
pub(crate) use skip::*;
pub(crate) use task::*;
pub(crate) use terminal::Terminal;
pub(crate) use user::*;
pub(crate) use user_shell::UserShell;
pub(crate) use wait::*;
