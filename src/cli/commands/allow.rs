//! `guard allow`: allows an action that guard refused, by adding a rule or a list entry to the user's or the project's
//! policy.

use std::fmt;
use std::fs::DirBuilder;
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use memchr::memmem::Finder;

use crate::cli::args::Allow;
use crate::cli::output::exit_code::Exit;
use crate::cli::{Failure, note};
use crate::judge::decide;
use crate::judge::decide::rules_to_allow;
use crate::judge::policy;
use crate::judge::policy::{PolicyDirs, PolicyError, ProjectConfig, Source};
use crate::run::outcome::RunResult;
use crate::run::transcript::{Event, EventType, Run, Step};
use crate::session::allow_rules::{cannot_allow, context, rules_as_toml};
use crate::session::checkout::{Checkout, split};
use crate::session::defaults::{BUILT_IN_POLICY, check_extends, commit_command, uncommitted_note};
use crate::session::{policy_files, run_reference};
use crate::sys::fs::{Durability, Links, OpenError, read_regular_file, replace_file};
use crate::text::terminal_text;

pub(in crate::cli) fn run(args: &Allow, out: &mut dyn Write) -> Result<Exit, Failure> {
    let run = run_reference::find(Some(&args.run))?;
    let event = refusal(&run, args.event, out)?;
    let Some(event) = event else { return Ok(Exit::Problem) };
    let Some(options) = event.data.get("allow_with").and_then(serde_json::Value::as_str) else {
        let rule = event.data.get("rule").and_then(serde_json::Value::as_str).unwrap_or_default();
        let hint = match crate::cli::commands::why::advice_without_option(rule) {
            Some(advice) => format!("what allows it: {advice}"),
            None => "change the command so that it works without the action".to_string(),
        };
        note(&format!(
            "guard: `guard allow` knows no rule that allows the action of event {}: {}\n  hint: {hint}",
            event.seq,
            terminal_text::replace(&event.message)
        ));
        return Ok(Exit::Problem);
    };
    let target = Target::choose(args, &run)?;
    let (before, is_new) = target.text()?;
    let edited = target.edited(&before, options)?;
    let other_policy = target.other_policy();
    if edited == before {
        writeln!(
            out,
            "guard wrote nothing: {}, or a policy that it extends, already allows the action of event {}",
            target.path.display(),
            event.seq
        )?;
        if let Some(file) = target.other_file(&run) {
            writeln!(
                out,
                "{file}; if the rules in that file refuse the action, add a rule that allows it there"
            )?;
        }
        if let Some(other) = other_policy {
            writeln!(out, "{other}")?;
        }
        if let Some(uncommitted) = target.is_project().then(uncommitted_note).flatten() {
            writeln!(out, "{uncommitted}")?;
        }
        return Ok(Exit::Success);
    }
    target.check(&edited)?;
    show_change(&target.path, if is_new { "" } else { &before }, &edited, is_new, out)?;
    if let Some(other) = &other_policy {
        writeln!(out, "{other}")?;
    }
    out.flush()?;
    if args.dry_run {
        return Ok(Exit::Success);
    }
    if !args.yes && !is_confirmed()? {
        note("guard: nobody confirmed the change, so guard wrote nothing");
        return Ok(Exit::Problem);
    }
    target.check_and_write(&edited)?;
    writeln!(out, "wrote {}", target.path.display())?;
    if let Some(file) = target.other_file(&run) {
        writeln!(out, "{file}; the rules in that file can still refuse the action")?;
    }
    if target.is_project() {
        match other_policy {
            None => writeln!(
                out,
                "commit this file: the change has no effect before, because guard reads the file from the commit that a run starts at\n  next: {}",
                commit_command(&[policy::PROJECT_POLICY])
            )?,
            Some(other) => writeln!(
                out,
                "change line {} of {}, and commit both files: guard reads them from the commit that a run starts at\n  next: {}",
                other.line,
                other.config.display(),
                commit_command(&[policy::PROJECT_POLICY, policy::PROJECT_CONFIG])
            )?,
        }
        writeln!(
            out,
            "`guard config trust` confirms the project's configuration after the commit; you can also answer the question of the next run"
        )?;
    }
    Ok(Exit::Success)
}

