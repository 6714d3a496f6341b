//! `guard restore`: lists the work that guard saved under `refs/guard/`, brings it back as a branch, and removes old
//! saved work.

use std::io::Write;
use std::time::SystemTime;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::args::take_over::Restore;
use crate::cli::commands::review::{is_confirmed, write_findings};
use crate::cli::commands::runs::parse_age;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::cli::output::quantities::count;
use crate::cli::{Failure, note};
use crate::git;
use crate::git::{Repository, SavedWork};
use crate::run::launch::danger_finding;
use crate::run::outcome::Finding;
use crate::session::run_reference::store;
use crate::session::worktree_lookup::here;
use crate::text::terminal_text;

pub(in crate::cli) fn run(args: &Restore, out: &mut dyn Write) -> Result<Exit, Failure> {
    let repository = here()?;
    let saved = git::saved_work(&repository, store()?.folder())?;
    match (&args.name, &args.expire) {
        (Some(name), _) => restore(args, &repository, &saved, name, out),
        (None, Some(age)) => expire(args, &repository, &saved, age, out),
        (None, None) => list(&saved, args.json, out),
    }
}

fn time(work: &SavedWork) -> Option<Timestamp> {
    Timestamp::try_from(work.saved_at).ok()
}

fn as_json(work: &SavedWork) -> Value {
    let refs: Vec<Value> = work
        .refs()
        .map(|saved| json!({ "ref": saved.name, "commit": saved.commit, "subject": saved.subject }))
        .collect();
    json!({
        "name": work.name, "branch": work.branch, "saved_at": time(work).map(|time| time.to_string()),
        "commits": work.commits, "has_uncommitted_work": work.work.is_some(), "refs": refs,
    })
}

/// Describes the saved work in a few words, such as its number of commits.
fn content(work: &SavedWork) -> String {
    let mut parts = Vec::new();
    if work.tip.is_some() {
        parts.push(work.commits.map_or("commits".to_string(), |number| count(number, "commit")));
    }
    if work.work.is_some() {
        parts.push("uncommitted work".to_string());
    }
    if !work.others.is_empty() {
        parts.push(count(work.others.len(), "working tree"));
    }
    parts.join(", ")
}

fn write_line(work: &SavedWork, out: &mut dyn Write) -> Result<(), Failure> {
    let when = time(work).map_or("?".to_string(), |time| time.strftime("%Y-%m-%d %H:%MZ").to_string());
    writeln!(
        out,
        "{:<36}  {when:<17}  {:<28}  {}",
        terminal_text::escape(&work.name),
        content(work),
        terminal_text::escape(work.branch.as_deref().unwrap_or("-")),
    )?;
    // An agent may have written the subject, so shorten it and make it safe for the terminal.
    if let Some(saved) = work.refs().next() {
        writeln!(out, "    {}", terminal_text::one_line(terminal_text::before(&saved.subject, 100)))?;
    }
    Ok(())
}

fn list(saved: &[SavedWork], is_json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    if is_json {
        print_json(&saved.iter().map(as_json).collect(), out)?;
    } else if saved.is_empty() {
        writeln!(out, "guard has saved no work under refs/guard/ of this repository")?;
    } else {
        writeln!(out, "{:<36}  {:<17}  {:<28}  BRANCH", "NAME", "SAVED", "WORK")?;
        for work in saved {
            write_line(work, out)?;
        }
        writeln!(out, "`guard restore NAME` creates a branch with the work")?;
    }
    Ok(Exit::Success)
}

/// Finds saved work by one of its refs, its name, its branch, or a unique beginning or end of its name, in this order.
/// `@` is the newest saved work.
fn find<'s>(saved: &'s [SavedWork], name: &str) -> Result<&'s SavedWork, Failure> {
    if name == "@" {
        return saved.first().ok_or_else(|| unknown(name));
    }
    let tests: [&dyn Fn(&SavedWork) -> bool; 4] = [
        &|work| work.refs().any(|one| one.name == name),
        &|work| work.name == name,
        &|work| work.branch.as_deref() == Some(name),
        &|work| !name.is_empty() && (work.name.starts_with(name) || work.name.ends_with(name)),
    ];
    for test in tests {
        let mut matching = saved.iter().filter(|work| test(work));
        match (matching.next(), matching.next()) {
            (None, _) => {}
            (Some(one), None) => return Ok(one),
            (Some(_), Some(_)) => {
                return Err(Failure::usage(
                    format!("{name:?} matches the saved work of several runs"),
                    "give the name that `guard restore --list` shows",
                ));
            }
        }
    }
    Err(unknown(name))
}

