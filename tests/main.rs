//! The only integration test binary. Its directories and files have the names of the modules that they test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "skips and counts are told to whoever runs the tests"
)]

mod agent_exec;
mod batch;
mod cli;
mod command;
mod conversation;
mod decide;
mod docs;
mod egress;
mod forge;
mod launch;
mod map;
mod mcp;
mod pipeline;
mod policy;
mod policy_audit;
mod research;
mod sandbox;
mod serve;
mod supervisor;
mod support;
mod transcript;
mod workspace;
