//! `guard`: run AI coding agents without trusting them.
//!
//! The rooms, in the order data flows. A room may use the rooms named behind it and no others; `tests/map.rs` holds the
//! code to this list.
//!
//! ```text
//! command   ─                          argv, environment, shell text → intents. Reads no policy, does no I/O.
//! policy    ─ command                  TOML → Policy, merged and checked, with source spans. Touches no process.
//! decide    ─ policy command           (policy, intents) → verdict. Pure and total.
//! intercept ─ decide policy command    questions from inside the sandbox → answers. Denies on any error.
//! audit     ─ decide policy command    corpora × policies → tables, reports, snapshots.
//! cli       ─ audit decide policy command   arguments → requests, results → text. The only room that prints.
//! ```

pub mod audit;
pub mod cli;
pub mod command;
pub mod decide;
pub mod intercept;
pub mod policy;
