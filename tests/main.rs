//! One integration binary; its folders and files are named like the rooms they test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "skips and counts are told to whoever runs the tests"
)]

mod audit;
mod cli;
mod command;
mod decide;
mod docs;
mod egress;
mod executor;
mod forge;
mod intercept;
mod launch;
mod map;
mod mcp;
mod phase;
mod policy;
mod sandbox;
mod support;
mod transcript;
mod workspace;
