//! The checks of `guard doctor` besides the kernel: git, the agents, keys, PATH, and the state directory.
//!
//! A check contacts no host and prints no key. It starts a program only from a directory that neither an agent nor
//! another user can write to.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};
use serde::Serialize;

use crate::agents::adapter::{AGENTS, Adapter, named};
use crate::agents::exec::check_version;
use crate::judge::policy::{Config, GATEWAYS, GatewayConfig, key_variables};
use crate::run::transcript::runs_dir;
use crate::sys::programs::ProgramSearch;
use crate::text::terminal_text;

const OLDEST_GIT: (u64, u64) = (2, 38);
/// How long a program may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of bytes that guard reads from a program that prints its version.
const LONGEST_VERSION: u64 = 4096;
/// The minimum free disk space, in bytes. `guard doctor` warns if there is less.
const LEAST_FREE: u64 = 1 << 30;
/// The maximum number of files that guard counts. With more files, the size of the state directory is only a lower
/// bound.
const MOST_FILES: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum CheckState {
    Ok,
    /// The program or key is missing, which matters only to users who want to use it.
    Absent,
    /// guard can run commands, but the user should correct something.
    Warning,
    /// Runs fail until the user corrects something: all runs, or those that use this agent or this key.
    Problem,
}

#[derive(Debug, Clone, Serialize)]
pub(in crate::cli) struct MachineCheck {
    /// The group of the check: `git`, `agent`, `key`, `path`, `state`, `config`.
    pub(in crate::cli) area: &'static str,
    pub(in crate::cli) name: String,
    pub(in crate::cli) state: CheckState,
    pub(in crate::cli) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::cli) fix: Option<String>,
}

impl MachineCheck {
    fn ok(area: &'static str, name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { area, name: name.into(), state: CheckState::Ok, found: found.into(), fix: None }
    }

    fn with_fix(self, state: CheckState, fix: impl Into<String>) -> Self {
        Self { state, fix: Some(fix.into()), ..self }
    }
}

pub(in crate::cli) fn all() -> Vec<MachineCheck> {
    let search = ProgramSearch::from_environment();
    let mut checks = vec![git(&search)];
    checks.extend(AGENTS.iter().filter_map(|(name, _)| named(name)).map(|adapter| agent(&adapter, &search)));
    checks.extend(keys());
    checks.extend(path(&search));
    checks.extend(state());
    checks
}

pub(in crate::cli) fn invalid_policy(name: &str) -> MachineCheck {
    let check = MachineCheck::ok("config", format!("policy {name}"), "has errors, so no run can use it");
    check.with_fix(CheckState::Problem, format!("`guard policy lint {name}` shows the errors"))
}

fn git(search: &ProgramSearch) -> MachineCheck {
    let fix = "install git 2.38 or newer in a directory that only root or you can write to";
    let file = match search.find("git") {
        Ok(file) => file,
        Err(error) => {
            return MachineCheck::ok("git", "git", error.to_string()).with_fix(CheckState::Problem, fix);
        }
    };
    let version = match version(&file, search) {
        Ok(version) => version,
        Err(problem) => {
            return MachineCheck::ok("git", "git", problem).with_fix(CheckState::Problem, fix);
        }
    };
    let check = MachineCheck::ok("git", "git", format!("{version} ({})", file.display()));
    match git_numbers(&version) {
        Some(numbers) if numbers >= OLDEST_GIT => check,
        _ => check.with_fix(CheckState::Problem, fix),
    }
}

