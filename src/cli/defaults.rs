//! The defaults of `guard run`: the built-in ones, the user's `config.toml`, and the project's `.guard/config.toml`.
//!
//! guard reads the project's files from the commit at which the run starts, never from a working tree that an agent
//! can write. They may tighten what the user allows. If they ask for more, the user must confirm that, once for each
//! version of the files.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{Failure, args};
use crate::policy::{
    self, Config, PROJECT_CONFIG, PROJECT_POLICY, Policy, PolicyDirs, ProjectConfig, RunDefaults, Severity,
    Source, TimeLimit,
};
use crate::terminal_text;
use crate::transcript::runs_dir;
use crate::workspace::files_at;

/// The policy of runs if neither the command line nor a configuration names one.
pub(super) const BUILT_IN_POLICY: &str = "strict";
/// The maximum size of the project's configuration and policy together, in bytes.
const LARGEST_PROJECT: usize = 1 << 20;

/// Where the value of a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    BuiltIn,
    CommandLine,
    User(PathBuf),
    Project,
    /// The setting is a list. Some of its entries come from the project's configuration, the others from the user's
    /// configuration at this path.
    ProjectAndUser(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built in"),
            Self::CommandLine => f.write_str("command line"),
            Self::User(path) => write!(f, "{}", path.display()),
            Self::Project => write!(f, "{PROJECT_CONFIG} at the commit the run starts at"),
            Self::ProjectAndUser(path) => {
                write!(f, "{PROJECT_CONFIG} at the commit the run starts at, and {}", path.display())
            }
        }
    }
}

/// A project's configuration and policy, as they are in the commit at which a run starts.
#[derive(Debug, Clone, Default)]
pub(super) struct Project {
    pub(super) config: ProjectConfig,
    config_text: String,
    policy_text: Option<String>,
    directory: PathBuf,
}

impl Project {
    /// Reads the project's files from the commit `revision`. Returns `None` outside a repository, if the user cannot
    /// enter the directory, and if the commit contains neither a configuration nor a policy of the project.
    pub(super) fn read(directory: &Path, revision: &str) -> Result<Option<Self>, Failure> {
        let bad = |file: &str, problem: String| {
            Failure::usage(
                format!("{file} of {}: {problem}", directory.display()),
                "correct the file and commit it; then `guard config show` shows what guard reads",
            )
        };
        // If the directory does not exist, is a file, or may not be entered by the user, there is nothing to read. The
        // run itself reports these errors.
        let can_be_entered = directory.join(".").symlink_metadata().is_ok();
        if !can_be_entered || !crate::launch::may_be_in_repository(directory) {
            return Ok(None);
        }
        let files = files_at(directory, revision, &[PROJECT_CONFIG, PROJECT_POLICY], LARGEST_PROJECT);
        // A project may tighten the policy, so guard must not ignore its files when git cannot read them.
        let files = files.map_err(|error| bad(".guard", error.to_string()))?;
        let Some(files) = files else { return Ok(None) };
        let mut texts = files.into_iter().map(|file| file.map(String::from_utf8).transpose());
        let mut next = |name: &str| {
            texts.next().unwrap_or(Ok(None)).map_err(|_| bad(name, "the text is not UTF-8".to_string()))
        };
        let (config_text, policy_text) = (next(PROJECT_CONFIG)?, next(PROJECT_POLICY)?);
        if config_text.is_none() && policy_text.is_none() {
            return Ok(None);
        }
        let config_text = config_text.unwrap_or_default();
        let mut config =
            ProjectConfig::parse(&config_text).map_err(|problem| bad(PROJECT_CONFIG, problem.to_string()))?;
        // A project's policy applies even if no configuration names it.
        if config.run.policy.is_none() && policy_text.is_some() {
            config.run.policy = Some(PROJECT_POLICY.to_string());
        }
        Ok(Some(Self { config, config_text, policy_text, directory: directory.to_path_buf() }))
    }