/// Adds rules to the user's policy for the commands that the user allowed with the answer "save it as a rule". Prints
/// for each answer whether guard saved it. Does nothing if guard cannot find the run or read its transcript.
pub(in crate::cli) fn save_answered(result: &RunResult) {
    let Ok(run) = run_reference::find(Some(&result.run_id)) else { return };
    let Ok(answers) = events(&run, "\"answer\"", |event| event.event_type == EventType::Answer) else {
        return;
    };
    for event in answers.iter().filter(|event| event.data["answer"] == "save") {
        let Some(options) = event.data["allow_with"].as_str() else {
            note(&format!(
                "guard: cannot save your answer, because no rule can allow the command ({})",
                terminal_text::replace(&event.message)
            ));
            continue;
        };
        let saved = Target::of_user(&run).and_then(|target| {
            let (before, _) = target.text()?;
            let edited = target.edited(&before, options)?;
            if let Some(file) = target.other_file(&run).filter(|_| edited == before) {
                return Err(Failure::usage(
                    format!("cannot save your answer: {file}"),
                    "add a rule to the file of that policy, which asks the question",
                ));
            }
            target.check_and_write(&edited)?;
            Ok(target.path)
        });
        match saved {
            Ok(path) => note(&format!(
                "guard: saved your answer in {}: {}",
                path.display(),
                terminal_text::replace(options)
            )),
            Err(failure) => note(&failure.render()),
        }
    }
}

/// Returns the refusal of a run that `guard allow` should lift. With a number, returns the event with this number, and
/// fails if that is not a refusal. Without a number, considers only the refusals that options of `guard run` can lift,
/// and counts refusals with the same options as one. If there is exactly one, returns it; if there is none, returns
/// `None`; if there are several, lists them and fails.
fn refusal(run: &Run, number: Option<u64>, out: &mut dyn Write) -> Result<Option<Event>, Failure> {
    let refusals = refusals(run)?;
    if let Some(number) = number {
        return refusal_with_number(run, refusals, number).map(Some);
    }
    let mut distinct: Vec<Event> = Vec::new();
    for event in refusals {
        let options = |event: &Event| event.data.get("allow_with").cloned();
        if options(&event).is_some() && !distinct.iter().any(|known| options(known) == options(&event)) {
            distinct.push(event);
        }
    }
    match distinct.len() {
        0 => {
            note(&format!("guard: the run {} has no refusal that an option or a rule could lift", run.id));
            Ok(None)
        }
        1 => Ok(distinct.pop()),
        _ => {
            for event in &distinct {
                let options = event.data["allow_with"].as_str().unwrap_or_default();
                writeln!(out, "{:>6}  {}", event.seq, terminal_text::replace(options))?;
            }
            out.flush()?;
            Err(Failure::usage(
                format!(
                    "guard refused several actions in the run {}, but `guard allow` takes one at a time",
                    run.id
                ),
                format!("choose one by its number, for example: guard allow {} {}", run.id, distinct[0].seq),
            ))
        }
    }
}

/// Returns the refusal of a run that is the event with this number; an error if there is none.
pub(in crate::cli) fn refusal_with_number(
    run: &Run,
    refusals: Vec<Event>,
    number: u64,
) -> Result<Event, Failure> {
    refusals.into_iter().find(|event| event.seq == number).ok_or_else(|| {
        Failure::usage(
            format!("event {number} of the run {} is not a refusal", run.id),
            format!("`guard why {}` lists the refusals of the run", run.id),
        )
    })
}

/// Returns the events of a run that record a refusal, in order.
pub(in crate::cli) fn refusals(run: &Run) -> Result<Vec<Event>, Failure> {
    events(run, "\"deny.", Event::is_denial)
}

