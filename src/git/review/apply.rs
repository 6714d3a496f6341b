//! Applies the work of a run to the branch that the user has checked out.
//!
//! guard makes a plan first: git merges in a jail, without a working tree, and the plan says what would change, or why
//! the work cannot be applied. The plan also names the dangers among the files that would change in the user's working
//! tree: guard finds them in the two trees at this moment, whatever the runs on the branch have reported. Objects that
//! guard makes from files of the worktree stay in a temporary directory until git has checked them like those of received
//! commits. Only then does guard change the user's working tree, index and branch. Like `git
//! merge`, guard refuses to overwrite changes of the user. It moves the branch only if no other process has moved the
//! branch meanwhile. No hooks run.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::git::WorkspaceError;
use crate::git::plumbing::command::Git;
use crate::git::plumbing::config::Settings;
use crate::git::plumbing::gitfile;
use crate::git::plumbing::outcome::GitError;
use crate::git::plumbing::repository::{Head, Repository};
use crate::git::receive::Limits;
use crate::git::receive::push::{Report, Source};
use crate::git::review::findings::{Danger, DangersError, Inspection, inspect, inspect_difference};
use crate::git::review::whole_work::{ReviewStart, WholeWork, WorkReader, split_paths};
use crate::git::snapshot::Name;
use crate::git::task_branch::{SKIP_SMUDGE, TaskTree, line};
use crate::git::workspace::create::{Workspace, trusted_settings};
use crate::git::workspace::hooks::{hooks_dir, hooks_in_checkout};
use crate::git::workspace::run_record::State;

/// Maximum number of commit subjects in the message of a squashed commit.
const MAX_SUBJECTS: usize = 100;
/// Timeout for `git status` and for the checkout in the user's working tree.
const CHECKOUT_TIMEOUT: Duration = Duration::from_secs(600);
/// Timeout for finding the dangers in the work.
const INSPECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of paths that an error message names.
const MAX_NAMED: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyMethod {
    /// guard merges the run's own commits into the user's branch: by a fast-forward or a merge commit.
    Merge,
    /// guard adds all of the work to the user's branch as one new commit.
    Squash,
    /// guard leaves the work as uncommitted changes in the user's working tree and index.
    Uncommitted,
}

#[derive(Debug, Clone)]
pub struct ApplyRequest {
    pub method: ApplyMethod,
    /// The message for the commit that guard makes; `None` for a default message. If guard commits the run's
    /// uncommitted work and then merges, only the commit of the uncommitted work gets this message.
    pub message: Option<String>,
    /// True if guard must not write anything to the repository, and only plan.
    pub dry_run: bool,
}

/// What would change if guard applied the work of a run. Making the plan changes no ref, no index and no file's
/// content.
pub struct ApplyPlan {
    /// The user's branch to apply the work to, without `refs/heads/`; `None` if `HEAD` is detached.
    pub into: Option<String>,
    pub work: WholeWork,
    /// The paths that will change in the user's working tree.
    pub files: Vec<PathBuf>,
    pub method: ApplyMethod,
    /// True if the user's branch only moves forward to the run's commits, without a new commit.
    pub is_fast_forward: bool,
    /// The commit that the user has checked out.
    pub old: String,
    /// The commit that will be checked out; `None` if the changes stay uncommitted.
    pub new: Option<String>,
    /// The message of the commit with the run's uncommitted work that guard adds to the run's branch; `None` if guard
    /// adds none.
    pub work_message: Option<String>,
    /// True if the user has git hooks that `git merge` or `git commit` would run. guard does not run them.
    pub has_hooks: bool,
    /// The dangers among the files that will change in the user's working tree.
    pub dangers: Vec<Danger>,
    /// The commit that guard made from the run's uncommitted work, on top of the run's branch; `None` if there was no
    /// uncommitted work.
    work_commit: Option<String>,
    /// The tree that will be checked out, or a commit with that tree.
    tree: String,
    /// The commit whose objects are not in the user's repository yet; `None` if the repository has all of them.
    made: Option<String>,
    reader: WorkReader,
}

