//! `guard`: run AI coding agents without trusting them.
//!
//! The modules are listed in the order data flows. A module may use only the modules named after it on its line;
//! `tests/map.rs` checks the code against this list.
//!
//! ```text
//! sys          ─                        thin safe wrappers over system calls. The only `unsafe`.
//! command      ─                        argv, environment, shell text → intents. Reads no policy, does no I/O.
//! policy       ─ command sys            TOML → Policy, merged and checked, with source spans. Touches no process.
//! decide       ─ policy command         (policy, intents) → verdict. Pure and total.
//! transcript   ─ sys                    events → hash-chained lines on disk; reader, verification, replay.
//! sandbox      ─ policy sys             plan → Landlock rules, seccomp filters, mounts; probe of the kernel.
//! workspace    ─ sandbox policy sys     repository → worktree, branch and quarantine; receives one branch; snapshots of directories, and their undo. Runs git, never what an agent wrote.
//! egress       ─ outcome decide policy transcript sys   the run's network requests → judged → made outside. Refuses on any error.
//! supervisor   ─ egress decide policy command transcript sandbox sys   kernel notifications and shim requests → answers. Denies on any error.
//! outcome      ─ transcript policy      what a run did → one structured result.
//! launch       ─ egress supervisor workspace sandbox outcome transcript decide policy command sys   plan → process tree → result. The only module that starts what a user asks for.
//! history      ─                        messages of a conversation → prompts of a limited size, and what to summarise. No I/O, no clock.
//! agent        ─ policy outcome transcript   a CLI's flags, output and exit codes, as data → how it is started, what it answered. No I/O.
//! policy_audit ─ decide policy command  lists of commands × policies → tables, reports, snapshots.
//! agent_exec   ─ agent outcome transcript sys   request → attempts, each a guard process → events and one result. Starts nothing else.
//! conversation ─ control history agent_exec agent workspace outcome transcript sys   turns with an agent, in one worktree: the history is on disk before the agent starts. Starts nothing but requests to `agent_exec`.
//! research     ─ control agent_exec agent outcome transcript   a query → sub-queries, each a read-only request to `agent_exec` → an answer whose sources were retrieved. The journal is on disk before any result is reported.
//! forge        ─ egress workspace policy sys   a finished branch → pushed, and a pull request, with the user's credentials. Never inside a run.
//! control      ─                        commands to work in progress, and their acknowledgements, in append-only files.
//! pipeline     ─ research control agent_exec agent forge workspace outcome transcript policy sys   a workflow (data) → steps, each a request to `agent_exec` and a commit → a branch. The journal is on disk before anything else happens.
//! client_access ─ sys                   which clients a server on this machine serves, and which directories they may name.
//! batch        ─ research control client_access agent_exec agent outcome transcript policy sys   tasks as JSON → a durable queue → workers → results to poll for.
//! work_commands ─ batch pipeline research conversation control client_access   an id → the batch, task, research or conversation → a command sent to it.
//! serve        ─ work_commands conversation control batch client_access agent_exec agent   batches and conversations over HTTP, on loopback or a unix socket. Executes no task itself.
//! mcp          ─ work_commands conversation control batch client_access agent_exec agent outcome transcript decide policy command sys   agents and judgements as tools for other programs, over pipes and loopback.
//! cli          ─ work_commands research conversation control serve mcp client_access batch pipeline agent_exec agent launch egress workspace outcome transcript sandbox policy_audit decide policy command sys   arguments → requests, results → text. The only module that prints.
//! ```
//!
//! Every module may also use `terminal_text`, which makes untrusted text safe to print; `template`, which fills prompts
//! with values; `hex`, which encodes bytes; and `string_enum`, a macro for enums whose variants have fixed strings.

pub mod agent;
pub mod agent_exec;
pub mod batch;
pub mod cli;
pub mod client_access;
pub mod command;
pub mod control;
pub mod conversation;
pub mod decide;
pub mod egress;
pub mod forge;
mod hex;
pub mod history;
pub mod launch;
pub mod mcp;
pub mod outcome;
pub mod pipeline;
pub mod policy;
pub mod policy_audit;
pub mod research;
pub mod sandbox;
pub mod serve;
mod string_enum;
pub mod supervisor;
pub mod sys;
mod template;
mod terminal_text;
pub mod transcript;
pub mod work_commands;
pub mod workspace;