/// Returns the events of a run for which `is_wanted` is true, in order. Their lines must contain `text`: a transcript may
/// have a million events, and parsing all of them takes seconds.
fn events(run: &Run, text: &str, is_wanted: impl Fn(&Event) -> bool) -> Result<Vec<Event>, Failure> {
    let text = Finder::new(text);
    let mut reader = run_reference::open_transcript(run)?;
    let mut found = Vec::new();
    loop {
        match reader.step_to(&text).map_err(|error| run_reference::unreadable(run, &error))? {
            Step::Event(event) if is_wanted(&event) => found.push(*event),
            Step::Event(_) | Step::Bad(_) => {}
            Step::End { .. } => return Ok(found),
        }
    }
}

/// The policy file to which guard adds the rule or the list entry.
struct Target {
    path: PathBuf,
    /// The checkout of the project; `None` for a policy of the user.
    project: Option<Checkout>,
    /// The name of the policy that the file extends if guard has to create it. The file of a user's policy has the same
    /// name. Empty for a project's policy that exists.
    base: String,
}

/// Returns the name of the policy that a new policy for later runs should extend: the policy of `run` if guard found it
/// by its name, otherwise the first policy in its `extends` that guard finds by name. Fails if guard finds none of
/// them.
fn base_of(run: &Run) -> Result<String, Failure> {
    let name = run.policy().filter(|_| has_policy_of_user(run));
    let missing = run.policy().unwrap_or(BUILT_IN_POLICY);
    first_extendable(missing, name.into_iter().chain(run.policy_extends()))
}

/// Returns true if guard found the run's policy by its name, among the user's policies or the built-in ones. The policy
/// of a project may have the name of one of the user's policies, but is none of them.
fn has_policy_of_user(run: &Run) -> bool {
    let Some(file) = run.policy_file() else { return true };
    let name = run.policy().unwrap_or(BUILT_IN_POLICY);
    let directory = PolicyDirs::from_environment().user;
    directory.is_some_and(|directory| directory.join(format!("{name}.toml")) == file)
}

/// Returns the name of the policy that a new policy can extend: `name` or, if guard finds no policy of this name, the
/// first policy in `extends` that it finds. Fails if it finds none of them. For example, guard does not find a policy
/// by its name if the user gave it as a path outside the directory of policies.
pub(in crate::cli) fn extendable_name<'n>(
    name: &'n str,
    extends: impl Iterator<Item = &'n str>,
) -> Result<String, Failure> {
    first_extendable(name, std::iter::once(name).chain(extends))
}

/// Returns the first of the policies `names` that guard finds. `name` is the policy that an error names.
fn first_extendable<'n>(name: &str, mut names: impl Iterator<Item = &'n str>) -> Result<String, Failure> {
    let dirs = PolicyDirs::from_environment();
    // If guard finds the file of a policy but cannot read it, return the policy's name all the same: the user should
    // repair the file, and the new policy should not extend another policy instead.
    let is_found =
        |name: &&str| !matches!(policy::find(name, &dirs, None), Err(PolicyError::NotFound { .. }));
    names.find(is_found).map(str::to_string).ok_or_else(|| {
        let name = terminal_text::replace(name);
        let directory = dirs.user.clone().unwrap_or_else(|| PathBuf::from("~/.config/guard/policies"));
        Failure::usage(
            format!("a new policy cannot extend `{name}`: guard finds no policy of this name"),
            format!("copy the file of the policy to {}", directory.join(format!("{name}.toml")).display()),
        )
    })
}

/// The line of a project's configuration that names a policy other than `.guard/policy.toml`. Because of this line,
/// runs do not use `.guard/policy.toml`.
struct OtherPolicy {
    config: PathBuf,
    line: usize,
    name: String,
}

impl fmt::Display for OtherPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (config, line, own) = (self.config.display(), self.line, policy::PROJECT_POLICY);
        let name = terminal_text::replace(&self.name);
        write!(
            f,
            "runs do not use {own} yet: line {line} of {config} names another policy, {name:?}\n  \
             hint: remove this line, or change it to: policy = \"{own}\""
        )
    }
}

