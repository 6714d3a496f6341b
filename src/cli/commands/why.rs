//! `guard why`: explains a decision in a run, or the decision about a given action. Prints the rule and its location,
//! the layer that enforces it, and what would allow the action. Runs nothing.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::Failure;
use crate::cli::args::Why;
use crate::cli::commands::allow;
use crate::cli::output::exit_code::Exit;
use crate::cli::output::json::print_json;
use crate::git::{Repository, main_directory};
use crate::judge::command::Request;
use crate::judge::decide;
use crate::judge::decide::{judge_and_explain, rules_to_allow};
use crate::judge::policy::Action;
use crate::run::launch::LaunchPlan;
use crate::run::transcript::{Event, EventType};
use crate::session::allow_rules::context;
use crate::session::run_reference;
use crate::text::terminal_text;

/// The maximum number of refusals of a run that guard explains as text. With `--json`, guard explains all of them.
const MOST_EXPLAINED: usize = 100;

#[derive(Debug, Serialize)]
struct Explanation {
    /// The number of the event that recorded the decision; `None` if guard did not make the decision in a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<u64>,
    decision: &'static str,
    what: String,
    rule: String,
    /// The file and line that contain the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    reason: String,
    layer: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_with: Option<String>,
    /// What to do instead, if guard suggests no option that would allow the refused action.
    #[serde(skip_serializing_if = "Option::is_none")]
    instead: Option<String>,
    /// The policy rule that would allow the refused action, as TOML.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_rule: Option<String>,
    /// How many times guard refused this action in the run; `None` means once, or that there was no run.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<usize>,
}

pub(in crate::cli) fn run(args: &Why, out: &mut dyn Write) -> Result<Exit, Failure> {
    if let Some(host) = &args.host {
        let policy = crate::session::policy_here(args.policy.as_deref())?;
        let exit = crate::cli::commands::check_connect::run("--host", host, &policy, args.json, out)?;
        if !args.json {
            writeln!(out, "  layer:   {}", layer(EventType::DenyNetwork))?;
        }
        return Ok(exit);
    }
    if let Some(path) = &args.path {
        let explanation =
            explain_path(path, args.write, &crate::cli::commands::run::plan_here(args.policy.as_deref())?)?;
        return print_one(&explanation, args.json, out);
    }
    if !args.command.is_empty() {
        let explanation = explain_command(&args.command, args.policy.as_deref())?;
        return print_one(&explanation, args.json, out);
    }
    let run = run_reference::find(args.run.as_deref())?;
    let refusals = allow::refusals(&run)?;
    let explained: Vec<Explanation> = match args.event {
        Some(number) => vec![explain_event(&allow::refusal_with_number(&run, refusals, number)?)],
        None => distinct(&refusals),
    };
    if args.json {
        print_json(&serde_json::to_value(&explained).map_err(io::Error::from)?, out)?;
        return Ok(Exit::Success);
    }
    if explained.is_empty() {
        writeln!(
            out,
            "guard recorded no refusals in the run {}; `guard why --path PATH` asks about access to a file",
            run.id
        )?;
    }
    for explanation in explained.iter().take(MOST_EXPLAINED) {
        print(explanation, out)?;
        if explanation.allow_with.is_some() {
            let event = explanation.event.unwrap_or_default();
            writeln!(out, "  always:  guard allow {} {event}", terminal_text::replace(&run.id))?;
        }
    }
    if explained.iter().any(|explanation| explanation.allow_with.is_some())
        && let Some(uncommitted) = crate::session::defaults::uncommitted_note()
    {
        writeln!(out, "{uncommitted}")?;
    }
    if explained.len() > MOST_EXPLAINED {
        writeln!(out, "refusals not shown: {}; --json lists all refusals", explained.len() - MOST_EXPLAINED)?;
    }
    Ok(Exit::Success)
}

/// Returns what the user can do to allow an action that this rule refuses, if no option of `guard run` lifts the rule but
/// the policy can.
pub(in crate::cli) fn advice_without_option(rule: &str) -> Option<&'static str> {
    Some(match rule {
        "network.deny" => "remove the entry from `[network] deny` in the policy; no option overrides it",
        "network.tls" => {
            "an entry `raw HOST:PORT` in `[network] allow`; guard then does not check the protocol"
        }
        "network.limit" => "a higher limit in `[network]` in the policy",
        _ => return None,
    })
}

/// Describes the layer of the sandbox that enforces refusals of this type.
fn layer(event_type: EventType) -> &'static str {
    match event_type {
        EventType::DenyExec => "the supervisor judges every program before it starts",
        EventType::DenyNetwork => "the proxy judges every connection and request of the run to a host",
        EventType::DenyConnect | EventType::DenyBind => "the supervisor judges every connect and bind call",
        EventType::DenyProcess | EventType::DenyMetadata | EventType::DenyWatch => {
            "the supervisor and the system call filter judge the call"
        }
        _ => "guard",
    }
}

