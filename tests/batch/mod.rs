//! Tests batches: what a client submits, what it receives when it polls, and the queue in both stores.

mod command_line;
mod faults;
mod fleet;
mod killed;
mod postgres_server;
mod queue_changes;
mod queue_conformance;
mod research_task;
mod with_gemini;
