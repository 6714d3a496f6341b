//! The defaults of `guard run`: the built-in ones, the user's `config.toml`, and the project's `.guard/config.toml`.
//!
//! guard reads the project's files from the commit at which the run starts, never from a working tree that an agent
//! can write. They may tighten what the user allows. If they ask for more, the user must confirm that, once for each
//! version of the files. A confirmation holds in one repository, and ends when the user confirms another version there or
//! a run there uses one that needs no confirmation.

use std::path::{Path, PathBuf};

use crate::git::{Repository, files_at, head_without_git, lacks_entry, main_directory};
use crate::judge::policy;
use crate::judge::policy::{
    Config, PROJECT_CONFIG, PROJECT_POLICY, Policy, PolicyDirs, ProjectConfig, RunDefaults, Severity, Source,
    TimeLimit,
};
use crate::run::settings::RunSettings;
use crate::session::Failure;
use crate::session::caller::{Ask, Question};
use crate::session::checkout::{Checkout, split};
use crate::session::content_record::{ContentRecord, hash};
use crate::sys::agent_paths::{AgentPaths, PlaceKind, state_directory};
use crate::sys::fs::{Links, read_regular_file};
use crate::text::terminal_text;

/// The policy of runs if neither the command line nor a configuration names one.
pub(crate) const BUILT_IN_POLICY: &str = "strict";
/// The prefix of the branches of runs if no configuration sets another.
const BRANCH_PREFIX: &str = "task/";
/// The maximum size of the project's configuration and policy together, in bytes.
const LARGEST_PROJECT: usize = 1 << 20;
/// The directory, in guard's state directory, with a file for each repository: the hash of the confirmed content.
const CONFIRMED: &str = "project-settings";
/// The directory, in guard's state directory, with a file for each repository: the last commit without project files.
const WITHOUT_FILES: &str = "commits-without-settings";
/// The directory of the project's files.
const PROJECT_DIRECTORY: &str = ".guard";
/// The file in which older versions of guard recorded confirmations, which held in every repository.
const OLD_CONFIRMED: &str = "confirmed-projects";
const MAX_OLD_CONFIRMED_BYTES: u64 = 8 << 20;

/// Where the value of a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
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
pub(crate) struct Project {
    pub(crate) config: ProjectConfig,
    config_text: String,
    policy_text: Option<String>,
    directory: PathBuf,
}

impl Project {
    /// Reads the project's files from the commit `revision`. Returns `None` outside a repository, if the user cannot
    /// enter the directory, and if the commit contains neither a configuration nor a policy of the project.
    pub(crate) fn read(directory: &Path, revision: &str) -> Result<Option<Self>, Failure> {
        let bad = |file: &str, problem: String| {
            Failure::usage(
                format!("{file} of {}: {problem}", directory.display()),
                "correct the file and commit it; then `guard config show` shows what guard reads",
            )
        };
        // If the directory does not exist, is a file, or may not be entered by the user, there is nothing to read. The
        // run itself reports these errors.
        let can_be_entered = directory.join(".").symlink_metadata().is_ok();
        if !can_be_entered || !crate::run::launch::may_be_in_repository(directory) {
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
        check_extends(text)?;
        let source = Source { name: PROJECT_POLICY.to_string(), text: text.clone().into(), built_in: false };
        let dirs = PolicyDirs::from_environment();
        let policy = crate::judge::decide::load_text(source, &dirs)?;
        let is_known = |source: &Source| {
            source.built_in
                || source.name == PROJECT_POLICY
                || dirs.user.as_ref().is_some_and(|user| Path::new(&source.name).starts_with(user))
        };
        match policy.sources.iter().find(|source| !is_known(source)) {
            None => Ok(policy),
            Some(other) => Err(extends_file(&other.name)),
        }
    }

    /// Returns true if the commit contains a policy of the project that runs do not use, because the configuration
    /// names another one.
    pub(crate) fn has_unused_policy(&self) -> bool {
        self.policy_text.is_some() && self.config.run.policy.as_deref() != Some(PROJECT_POLICY)
    }

    /// Returns the paths of the project's files that runs use.
    pub(crate) fn files_in_use(&self) -> Vec<&'static str> {
        let is_config_used = !self.config_text.is_empty();
        let is_policy_used = self.policy_text.is_some() && !self.has_unused_policy();
        let files = [(PROJECT_CONFIG, is_config_used), (PROJECT_POLICY, is_policy_used)];
        files.into_iter().filter(|(_, is_used)| *is_used).map(|(path, _)| path).collect()
    }

