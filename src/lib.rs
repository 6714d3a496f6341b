//! `guard`: run AI coding agents without trusting them.
//!
//! The rooms, in the order data flows. A room may use the rooms named behind it and no others; `tests/map.rs` holds the
//! code to this list.
//!
//! ```text
//! sys        ─                          thin safe wrappers over system calls. The only `unsafe`.
//! command    ─                          argv, environment, shell text → intents. Reads no policy, does no I/O.
//! policy     ─ command                  TOML → Policy, merged and checked, with source spans. Touches no process.
//! decide     ─ policy command           (policy, intents) → verdict. Pure and total.
//! transcript ─ sys                      events → hash-chained lines on disk; reader, check, replay.
//! sandbox    ─ policy sys               plan → Landlock rules, seccomp programs, mounts; probe of the kernel.
//! workspace  ─ sandbox policy sys        repository → worktree, branch and quarantine; one branch back; before and after. Runs git, never what an agent wrote.
//! egress     ─ outcome decide policy transcript sys   requests of the run to the network → judged → carried outside. Refuses on any error.
//! intercept  ─ egress decide policy command transcript sandbox sys   questions and notifications from inside → answers. Denies on any error.
//! outcome    ─ transcript policy        what a run did → one structured result.
//! launch     ─ egress intercept workspace sandbox outcome transcript decide policy command sys   plan → running process tree → result. The only room that spawns what a user asks for.
//! agent      ─ outcome transcript policy   a CLI's flags, stream and exits, as data → how it is asked, what it answered. No I/O.
//! audit      ─ decide policy command    corpora × policies → tables, reports, snapshots.
//! executor   ─ agent outcome transcript sys   request → attempts of guard itself → events and one result. Starts nothing else.
//! forge      ─ egress workspace policy sys   a finished branch → pushed, and a pull request, with the user's credentials; is the base protected. Never inside a run.
//! store      ─                          tasks and the journal of what was done for them, on disk before anything else happens.
//! phase      ─ executor agent outcome transcript forge workspace store policy sys   a workflow (data) → steps, each a request to the executor and a commit → a branch. Spawns nothing itself.
//! mcp        ─ executor agent outcome transcript decide policy command   agents and judgements as tools for other programs, over pipes and loopback. Spawns nothing but by the executor.
//! cli        ─ mcp phase store executor agent launch egress workspace outcome transcript sandbox audit decide policy command   arguments → requests, results → text. The only room that prints.
//! ```
//!
//! Every room may use `terminal_text`, which makes text of strangers fit to be shown, and `string_enum`, which defines enums
//! that are strings in files and output.

pub mod agent;
pub mod agent_exec;
pub mod cli;
pub mod command;
pub mod decide;
pub mod egress;
pub mod forge;
pub mod launch;
pub mod mcp;
pub mod outcome;
pub mod pipeline;
pub mod policy;
pub mod policy_audit;
pub mod sandbox;
mod string_enum;
pub mod supervisor;
pub mod sys;
mod terminal_text;
pub mod transcript;
pub mod workspace;
