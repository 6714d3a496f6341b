//! `guard mcp`: serves agents and policy checks as tools to other programs.

use std::io::{self, Write};
use std::sync::Arc;

use serde_json::json;

use crate::cli::args::Mcp;
use crate::cli::commands::batch::QueuePlace;
use crate::cli::commands::loopback::{Loopback, roots};
use crate::cli::output::exit_code::Exit;
use crate::cli::{Failure, note};
use crate::run::launch;
use crate::servers::http::Stop;
use crate::servers::mcp::{BatchAccess, McpConfig, PATH, serve, serve_http};

pub(in crate::cli) fn run(args: &Mcp, out: &mut dyn Write) -> Result<Exit, Failure> {
    let roots = roots(&args.root)?;
    let executor = crate::cli::commands::executor::executor()?;
    let state = executor.sessions.clone();
    let place = Arc::new(QueuePlace::find(&args.store)?);
    let work = crate::cli::commands::control::work_stores(place)?;
    let batches = BatchAccess {
        open_queue: work.open_queue.clone(),
        types: Arc::new(crate::cli::commands::batch::load_types()?),
        start_worker: work.start_worker.clone(),
    };
    let config = McpConfig {
        executor,
        roots,
        batches,
        work,
        calls: state.with_file_name("calls"),
        most_calls: args.max_calls.into(),
        log: note,
    };
    let stop = Stop::default();
    stop_on_signals(&stop)?;
    let Some(address) = &args.http else {
        let hint = "a Model Context Protocol client must start this command; see `guard mcp --help`";
        return exit_after(serve(config, &stop), hint);
    };
    let own_file = state.with_file_name("mcp-token");
    let Loopback { listening, token, token_file } =
        Loopback::listen("--http", address, args.token_file.as_deref(), own_file)?;
    writeln!(
        out,
        "{}",
        json!({ "url": listening.url(PATH), "token_file": token_file, "pid": std::process::id() })
    )?;
    out.flush()?;
    exit_after(serve_http(config, listening, token, &stop), "start the server again; see `guard mcp --help`")
}

fn exit_after(result: io::Result<()>, hint: &str) -> Result<Exit, Failure> {
    result
        .map(|()| Exit::Success)
        .map_err(|error| Failure::usage(format!("the MCP server of guard failed: {error}"), hint))
}

/// Stops the server at the first signal. The server asks calls in progress to end, and saves their results.
fn stop_on_signals(stop: &Stop) -> io::Result<()> {
    let stop = stop.clone();
    launch::on_signals(move || stop.set())
}