/// Whether the work of a run can be applied to the user's branch.
pub enum Planned {
    Ready(Box<ApplyPlan>),
    /// The user's branch already has all of the work, or the run did no work.
    Nothing(WholeWork),
    /// The work and the user's branch have conflicting changes to these files, so that git cannot merge them.
    Conflicts {
        paths: Vec<PathBuf>,
        work: WholeWork,
        /// The dangers among the files that the work changes.
        dangers: Vec<Danger>,
    },
    /// The user's working tree has changes or untracked files at these paths, and applying the work would overwrite
    /// them.
    Overlaps {
        paths: Vec<PathBuf>,
        /// The dangers among the files that would change in the user's working tree.
        dangers: Vec<Danger>,
    },
}

impl Workspace {
    /// Plans how to apply the work of the run to the branch that the user has checked out in `repository`. Fails if
    /// guard cannot apply the work now, for example because guard has not received the run's commits yet, or because a
    /// merge is in progress in the user's working tree.
    pub fn plan_apply(
        &self,
        repository: &Repository,
        request: &ApplyRequest,
    ) -> Result<Planned, WorkspaceError> {
        let settings = trusted_settings(repository)?;
        let top = self.check_place(repository)?;
        self.check_state()?;
        let Some(old) = repository.head.commit().map(str::to_string) else {
            return Err(WorkspaceError::refused(
                "the current branch has no commit yet",
                "switch to the branch that is to get the work: git switch main",
            ));
        };
        let reader = WorkReader::new(self.record.clone(), &self.run_folder)?;
        let work = self.read_to_commit(&reader, &old)?;
        let who = TaskTree::identity(repository)?;
        let mut work_message = None;
        let mut work_commit = None;
        let mut theirs = work.tip.clone();
        if !work.uncommitted.is_empty() {
            let given = request.message.clone().filter(|_| request.method == ApplyMethod::Merge);
            let message = given.unwrap_or_else(|| self.default_work_message());
            theirs = commit(&reader, &who, &work.tree, &[&work.tip], &message)?;
            self.check_made(&reader, &work, &theirs)?;
            (work_message, work_commit) = (Some(message), Some(theirs.clone()));
        }
        if is_ancestor(&reader, &theirs, &old)? {
            return Ok(Planned::Nothing(work));
        }
        let is_forward = is_ancestor(&reader, &old, &theirs)?;
        let tree = if is_forward {
            theirs.clone()
        } else {
            match merge(&reader, &old, &theirs)? {
                Ok(tree) => tree,
                Err(paths) => {
                    let dangers = self.dangers_in_worktree(&reader, repository, &settings, &work)?;
                    return Ok(Planned::Conflicts { paths, work, dangers });
                }
            }
        };
        let changes = changes(&reader, &old, &tree)?;
        if changes.is_empty() && request.method != ApplyMethod::Merge {
            return Ok(Planned::Nothing(work));
        }
        let inspection = self.inspection(&reader, repository, &settings, (&old, &tree));
        let dangers = inspect_difference(&inspection).map_err(|error| not_inspected(&error))?;
        let paths = overlaps(repository, &top, &changes)?;
        if !paths.is_empty() {
            return Ok(Planned::Overlaps { paths, dangers });
        }
        let new = match request.method {
            ApplyMethod::Uncommitted => None,
            ApplyMethod::Merge if is_forward => Some(theirs),
            ApplyMethod::Merge => {
                let message = request.message.clone().filter(|_| work_message.is_none());
                let message = message.unwrap_or_else(|| format!("Merge branch '{}'", self.branch()));
                Some(commit(&reader, &who, &tree, &[&old, &theirs], &message)?)
            }
            ApplyMethod::Squash => {
                let message = match &request.message {
                    Some(message) => message.clone(),
                    None => self.squash_message(&reader, &work)?,
                };
                Some(commit(&reader, &who, &tree, &[&old], &message)?)
            }
        };
        let made = match &new {
            Some(new) => Some(new.clone()).filter(|new| *new != work.tip),
            None if tree == work.tip => None,
            // A commit that no ref will name: git transfers the objects of commits only.
            None => Some(commit(&reader, &who, &tree, &[&old], "guard apply --uncommitted")?),
        };
        let into = match &repository.head {
            Head::Branch(name, _) => Some(name.strip_prefix("refs/heads/").unwrap_or(name).to_string()),
            _ => None,
        };
        Ok(Planned::Ready(Box::new(ApplyPlan {
            into,
            work,
            files: changes.into_iter().map(|change| change.path).collect(),
            method: request.method,
            is_fast_forward: is_forward && request.method == ApplyMethod::Merge,
            old,
            new,
            work_message: work_message.filter(|_| request.method == ApplyMethod::Merge),
            has_hooks: has_hooks(repository, &settings),
            dangers,
            work_commit,
            tree,
            made,
            reader,
        })))
    }