    /// Loads the project's own policy, which may extend only built-in policies and policies of the user.
    fn policy(&self) -> Result<Policy, Failure> {
        let Some(text) = &self.policy_text else {
            return Err(Failure::usage(
                format!(
                    "{PROJECT_CONFIG} names {PROJECT_POLICY}, which is not in the commit the run starts at"
                ),
                "commit the project's policy",
            ));
        };
        let source = Source { name: PROJECT_POLICY.to_string(), text: text.clone().into(), built_in: false };
        let dirs = PolicyDirs::from_environment();
        let policy = crate::decide::load_text(source, &dirs)?;
        let is_known = |source: &Source| {
            source.built_in
                || source.name == PROJECT_POLICY
                || dirs.user.as_ref().is_some_and(|user| Path::new(&source.name).starts_with(user))
        };
        match policy.sources.iter().find(|source| !is_known(source)) {
            None => Ok(policy),
            Some(other) => Err(Failure::usage(
                format!("{PROJECT_POLICY} must not extend the file {}", other.name),
                "a project's policy extends a built-in policy, or one of yours, by its name",
            )),
        }
    }

    /// Returns true if the commit contains a policy of the project that runs do not use, because the configuration
    /// names another one.
    pub(super) fn has_unused_policy(&self) -> bool {
        self.policy_text.is_some() && self.config.run.policy.as_deref() != Some(PROJECT_POLICY)
    }

    /// Returns the paths of the project's files that runs use.
    pub(super) fn files_in_use(&self) -> Vec<&'static str> {
        let is_config_used = !self.config_text.is_empty();
        let is_policy_used = self.policy_text.is_some() && !self.has_unused_policy();
        let files = [(PROJECT_CONFIG, is_config_used), (PROJECT_POLICY, is_policy_used)];
        files.into_iter().filter(|(_, is_used)| *is_used).map(|(path, _)| path).collect()
    }

    /// Returns the hash of the project's configuration and policy. guard stores it when the user confirms them.
    fn hash(&self) -> String {
        let mut hasher = Sha256::new();
        hasher.update(self.config_text.as_bytes());
        hasher.update([0]);
        hasher.update(self.policy_text.as_deref().unwrap_or_default().as_bytes());
        crate::hex::encode(hasher.finalize())
    }
}

/// The defaults for runs in one directory, and the origin of each value.
pub(super) struct Defaults {
    pub(super) policy: Policy,
    pub(super) policy_origin: Origin,
    /// The name or path of the policy.
    pub(super) policy_name: String,
    user: RunDefaults,
    user_place: PathBuf,
    pub(super) project: Option<Project>,
}

impl Defaults {
    /// Finds the defaults for runs in a directory that start at `revision`; `None` means HEAD. `named` is the policy
    /// that the command line names, if any.
    pub(super) fn find(
        directory: &Path,
        revision: Option<&str>,
        named: Option<&str>,
        config: &Config,
    ) -> Result<Self, Failure> {
        let project = Project::read(directory, revision.unwrap_or("HEAD"))?;
        let user_place = Config::place().unwrap_or_default();
        let of_project = project.as_ref().and_then(|project| project.config.run.policy.clone());
        let (policy_name, policy_origin) = match (named, of_project, &config.run.policy) {
            (Some(named), ..) => (named.to_string(), Origin::CommandLine),
            (None, Some(name), _) => (name, Origin::Project),
            (None, None, Some(name)) => (name.clone(), Origin::User(user_place.clone())),
            (None, None, None) => (BUILT_IN_POLICY.to_string(), Origin::BuiltIn),
        };
        let policy = match (&policy_origin, &project) {
            (Origin::Project, Some(project)) if policy_name == PROJECT_POLICY => project.policy()?,
            _ => crate::decide::load(&policy_name, &PolicyDirs::from_environment(), false)?,
        };
        Ok(Self { policy, policy_origin, policy_name, user: config.run.clone(), user_place, project })
    }