    /// Returns the hash of the project's configuration and policy. guard stores it when the user confirms them.
    fn hash(&self) -> String {
        let policy = self.policy_text.as_deref().unwrap_or_default();
        hash(&[self.config_text.as_bytes(), policy.as_bytes()].join(&0))
    }

    /// Returns the record of the content that the user has confirmed in the project's repository. All worktrees of the
    /// repository share it.
    fn confirmed(&self) -> Result<ContentRecord, Failure> {
        let cannot = |problem: String| {
            let message = format!("cannot find the repository of {}: {problem}", self.directory.display());
            Failure::usage(message, "`git status` shows whether git works here")
        };
        let repository =
            Repository::find_without_head(&self.directory).map_err(|error| cannot(error.to_string()))?;
        let repository = repository.ok_or_else(|| cannot("git finds none".to_string()))?;
        let common = repository.common_dir.canonicalize().map_err(|error| cannot(error.to_string()))?;
        ContentRecord::of(CONFIRMED, &common)
    }

    /// Returns true if the user confirmed this content with a version of guard whose confirmations held in every
    /// repository.
    fn was_confirmed_everywhere(&self) -> bool {
        let file = state_directory().map(|state| state.join(OLD_CONFIRMED));
        let old = file.and_then(|file| read_regular_file(&file, MAX_OLD_CONFIRMED_BYTES, Links::Refuse).ok());
        let hash = self.hash();
        old.is_some_and(|old| old.split(|&byte| byte == b'\n').any(|line| line.starts_with(hash.as_bytes())))
    }
}

/// The commit at the `HEAD` of a repository, and the record of the last commit there that has no directory `.guard`. Most
/// projects have none, and starting git to find that out takes a fifth of a launch. The id of a commit determines its
/// files, so a record can be outdated but not wrong.
pub(crate) struct CommitWithoutFiles {
    directory: PathBuf,
    commit: String,
    record: ContentRecord,
}

impl CommitWithoutFiles {
    /// Finds the commit at the `HEAD` of the repository that contains a directory; `None` if only git can find it.
    fn at_head(directory: &Path) -> Option<Self> {
        let (git_directory, commit) = head_without_git(directory)?;
        let record = ContentRecord::of(WITHOUT_FILES, &git_directory).ok()?;
        Some(Self { directory: directory.to_path_buf(), commit, record })
    }

    /// True if guard has found before that the commit has no directory `.guard`.
    fn is_known(&self) -> bool {
        self.record.known().is_ok_and(|known| known.as_ref() == Some(&self.commit))
    }

    /// Records that the commit has no directory `.guard`, if git confirms that: a partial clone may lack the files in it.
    pub(crate) fn remember(&self) {
        if lacks_entry(&self.directory, &self.commit, PROJECT_DIRECTORY).unwrap_or(false) {
            // If this fails, the next run starts git again.
            let _ = self.record.remember(&self.commit);
        }
    }
}

/// The defaults for runs in one directory, and the origin of each value.
pub(crate) struct Defaults {
    pub(crate) policy: Policy,
    pub(crate) policy_origin: Origin,
    /// The name or path of the policy.
    pub(crate) policy_name: String,
    user: RunDefaults,
    user_place: PathBuf,
    pub(crate) project: Option<Project>,
    /// The commit of the run, if it seems to have no files of the project, and guard has not recorded that yet.
    pub(crate) new_commit: Option<CommitWithoutFiles>,
}