    /// Returns the inspection of the files that differ between the two trees.
    fn inspection(
        &self,
        reader: &WorkReader,
        repository: &Repository,
        settings: &Settings,
        (from, to): (&str, &str),
    ) -> Inspection {
        let record = &self.record;
        let usual = Inspection::new(&record.common_dir, &record.worktree, Some(from), Some(to));
        Inspection {
            objects: record.objects.clone(),
            new_objects: Some(reader.objects()),
            ..for_review(usual, repository, settings)
        }
    }

    /// Finds the dangers in the whole work and in the other files of the worktree, such as ignored ones. For a user who
    /// goes on with the worktree or the branch without guard.
    fn dangers_in_worktree(
        &self,
        reader: &WorkReader,
        repository: &Repository,
        settings: &Settings,
        work: &WholeWork,
    ) -> Result<Vec<Danger>, WorkspaceError> {
        let inspection = self.inspection(reader, repository, settings, (&work.base, &work.tree));
        let is_there = self.record.worktree.symlink_metadata().is_ok_and(|data| data.is_dir());
        let inspected = if is_there { inspect(&inspection) } else { inspect_difference(&inspection) };
        inspected.map_err(|error| not_inspected(&error))
    }

    /// Checks the commit `new`, which guard made from uncommitted files, as it checks received commits.
    fn check_made(&self, reader: &WorkReader, work: &WholeWork, new: &str) -> Result<(), WorkspaceError> {
        let source = Source { objects: reader.objects(), base: work.tip.clone(), tip: work.tip.clone() };
        self.check_objects(&source, new, &self.record.limits()).map_err(unacceptable)
    }

    /// Transfers the objects of the commit `made` from the directory `objects` to the user's repository, with the checks of
    /// received commits. `known` are two commits that the repository has; `made` must descend from the first. A temporary
    /// ref names the commit until [`Self::forget_transfer`].
    pub(crate) fn transfer_made(
        &self,
        objects: &Path,
        made: &str,
        known: [&str; 2],
        limits: &Limits,
    ) -> Result<(), WorkspaceError> {
        let source =
            Source { objects: objects.to_path_buf(), base: known[0].to_string(), tip: known[1].to_string() };
        let incoming = format!("{}/incoming", self.saved_refs_prefix());
        let zero = "0".repeat(made.len());
        // An interrupted transfer may have left this temporary ref.
        self.real_git("update-ref")?.args(["-d", &incoming]).run()?;
        let report = self.push_from(&source, &incoming, &zero, made, limits);
        let sender = self.run_folder.join("sender");
        crate::git::at("remove", &sender, crate::sys::remove_tree::remove_tree(&sender))?;
        match report.map_err(unacceptable)? {
            Report::Done => Ok(()),
            Report::NotForward => Err(unacceptable("git refused to create a temporary ref")),
            Report::Refused(reason) => Err(unacceptable(reason)),
        }
    }

    /// Removes the temporary ref of [`Self::transfer_made`]. Ignores errors: the next transfer removes the ref.
    pub(crate) fn forget_transfer(&self) {
        let incoming = format!("{}/incoming", self.saved_refs_prefix());
        let _ = self.real_git("update-ref").map(|git| git.args(["-d", &incoming]).run());
    }