/// Explains refusals. Equal refusals get one explanation, which says how many there were.
fn distinct(refusals: &[Event]) -> Vec<Explanation> {
    let mut explained: Vec<(&Event, Explanation)> = Vec::new();
    for event in refusals {
        let known = explained
            .iter_mut()
            .find(|(known, _)| known.event_type == event.event_type && known.message == event.message);
        match known {
            Some((_, explanation)) => explanation.count = Some(explanation.count.unwrap_or(1) + 1),
            None => explained.push((event, explain_event(event))),
        }
    }
    explained.into_iter().map(|(_, explanation)| explanation).collect()
}

fn explain_event(event: &Event) -> Explanation {
    let text = |key: &str| event.data.get(key).and_then(serde_json::Value::as_str).map(str::to_string);
    Explanation {
        event: Some(event.seq),
        decision: "denied",
        what: text("what").filter(|what| !what.is_empty()).unwrap_or_else(|| event.message.clone()),
        rule: text("rule").unwrap_or_default(),
        source: text("source"),
        reason: text("reason").unwrap_or_default(),
        layer: event.event_type.parse().map_or("guard", layer),
        allow_with: text("allow_with"),
        instead: text("instead").filter(|instead| !instead.is_empty()),
        policy_rule: None,
        count: None,
    }
}

fn explain_command(command: &[OsString], policy: Option<&str>) -> Result<Explanation, Failure> {
    let policy = crate::session::policy_here(policy)?;
    let request = Request::Argv(command.iter().map(|word| word.clone().into_vec()).collect());
    let context = context();
    let (verdict, _) = judge_and_explain(&policy, &request, &context);
    let option = verdict.allow_with.as_deref().and_then(|options| shell_words::split(options).ok());
    let rules = match option.as_deref() {
        Some([option, command]) if option == "--allow" => rules_to_allow(&policy, command, &context).ok(),
        _ => None,
    };
    let is_taken = |id: &str| policy.rules.iter().any(|rule| rule.id == id);
    let reason = "Say here why the command is needed.";
    let as_toml = |rules: Vec<decide::AllowRule>| {
        let rules: Vec<String> =
            rules.iter().map(|rule| rule.to_toml(decide::ALLOW_IDS, reason, is_taken)).collect();
        rules.join("\n")
    };
    Ok(Explanation {
        event: None,
        decision: match verdict.action() {
            Action::Allow => "allowed",
            Action::Ask => "asks the user",
            Action::Deny => "denied",
        },
        what: verdict.shown_part().into_owned(),
        rule: verdict.cause.rule.clone(),
        source: verdict.cause.source.as_ref().map(ToString::to_string),
        reason: verdict.cause.reason.clone(),
        layer: layer(EventType::DenyExec),
        allow_with: verdict.allow_with.clone(),
        instead: None,
        policy_rule: rules.map(as_toml),
        count: None,
    })
}

/// Where a path is, relative to the repository and the worktree of a run in the current directory.
enum PathPlace {
    /// In the repository. The run uses the copy of the file or directory in its worktree; the field is the path of the
    /// copy.
    Copied(PathBuf),
    /// In the user's git directory, or in a checkout of the repository that the run does not get a copy of.
    UsersRepository,
    /// Outside the repository, or the run gets no worktree.
    Elsewhere,
}

impl PathPlace {
    fn of(path: &Path, plan: &LaunchPlan) -> Self {
        let Some(checkout) = plan.checkout.as_ref().filter(|own| !path.starts_with(&own.worktree)) else {
            return Self::Elsewhere;
        };
        let current = std::env::current_dir().unwrap_or_default();
        let top = Repository::find(&current).ok().flatten().and_then(|repository| repository.toplevel);
        let inside = top.as_deref().and_then(|top| path.strip_prefix(top).ok());
        let is_users = [main_directory(&checkout.common_dir), checkout.common_dir.as_path()]
            .iter()
            .any(|directory| path.starts_with(directory));
        match inside {
            Some(inside) if inside.as_os_str().is_empty() => Self::Copied(checkout.worktree.clone()),
            Some(inside) if !inside.starts_with(".git") => Self::Copied(checkout.worktree.join(inside)),
            Some(_) => Self::UsersRepository,
            None if is_users => Self::UsersRepository,
            None => Self::Elsewhere,
        }
    }
}