impl Target {
    fn choose(args: &Allow, run: &Run) -> Result<Self, Failure> {
        let checkout = Checkout::here()?.filter(|_| !args.user);
        if args.project && checkout.is_none() {
            return Err(Failure::usage(
                "--project: the current directory is not in a git repository",
                "change to a directory of the repository, or use --user",
            ));
        }
        if let Some(checkout) = checkout {
            let path = checkout.root().join(policy::PROJECT_POLICY);
            let is_new = matches!(read_project_file(&checkout, policy::PROJECT_POLICY), Ok(None));
            let base = if is_new { base_of(run)? } else { String::new() };
            return Ok(Self { path, project: Some(checkout), base });
        }
        Self::of_user(run)
    }

    /// Returns the user's own policy file that has the name of this run's policy or, if guard finds no policy of that
    /// name, of the policy that the run's policy extends. guard uses such a file instead of a built-in policy of the
    /// same name.
    fn of_user(run: &Run) -> Result<Self, Failure> {
        let base = base_of(run)?;
        let Some(directory) = PolicyDirs::from_environment().user else {
            return Err(Failure::usage(
                "guard cannot find the directory of your policies",
                "set HOME or XDG_CONFIG_HOME",
            ));
        };
        Ok(Self { path: directory.join(format!("{base}.toml")), project: None, base })
    }

    fn is_project(&self) -> bool {
        self.project.is_some()
    }

    /// Returns a sentence that names the run's policy if it is another file than the user's policy to which guard adds
    /// the rule. Returns `None` if guard adds the rule to the project's policy, or if the run's policy is not recorded.
    fn other_file(&self, run: &Run) -> Option<String> {
        let is_own = |used: &&str| *used == self.base && has_policy_of_user(run);
        let used = run.policy().filter(|used| !self.is_project() && !is_own(used))?;
        let used = terminal_text::replace(used);
        Some(format!("the run used the policy `{used}`, a file that extends `{}`", self.base))
    }

    /// Returns the line of the project's configuration that makes runs use a policy other than this file. `None` if
    /// there is no such line, or if this file is the user's policy. Also `None` if guard cannot read or parse the
    /// configuration, because the next run reports that.
    fn other_policy(&self) -> Option<OtherPolicy> {
        let text = read_project_file(self.project.as_ref()?, policy::PROJECT_CONFIG).ok()??;
        let config = self.path.with_file_name(Path::new(policy::PROJECT_CONFIG).file_name()?);
        let name = ProjectConfig::parse(&text).ok()?.run.policy?;
        let line = ProjectConfig::policy_line(&text)?;
        (name != policy::PROJECT_POLICY).then_some(OtherPolicy { config, line, name })
    }

    fn check(&self, text: &str) -> Result<(), Failure> {
        if self.is_project() {
            check_extends(text)?;
        }
        let source =
            Source { name: self.path.display().to_string(), text: text.to_string().into(), built_in: false };
        decide::load_text(source, &PolicyDirs::from_environment())?;
        Ok(())
    }

    /// Writes the edited text to the policy file. Fails and writes nothing if guard cannot load the text as a policy.
    fn check_and_write(&self, text: &str) -> Result<(), Failure> {
        self.check(text)?;
        self.write(text)?;
        if self.is_project() { Ok(()) } else { policy_files::remember_written(&self.path, text) }
    }

    /// Returns the current text of the policy file and false, or the text of a new one and true if there is no file.
    fn text(&self) -> Result<(String, bool), Failure> {
        let read = match &self.project {
            Some(checkout) => read_project_file(checkout, policy::PROJECT_POLICY)?,
            None => read_policy(&self.path, || {
                read_regular_file(&self.path, policy::LARGEST_FILE as u64, Links::Follow)
            })?,
        };
        if let Some(text) = read {
            return Ok((text, false));
        }
        let (name, description) = if self.is_project() {
            ("project", "What runs in this repository may do beyond the policy it extends.")
        } else {
            (self.base.as_str(), "What my runs may do beyond the policy it extends.")
        };
        Ok((policy::new_file(name, &self.base, description), true))
    }

    fn edited(&self, text: &str, options: &str) -> Result<String, Failure> {
        let words = shell_words::split(options).unwrap_or_default();
        if words.is_empty() {
            return Err(unknown_options(options));
        }
        let mut edited = text.to_string();
        for pair in words.chunks(2) {
            let [option, value] = pair else { return Err(unknown_options(options)) };
            edited = self.with_option(&edited, option, value)?;
        }
        Ok(edited)
    }