    /// Returns the top of the user's working tree. Fails if guard cannot apply the work of this run there.
    fn check_place(&self, repository: &Repository) -> Result<PathBuf, WorkspaceError> {
        let refuse = |problem: String, hint: String| Err(WorkspaceError::refused(problem, hint));
        let record = &self.record;
        if repository.common_dir != record.common_dir {
            let place = record.common_dir.parent().unwrap_or(&record.common_dir).display();
            return refuse(
                format!("the run {} worked in another repository", record.run_id),
                format!("run `guard apply` there: {place}"),
            );
        }
        let Some(top) = &repository.toplevel else {
            return refuse(
                "the current directory is not in a working tree, so guard cannot apply the work".to_string(),
                format!("push the branch, or merge {} in a clone", self.branch()),
            );
        };
        let is_its_branch = matches!(&repository.head, Head::Branch(name, _) if *name == record.branch);
        if *top == record.worktree || is_its_branch {
            let problem = if is_its_branch {
                format!("{} is checked out here, and it is the run's own branch", self.branch())
            } else {
                format!("{} is the run's own worktree", top.display())
            };
            return refuse(problem, "go to the working tree whose branch is to get the work".to_string());
        }
        if let Some(operation) = repository.operation_in_progress() {
            return refuse(
                format!("{operation} is in progress in {}", top.display()),
                "finish or abort that operation first".to_string(),
            );
        }
        Ok(top.clone())
    }

    fn check_state(&self) -> Result<(), WorkspaceError> {
        let record = &self.record;
        let run = &record.run_id;
        let is_interrupted = !matches!(record.state, State::Kept | State::Removed);
        if is_interrupted
            || (record.state == State::Kept && crate::git::has_unreceived_commits(&self.run_folder, record))
        {
            return Err(WorkspaceError::refused(
                format!("guard has not received the commits of the run {run}"),
                format!("receive them first: guard worktree receive {run}"),
            ));
        }
        Ok(())
    }

    /// Reads the committed and uncommitted work that the commit `target` of the user does not have. If git cannot read a file, restores the owner's permissions
    /// and tries again. Fails if guard cannot commit all of the work unchanged, for example because a file is too
    /// large.
    fn read_to_commit(&self, reader: &WorkReader, target: &str) -> Result<WholeWork, WorkspaceError> {
        let worktree = &self.record.worktree;
        let path = |path: &Path| crate::text::terminal_text::escape(&path.to_string_lossy()).into_owned();
        // The hint says to commit without hooks, because hooks may execute files that the agent wrote in the worktree.
        let by_hand = || {
            let worktree = shell_words::quote(&worktree.to_string_lossy()).into_owned();
            let worktree = crate::text::terminal_text::escape(&worktree);
            format!(
                "commit the work yourself without hooks, then apply it: git -C {worktree} add -A && \
                 git -C {worktree} -c core.hooksPath=/dev/null commit"
            )
        };
        let start = ReviewStart::Fork(Some(target));
        let work = match reader.read(start) {
            // `git add` fails if the agent has removed the owner's permissions on some files or directories.
            Err(WorkspaceError::Git(GitError::Failed { verb, .. })) if verb == "add" => {
                gitfile::restore_access(worktree);
                reader.read(start)?
            }
            Ok(work) if !work.unreadable.is_empty() => {
                gitfile::restore_access(worktree);
                reader.read(start)?
            }
            work => work?,
        };
        if let Some(dir) = work.unreadable.first() {
            return Err(WorkspaceError::refused(
                format!("git cannot read all of {} in the worktree", path(dir)),
                "move it out of the worktree; `guard worktree path RUN` prints the path of the worktree",
            ));
        }
        if !work.too_large.is_empty() {
            let names = work.too_large.iter().take(MAX_NAMED).map(|file| path(file)).collect::<Vec<_>>();
            let more = match work.too_large.len() - names.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            return Err(WorkspaceError::refused(
                format!(
                    "the uncommitted files are together larger than 1 GiB, so guard cannot commit the largest of them: {}{more}",
                    names.join(", ")
                ),
                "move them out of the worktree; `guard worktree path RUN` prints the path of the worktree",
            ));
        }
        if let Some(dir) = work.nested.first() {
            return Err(WorkspaceError::refused(
                format!("the worktree contains another git repository: {}", path(dir)),
                "move it out of the worktree, or remove its .git; do not run git in it",
            ));
        }
        if !work.uncommitted.is_empty()
            && let Some(file) = reader.first_filtered(&work)?
        {
            return Err(WorkspaceError::refused(
                format!("guard cannot commit {}: it needs a filter such as git-lfs", path(&file)),
                by_hand(),
            ));
        }
        Ok(work)
    }

