//! What a caller asks of one run: its command, where it works, what it may access, and its limits. Plain data, without
//! the defaults of the user and the project.
//!
//! `guard run` gets it from its arguments. A guard process that starts another one for a run, such as that of
//! `guard exec`, passes it as JSON in a sealed memory file, which the other process inherits.

mod request_descriptor;
mod run_settings;

pub use request_descriptor::{RequestError, receive, send};
pub use run_settings::{HomeSettings, RunSettings, WorktreeSettings};