    fn with_option(&self, text: &str, option: &str, value: &str) -> Result<String, Failure> {
        let quoted = toml::Value::String(value.to_string()).to_string();
        let edited = match option {
            "--allow" => {
                if self.is_project() {
                    check_extends(text)?;
                }
                let source = Source {
                    name: self.path.display().to_string(),
                    text: text.to_string().into(),
                    built_in: false,
                };
                let policy = policy::load_source(source, &PolicyDirs::from_environment())?;
                let context = context();
                let command = crate::judge::command::Request::Shell(value.as_bytes().to_vec());
                if decide::judge(&policy, &command, &context).0.action() == policy::Action::Allow {
                    return Ok(text.to_string());
                }
                let today = jiff::Zoned::now().date();
                let reason = format!("Allowed with `guard allow` on {today}.");
                let rules =
                    rules_to_allow(&policy, value, &context).map_err(|error| cannot_allow(value, &error))?;
                let rule = rules_as_toml(&policy, &rules, &self.rule_ids(), &reason);
                return Ok(policy::add_rule(text, &rule));
            }
            "--allow-host" => policy::add_to_list(text, "network", "allow", &quoted),
            "--listen" => policy::add_to_list(text, "network", "listen", value),
            "--write" => policy::add_to_list(text, "filesystem", "write", &quoted)
                .and_then(|text| policy::add_to_list(&text, "filesystem", "read", &quoted)),
            _ => return Err(unknown_options(option)),
        };
        edited.map_err(|error| {
            Failure::usage(
                format!("{}: {error}", self.path.display()),
                format!("correct the file, then check it with `{}`", crate::cli::lint_command(&self.path)),
            )
        })
    }

    /// Returns the first part of the ids of rules that guard adds to this file. One policy file may extend another, so
    /// the rules of each file need ids of their own.
    fn rule_ids(&self) -> String {
        if self.is_project() { "project".to_string() } else { format!("user.{}", self.base) }
    }

    /// Replaces the policy file atomically: writes a temporary file and renames it.
    fn write(&self, text: &str) -> Result<(), Failure> {
        let failed = |error: io::Error| {
            Failure::usage(
                format!("cannot write {}: {error}", self.path.display()),
                "check the owner and mode of the file and of its directory",
            )
        };
        let (directory, name) =
            split(&self.path).ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        if let Some(checkout) = &self.project {
            let below = Path::new(policy::PROJECT_POLICY).parent().unwrap_or(Path::new("."));
            let directory = checkout.directory(below, true)?;
            let directory = directory.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
            return directory.replace(name, text.as_bytes(), Durability::Synced).map_err(failed);
        }
        let made = DirBuilder::new().mode(0o700).recursive(true).create(&directory);
        made.and_then(|()| replace_file(&self.path, text.as_bytes(), 0o644, Durability::Synced))
            .map_err(failed)
    }
}

/// Reads a file of the project, given by its path in the repository; `None` if it does not exist. Follows no link: an agent
/// may have committed one that leads to a file of the user.
fn read_project_file(checkout: &Checkout, path: &str) -> Result<Option<String>, Failure> {
    let Some((directory, name)) = split(Path::new(path)) else { return Ok(None) };
    let Some(directory) = checkout.directory(&directory, false)? else { return Ok(None) };
    read_policy(&checkout.root().join(path), || directory.read(name, policy::LARGEST_FILE as u64))
}

/// Converts what `read` returns to text; `None` if the file does not exist.
fn read_policy(
    path: &Path,
    read: impl FnOnce() -> Result<Vec<u8>, OpenError>,
) -> Result<Option<String>, Failure> {
    let read = read().map_err(io::Error::from);
    match read.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::usage(
            format!("cannot read {}: {error}", path.display()),
            "the policy must be a regular file of at most 1 MiB that you can read; correct or remove it",
        )),
    }
}