    fn squash_message(&self, reader: &WorkReader, work: &WholeWork) -> Result<String, WorkspaceError> {
        let mut message = format!("Add the work of {}\n", self.branch());
        let commits = reader.commits(work, MAX_SUBJECTS)?;
        if !commits.is_empty() {
            message.push('\n');
        }
        for (_, subject) in &commits {
            message.push_str(&format!("* {}\n", crate::text::terminal_text::one_line(subject)));
        }
        if work.commits > commits.len() {
            message.push_str(&format!("* and {} earlier commits\n", work.commits - commits.len()));
        }
        Ok(message)
    }

    /// Applies the work as planned. If that fails, the user's branch is as before, and guard restores the user's files
    /// if it had already changed them. guard may then already have committed the run's uncommitted work to the run's
    /// branch.
    pub fn apply(&mut self, repository: &Repository, plan: &ApplyPlan) -> Result<(), WorkspaceError> {
        let Some(top) = &repository.toplevel else { return self.check_place(repository).map(drop) };
        if let Some(made) = &plan.made {
            let known = [plan.old.as_str(), &plan.work.tip];
            self.transfer_made(&plan.reader.objects(), made, known, &self.record.limits())?;
        }
        let applied = self.apply_transferred(repository, top, plan);
        self.forget_transfer();
        applied
    }

    /// Applies the work as planned, after the user's repository has got all of its objects.
    fn apply_transferred(
        &mut self,
        repository: &Repository,
        top: &Path,
        plan: &ApplyPlan,
    ) -> Result<(), WorkspaceError> {
        if plan.method == ApplyMethod::Merge {
            self.commit_on_branch(&plan.reader, &plan.work, plan.work_commit.as_deref())?;
        }
        let mark = format!("guard apply {}", self.branch());
        // The repository may have the tree only as part of the commit that guard transferred.
        let tree = plan.made.as_ref().unwrap_or(&plan.tree);
        check_out(repository, top, &plan.old, tree)?;
        let Some(new) = &plan.new else { return Ok(()) };
        let moved = repository.git("update-ref")?.args(["-m", &mark, "HEAD", new, &plan.old]).run();
        if let Err(error) = moved {
            check_out(repository, top, tree, &plan.old)?;
            return Err(error.into());
        }
        // Set `ORIG_HEAD` like `git merge` does, so that `git reset --keep ORIG_HEAD` undoes the change.
        let _ = repository.git("update-ref")?.args(["-m", &mark, "ORIG_HEAD", &plan.old]).run();
        Ok(())
    }

    /// Commits the uncommitted work of the run to the run's branch, and changes nothing else. No hooks run: they could
    /// execute files that the agent wrote. Returns the paths that it committed, and the dangers in the whole work.
    pub fn commit_work(
        &mut self,
        repository: &Repository,
        message: Option<&str>,
    ) -> Result<(Vec<PathBuf>, Vec<Danger>), WorkspaceError> {
        let settings = trusted_settings(repository)?;
        self.check_place(repository)?;
        self.check_state()?;
        let reader = WorkReader::new(self.record.clone(), &self.run_folder)?;
        let target = repository.head.commit().unwrap_or(&self.record.base);
        let work = self.read_to_commit(&reader, target)?;
        let dangers = self.dangers_in_worktree(&reader, repository, &settings, &work)?;
        if work.uncommitted.is_empty() {
            return Ok((Vec::new(), dangers));
        }
        let who = TaskTree::identity(repository)?;
        let message = message.map_or_else(|| self.default_work_message(), str::to_string);
        let new = commit(&reader, &who, &work.tree, &[&work.tip], &message)?;
        self.transfer_made(&reader.objects(), &new, [&work.tip, &work.tip], &self.record.limits())?;
        let committed = self.commit_on_branch(&reader, &work, Some(&new));
        self.forget_transfer();
        committed.map(|()| (work.uncommitted, dangers))
    }

    fn default_work_message(&self) -> String {
        format!("Add the work left uncommitted on {}", self.branch())
    }

