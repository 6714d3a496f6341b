//! Agents and judgements as tools of the Model Context Protocol: `guard mcp`.
//!
//! ```text
//!   one client ─► stdio ──────────────────────────────┐
//!                                                     ├─► server ─► calls: a thread each ─► executor
//!   clients ───► http ─► door: Host, Origin, token ───┘                 └─► kept: results on disk
//! ```
//!
//! A call of `gemini` is a request to the executor. It tells its progress, ends when its client cancels it, and its result
//! can be asked for again by its id. Over standard input and output everything ends with the client; over HTTP a call goes on
//! until it is done, cancelled by a word, or the server ends.
#![forbid(unsafe_code)]

mod allowed_roots;
mod auth;
mod calls;
mod check;
mod http;
mod parameters;
mod prompt;
mod report;
mod result_store;
mod server;
mod sessions;
mod stdio;
mod token;
mod tool_agent;
mod tools;

pub use allowed_roots::{RootError, Roots};
pub use http::{ListenError, Listening};
pub use token::{Token, TokenError, TokenProblem};

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::agent_exec::Executor;
use calls::Calls;
use result_store::ResultStore;
use server::Shared;

/// How long the end of all calls is waited for: a run that is asked to end has its grace, then it is killed.
const END: Duration = Duration::from_secs(12);

/// What the server is to be.
#[derive(Debug, Clone)]
pub struct McpConfig {
    /// Runs requests.
    pub executor: Executor,
    /// Directories below which agents may work; others are refused.
    pub roots: Roots,
    /// Where results are kept.
    pub calls: PathBuf,
    /// Calls at once.
    pub most_calls: usize,
    /// Tells people something, beside the protocol.
    pub log: fn(&str),
}

/// The way to end a server from outside.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    /// Ends it. Safe to call more than once.
    pub fn set(&self) {
        self.0.send_replace(true);
    }

    async fn wait(&self) {
        // The sender is ours: there is always an answer.
        let _ = self.0.subscribe().wait_for(|is_set| *is_set).await;
    }
}

/// Serves one client over standard input and output, until it goes away, and ends what is still at work.
pub fn serve(setting: McpConfig, stop: &Stop) -> io::Result<()> {
    run(setting, async |shared| stdio::serve(shared, stop).await)
}

/// Serves whoever has the token, until it is to stop, and ends what is still at work.
pub fn serve_http(setting: McpConfig, listening: Listening, token: Token, stop: &Stop) -> io::Result<()> {
    run(setting, async |shared| http::serve(shared, listening, token, stop).await)
}

fn run(setting: McpConfig, serve: impl AsyncFnOnce(Arc<Shared>) -> io::Result<()>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let kept = ResultStore { folder: setting.calls };
    let calls = Arc::new(Calls::new(setting.executor, kept, setting.most_calls, setting.log));
    let shared = Arc::new(Shared::new(calls.clone(), setting.roots, setting.log));
    let served = runtime.block_on(async {
        let served = serve(shared).await;
        calls.close();
        calls.have_ended(END).await;
        served
    });
    runtime.shutdown_background();
    served
}