    /// Returns what the project asks for beyond what the user allows, as text with one line for each item.
    pub(super) fn requests(&self) -> Result<Vec<String>, Failure> {
        let Some(project) = &self.project else { return Ok(Vec::new()) };
        let run = &project.config.run;
        let mut lines = Vec::new();
        if self.policy_origin == Origin::Project {
            let base = self.user.policy.as_deref().unwrap_or(BUILT_IN_POLICY);
            if base != self.policy_name {
                lines.extend(looser(base, &self.policy)?);
            }
        }
        for preset in run.presets.iter().filter(|preset| !self.user.presets.contains(preset)) {
            let hosts = policy::preset(preset).map(|found| found.description.clone()).unwrap_or_default();
            lines.push(format!("the network preset `{preset}`: {hosts}"));
        }
        for path in &run.copy {
            lines.push(format!("a copy of {path} from your checkout"));
        }
        for path in &run.link {
            lines.push(format!("read access to {path} in your checkout"));
        }
        if run.deps == Some(true) && self.user.deps == Some(false) {
            lines.push("the dependencies of your checkout".to_string());
        }
        let limits = &self.policy.limits;
        for (name, asked, limit) in [
            ("idle", run.timeout, limits.get("idle_seconds")),
            ("total", run.max_duration, limits.get("total_seconds")),
        ] {
            let Some(asked) = asked else { continue };
            let limit = limit.and_then(|limit| u64::try_from(limit).ok());
            let is_more = limit.is_some_and(|limit| limit > 0 && (asked.0 == 0 || asked.0 > limit));
            if is_more {
                lines.push(match asked.0 {
                    0 => format!("no {name} time limit"),
                    seconds => format!("a {name} time limit of {seconds} seconds"),
                });
            }
        }
        Ok(lines)
    }

    /// Fails if the project asks for more than the user allows and the user has not confirmed that. On a terminal,
    /// first asks the user to confirm it, and records the confirmation.
    pub(super) fn confirm(&self) -> Result<(), Failure> {
        let Some(project) = &self.project else { return Ok(()) };
        let requests = self.requests()?;
        let confirmed = Confirmed::open()?;
        if requests.is_empty() || confirmed.contains(&project.hash()) {
            return Ok(());
        }
        let list: Vec<String> =
            requests.iter().map(|line| format!("  - {}", terminal_text::replace(line))).collect();
        let files = project.files_in_use();
        let verb = if files.len() == 1 { "asks" } else { "ask" };
        let message = format!(
            "this project's {} {verb} for more than you allow:\n{}",
            files.join(" and "),
            list.join("\n")
        );
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(Failure::usage(
                message,
                format!(
                    "run `guard config trust` in {} to confirm this content once",
                    project.directory.display()
                ),
            ));
        }
        let _ = write!(io::stderr(), "guard: {message}\nallow this content? [y/N] ");
        let _ = io::stderr().flush();
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Failure::usage(
                "nobody confirmed the project's configuration",
                "correct and commit the project's files, or confirm them; --policy NAME replaces only the project's policy",
            ));
        }
        confirmed.add(&project.hash(), &project.directory)
    }

    /// Records that the user has confirmed what the project asks for, without asking on the terminal.
    pub(super) fn trust(&self) -> Result<(), Failure> {
        let Some(project) = &self.project else { return Ok(()) };
        Confirmed::open()?.add(&project.hash(), &project.directory)
    }

    /// Fills in the defaults for arguments of a run that the command line leaves out, and adds the default entries to
    /// lists. If `is_attended` is true, adds no time limits, because a person can end the run.
    pub(super) fn complete(&self, arguments: &mut args::Run, is_attended: bool) {
        let project = self.project.as_ref().map(|project| &project.config.run);
        let both: Vec<&RunDefaults> = project.into_iter().chain([&self.user]).collect();
        for defaults in &both {
            let known: Vec<String> = arguments.preset.clone();
            arguments
                .preset
                .extend(defaults.presets.iter().filter(|preset| !known.contains(preset)).cloned());
            arguments.copy.extend(defaults.copy.iter().cloned());
            arguments.link.extend(defaults.link.iter().cloned());
        }
        let first = |of: fn(&RunDefaults) -> Option<TimeLimit>| {
            both.iter().find_map(|defaults| of(defaults)).filter(|_| !is_attended).map(|limit| limit.0)
        };
        arguments.timeout = arguments.timeout.or_else(|| first(|defaults| defaults.timeout));
        arguments.max_duration = arguments.max_duration.or_else(|| first(|defaults| defaults.max_duration));
        if both.iter().find_map(|defaults| defaults.deps) == Some(false) {
            arguments.no_deps = true;
        }
    }

    /// Returns the prefix for the names of runs' branches, from the project's configuration or else from the user's;
    /// `None` if neither sets a prefix.
    pub(super) fn branch_prefix(&self) -> Option<&str> {
        let project = self.project.as_ref().and_then(|project| project.config.run.branch_prefix.as_deref());
        project.or(self.user.branch_prefix.as_deref())
    }

    /// Returns every setting with its value and its origin.
    pub(super) fn settings(&self) -> Vec<(&'static str, String, Origin)> {
        let user = || Origin::User(self.user_place.clone());
        let project = self.project.as_ref().map(|project| project.config.run.clone()).unwrap_or_default();
        let one = |key: &'static str, of: &dyn Fn(&RunDefaults) -> Option<String>, built_in: &str| {
            let (value, origin) = match (of(&project), of(&self.user)) {
                (Some(value), _) => (value, Origin::Project),
                (None, Some(value)) => (value, user()),
                (None, None) => (built_in.to_string(), Origin::BuiltIn),
            };
            (key, value, origin)
        };
        // A run gets the entries of the project's list and those of the user's list.
        let list = |key: &'static str, of: fn(&RunDefaults) -> &Vec<String>, built_in: &str| {
            let (projects, users) = (of(&project), of(&self.user));
            let origin = match (projects.is_empty(), users.is_empty()) {
                (true, true) => return (key, built_in.to_string(), Origin::BuiltIn),
                (false, true) => Origin::Project,
                (true, false) => user(),
                (false, false) => Origin::ProjectAndUser(self.user_place.clone()),
            };
            let new = users.iter().filter(|entry| !projects.contains(entry));
            let entries: Vec<&str> = projects.iter().chain(new).map(String::as_str).collect();
            (key, entries.join(", "), origin)
        };
        let seconds = |limit: Option<i64>| limit.map_or("none".to_string(), |limit| format!("{limit} s"));
        let limit_of = |limit: Option<TimeLimit>| limit.map(|limit| format!("{} s", limit.0));
        vec![
            ("policy", self.policy_name.clone(), self.policy_origin.clone()),
            list("presets", |run| &run.presets, &self.policy.network.presets.join(", ")),
            one("deps", &|run| run.deps.map(|deps| deps.to_string()), "true"),
            list("copy", |run| &run.copy, "none"),
            list("link", |run| &run.link, "none"),
            one("branch_prefix", &|run| run.branch_prefix.clone(), &self.policy.git.branch_prefix),
            one("timeout", &|run| limit_of(run.timeout), &seconds(self.policy.limits.get("idle_seconds"))),
            one(
                "max_duration",
                &|run| limit_of(run.max_duration),
                &seconds(self.policy.limits.get("total_seconds")),
            ),
        ]
    }
}

