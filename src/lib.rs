//! `guard`: run AI coding agents without trusting them.
//!
//! The modules are listed in the order data flows. A module may use only the modules named after it on its line;
//! `tests/map.rs` checks the code against this list.
//!
//! ```text
//! sys                  ─    thin safe wrappers over system calls. The only `unsafe`.
//! judge::command       ─    argv, environment, shell text → intents. Reads no policy, does no I/O.
//! judge::policy        ─ judge::command sys   TOML → Policy, merged and checked, with source spans. Touches no process.
//! judge::decide        ─ judge::policy judge::command   (policy, intents) → verdict. Pure and total.
//! run::transcript      ─ sys   events → hash-chained lines on disk; reader, verification, replay.
//! sandbox              ─ judge::policy sys   plan → Landlock rules, seccomp filters, mounts; probe of the kernel.
//! git                  ─ sandbox judge::policy sys   repository → worktree, branch and quarantine; receives one branch; snapshots of directories, and their undo. Runs git, never what an agent wrote.
//! run::egress          ─ run::outcome judge::decide judge::policy run::transcript sys   the run's network requests → judged → made outside. Refuses on any error.
//! run::supervisor      ─ run::egress judge::decide judge::policy judge::command run::transcript sandbox sys   kernel notifications and shim requests → answers. Denies on any error.
//! run::outcome         ─ run::transcript judge::policy   what a run did → one structured result.
//! run::settings        ─ git judge::policy sys   what a caller asks of one run, as data; its way to a guard process that runs it.
//! run::launch          ─ run::egress run::supervisor git sandbox run::outcome run::transcript judge::decide judge::policy judge::command sys   plan → process tree → result. The only module that starts what a user asks for.
//! agents::history      ─    messages of a conversation → prompts of a limited size, and what to summarise. No I/O, no clock.
//! agents::adapter      ─ judge::policy run::outcome run::transcript   a CLI's flags, output and exit codes, as data → how it is started, what it answered. No I/O.
//! judge::audit         ─ judge::decide judge::policy judge::command   lists of commands × policies → tables, reports, snapshots.
//! agents::exec         ─ agents::adapter run::settings run::outcome run::transcript judge::policy sys   request → attempts, each a guard process → events and one result. Starts nothing else.
//! agents::conversation ─ agents::control agents::history agents::exec agents::adapter git run::outcome run::transcript sys   turns with an agent, in one worktree: the history is on disk before the agent starts. Starts nothing but requests to `agents::exec`.
//! work::research       ─ agents::control agents::exec agents::adapter run::outcome run::transcript sys   a query → sub-queries, each a read-only request to `agents::exec` → an answer whose sources were retrieved. The journal is on disk before any result is reported.
//! work::forge          ─ run::egress git judge::policy sys   a finished branch → pushed, and a pull request, with the user's credentials. Never inside a run.
//! agents::control      ─ sys   commands to work in progress, and their acknowledgements, in append-only files.
//! work::pipeline       ─ work::research agents::control agents::exec agents::adapter work::forge git run::outcome run::transcript judge::policy sys   a workflow (data) → steps, each a request to `agents::exec` and a commit → a branch. The journal is on disk before anything else happens.
//! servers::http        ─ sys   connections on loopback or a unix socket → requests of authenticated clients, within limits.
//! work::roots          ─    the directories that clients of a server may name.
//! work::batch          ─ work::research agents::control work::roots agents::exec agents::adapter run::outcome run::transcript judge::policy sys   tasks as JSON → a durable queue → workers → results to poll for.
//! work::commands       ─ work::batch work::pipeline work::research agents::conversation agents::control work::roots   an id → the batch, task, research or conversation → a command sent to it.
//! servers::serve       ─ work::commands agents::conversation agents::control work::batch work::roots servers::http agents::exec agents::adapter   batches and conversations over HTTP, on loopback or a unix socket. Executes no task itself.
//! servers::mcp         ─ work::commands agents::conversation agents::control work::batch work::roots servers::http agents::exec agents::adapter run::outcome run::transcript judge::decide judge::policy judge::command sys   agents and judgements as tools for other programs, over pipes and loopback.
//! session              ─ agents::exec agents::adapter run::launch run::settings git run::outcome run::transcript judge::decide judge::policy judge::command sys   settings and the defaults of user and project → a run: its policy, agent, keys, workspace. Names of earlier runs → their records. Does not print.
//! cli                  ─ session run::settings work::commands work::research agents::conversation agents::control servers::serve servers::mcp work::roots servers::http work::batch work::pipeline agents::exec agents::adapter run::launch run::egress git run::outcome run::transcript sandbox judge::audit judge::decide judge::policy judge::command sys   arguments → requests, results → text. The only module that prints.
//! ```
//!
//! Every module may also use `text`: safe output of untrusted text, templates of prompts, checks by JSON Schemas, hexadecimal
//! numbers, and a macro for enums whose variants have fixed strings.

pub mod agents;
pub mod cli;
pub mod git;
pub mod judge;
pub mod run;
pub mod sandbox;
pub mod servers;
mod session;
pub mod sys;
mod text;
pub mod work;
