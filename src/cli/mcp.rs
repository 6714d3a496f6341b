//! `guard mcp`: serves agents and policy checks as tools to other programs.

use std::io::{self, Write};
use std::sync::Arc;

use serde_json::json;

use super::args::Mcp;
use super::batch::QueuePlace;
use super::exit_code::Exit;
use super::{Failure, note};
use crate::client_access::{Listening, Roots, Stop, Token};
use crate::launch;
use crate::mcp::{BatchAccess, McpConfig, PATH, serve, serve_http};

pub(super) fn run(args: &Mcp, out: &mut dyn Write) -> Result<Exit, Failure> {
    let roots = if args.root.is_empty() { vec![std::env::current_dir()?] } else { args.root.clone() };
    let roots = Roots::new(&roots)
        .map_err(|problem| Failure::usage(format!("--root: {problem}"), "name a directory that exists"))?;
    let executor = super::exec::executor()?;
    let state = executor.sessions.clone();
    let place = Arc::new(QueuePlace::find(&args.store)?);
    let of_worker = place.clone();
    let batches = BatchAccess {
        open_queue: Arc::new(move || place.open()),
        types: Arc::new(super::batch::load_types()?),
        start_worker: Arc::new(move || of_worker.start_worker()),
    };
    let config = McpConfig {
        executor,
        roots,
        batches,
        calls: state.with_file_name("calls"),
        most_calls: args.max_calls.into(),
        log: note,
    };
    let stop = Stop::default();
    stop_on_signals(&stop)?;
    let Some(address) = &args.http else {
        return exit_after(serve(config, &stop));
    };
    let (path, token) = match &args.token_file {
        Some(path) => (path.clone(), Token::read(path)),
        None => {
            let path = state.with_file_name("mcp-token");
            let token = Token::read_or_create(&path);
            (path, token)
        }
    };
    let token = token.map_err(|problem| {
        Failure::usage(
            problem.to_string(),
            "create a token with (umask 077; head -c 32 /dev/urandom | base64 > FILE), and give --token-file FILE",
        )
    })?;
    let listening = Listening::on(address).map_err(|problem| {
        Failure::usage(
            format!("--http: {problem}"),
            "use 127.0.0.1:PORT or [::1]:PORT; connect from other machines through ssh -L",
        )
    })?;
    writeln!(
        out,
        "{}",
        json!({ "url": listening.url(PATH), "token_file": path, "pid": std::process::id() })
    )?;
    out.flush()?;
    exit_after(serve_http(config, listening, token, &stop))
}

fn exit_after(result: io::Result<()>) -> Result<Exit, Failure> {
    result.map(|()| Exit::Success).map_err(|error| {
        Failure::usage(
            format!("cannot serve the client: {error}"),
            "a Model Context Protocol client must start this command; see `guard mcp --help`",
        )
    })
}

/// Stops the server at the first signal. The server asks calls in progress to end, and saves their results.
fn stop_on_signals(stop: &Stop) -> io::Result<()> {
    let stop = stop.clone();
    launch::on_signals(move || stop.set())
}