impl Defaults {
    /// Finds the defaults for runs in a directory that start at `revision`; `None` means HEAD. `named` is the policy
    /// that the command line names, if any.
    pub(crate) fn find(
        directory: &Path,
        revision: Option<&str>,
        named: Option<&str>,
        config: &Config,
    ) -> Result<Self, Failure> {
        let (place, revision) = users_commit(directory, revision, config)?;
        let head = if revision == "HEAD" { CommitWithoutFiles::at_head(&place) } else { None };
        let is_known = head.as_ref().is_some_and(CommitWithoutFiles::is_known);
        let project = if is_known { None } else { Project::read(&place, &revision)? };
        let new_commit = head.filter(|_| !is_known && project.is_none());
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
            _ => crate::judge::decide::load(&policy_name, &PolicyDirs::from_environment(), false)?,
        };
        Ok(Self {
            policy,
            policy_origin,
            policy_name,
            user: config.run.clone(),
            user_place,
            project,
            new_commit,
        })
    }

    /// Returns what the project asks for beyond what the user allows, as text with one line for each item. A project may
    /// only tighten the user's settings without a confirmation.
    pub(crate) fn requests(&self) -> Result<Vec<String>, Failure> {
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
        for (name, asked, users, limit) in [
            ("an idle", run.timeout, self.user.timeout, limits.get("idle_seconds")),
            ("a total", run.max_duration, self.user.max_duration, limits.get("total_seconds")),
        ] {
            let Some(asked) = asked else { continue };
            let limit = limit.and_then(|limit| u64::try_from(limit).ok());
            // Without the project's file, the user's own setting would replace the limit of the policy. 0 means no limit.
            let limit = users.map(|users| users.0).or(limit).filter(|limit| *limit > 0);
            if limit.is_some_and(|limit| asked.0 == 0 || asked.0 > limit) {
                lines.push(match asked.0 {
                    0 => format!("no {} time limit", name.split(' ').next_back().unwrap_or_default()),
                    seconds => format!("{name} time limit of {seconds} seconds"),
                });
            }
        }
        if let (Some(asked), Some(users)) = (&run.branch_prefix, &self.user.branch_prefix)
            && asked != users
        {
            lines.push(format!("branches below {asked} instead of your {users}"));
        }
        Ok(lines)
    }

    /// Returns true if the user has confirmed the content of the project's files.
    pub(crate) fn is_confirmed(&self) -> Result<bool, Failure> {
        let Some(project) = &self.project else { return Ok(false) };
        Ok(project.confirmed()?.known()? == Some(project.hash()))
    }

    /// Fails if the project asks for more than the user allows and the user has not confirmed that. First asks the user
    /// to confirm it, and records the confirmation.
    pub(crate) fn confirm(&self, ask: &Ask) -> Result<(), Failure> {
        let Some(project) = &self.project else { return Ok(()) };
        let requests = self.requests()?;
        let confirmed = project.confirmed()?;
        let known = confirmed.known()?;
        if known == Some(project.hash()) {
            return Ok(());
        }
        if requests.is_empty() {
            // Otherwise a run could bring back an older version that asks for more.
            return if known.is_some() { confirmed.forget() } else { Ok(()) };
        }
        let list: Vec<String> =
            requests.iter().map(|line| format!("  - {}", terminal_text::replace(line))).collect();
        let files = project.files_in_use();
        let verb = if files.len() == 1 { "asks" } else { "ask" };
        let old =
            "you confirmed this with an older guard; a confirmation now holds only in its own repository";
        let message = format!(
            "this project's {} {verb} for more than you allow{}:\n{}",
            files.join(" and "),
            if project.was_confirmed_everywhere() { format!(" ({old})") } else { String::new() },
            list.join("\n")
        );
        let question = Question {
            message,
            question: "allow this content?",
            hint: format!(
                "run `guard config trust` in {} to confirm this content once",
                project.directory.display()
            ),
            refusal: (
                "nobody confirmed the project's configuration",
                "correct and commit the project's files, or confirm them; --policy NAME replaces only the project's policy",
            ),
        };
        question.confirm(ask)?;
        confirmed.remember(&project.hash())
    }

    /// Records that the user has confirmed what the project asks for, without asking on the terminal.
    pub(crate) fn trust(&self) -> Result<(), Failure> {
        let Some(project) = &self.project else { return Ok(()) };
        project.confirmed()?.remember(&project.hash())
    }

    /// Fills in the defaults for settings of a run that its caller leaves out, and adds the default entries to lists. If
    /// `is_attended` is true, adds no time limits, because a person can end the run.
    pub(crate) fn complete(&self, settings: &mut RunSettings, is_attended: bool) {
        let project = self.project.as_ref().map(|project| &project.config.run);
        let both: Vec<&RunDefaults> = project.into_iter().chain([&self.user]).collect();
        for defaults in &both {
            let known: Vec<String> = settings.presets.clone();
            settings
                .presets
                .extend(defaults.presets.iter().filter(|preset| !known.contains(preset)).cloned());
            settings.worktree.copy.extend(defaults.copy.iter().cloned());
            settings.worktree.link.extend(defaults.link.iter().cloned());
        }
        let first = |of: fn(&RunDefaults) -> Option<TimeLimit>| {
            both.iter().find_map(|defaults| of(defaults)).filter(|_| !is_attended).map(|limit| limit.0)
        };
        settings.idle_seconds = settings.idle_seconds.or_else(|| first(|defaults| defaults.timeout));
        settings.total_seconds = settings.total_seconds.or_else(|| first(|defaults| defaults.max_duration));
        if both.iter().find_map(|defaults| defaults.deps) == Some(false) {
            settings.worktree.no_deps = true;
        }
    }

    /// Returns the prefix for the names of runs' branches, from the project's configuration or else from the user's;
    /// `None` if neither sets a prefix.
    pub(crate) fn branch_prefix(&self) -> Option<&str> {
        let project = self.project.as_ref().and_then(|project| project.config.run.branch_prefix.as_deref());
        project.or(self.user.branch_prefix.as_deref())
    }

    /// Returns every setting with its value and its origin.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String, Origin)> {
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