    /// Moves the run's branch to `work_commit`, the commit that guard made from the uncommitted work, and updates the
    /// index of the run's worktree.
    fn commit_on_branch(
        &mut self,
        reader: &WorkReader,
        work: &WholeWork,
        work_commit: Option<&str>,
    ) -> Result<(), WorkspaceError> {
        if let Some(new) = work_commit {
            let branch = &self.record.branch;
            let git = self.real_git("update-ref")?.args(["-m", "guard apply: commit uncommitted work"]);
            git.args([branch, new, &work.tip]).run()?;
            self.replace_index(&reader.index())?;
        }
        // The user may have added commits to the run's branch: write the branch's current commit to the workspace's
        // record.
        let tip = work_commit.unwrap_or(&work.tip);
        if self.record.tip != tip {
            self.record.tip = tip.to_string();
            self.set_state(self.record.state)?;
        }
        Ok(())
    }
}

/// Returns the inspection with the hooks in the user's checkout, and with the time that a person who waits for the review
/// has.
pub(crate) fn for_review(inspection: Inspection, repository: &Repository, settings: &Settings) -> Inspection {
    let hooks = hooks_in_checkout(repository, settings);
    let hooks = hooks.iter().map(|path| Name::from(path.as_os_str().as_bytes())).collect();
    Inspection { hooks, time: INSPECTION_TIMEOUT, ..inspection }
}

pub(crate) fn not_inspected(error: &DangersError) -> WorkspaceError {
    WorkspaceError::refused(
        format!("guard cannot look for dangerous files in the work: {error}"),
        "try again; if it fails again, read the work with `guard diff` and merge the branch yourself",
    )
}

/// Returns the error for objects that guard made from uncommitted files and that the user's repository must not get.
fn unacceptable(problem: impl std::fmt::Display) -> WorkspaceError {
    WorkspaceError::refused(
        format!("guard cannot commit what the run left uncommitted: {problem}"),
        "`guard diff` shows the work; change or remove the file in the worktree, whose path `guard worktree path RUN` prints",
    )
}

/// Makes a commit with `git commit-tree`, so that no ref changes. Returns the commit's id.
fn commit(
    reader: &WorkReader,
    who: &(String, String),
    tree: &str,
    parents: &[&str],
    message: &str,
) -> Result<String, WorkspaceError> {
    let tree = line(&reader.git("rev-parse")?.args(["--verify", &format!("{tree}^{{tree}}")]).run()?);
    let mut git = reader.git("commit-tree")?.arg(tree);
    for parent in parents {
        git = git.args(["-p", parent]);
    }
    for role in ["AUTHOR", "COMMITTER"] {
        git = git.env(&format!("GIT_{role}_NAME"), &who.0).env(&format!("GIT_{role}_EMAIL"), &who.1);
    }
    let message = format!("{}\n", message.trim_end());
    Ok(line(&git.input(message.into_bytes()).run()?))
}

fn is_ancestor(reader: &WorkReader, ancestor: &str, descendant: &str) -> Result<bool, WorkspaceError> {
    let answer = reader.git("merge-base")?.args(["--is-ancestor", ancestor, descendant]).output()?;
    match answer.code() {
        0 => Ok(true),
        1 => Ok(false),
        code => {
            let verb = "merge-base".to_string();
            Err(GitError::Failed { verb, code, message: answer.message }.into())
        }
    }
}

/// Merges two commits. Returns the id of the merged tree, or the paths of the files with conflicts.
fn merge(
    reader: &WorkReader,
    ours: &str,
    theirs: &str,
) -> Result<Result<String, Vec<PathBuf>>, WorkspaceError> {
    let shape = ["--write-tree", "--name-only", "--no-messages", "-z", ours, theirs];
    let answer = reader.git("merge-tree")?.args(shape).output()?;
    let mut parts = split_paths(&answer.output);
    let tree = parts.next().map(|tree| line(tree.as_os_str().as_bytes())).unwrap_or_default();
    match answer.code() {
        0 => Ok(Ok(tree)),
        1 => Ok(Err(parts.collect())),
        code => {
            let verb = "merge-tree".to_string();
            Err(GitError::Failed { verb, code, message: answer.message }.into())
        }
    }
}

