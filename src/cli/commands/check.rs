//! `guard check`: judges one command, or a stream of commands on standard input, by a policy. Runs none of them.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cli::args::Check;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::output_schemas::VerdictJson;
use crate::cli::{Failure, stdout_colour};
use crate::judge::command::{Context, Cwd, Request};
use crate::judge::decide::{Decision, Verdict, judge_and_explain};
use crate::judge::policy::{Action, Policy};

/// The maximum length of a line of `--stdin`, in bytes. guard stops with an error at a longer line, without reading the
/// rest of it.
const LONGEST_LINE: usize = 8 << 20;

pub(in crate::cli) fn run(args: Check, out: &mut dyn Write) -> Result<Exit, Failure> {
    let policy = crate::session::policy_here(args.policy.as_deref())?;
    if let Some(target) = &args.connect {
        return crate::cli::commands::check_connect::run("--connect", target, &policy, args.json, out);
    }
    let context = context(&args, &policy)?;
    if args.stdin {
        return stream(&policy, &context, out);
    }
    let request = match args.shell {
        Some(text) => Request::Shell(text.into_vec()),
        None => Request::Argv(args.command.into_iter().map(OsString::into_vec).collect()),
    };
    let (verdict, analysis) = judge_and_explain(&policy, &request, &context);
    if args.json {
        let json = VerdictJson::new(&verdict, &policy.name).with_intents(&analysis);
        crate::cli::output::json::to_writer_pretty(&mut *out, &json).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        explain(&verdict, &policy, out)?;
    }
    Ok(verdict.action().into())
}

fn context(args: &Check, policy: &Policy) -> Result<Context, Failure> {
    let current = || {
        std::env::current_dir().map_err(|error| {
            Failure::usage(
                format!("cannot determine the current directory: {error}"),
                "give the directory with --cwd DIR",
            )
        })
    };
    let directory = match &args.cwd {
        Some(path) if path.is_absolute() => path.clone(),
        Some(path) => current()?.join(path),
        None => current()?,
    };
    let absolute = |path: &PathBuf| -> Vec<u8> { directory.join(path).into_os_string().into_vec() };
    Ok(Context {
        worktree: args.worktree.as_ref().map(absolute),
        home: std::env::var_os("HOME").filter(|home| Path::new(home).is_absolute()).map(OsString::into_vec),
        environment: pairs(&args.env, "--env")?,
        git_config: pairs(&args.git_config, "--git-config")?,
        resolved: args.resolved.as_ref().map(absolute),
        limits: policy.command_limits(),
        cwd: Cwd::Known(clean(&directory)),
        judged_again: false,
        git_dir: None,
        writable: Some(writable(args, &directory, policy)),
        other_repositories: args.other_repository.iter().map(absolute).collect(),
    })
}

/// Returns the paths that a run in `directory` could write: those writable paths of the policy that are absolute or
/// are `{worktree}` or `{home}`. Replaces `{worktree}` by the directory of `--worktree`, or else by the top of the
/// working tree that contains `directory`, or else by `directory` itself. Replaces `{home}` by the user's home
/// directory.
fn writable(args: &Check, directory: &Path, policy: &Policy) -> Vec<Vec<u8>> {
    let tree = match &args.worktree {
        Some(tree) => directory.join(tree),
        None => {
            directory.ancestors().find(|level| level.join(".git").exists()).unwrap_or(directory).to_path_buf()
        }
    };
    let root = |written: &String| match written.as_str() {
        "{worktree}" => Some(tree.clone()),
        "{home}" => std::env::var_os("HOME").map(PathBuf::from),
        path if path.starts_with('/') => Some(PathBuf::from(path)),
        _ => None,
    };
    policy.filesystem.write.iter().filter_map(root).map(|path| clean(&path)).collect()
}

/// Converts an absolute path to one without `.` and `..` components, without resolving links.
fn clean(path: &Path) -> Vec<u8> {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                clean.pop();
            }
            std::path::Component::Normal(name) => clean.push(name),
            _ => {}
        }
    }
    clean.into_os_string().into_vec()
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn pairs(words: &[OsString], option: &str) -> Result<Pairs, Failure> {
    let split = |word: &OsString| {
        let bytes = word.as_bytes();
        let equals = bytes.iter().position(|&byte| byte == b'=').filter(|&at| at > 0)?;
        Some((bytes[..equals].to_vec(), bytes[equals + 1..].to_vec()))
    };
    words
        .iter()
        .map(|word| {
            split(word).ok_or_else(|| {
                Failure::usage(
                    format!("{option} {}: expected NAME=VALUE", word.to_string_lossy()),
                    "write the option's value as NAME=VALUE",
                )
            })
        })
        .collect()
}