/// Fails if a project's policy extends a file. guard must not even open the file: an agent may have committed its path, and
/// an error would quote its text.
pub(crate) fn check_extends(text: &str) -> Result<(), Failure> {
    policy::extended_file(text).map_or(Ok(()), |file| Err(extends_file(&terminal_text::replace(&file))))
}

fn extends_file(file: &str) -> Failure {
    Failure::usage(
        format!("{PROJECT_POLICY} must not extend the file {file}"),
        "a project's policy extends a built-in policy, or one of yours, by its name",
    )
}

/// Returns the paths of the project's files in the working tree that differ from those in the commit at `HEAD`, which runs
/// read. Returns none of them outside a checkout, or if guard cannot read the files.
pub(crate) fn uncommitted_files() -> Vec<&'static str> {
    let Ok(Some(checkout)) = Checkout::here() else { return Vec::new() };
    let paths = [PROJECT_POLICY, PROJECT_CONFIG];
    let Ok(Some(committed)) = files_at(checkout.root(), "HEAD", &paths, LARGEST_PROJECT) else {
        return Vec::new();
    };
    let differs = |(path, committed): &(&str, Option<Vec<u8>>)| {
        let (directory, name) = split(Path::new(*path))?;
        let directory = checkout.directory(&directory, false).ok()??;
        let written = directory.read(name, LARGEST_PROJECT as u64).ok()?;
        Some(committed.as_ref() != Some(&written))
    };
    let files = paths.into_iter().zip(committed);
    files.filter(|file| differs(file).unwrap_or(false)).map(|(path, _)| path).collect()
}

/// Returns a note for the user after a refusal: changed files of the project have no effect before they are committed.
/// `None` if no file of the project is changed.
pub(crate) fn uncommitted_note() -> Option<String> {
    let files = uncommitted_files();
    let names = files.join(" and ");
    let (has, it) = if files.len() == 1 { ("has", "it") } else { ("have", "them") };
    (!files.is_empty()).then(|| {
        format!(
            "{names} {has} changes that are not committed, and runs read {it} from the commit that they start at\n  hint: {}",
            commit_command(&files)
        )
    })
}

/// Returns the commands that commit files of the project, and confirm what they ask for.
pub(crate) fn commit_command(files: &[&str]) -> String {
    let files = files.join(" ");
    format!("git add {files} && git commit -m 'Change the policy of guard' -- {files} && guard config trust")
}

/// Returns the directory and the revision from which guard reads the project's settings for a run in `directory` that
/// starts at `revision`. In a worktree that runs could write, and for a run on top of a run's branch, that is the commit in
/// the user's checkout: a run may have committed a change of the settings to its branch.
fn users_commit(
    directory: &Path,
    revision: Option<&str>,
    config: &Config,
) -> Result<(PathBuf, String), Failure> {
    let head = |directory: &Path| (directory.to_path_buf(), "HEAD".to_string());
    let prefix = config.run.branch_prefix.as_deref().unwrap_or(BRANCH_PREFIX);
    if let Some(revision) = revision
        && !revision.strip_prefix("refs/heads/").unwrap_or(revision).starts_with(prefix)
    {
        return Ok((directory.to_path_buf(), revision.to_string()));
    }
    let Ok(real) = directory.canonicalize() else { return Ok(head(directory)) };
    let is_linked = real.ancestors().find_map(|level| level.join(".git").symlink_metadata().ok());
    if is_linked.is_none_or(|found| !found.is_file()) {
        return Ok(head(directory));
    }
    let places = AgentPaths::from_environment().map_err(|error| {
        let state = "check the owner and mode of guard's state directory";
        Failure::usage(format!("cannot read where agents have worked: {error}"), state)
    })?;
    if places.place_of(&real).is_none_or(|place| place.kind == PlaceKind::WorkingTree) {
        return Ok(head(directory));
    }
    // If git cannot tell, the run itself reports the reason.
    match Repository::find(&real) {
        Ok(Some(repository)) => Ok(head(main_directory(&repository.common_dir))),
        Ok(None) | Err(_) => Ok(head(directory)),
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
    let base = crate::judge::decide::load(base, &PolicyDirs::from_environment(), false)?;
    let lines = policy::diff(&base, policy);
    Ok(lines.into_iter().map(|line| format!("policy {}: {line}", policy.name)).collect())
}
