//! `guard verify`: checks the hash chain of a transcript, and whether its run has finished.

use std::io::Write;

use serde_json::json;

use crate::cli::Failure;
use crate::cli::args::Verify;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::run::transcript;
use crate::run::transcript::{Check, Outcome};
use crate::session::run_reference::{find, unreadable};
use crate::text::terminal_text;

pub(in crate::cli) fn run(args: &Verify, out: &mut dyn Write) -> Result<Exit, Failure> {
    let expected = args.head.as_deref().map(hash).transpose()?;
    let run = find(Some(&args.run))?;
    let check = transcript::check(&run.transcript).map_err(|error| unreadable(&run, &error))?;
    let other = expected.filter(|expected| *expected != check.head.hash);
    if args.json {
        print_json(&as_json(&check, args.head.as_ref().map(|_| other.is_none())), out)?;
    } else {
        out.write_all(as_text(&check, other.as_deref()).as_bytes())?;
    }
    Ok(match (&check.outcome, other) {
        (Outcome::Broken { .. }, _) | (_, Some(_)) => Exit::Problem,
        (Outcome::Unfinished { .. }, None) => Exit::Unfinished,
        (Outcome::Complete, None) => Exit::Success,
    })
}

fn hash(text: &str) -> Result<String, Failure> {
    let text = text.trim().to_ascii_lowercase();
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(text);
    }
    Err(Failure::usage(
        format!("--head {text:?} is not a SHA-256 hash"),
        "give the 64 hexadecimal digits that guard printed when the run ended",
    ))
}

fn as_text(check: &Check, other: Option<&str>) -> String {
    let head = &check.head;
    let so_far = format!("events: {}, bytes: {}", head.seq, head.bytes);
    let mut text = match other {
        Some(expected) => {
            format!("this is not the expected transcript: its last hash should be {expected}\n")
        }
        None => String::new(),
    };
    text += &match &check.outcome {
        Outcome::Complete => format!("the transcript is intact and finished: {so_far}\n"),
        Outcome::Unfinished { partial: 0 } => {
            format!(
                "the transcript is intact, but unfinished: {so_far}; guard recorded nothing after event {}\n",
                head.seq
            )
        }
        Outcome::Unfinished { partial } => format!(
            "the transcript is intact, but unfinished: {so_far}; guard recorded nothing after event {} ({partial} bytes of an incomplete line follow)\n",
            head.seq
        ),
        Outcome::Broken { line, problem } => {
            format!(
                "the transcript is broken at line {line}: {problem}\n  intact before that line: {so_far}\n"
            )
        }
    };
    if let Some(left_out) = &check.left_out {
        text += &format!("the transcript does not contain everything: {}\n", terminal_text::escape(left_out));
    }
    text + &format!("run  {}\nhead {}\n", check.run_id, head.hash)
}

fn as_json(check: &Check, head_matches: Option<bool>) -> serde_json::Value {
    let (outcome, line, problem) = match &check.outcome {
        Outcome::Complete => ("complete", None, None),
        Outcome::Unfinished { .. } => ("unfinished", None, None),
        Outcome::Broken { line, problem } => ("broken", Some(line), Some(problem.to_string())),
    };
    json!({
        "run_id": check.run_id, "outcome": outcome, "line": line, "problem": problem,
        "seq": check.head.seq, "bytes": check.head.bytes, "head": check.head.hash, "head_matches": head_matches,
        "left_out": check.left_out,
    })
}