/// Prints a verdict as text for users.
fn explain(verdict: &Verdict, policy: &Policy, out: &mut dyn Write) -> io::Result<()> {
    let (word, colour) = match verdict.action() {
        Action::Allow => ("allowed", "32"),
        Action::Ask => ("asks the user", "33"),
        Action::Deny => ("denied", "31"),
    };
    let word = if stdout_colour() { format!("\x1b[1;{colour}m{word}\x1b[0m") } else { word.to_string() };
    let part = verdict.part.as_deref().unwrap_or("the command");
    let cause = &verdict.cause;
    writeln!(out, "{word}: {part}")?;
    match &cause.source {
        Some(source) => writeln!(out, "  rule:    {} ({source})", cause.rule)?,
        None => writeln!(out, "  rule:    {} (policy {})", cause.rule, policy.name)?,
    }
    writeln!(out, "  reason:  {}", cause.reason)?;
    if !cause.instead.is_empty() && verdict.action() != Action::Allow {
        writeln!(out, "  instead: {}", cause.instead)?;
    }
    if let Some(options) = &verdict.allow_with {
        writeln!(out, "  allow:   guard run {options}")?;
    }
    if let Decision::Allow(conditions) = &verdict.decision {
        for (part, why) in &conditions.deferred {
            writeln!(out, "  guard judges this part again when it runs: {part} ({})", why.explain())?;
        }
    }
    Ok(())
}

/// A command to judge, given as a JSON line of `--stdin`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    id: Option<serde_json::Value>,
    argv: Option<Vec<String>>,
    shell: Option<String>,
    cwd: Option<String>,
    env: Option<std::collections::BTreeMap<String, String>>,
    git_config: Option<std::collections::BTreeMap<String, String>>,
    resolved: Option<String>,
}

/// Reads one command per line from standard input, and prints each verdict as a line of JSON. Flushes the output
/// whenever it has read all input so far, so that a caller can send a line and wait for the answer. Returns the exit
/// code for the strictest verdict.
fn stream(policy: &Policy, context: &Context, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stdin = io::stdin();
    let mut input = io::BufReader::with_capacity(64 * 1024, stdin.lock());
    let mut worst = Action::Allow;
    let mut line = Vec::new();
    let mut number = 0usize;
    loop {
        line.clear();
        let read = (&mut input).take(LONGEST_LINE as u64 + 1).read_until(b'\n', &mut line);
        if read.map_err(|error| {
            Failure::usage(
                format!("cannot read standard input: {error}"),
                "check the program that writes to it",
            )
        })? == 0
        {
            break;
        }
        number += 1;
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() > LONGEST_LINE {
            return Err(Failure::usage(
                format!("line {number} of standard input is longer than {LONGEST_LINE} bytes"),
                "put each command on its own line",
            ));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        worst = worst.max(answer(policy, context, &line, number, out)?);
        if input.buffer().is_empty() {
            out.flush()?;
        }
    }
    Ok(worst.into())
}

fn answer(
    policy: &Policy,
    context: &Context,
    line: &[u8],
    number: usize,
    out: &mut dyn Write,
) -> Result<Action, Failure> {
    if !is_json_question(line) {
        let (verdict, _) = judge_and_explain(policy, &Request::Shell(line.to_vec()), context);
        write_line(&VerdictJson::new(&verdict, &policy.name).answering(number, None), out)?;
        return Ok(verdict.action());
    }
    let (id, request, context) = match question(line, context) {
        Ok(question) => question,
        Err(problem) => {
            let verdict = Verdict::invalid_request(&problem);
            write_line(&VerdictJson::new(&verdict, &policy.name).answering(number, None), out)?;
            return Ok(Action::Deny);
        }
    };
    let (verdict, _) = judge_and_explain(policy, &request, &context);
    write_line(&VerdictJson::new(&verdict, &policy.name).answering(number, id.as_ref()), out)?;
    Ok(verdict.action())
}

/// Parses a JSON line into a request and its context. The error says what is wrong with the line.
fn question(line: &[u8], context: &Context) -> Result<(Option<serde_json::Value>, Request, Context), String> {
    let question: Question = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let request = match (question.argv, question.shell) {
        (Some(argv), None) => Request::Argv(argv.into_iter().map(String::into_bytes).collect()),
        (None, Some(shell)) => Request::Shell(shell.into_bytes()),
        _ => return Err("the JSON object needs either `argv` or `shell`".to_string()),
    };
    let mut context = context.clone();
    if let Some(cwd) = question.cwd {
        if !cwd.starts_with('/') {
            return Err("`cwd` must be an absolute path".to_string());
        }
        context.cwd = Cwd::Known(clean(Path::new(OsStr::new(&cwd))));
    }
    let bytes = |map: std::collections::BTreeMap<String, String>| -> Pairs {
        map.into_iter().map(|(name, value)| (name.into_bytes(), value.into_bytes())).collect()
    };
    context.environment.extend(question.env.map(bytes).unwrap_or_default());
    context.git_config.extend(question.git_config.map(bytes).unwrap_or_default());
    if let Some(resolved) = question.resolved {
        context.resolved = Some(resolved.into_bytes());
    }
    Ok((question.id, request, context))
}

/// Returns true if a line begins with `{`, then optional white space, then a double quote or `}`. No ordinary shell
/// command begins like that.
fn is_json_question(line: &[u8]) -> bool {
    let inside = line.trim_ascii_start().strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    inside.is_some_and(|inside| matches!(inside.first(), Some(b'"' | b'}')))
}

fn write_line(json: &VerdictJson<'_>, out: &mut dyn Write) -> io::Result<()> {
    crate::cli::output::json::to_writer(&mut *out, json)?;
    out.write_all(b"\n")
}