/// Compares `policy` with the policy named `base`, which the user allows, and returns the differences. Returns no
/// differences if `policy` extends `base` and only tightens it.
fn looser(base: &str, policy: &Policy) -> Result<Vec<String>, Failure> {
    let extends_base = policy.extends.iter().any(|name| name == base);
    let loosens = policy.remarks.iter().any(|remark| remark.severity == Severity::Note);
    if extends_base && !loosens {
        return Ok(Vec::new());
    }
    let base = crate::decide::load(base, &PolicyDirs::from_environment(), false)?;
    let lines = policy::diff(&base, policy);
    Ok(lines.into_iter().map(|line| format!("policy {}: {line}", policy.name)).collect())
}

/// The hashes of the project configurations that the user has confirmed, which guard stores in a file in the state
/// directory.
struct Confirmed {
    path: PathBuf,
    text: String,
}

impl Confirmed {
    fn open() -> Result<Self, Failure> {
        let state = runs_dir().map_err(|error| {
            Failure::usage(error.to_string(), "set XDG_STATE_HOME or HOME to an absolute path")
        })?;
        let path = state.with_file_name("confirmed-projects");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(Failure::usage(
                    format!("cannot read {}: {error}", path.display()),
                    "change the owner or mode of the file so that you can read it",
                ));
            }
        };
        Ok(Self { path, text })
    }

    fn contains(&self, hash: &str) -> bool {
        self.text.lines().any(|line| line.split(' ').next() == Some(hash))
    }

    fn add(&self, hash: &str, directory: &Path) -> Result<(), Failure> {
        if self.contains(hash) {
            return Ok(());
        }
        let written = || -> io::Result<()> {
            let parent = self.path.parent().unwrap_or(Path::new("/"));
            std::fs::create_dir_all(parent)?;
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&self.path)?;
            writeln!(file, "{hash} {}", terminal_text::replace(&directory.to_string_lossy()))
        };
        written().map_err(|error| {
            Failure::usage(
                format!("cannot write {}: {error}", self.path.display()),
                "check the owner and mode of the file and of its directory",
            )
        })
    }
}