/// Returns the error for options that the run recorded for a refusal and that guard cannot turn into rules.
fn unknown_options(options: &str) -> Failure {
    Failure::usage(
        format!(
            "guard cannot save the option recorded for this refusal: {}",
            terminal_text::replace(options)
        ),
        "`guard why` explains the refusal; add a rule to your policy by hand",
    )
}

/// Prints the path of the policy file, and the lines that the edit removes or adds.
fn show_change(path: &Path, before: &str, edited: &str, is_new: bool, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}{}", path.display(), if is_new { " (new)" } else { "" })?;
    for (sign, line) in changed_lines(before, edited) {
        writeln!(out, "{sign} {}", terminal_text::replace(line))?;
    }
    Ok(())
}

/// The maximum product of the numbers of old and new lines that [`changed_lines`] compares with each other.
const MOST_COMPARED: usize = 1 << 20;

/// Returns the lines that were removed (`-`) or added (`+`), in the order of the new text. Compares only the lines between
/// the first and the last difference. If these are too many, returns all of them as removed and added.
fn changed_lines<'t>(before: &'t str, after: &'t str) -> Vec<(char, &'t str)> {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| pairs.take_while(|(a, b)| a == b).count();
    let first = same(&mut old.iter().zip(&new));
    let (old, new) = (&old[first..], &new[first..]);
    let last = same(&mut old.iter().rev().zip(new.iter().rev()));
    let (old, new) = (&old[..old.len() - last], &new[..new.len() - last]);
    if old.len().saturating_mul(new.len()) > MOST_COMPARED {
        let removed = old.iter().map(|line| ('-', *line));
        return removed.chain(new.iter().map(|line| ('+', *line))).collect();
    }
    // `common[i][j]` is the length of the longest common subsequence of the old lines from `i` on and the new lines
    // from `j` on.
    let mut common = vec![vec![0usize; new.len() + 1]; old.len() + 1];
    for at in (0..old.len()).rev() {
        for to in (0..new.len()).rev() {
            common[at][to] = if old[at] == new[to] {
                common[at + 1][to + 1] + 1
            } else {
                common[at + 1][to].max(common[at][to + 1])
            };
        }
    }
    let (mut at, mut to) = (0, 0);
    let mut changed = Vec::new();
    while at < old.len() || to < new.len() {
        if at < old.len() && to < new.len() && old[at] == new[to] {
            (at, to) = (at + 1, to + 1);
        } else if to == new.len() || (at < old.len() && common[at + 1][to] >= common[at][to + 1]) {
            changed.push(('-', old[at]));
            at += 1;
        } else {
            changed.push(('+', new[to]));
            to += 1;
        }
    }
    changed
}

/// Asks on the terminal whether to write the changed policy file. Fails if standard input is not a terminal.
fn is_confirmed() -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "guard cannot ask for confirmation without a terminal",
            "use --yes to write the change without asking",
        ));
    }
    let _ = write!(io::stderr(), "write this change? [y/N] ");
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::{PathBuf, Target, changed_lines};

    #[test]
    fn options_that_cannot_be_parsed_are_an_error() {
        let target = Target { path: PathBuf::from("x.toml"), project: None, base: "strict".to_string() };
        for options in ["", "--write", "--write 'unclosed", "--unknown x"] {
            assert!(target.edited("", options).is_err(), "{options}");
        }
    }

    #[test]
    fn only_changed_lines_are_shown() {
        assert_eq!(changed_lines("a\nb\nc\n", "a\nx\nb\nc\ny\n"), [('+', "x"), ('+', "y")]);
        assert_eq!(changed_lines("a\nb\n", "a\nB\n"), [('-', "b"), ('+', "B")]);
        assert_eq!(changed_lines("", "a\n"), [('+', "a")]);
        assert_eq!(changed_lines("a\n", "a\n"), []);
        assert_eq!(changed_lines("a\na\n", "a\n"), [('-', "a")]);
        let (before, after): (String, String) =
            (0..5_000).map(|n| (format!("o{n}\n"), format!("n{n}\n"))).unzip();
        assert_eq!(changed_lines(&before, &after).len(), 10_000);
    }
}