/// Returns the first two numbers of a version such as `git version 2.47.3`; `None` if the text has another form.
fn git_numbers(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split_whitespace().nth(2)?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn agent(adapter: &Adapter, search: &ProgramSearch) -> MachineCheck {
    let program = adapter.programs.first().map_or(adapter.name.as_str(), String::as_str);
    let file = match search.find(program) {
        Ok(file) => file,
        Err(error) if error.skipped.is_empty() => {
            let how = match &adapter.package {
                Some(package) => format!("to use this agent, run npm install --global {package}"),
                None => "to use this agent, install it as its vendor describes".to_string(),
            };
            return MachineCheck::ok("agent", &adapter.name, "not installed")
                .with_fix(CheckState::Absent, how);
        }
        Err(error) => {
            return MachineCheck::ok("agent", &adapter.name, error.to_string()).with_fix(
                CheckState::Warning,
                "install the agent in a directory that only root or you can write to",
            );
        }
    };
    let argv = [file.to_string_lossy().into_owned()];
    let place = file.display();
    match (version(&file, search), check_version(adapter, &argv)) {
        (Ok(version), Err(old)) => MachineCheck::ok("agent", &adapter.name, format!("{version} ({place})"))
            .with_fix(CheckState::Problem, old.to_string()),
        (Ok(version), Ok(notes)) => {
            let notes: String = notes.iter().map(|note| format!("; {note}")).collect();
            MachineCheck::ok("agent", &adapter.name, format!("{version} ({place}){notes}"))
        }
        (Err(problem), _) => MachineCheck::ok("agent", &adapter.name, problem)
            .with_fix(CheckState::Warning, format!("see what `{place} --version` prints")),
    }
}

/// Returns the first non-empty line that `PROGRAM --version` prints, cut to 100 bytes. Fails if the program cannot
/// start, prints nothing, or does not end its output within `VERSION_TIMEOUT`. The program gets neither the user's
/// environment variables nor the user's home directory.
fn version(file: &Path, search: &ProgramSearch) -> Result<String, String> {
    let place = file.display();
    let mut command = Command::new(file);
    command.arg("--version").current_dir("/").env_clear();
    command.env("PATH", search.path()).env("HOME", "/dev/null").env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("cannot start {place}: {error}"))?;
    let (send, receive) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        // Do not join this thread: a child of the program may keep the pipe open after guard has killed the program.
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = output.take(LONGEST_VERSION).read_to_end(&mut bytes);
            let _ = send.send(bytes);
        });
    }
    let printed = receive.recv_timeout(VERSION_TIMEOUT);
    let _ = child.kill();
    let _ = child.wait();
    let printed = printed.map_err(|_| {
        format!("{place} did not print its version within {} seconds", VERSION_TIMEOUT.as_secs())
    })?;
    let text = String::from_utf8_lossy(&printed);
    match text.lines().find(|line| !line.trim().is_empty()) {
        Some(line) => Ok(terminal_text::one_line(terminal_text::before(line.trim(), 100))),
        None => Err(format!("{place} prints no version")),
    }
}

fn keys() -> Vec<MachineCheck> {
    let config = match Config::place().map(|place| Config::read(&place)) {
        None => Config::default(),
        Some(Ok(config)) => config,
        Some(Err(error)) => {
            let check =
                MachineCheck::ok("config", "config.toml", terminal_text::one_line(&error.to_string()));
            return vec![check.with_fix(CheckState::Problem, "correct the file, or move it away")];
        }
    };
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let with_key = GATEWAYS.iter().filter_map(|(gateway, _)| {
        let usual = key_variables(gateway).filter(|variables| !variables.is_empty())?;
        Some((*gateway, usual))
    });
    with_key
        .map(|(gateway, usual)| {
            key(gateway, usual, &config.gateway.get(gateway).cloned().unwrap_or_default(), is_set)
        })
        .collect()
}

/// Checks where the key of a gateway comes from. The outcome never contains the key itself.
fn key(gateway: &str, usual: &[&str], config: &GatewayConfig, is_set: impl Fn(&str) -> bool) -> MachineCheck {
    if let Some(file) = &config.key_file {
        let check = MachineCheck::ok("key", gateway, format!("the file {}", file.display()));
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let real = file.strip_prefix("~").map_or_else(|_| file.clone(), |rest| home.join(rest));
        return match real.metadata() {
            Ok(data) if data.is_file() => check,
            _ => check.with_fix(CheckState::Problem, "write the key to this file, with mode 600"),
        };
    }
    if let Some(program) = config.key_command.as_ref().and_then(|command| command.first()) {
        return MachineCheck::ok("key", gateway, format!("printed by `{}`", terminal_text::replace(program)));
    }
    let own: Vec<&str> = config.key_variable.iter().map(String::as_str).collect();
    let variables = if own.is_empty() { usual } else { own.as_slice() };
    match variables.iter().find(|name| is_set(name)) {
        Some(name) => MachineCheck::ok("key", gateway, format!("{name} is set")),
        None => MachineCheck::ok("key", gateway, format!("{} is not set", variables.join(" or "))).with_fix(
            CheckState::Absent,
            format!("to use this API, set {}, or key_command in config.toml (guard help keys)", variables[0]),
        ),
    }
}