/// A path in the user's working tree that changes if guard applies the work.
struct PathChange {
    path: PathBuf,
    is_new: bool,
    is_deleted: bool,
}

fn changes(reader: &WorkReader, from: &str, to: &str) -> Result<Vec<PathChange>, WorkspaceError> {
    let shape = ["-r", "-z", "--name-status", "--no-renames", "--end-of-options", from, to];
    let output = reader.git("diff-tree")?.args(shape).run()?;
    let mut fields = split_paths(&output);
    let mut changes = Vec::new();
    while let (Some(status), Some(path)) = (fields.next(), fields.next()) {
        let (is_new, is_deleted) = (status == Path::new("A"), status == Path::new("D"));
        changes.push(PathChange { path, is_new, is_deleted });
    }
    Ok(changes)
}

/// Returns the paths at which applying the work would overwrite uncommitted changes of the user, or files that git
/// does not track, including ignored files.
fn overlaps(
    repository: &Repository,
    top: &Path,
    changes: &[PathChange],
) -> Result<Vec<PathBuf>, WorkspaceError> {
    let status = repository.git("status")?.worktree(top).timeout(CHECKOUT_TIMEOUT);
    let output =
        status.args(["--porcelain", "-z", "-uno", "--no-renames", "--ignore-submodules=all"]).run()?;
    let entries = output.split(|byte| *byte == 0).filter_map(|entry| entry.get(3..));
    let changed: BTreeSet<&[u8]> = entries.collect();
    let deleted: BTreeSet<&Path> =
        changes.iter().filter(|change| change.is_deleted).map(|change| change.path.as_path()).collect();
    let is_in_the_way = |path: &Path| {
        let is_dir = |place: &Path| place.symlink_metadata().map(|data| data.is_dir());
        // Look for a file of the user at a path where the work needs a directory.
        let above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        let mut files = above.filter(|above| matches!(is_dir(&top.join(above)), Ok(false)));
        if files.any(|above| !deleted.contains(above)) {
            return true;
        }
        match is_dir(&top.join(path)) {
            // A directory of the user is in the way, unless the work deletes files in it. In that case guard leaves
            // the check to git, which refuses to remove a directory with untracked files.
            Ok(true) => !deleted.range(path..).next().is_some_and(|below| below.starts_with(path)),
            Ok(false) => true,
            Err(_) => false,
        }
    };
    let overlaps = changes.iter().filter(|change| {
        changed.contains(change.path.as_os_str().as_bytes()) || (change.is_new && is_in_the_way(&change.path))
    });
    Ok(overlaps.map(|change| change.path.clone()).collect())
}

/// Changes the user's index and working tree from the tree `from` to the tree `to`. Keeps the user's changes to files
/// that are the same in both trees. If git would have to overwrite a change of the user, fails and changes nothing.
fn check_out(repository: &Repository, top: &Path, from: &str, to: &str) -> Result<(), WorkspaceError> {
    let git = |verb: &str| -> Result<Git, WorkspaceError> {
        let git = repository.git(verb)?.worktree(top).timeout(CHECKOUT_TIMEOUT);
        Ok(git.env("GIT_OPTIONAL_LOCKS", "1").env(SKIP_SMUDGE.0, SKIP_SMUDGE.1))
    };
    // Refresh the index first: otherwise git would treat a file with a new time stamp as changed. The exit code does
    // not matter, because it only says that some files have changed.
    git("update-index")?.args(["-q", "--refresh"]).output()?;
    git("read-tree")?.args(["-m", "-u", from, to]).run().map(drop).map_err(|error| match error {
        GitError::Failed { message, .. } => WorkspaceError::refused(
            format!("git refused to change the working tree {}: {message}", top.display()),
            "commit or stash your changes, and try again; nothing was applied",
        ),
        error => error.into(),
    })
}

/// True if the user has hooks that `git merge` or `git commit` would run.
fn has_hooks(repository: &Repository, settings: &Settings) -> bool {
    let names = ["pre-commit", "pre-merge-commit", "prepare-commit-msg", "commit-msg", "post-merge"];
    let dir = hooks_dir(repository, settings);
    names.iter().any(|name| dir.join(name).exists())
}
