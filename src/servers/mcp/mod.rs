//! The MCP server (`guard mcp`): offers agents and policy decisions as tools of the Model Context Protocol.
//!
//! ```text
//!   one client ─► stdio ──────────────────────────────┐
//!                                                     ├─► server ─► calls: a thread each ─► executor
//!   clients ───► http ─► Host, Origin, token ─────────┘                 └─► store: results on disk
//! ```
//!
//! A call of the tool `gemini` becomes a request to the executor. The server reports the progress of the call, and
//! cancels it if the client asks for that. The client can later request the stored result by the call's id. Over
//! standard input and output, all calls end when the client disconnects. Over HTTP, a call continues until it is done,
//! the client cancels it explicitly, or the server stops. The batch tools read and write the queue, and start a worker
//! if none is running. The worker executes the tasks in another process, even if the client and the server end.
#![forbid(unsafe_code)]

mod batches;
mod calls;
mod check;
mod control;
mod http;
mod parameters;
mod prompt;
mod report;
mod result_store;
mod server;
mod sessions;
mod stdio;
mod tool_agent;
mod tools;

pub use batches::BatchAccess;
pub use http::PATH;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::agents::exec::Executor;
use crate::servers::http::{Listening, Stop, Token};
use crate::work::commands::WorkStores;
use crate::work::roots::Roots;
use calls::Calls;
use result_store::ResultStore;
use server::Shared;

/// How long the stopping server waits for all calls to end: a cancelled run has a grace period before it is killed.
const END: Duration = Duration::from_secs(12);

#[derive(Debug, Clone)]
pub struct McpConfig {
    pub executor: Executor,
    /// The directories below which agents may work.
    pub roots: Roots,
    pub batches: BatchAccess,
    /// The stores of the batches, tasks, research runs and conversations to which clients can send commands.
    pub work: WorkStores,
    /// The directory where the results of calls are stored.
    pub calls: PathBuf,
    pub most_calls: usize,
    /// A function that prints a message for the user, outside of the MCP protocol.
    pub log: fn(&str),
}

/// Serves one client over standard input and output until the client disconnects, then cancels the remaining calls.
pub fn serve(setting: McpConfig, stop: &Stop) -> io::Result<()> {
    run(setting, async |shared| stdio::serve(shared, stop).await)
}

/// Serves, over HTTP, all clients that have the token. When `stop` is set, cancels the remaining calls and returns.
pub fn serve_http(setting: McpConfig, listening: Listening, token: Token, stop: &Stop) -> io::Result<()> {
    run(setting, async |shared| http::serve(shared, listening, token, stop).await)
}

fn run(setting: McpConfig, serve: impl AsyncFnOnce(Arc<Shared>) -> io::Result<()>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let results = ResultStore { directory: setting.calls };
    let (batches, work) = (setting.batches, setting.work);
    let conversations = work.conversations.clone();
    let calls = Calls::new(setting.executor, conversations, results, setting.most_calls, setting.log);
    let calls = Arc::new(calls);
    let shared = Arc::new(Shared::new(calls.clone(), batches, work, setting.roots, setting.log));
    let served = runtime.block_on(async {
        let served = serve(shared).await;
        calls.close();
        calls.wait_for_all(END).await;
        served
    });
    runtime.shutdown_background();
    served
}