fn unknown(name: &str) -> Failure {
    if crate::cli::commands::undo::has_snapshot(name) {
        return Failure::usage(
            format!("the run {name} worked in your directory itself, so guard has saved no branch of it"),
            format!("`guard undo {name}` undoes what it changed there"),
        );
    }
    Failure::usage(
        format!("guard has saved no work as {name:?}"),
        "`guard restore --list` shows what is saved",
    )
}

/// Returns the default name of the branch to create: `restored/` and the last part of the run's branch or name.
fn default_branch(work: &SavedWork) -> String {
    let name = work.branch.as_deref().unwrap_or(&work.name);
    format!("restored/{}", name.rsplit('/').next().unwrap_or(name))
}

fn restore(
    args: &Restore,
    repository: &Repository,
    saved: &[SavedWork],
    name: &str,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let work = find(saved, name)?;
    let branch = args.branch.clone().unwrap_or_else(|| default_branch(work));
    let only = name.starts_with("refs/").then_some(name);
    let restored = git::chosen_ref(work, only)?;
    let dangers = git::saved_dangers(repository, restored)?;
    let findings: Vec<Finding> = dangers.into_iter().map(danger_finding).collect();
    if !args.json {
        write_findings(&findings, out)?;
        out.flush()?;
    }
    if !args.yes && !findings.is_empty() {
        let show = format!("`git log -p {}` shows the work", restored.name);
        if !is_confirmed("create a branch with this work?", &show, "create the branch")? {
            note("guard: nobody confirmed the work, so guard restored nothing");
            return Ok(Exit::Problem);
        }
    }
    git::restore(repository, restored, &branch)?;
    if args.json {
        let value = json!({
            "branch": branch, "commit": restored.commit, "ref": restored.name, "findings": findings,
        });
        print_json(&value, out)?;
        return Ok(Exit::Success);
    }
    let is_work = work.work.as_ref() == Some(restored);
    let what = if is_work { "; its last commit contains the uncommitted work" } else { "" };
    let commit = restored.commit.get(..12).unwrap_or(&restored.commit);
    let branch = terminal_text::escape(&branch);
    writeln!(
        out,
        "created the branch {branch} at {commit}, from {}{what}",
        terminal_text::escape(&restored.name)
    )?;
    writeln!(out, "  next: git log -p {branch}; git -c core.hooksPath=/dev/null merge {branch}")?;
    Ok(Exit::Success)
}

fn expire(
    args: &Restore,
    repository: &Repository,
    saved: &[SavedWork],
    age: &str,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let age = parse_age("--expire", age)?;
    let now = SystemTime::now();
    let is_old = |work: &&SavedWork| {
        now.duration_since(work.saved_at).is_ok_and(|elapsed| elapsed.as_secs_f64() >= age.as_secs_f64())
    };
    let old: Vec<&SavedWork> = saved.iter().filter(is_old).collect();
    if !args.json {
        for work in &old {
            write_line(work, out)?;
        }
        out.flush()?;
    }
    if !args.dry_run {
        for work in &old {
            git::remove_saved(repository, work)?;
        }
    }
    if args.json {
        let removed: Vec<Value> = old.iter().map(|work| as_json(work)).collect();
        print_json(&json!({ "removed": !args.dry_run, "saved_work": removed }), out)?;
        return Ok(Exit::Success);
    }
    let verb = if args.dry_run { "would remove" } else { "removed" };
    writeln!(out, "{verb} the saved work of {} of {}", old.len(), count(saved.len(), "run"))?;
    if !args.dry_run && !old.is_empty() {
        writeln!(out, "until git removes these commits, `git branch NAME COMMIT` brings one back:")?;
        for work in &old {
            for saved in work.refs() {
                writeln!(out, "  {} {}", work.name, saved.commit)?;
            }
        }
    }
    Ok(Exit::Success)
}