fn explain_path(path: &Path, write: bool, plan: &LaunchPlan) -> Result<Explanation, Failure> {
    let path = std::path::absolute(path)
        .map_err(|error| Failure::usage(format!("--path: {error}"), "name a file or a directory"))?;
    // The kernel follows symbolic links before it checks access, so resolve them here too.
    let asked = existing_part_resolved(&path);
    let place = PathPlace::of(&asked, plan);
    let path = if let PathPlace::Copied(copy) = &place { copy.clone() } else { asked.clone() };
    let covering = plan.grants.iter().filter(|grant| path.starts_with(&grant.path));
    let grant = covering.max_by_key(|grant| grant.path.as_os_str().len());
    let hidden = plan.view.hidden.iter().find(|hidden| path.starts_with(hidden));
    let letter = if write { 'w' } else { 'r' };
    let verb = if write { "write" } else { "read" };
    let is_granted = grant.is_some_and(|grant| grant.rights.letters().contains(letter)) && hidden.is_none();
    let mut reason = match (grant, hidden) {
        (_, Some(hidden)) => format!("{} is hidden from runs.", hidden.display()),
        (Some(grant), None) if is_granted => {
            format!("The run may access {} (granted by: {}).", grant.path.display(), grant.why)
        }
        (Some(grant), None) => {
            format!(
                "The run may not {verb} {}: its access to {} (granted by: {}) does not include that.",
                asked.display(),
                grant.path.display(),
                grant.why
            )
        }
        (None, None) => "Neither the policy nor the command line gives access to this path.".to_string(),
    };
    if matches!(place, PathPlace::Copied(_)) {
        reason.push_str(
            " A run works in a worktree of its own, so this answer is about the copy of the path there, not about your checkout.",
        );
    }
    let shown = asked.to_string_lossy();
    // guard never suggests to give a run write access to the user's checkout. The path of the worktree is different in
    // every run, so no option can name it.
    let (option, entry, instead) = match place {
        PathPlace::Copied(_) => {
            let instead = format!("use a policy that lets runs {verb} their worktree, such as `strict`");
            (None, Some("{worktree}".to_string()), Some(instead))
        }
        PathPlace::UsersRepository if write => {
            let instead = "let the run change its own worktree; `guard apply` brings its work to your branch";
            (None, None, Some(instead.to_string()))
        }
        PathPlace::UsersRepository | PathPlace::Elsewhere => {
            (Some(format!("--{verb} {}", shell_words::quote(&shown))), Some(shown.to_string()), None)
        }
    };
    Ok(Explanation {
        event: None,
        decision: if is_granted { "allowed" } else { "denied" },
        what: format!("{verb} {shown}"),
        rule: format!("filesystem.{verb} (policy {})", plan.policy),
        source: None,
        reason,
        layer: "Landlock in the kernel; with namespaces also the run's mounts",
        allow_with: option.filter(|_| !is_granted),
        instead: instead.filter(|_| !is_granted),
        policy_rule: entry.filter(|_| !is_granted).map(|entry| {
            format!("[filesystem]\noverride = true\n{verb} = [{}]\n", toml::Value::String(entry))
        }),
        count: None,
    })
}

/// Resolves the symbolic links in the part of the path that exists, and keeps the rest of the path unchanged.
fn existing_part_resolved(path: &Path) -> PathBuf {
    for level in path.ancestors() {
        if let Ok(resolved) = std::fs::canonicalize(level) {
            let rest = path.strip_prefix(level).unwrap_or(Path::new(""));
            return if rest.as_os_str().is_empty() { resolved } else { resolved.join(rest) };
        }
    }
    path.to_path_buf()
}

fn print_one(explanation: &Explanation, json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    if json {
        print_json(&serde_json::to_value(explanation).map_err(io::Error::from)?, out)?;
    } else {
        print(explanation, out)?;
    }
    Ok(match explanation.decision {
        "allowed" => Exit::Success,
        "denied" => Exit::Problem,
        _ => Exit::Ask,
    })
}

fn print(explanation: &Explanation, out: &mut dyn Write) -> io::Result<()> {
    let number = explanation.event.map(|event| format!("{event}  ")).unwrap_or_default();
    let times = explanation.count.map(|count| format!(" ({count} times)")).unwrap_or_default();
    writeln!(out, "{number}{}: {}{times}", explanation.decision, terminal_text::replace(&explanation.what))?;
    let source = explanation.source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
    writeln!(
        out,
        "  rule:    {}{}",
        terminal_text::replace(&explanation.rule),
        terminal_text::replace(&source)
    )?;
    writeln!(out, "  reason:  {}", terminal_text::replace(&explanation.reason))?;
    writeln!(out, "  layer:   {}", explanation.layer)?;
    if explanation.decision == "allowed" {
        return Ok(());
    }
    match (&explanation.allow_with, &explanation.instead) {
        (Some(options), _) => writeln!(out, "  allow:   guard run {}", terminal_text::replace(options))?,
        (None, Some(instead)) => {
            if let Some(advice) = advice_without_option(&explanation.rule) {
                writeln!(out, "  allow:   {advice}")?;
            }
            writeln!(out, "  instead: {}", terminal_text::replace(instead))?;
        }
        (None, None) => {
            let advice = advice_without_option(&explanation.rule);
            writeln!(
                out,
                "  allow:   {}",
                advice.unwrap_or("guard knows no option or rule that allows this")
            )?
        }
    }
    if let Some(rule) = &explanation.policy_rule {
        writeln!(out, "  rule:    these lines, in a policy that extends the run's policy, would allow it:")?;
        for line in rule.lines() {
            writeln!(out, "    {}", terminal_text::replace(line))?;
        }
    }
    Ok(())
}