/// Returns one check for each entry of PATH in which guard does not search for programs, or one check that succeeded if
/// there are none.
fn path(search: &ProgramSearch) -> Vec<MachineCheck> {
    let skipped = search.untrusted();
    if skipped.is_empty() {
        return vec![MachineCheck::ok(
            "path",
            "PATH",
            "only root or you can write to the directories of PATH",
        )];
    }
    let check = |name: String, reason: String| {
        let name = if name.is_empty() { "an empty entry".to_string() } else { name };
        MachineCheck::ok("path", terminal_text::replace(&name), terminal_text::replace(&reason)).with_fix(
            CheckState::Warning,
            "remove the directory from PATH; guard itself starts no program from there",
        )
    };
    skipped.into_iter().map(|one| check(one.path.display().to_string(), one.reason)).collect()
}

fn state() -> Vec<MachineCheck> {
    let directory = match runs_dir() {
        Ok(runs) => runs.parent().map(Path::to_path_buf).unwrap_or(runs),
        Err(error) => {
            let check = MachineCheck::ok("state", "state directory", error.to_string());
            return vec![
                check.with_fix(CheckState::Problem, "set XDG_STATE_HOME or HOME to an absolute path"),
            ];
        }
    };
    let shown = terminal_text::replace(&directory.to_string_lossy());
    let existing = directory.ancestors().find(|part| part.exists()).unwrap_or(Path::new("/"));
    let is_writable = existing.is_dir() && access(existing, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    let (bytes, is_all) = size(&directory);
    let size =
        format!("{}{}", if is_all { "" } else { "more than " }, crate::cli::commands::runs::size(bytes));
    let mut checks = vec![match is_writable {
        true => MachineCheck::ok("state", "state directory", format!("{shown}, {size}")),
        false => MachineCheck::ok("state", "state directory", format!("you cannot write to {shown}"))
            .with_fix(
                CheckState::Problem,
                "correct the owner and mode of the directory, or set XDG_STATE_HOME to another directory",
            ),
    }];
    if let Ok(disk) = statvfs(existing) {
        let free = disk.blocks_available() * disk.fragment_size();
        let check =
            MachineCheck::ok("state", "disk", format!("{} free", crate::cli::commands::runs::size(free)));
        checks.push(match free >= LEAST_FREE {
            true => check,
            false => check
                .with_fix(CheckState::Warning, "`guard runs prune` and `guard worktree clean` free space"),
        });
    }
    checks
}

/// Returns the total size of the files below a directory, and true if guard counted all files. Stops after `MOST_FILES`
/// files and directories, and returns false. Ignores what it cannot read.
fn size(directory: &Path) -> (u64, bool) {
    let (mut bytes, mut files) = (0, 0);
    let mut open = vec![directory.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            files += 1;
            if files > MOST_FILES {
                return (bytes, false);
            }
            match entry.metadata() {
                Ok(data) if data.is_dir() => open.push(entry.path()),
                Ok(data) => bytes += data.len(),
                Err(_) => {}
            }
        }
    }
    (bytes, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_git_are_compared_as_numbers() {
        assert_eq!(git_numbers("git version 2.47.3"), Some((2, 47)));
        assert_eq!(git_numbers("git version 2.39.5 (Apple Git-154)"), Some((2, 39)));
        assert!(git_numbers("git version 2.9.1") < Some(OLDEST_GIT));
        assert_eq!(git_numbers("something else"), None);
    }

    #[test]
    fn keys_are_named_and_never_shown() {
        let found = |config: &GatewayConfig, set: &'static str| {
            let check = key("gemini", &["GEMINI_API_KEY", "GOOGLE_API_KEY"], config, |name| name == set);
            (check.state, check.found)
        };
        let none = GatewayConfig::default();
        assert_eq!(found(&none, "GOOGLE_API_KEY"), (CheckState::Ok, "GOOGLE_API_KEY is set".to_string()));
        assert_eq!(found(&none, "OTHER").0, CheckState::Absent);
        let own = GatewayConfig { key_variable: Some("OTHER".to_string()), ..none.clone() };
        assert_eq!(found(&own, "OTHER"), (CheckState::Ok, "OTHER is set".to_string()));
        assert_eq!(found(&own, "GEMINI_API_KEY").0, CheckState::Absent);
        let command = vec!["pass".to_string(), "show".to_string(), "secret-name".to_string()];
        let own = GatewayConfig { key_command: Some(command), ..none.clone() };
        assert_eq!(found(&own, ""), (CheckState::Ok, "printed by `pass`".to_string()));
        let own = GatewayConfig { key_file: Some("/no/such/file".into()), ..none };
        assert_eq!(found(&own, "").0, CheckState::Problem);
    }
}
