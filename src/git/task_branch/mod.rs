//! The worktree and branch of a task. A task consists of many runs, and guard itself commits to the branch between
//! them.
//!
//! guard builds a commit with git plumbing from recorded inputs (parent, date, message), without the worktree's
//! index. The same inputs always give the same commit id, and guard moves the branch atomically from the parent to
//! the commit. So after a crash guard can repeat the operation without committing twice.
pub(crate) mod merge;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::dispose::KeepPolicy;
use super::dispose::uncommitted::unreadable_dirs;
use super::{GitError, WorkspaceError, at};
use crate::git::plumbing::command::{Git, Trust};
use crate::git::plumbing::config::Settings;
use crate::git::plumbing::gitfile;
use crate::git::plumbing::jailed_worktree::JailedWorktree;
use crate::git::plumbing::outcome::GitOutput;
use crate::git::plumbing::repository::{Repository, is_id};
use crate::git::plumbing::stderr_messages::GitMessage;
use crate::git::review::inspect::list;
use crate::git::workspace::checkout_files::CheckoutFiles;
use crate::git::workspace::create::{Workspace, trusted_settings};
use crate::git::workspace::path_text;
use crate::git::workspace::quarantine::user_git_file;
use crate::git::workspace::run_record::State;
use crate::git::workspace::spec::Request;
use crate::git::workspace::spec::{branch_taken, create_root, derive_names, missing_objects, resolve_base};
use crate::sys::remove_tree::remove_tree;

/// How long guard waits for the processes of a killed run to end.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for git to save the files of a worktree.
const SAVE_TIMEOUT: Duration = Duration::from_secs(60);

/// The environment variable that makes git-lfs check out pointer files. Without this variable, git-lfs would download
/// the objects that an agent's commit names. It would use the server in the agent's `.lfsconfig` and the user's
/// credentials.
pub(crate) const SKIP_SMUDGE: (&str, &str) = ("GIT_LFS_SKIP_SMUDGE", "1");

/// A task's worktree and branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTree {
    /// The text that identifies the task in the reflogs of the user's repository.
    pub mark: String,
    /// The common directory of the user's repository, which all of its working trees share.
    #[serde(with = "path_text")]
    pub common_dir: PathBuf,
    /// The hash function of object ids: `sha1` or `sha256`.
    pub object_format: String,
    /// The full ref name of the task's branch.
    pub branch: String,
    /// The commit at which the task's branch began.
    pub base: String,
    #[serde(with = "path_text")]
    pub worktree: PathBuf,
    /// A directory for guard's temporary files.
    #[serde(with = "path_text")]
    pub scratch: PathBuf,
    /// The path of the user's global ignore file (`core.excludesFile`). The file need not exist.
    #[serde(default = "no_excludes", with = "path_text")]
    pub excludes: PathBuf,
}

/// The value of [`TaskTree::excludes`] in records without this field.
fn no_excludes() -> PathBuf {
    PathBuf::from("/dev/null")
}

/// The inputs for a commit that guard makes. guard records them before it commits, so that a repeated commit has the
/// same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCommit {
    /// The first parent: the commit of the branch before this commit.
    pub parent: String,
    /// The second parent, if the commit is a merge.
    #[serde(default)]
    pub merges: Option<String>,
    /// The id of the tree to which guard applies the changes; `None` for the parent's tree.
    #[serde(default)]
    pub tree: Option<String>,
    pub message: String,
    /// The name and email of the author and committer.
    pub who: (String, String),
    /// The date of the commit in git's format: `1700000000 +0000`.
    pub date: String,
}

/// True if tracked files in the user's working tree have uncommitted changes. False if there is no repository, or if
/// `git status` fails or takes longer than ten seconds.
pub fn has_changes(top: &Path) -> Result<bool, WorkspaceError> {
    let Some(repository) = Repository::find(top)? else { return Ok(false) };
    let git = repository.git("status")?.worktree(top).timeout(Duration::from_secs(10));
    Ok(git.args(["--porcelain", "-z", "-uno", "--ignore-submodules=all"]).start()?.has_output())
}

fn is_empty_dir(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

pub(crate) fn line(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim_end().to_string()
}

impl TaskTree {
    /// Chooses the names of the branch and the worktree for [`Self::create`], and checks that guard can use them.
    /// Creates the directory for worktrees if it is missing.
    pub fn planned(
        repository: &Repository,
        request: &Request,
        mark: &str,
        scratch: &Path,
    ) -> Result<Self, WorkspaceError> {
        let settings = trusted_settings(repository)?;
        let base = resolve_base(repository, request)?;
        let (branch, dir) = derive_names(repository, request)?;
        let worktree = create_root(repository, request)?.join(dir);
        if worktree.symlink_metadata().is_ok() {
            let what = worktree.display().to_string();
            return Err(WorkspaceError::NameTaken {
                what,
                hint: "choose another --name, or remove the existing directory",
            });
        }
        if repository.commit(&branch)?.is_some() {
            return Err(branch_taken(&branch));
        }
        let excludes = user_git_file(repository, &settings, "core.excludesfile", "ignore");
        let excludes = CheckoutFiles::new(repository, &worktree)?.usable(&excludes);
        Ok(Self {
            mark: mark.to_string(),
            common_dir: repository.common_dir.clone(),
            object_format: repository.object_format.clone(),
            branch,
            base,
            worktree,
            scratch: scratch.to_path_buf(),
            excludes,
        })
    }

    /// Returns the path of the user's global ignore file for a repository.
    pub fn user_excludes(repository: &Repository) -> Result<PathBuf, WorkspaceError> {
        let settings = Settings::parse(&Settings::list_call(repository)?.run()?);
        let excludes = user_git_file(repository, &settings, "core.excludesfile", "ignore");
        Ok(CheckoutFiles::new(repository, &repository.place())?.usable(&excludes))
    }

    /// Creates the branch and the worktree, unless they exist already. Removes a worktree that git did not finish
    /// creating. Fails if there is anything else at the worktree's path, because it may contain uncommitted work. Also
    /// fails if the branch exists but does not belong to this task. The branch belongs to this task if `is_known` is
    /// true (the task's journal says that guard created the branch), or if the branch's reflog begins with the text in
    /// `mark`.
    pub fn create(&self, repository: &Repository, is_known: bool) -> Result<(), WorkspaceError> {
        if self.admin_dir().is_ok() && self.tip()?.is_some() {
            return Ok(());
        }
        match self.tip()? {
            None => {
                let command = format!("create {} {}\n", self.branch, self.base);
                let made = repository
                    .git("update-ref")?
                    .args(["--create-reflog", "-m", &self.mark, "--stdin"])
                    .input(command.into_bytes());
                made.run()?;
            }
            Some(_) if is_known || self.is_ours(repository)? => {}
            Some(_) => return Err(branch_taken(&self.branch)),
        }
        if self.admin_dir().is_ok() {
            return Ok(());
        }
        if self.worktree.symlink_metadata().is_ok() && !is_empty_dir(&self.worktree) {
            // git registers and locks a worktree before it writes the first file there. It writes the index after the
            // last file, and then unlocks the worktree. So only a worktree whose creation was interrupted is locked
            // and has no index.
            if !self.registrations().iter().any(|dir| dir.join("locked").is_file()) {
                return Err(self.unregistered());
            }
            at("remove", &self.worktree, remove_tree(&self.worktree))?;
        }
        crate::git::plumbing::command::retry_during_worktree_changes(|| {
            let git = repository.git("worktree")?.config("core.sparseCheckout", "false");
            let git = if is_known { git.env(SKIP_SMUDGE.0, SKIP_SMUDGE.1) } else { git };
            // The second `--force` makes git replace a locked registration.
            let git = git.args(["add", "--quiet", "--force", "--force", "--"]);
            git.arg(&self.worktree).arg(self.short_branch()).run()
        })
        .map_err(|error| missing_objects(error, repository))?;
        Ok(())
    }

    /// True if guard created the branch for this task, according to the branch's reflog.
    fn is_ours(&self, repository: &Repository) -> Result<bool, WorkspaceError> {
        let said = repository.git("reflog")?.args(["show", "--format=%gs", &self.branch, "--"]).run()?;
        Ok(said.trim_ascii_end().rsplit(|byte| *byte == b'\n').next() == Some(self.mark.as_bytes()))
    }

    /// Returns the name of the task's branch without `refs/heads/`.
    pub fn short_branch(&self) -> &str {
        self.branch.strip_prefix("refs/heads/").unwrap_or(&self.branch)
    }

    /// Finds the worktree's git directory: the directory below `worktrees/` in the repository that contains the
    /// worktree's path and has an index. Does not read the worktree's `.git` file, because an agent can write that
    /// file.
    fn admin_dir(&self) -> Result<PathBuf, WorkspaceError> {
        let found = self.registrations().into_iter().find(|dir| dir.join("index").is_file());
        found.ok_or_else(|| self.unregistered())
    }

    /// Returns the directories below `worktrees/` in the repository that contain the worktree's path, with or without
    /// an index; none if the worktree is not a directory.
    fn registrations(&self) -> Vec<PathBuf> {
        let Ok(worktree) = self.worktree.canonicalize() else { return Vec::new() };
        if !worktree.is_dir() {
            return Vec::new();
        }
        let wanted = self.worktree.join(".git");
        let leads_here = |dir: &PathBuf| {
            let text = gitfile::read_following_links(&dir.join("gitdir"), 8192).unwrap_or_default();
            let place = dir.join(OsStr::from_bytes(text.trim_ascii_end()));
            place == wanted
                || place.parent().and_then(|parent| parent.canonicalize().ok()).as_ref() == Some(&worktree)
        };
        let entries = fs::read_dir(self.common_dir.join("worktrees")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(leads_here).collect()
    }

    fn unregistered(&self) -> WorkspaceError {
        let hint = if self.worktree.symlink_metadata().is_ok() {
            "rename the directory to keep its files; then `guard task resume` creates the worktree again from the branch"
        } else {
            "`guard task resume` creates the worktree again from the branch; its uncommitted changes are lost"
        };
        WorkspaceError::refused(
            format!("{} is no longer a worktree of the repository", self.worktree.display()),
            hint,
        )
    }

    /// Fails if the worktree does not exist or is not registered in the repository.
    pub fn check_worktree(&self) -> Result<(), WorkspaceError> {
        self.admin_dir().map(drop)
    }

    /// Builds a git call on the repository that does not read the working tree.
    pub(crate) fn git(&self, verb: &str) -> Result<Git, WorkspaceError> {
        Ok(Git::new(Trust::Neutral, verb)?.git_dir(&self.common_dir).current_dir(&self.common_dir))
    }

    pub(crate) fn objects(&self) -> Vec<PathBuf> {
        vec![self.common_dir.join("objects")]
    }

    /// Builds a jailed (sandboxed) git call on the task's worktree that uses `index`, a copy of the worktree's index.
    /// With `writes_objects`, git may store objects in the repository.
    fn tree_git(&self, verb: &str, index: &Path, writes_objects: bool) -> Result<Git, WorkspaceError> {
        let (admin_dir, objects) = (self.admin_dir()?, self.objects());
        let tree = JailedWorktree {
            common_dir: &self.common_dir,
            admin_dir: &admin_dir,
            worktree: &self.worktree,
            objects: &objects,
            object_format: &self.object_format,
            excludes: &self.excludes,
            scratch: &self.scratch,
        };
        Ok(tree.git(verb, writes_objects)?.env("GIT_INDEX_FILE", index))
    }

    fn index_copy(&self) -> Result<PathBuf, WorkspaceError> {
        let (from, to) = (self.admin_dir()?.join("index"), self.scratch.join("index"));
        at("create", &self.scratch, fs::create_dir_all(&self.scratch))?;
        let _ = fs::remove_file(self.scratch.join("index.lock"));
        at("copy", &from, gitfile::copy_index(&from, &to))?;
        Ok(to)
    }

    /// Returns the newest commit of the task's branch; `None` if the branch does not exist.
    pub fn tip(&self) -> Result<Option<String>, WorkspaceError> {
        self.commit_named(&self.branch)
    }

    /// Returns the commit that a revision (a branch, a tag, an id) names; `None` if there is no such commit.
    pub fn commit_named(&self, name: &str) -> Result<Option<String>, WorkspaceError> {
        self.object_named(&format!("{name}^{{commit}}"))
    }

    /// Returns the id of the tree of the commit that a revision names; `None` if there is no such commit.
    pub fn tree_named(&self, name: &str) -> Result<Option<String>, WorkspaceError> {
        self.object_named(&format!("{name}^{{tree}}"))
    }

    fn object_named(&self, revision: &str) -> Result<Option<String>, WorkspaceError> {
        let answer =
            self.git("rev-parse")?.args(["--verify", "--quiet", "--end-of-options", revision]).output()?;
        let id = line(&answer.output);
        Ok((answer.status.success() && is_id(&id, &self.object_format)).then_some(id))
    }

    /// True if `ancestor` is an ancestor of `descendant`, or if both are the same commit.
    pub fn contains(&self, descendant: &str, ancestor: &str) -> Result<bool, WorkspaceError> {
        let answer = self.git("merge-base")?.args(["--is-ancestor", ancestor, descendant]).output()?;
        Ok(answer.status.success())
    }

    /// Returns the user's name and email from the git configuration. Uses guard's own name or email if the user has
    /// configured none.
    pub fn identity(repository: &Repository) -> Result<(String, String), WorkspaceError> {
        let ask = |key: &str| -> Result<Option<String>, WorkspaceError> {
            let answer = repository.git("config")?.args(["--get", key]).output()?;
            Ok(answer.status.success().then(|| line(&answer.output)).filter(|text| !text.is_empty()))
        };
        let name = ask("user.name")?.unwrap_or_else(|| "guard".to_string());
        Ok((name, ask("user.email")?.unwrap_or_else(|| "guard@localhost".to_string())))
    }

    /// Returns the current user's name and email. The name comes from the git configuration, or else is the login
    /// name, or `a person` if that is unknown too.
    pub fn current_user(repository: &Repository) -> Result<(String, String), WorkspaceError> {
        let (name, address) = Self::identity(repository)?;
        let login = || std::env::var("USER").ok().filter(|login| !login.is_empty());
        let is_known = name != "guard";
        Ok((if is_known { name } else { login().unwrap_or_else(|| "a person".to_string()) }, address))
    }

    /// Returns the first 16 MiB of a file in a commit; `None` if the commit has no such file. A path that is not UTF-8
    /// has the form `hex:…`.
    pub fn file_at(&self, commit: &str, path: &str) -> Result<Option<Vec<u8>>, WorkspaceError> {
        let Some(plain) = path_text::parse(path) else { return Ok(None) };
        let mut name = std::ffi::OsString::from(format!("{commit}:"));
        name.push(plain.as_os_str());
        match self.git("cat-file")?.arg("blob").arg(name).max_output(16 << 20).start()?.read_partial() {
            Ok((content, _)) => Ok(Some(content)),
            Err(GitError::Failed { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the paths of all regular files in a commit. Skips paths that are not UTF-8.
    pub fn files(&self, commit: &str) -> Result<Vec<String>, WorkspaceError> {
        let output = self.git("ls-tree")?.args(["-r", "-z", "--end-of-options", commit]).run()?;
        let path = |entry: &[u8]| {
            let tab = entry.iter().position(|byte| *byte == b'\t')?;
            let text = String::from_utf8(entry[tab + 1..].to_vec()).ok()?;
            entry.starts_with(b"100").then_some(text)
        };
        Ok(output.split(|byte| *byte == 0).filter_map(path).collect())
    }

    /// Returns the names of the top-level files and directories in a commit. Skips names that are not UTF-8.
    pub fn top_files(&self, commit: &str) -> Result<Vec<String>, WorkspaceError> {
        let output = self.git("ls-tree")?.args(["--name-only", "-z", "--end-of-options", commit]).run()?;
        let names = output.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect())
    }

    pub fn has_merges(&self, from: &str, to: &str) -> Result<bool, WorkspaceError> {
        let range = format!("{from}..{to}");
        let output = self.git("rev-list")?.args(["--merges", "--max-count=1", &range, "--"]).run()?;
        Ok(!output.is_empty())
    }

    /// Returns the first of the given paths that exists in a commit but is not a directory; `None` if there is none.
    pub fn first_non_directory(
        &self,
        commit: &str,
        paths: &[String],
    ) -> Result<Option<String>, WorkspaceError> {
        let output = self.git("ls-tree")?.args(["-z", commit, "--"]).args(paths).run()?;
        // If one path is below another, git also lists other entries of the upper one.
        let name = |entry: &[u8]| {
            let at = entry.iter().position(|byte| *byte == b'\t').map_or(0, |tab| tab + 1);
            String::from_utf8_lossy(&entry[at..]).into_owned()
        };
        let mut others =
            output.split(|byte| *byte == 0).filter(|entry| !entry.starts_with(b"040000 ")).map(name);
        Ok(others.find(|name| paths.contains(name)))
    }

    /// Commits changes to files, and moves the branch to the new commit. Each change is a path and the file's new
    /// content; `None` deletes the file. A file with new content is not executable in the commit. Returns the commit's
    /// id. A repeated call with the same inputs has no further effect.
    pub fn commit(
        &self,
        commit: &StepCommit,
        changes: &[(String, Option<Vec<u8>>)],
    ) -> Result<String, WorkspaceError> {
        at("create", &self.scratch, fs::create_dir_all(&self.scratch))?;
        let entries = self.store_contents(changes)?;
        let tree = self.write_tree(commit, &entries)?;
        let mut git = self.git("commit-tree")?.arg(&tree).args(["-p", &commit.parent]);
        if let Some(other) = &commit.merges {
            git = git.args(["-p", other]);
        }
        let (name, address) = &commit.who;
        for (role, who) in [("AUTHOR", (name, address)), ("COMMITTER", (name, address))] {
            git = git.env(&format!("GIT_{role}_NAME"), who.0).env(&format!("GIT_{role}_EMAIL"), who.1);
            git = git.env(&format!("GIT_{role}_DATE"), &commit.date);
        }
        let id = line(&git.input(commit.message.clone().into_bytes()).run()?);
        self.move_branch(&id, &commit.parent)?;
        self.update_worktree_index(&entries)?;
        Ok(id)
    }

    /// Stores the new contents of files in the repository. Returns the input for `update-index --index-info`.
    fn store_contents(&self, changes: &[(String, Option<Vec<u8>>)]) -> Result<Vec<u8>, WorkspaceError> {
        let mut lines = Vec::new();
        let zero = "0".repeat(if self.object_format == "sha256" { 64 } else { 40 });
        for (path, content) in changes {
            let (mode, id) = match content {
                Some(content) => {
                    let git = self.git("hash-object")?.args(["-w", "--stdin"]);
                    ("100644", line(&git.input(content.clone()).run()?))
                }
                None => ("0", zero.clone()),
            };
            lines.extend_from_slice(format!("{mode} {id}\t").as_bytes());
            lines.extend_from_slice(path.as_bytes());
            lines.push(0);
        }
        Ok(lines)
    }

    fn write_tree(&self, commit: &StepCommit, entries: &[u8]) -> Result<String, WorkspaceError> {
        let tree = commit.tree.clone().unwrap_or_else(|| format!("{}^{{tree}}", commit.parent));
        if entries.is_empty() {
            return Ok(line(&self.git("rev-parse")?.args(["--verify", &tree]).run()?));
        }
        let index = self.scratch.join("commit-index");
        let clear = || {
            let _ = fs::remove_file(&index);
            let _ = fs::remove_file(index.with_extension("lock"));
        };
        clear();
        let with_index = |verb: &str| Ok::<_, WorkspaceError>(self.git(verb)?.env("GIT_INDEX_FILE", &index));
        with_index("read-tree")?.arg(&tree).run()?;
        with_index("update-index")?.args(["-z", "--index-info"]).input(entries.to_vec()).run()?;
        let id = line(&with_index("write-tree")?.run()?);
        clear();
        Ok(id)
    }

    /// Moves the branch from the commit `from` to the commit `to`. Does nothing if the branch is already at `to`, and
    /// fails if it is at another commit than `from`.
    pub fn move_branch(&self, to: &str, from: &str) -> Result<(), WorkspaceError> {
        if self.tip()?.as_deref() == Some(to) {
            return Ok(());
        }
        let file = self.common_dir.join(format!("{}.lock", self.branch));
        let moved = self.git("update-ref")?.args(["-m", &self.mark, &self.branch, to, from]).run();
        let moved = match moved {
            // A killed git process left this lock. This process holds the task's lock, so no other guard process is
            // moving the branch.
            Err(_) if file.exists() => {
                let _ = fs::remove_file(&file);
                self.git("update-ref")?.args(["-m", &self.mark, &self.branch, to, from]).run()
            }
            moved => moved,
        };
        Ok(moved.map(drop)?)
    }

    /// Adds entries in the format of `update-index --index-info` to the worktree's index. Does not touch the files in
    /// the worktree.
    fn update_worktree_index(&self, entries: &[u8]) -> Result<(), WorkspaceError> {
        if entries.is_empty() {
            return Ok(());
        }
        let admin_dir = self.admin_dir()?;
        self.remove_index_lock(&admin_dir);
        let git = Git::new(Trust::Neutral, "update-index")?.git_dir(&admin_dir).current_dir(&self.common_dir);
        Ok(git.args(["-z", "--index-info"]).input(entries.to_vec()).run().map(drop)?)
    }

    /// Removes an index lock that a killed git process left behind. This process holds the task's lock, so no other
    /// guard process uses the index.
    fn remove_index_lock(&self, admin_dir: &Path) {
        let _ = fs::remove_file(admin_dir.join("index.lock"));
    }

    /// Returns the paths in the worktree with changes that are neither committed nor ignored.
    pub fn uncommitted(&self) -> Result<Vec<String>, WorkspaceError> {
        let index = self.index_copy()?;
        let status = || -> Result<GitOutput, WorkspaceError> {
            let shape =
                ["--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=all"];
            Ok(self.tree_git("status", &index, false)?.args(shape).output()?)
        };
        let mut answer = status()?;
        if GitMessage::PermissionDenied.is_in(&answer.message) {
            gitfile::restore_access(&self.worktree);
            answer = status()?;
        }
        if !answer.status.success() || GitMessage::PermissionDenied.is_in(&answer.message) {
            let (verb, code) = ("status".to_string(), answer.code());
            return Err(GitError::Failed { verb, code, message: answer.message }.into());
        }
        let output = answer.output;
        let paths = output.split(|byte| *byte == 0).filter(|line| line.len() > 3);
        Ok(paths.map(|line| String::from_utf8_lossy(&line[3..]).into_owned()).collect())
    }

    /// Returns the untracked directories of the worktree that are git repositories of their own.
    pub fn nested_repositories(&self) -> Result<Vec<String>, WorkspaceError> {
        let index = self.index_copy()?;
        let shape = ["--others", "--exclude-standard", "-z"];
        let output = self.tree_git("ls-files", &index, false)?.args(shape).run()?;
        // git lists such a directory with a slash at its end, and otherwise only files.
        let paths = output.split(|byte| *byte == 0).filter(|path| path.ends_with(b"/"));
        Ok(paths.map(|path| String::from_utf8_lossy(path).into_owned()).collect())
    }

    /// True if there is an ignored file or directory below `dir`. [`Self::uncommitted`] does not list such files.
    pub fn has_ignored_files(&self, dir: &str) -> Result<bool, WorkspaceError> {
        let index = self.index_copy()?;
        let below = format!(":(top,literal){dir}");
        let shape = ["--others", "--ignored", "--exclude-standard", "--directory", "-z", "--", &below];
        Ok(!self.tree_git("ls-files", &index, false)?.args(shape).run()?.is_empty())
    }

    /// Deletes a directory of the worktree with everything in it. [`Self::check_out`] restores the committed files in
    /// it.
    pub fn delete_dir(&self, dir: &str) -> Result<(), WorkspaceError> {
        let place = self.worktree.join(dir);
        at("remove", &place, remove_tree(&place))
    }

    /// Removes the worktree, unless the repository no longer knows it. Also removes the branch if `base` contains all
    /// of its commits. The caller must save uncommitted work first. Returns true if the branch no longer exists.
    pub fn remove(&self, base: &str) -> Result<bool, WorkspaceError> {
        let admin_dir = self.admin_dir().ok();
        if let Some(admin_dir) = admin_dir {
            at("remove", &self.worktree, remove_tree(&self.worktree))?;
            at("remove", &admin_dir, remove_tree(&admin_dir))?;
            // Remove the directory `worktrees` if this was the last worktree, as git does.
            let _ = fs::remove_dir(self.common_dir.join("worktrees"));
        }
        let Some(tip) = self.tip()? else { return Ok(true) };
        let is_merged = match self.commit_named(base)? {
            Some(base) => self.contains(&base, &tip)?,
            None => false,
        };
        if is_merged {
            self.git("update-ref")?.args(["-m", &self.mark, "-d", &self.branch, &tip]).run()?;
        }
        Ok(is_merged)
    }

    /// Adds all files of the worktree that git does not ignore to `index`. Fails if git cannot add a file that
    /// [`Self::check_out`] would delete or overwrite.
    fn add_all(&self, index: &Path) -> Result<(), WorkspaceError> {
        // Set a timeout: an agent can make git wait forever, for example with a FIFO in place of a `.gitignore`.
        let add = || -> Result<GitOutput, WorkspaceError> {
            let call = self.tree_git("add", index, true)?.timeout(SAVE_TIMEOUT);
            Ok(call.args(["--all", "--ignore-errors", "--", "."]).output()?)
        };
        let mut added = add()?;
        if !added.status.success() || GitMessage::PermissionDenied.is_in(&added.message) {
            // `git add` also fails, or leaves out changes, if the agent has removed the owner's permissions on some
            // files or directories.
            gitfile::restore_access(&self.worktree);
            added = add()?;
        }
        if added.status.success() {
            return Ok(());
        }
        // git cannot add a nested repository without commits. `check_out` does not delete it.
        let left_out = self
            .tree_git("ls-files", index, false)?
            .args(["--others", "--modified", "--exclude-standard", "-z"])
            .run()?;
        let is_file = |path: &[u8]| !path.is_empty() && !path.ends_with(b"/");
        let is_complete = added.code() == 1
            && unreadable_dirs(&added.message).is_empty()
            && !left_out.split(|byte| *byte == 0).any(is_file);
        if is_complete {
            return Ok(());
        }
        let (verb, code) = ("add".to_string(), added.code());
        Err(GitError::Failed { verb, code, message: added.message }.into())
    }

    /// Commits the files of the worktree on top of the branch, without moving the branch, and makes the ref
    /// `refs/guard/NAME` point to the commit. Returns the ref's full name. Fails if git cannot save a file.
    pub fn save(&self, name: &str) -> Result<String, WorkspaceError> {
        let kept = format!("refs/guard/{name}");
        let tip = self.tip()?.unwrap_or_else(|| self.base.clone());
        let index = self.index_copy()?;
        self.add_all(&index)?;
        let tree = line(&self.tree_git("write-tree", &index, true)?.run()?);
        let commit = self.git("commit-tree")?.arg(&tree).args(["-p", &tip]);
        let commit = ["AUTHOR", "COMMITTER"].iter().fold(commit, |git, role| {
            git.env(&format!("GIT_{role}_NAME"), "guard").env(&format!("GIT_{role}_EMAIL"), "guard@localhost")
        });
        let id = line(&commit.input(format!("{}: kept\n", self.mark).into_bytes()).run()?);
        self.git("update-ref")?.args(["-m", &self.mark, &kept, &id]).run()?;
        Ok(kept)
    }

    /// Deletes the ref `refs/guard/NAME`, which [`Self::save`] made. Does nothing if the ref does not exist.
    pub fn forget(&self, name: &str) -> Result<(), WorkspaceError> {
        let kept = format!("refs/guard/{name}");
        if self.commit_named(&kept)?.is_some() {
            self.git("update-ref")?.args(["-m", &self.mark, "-d", &kept]).run()?;
        }
        Ok(())
    }

    /// Resets the worktree and its index to the tip of the branch, and deletes untracked files. Keeps ignored files and
    /// nested repositories. The caller must save uncommitted work first. Runs the user's filters, as every checkout
    /// does, but git-lfs only writes pointer files.
    pub fn check_out(&self, repository: &Repository) -> Result<(), WorkspaceError> {
        let admin_dir = self.admin_dir()?;
        self.remove_index_lock(&admin_dir);
        let tip = self.tip()?.unwrap_or_else(|| self.base.clone());
        let git = |verb: &str| -> Result<Git, WorkspaceError> {
            Ok(repository
                .git(verb)?
                .git_dir(&admin_dir)
                .worktree(&self.worktree)
                .env(SKIP_SMUDGE.0, SKIP_SMUDGE.1)
                .config("core.sparseCheckout", "false"))
        };
        // Read the attributes from the commit: in the working tree, `.gitattributes` may be a FIFO that blocks git.
        git("read-tree")?
            .env("GIT_ATTR_SOURCE", &tip)
            .timeout(WAIT_TIMEOUT * 5)
            .args(["--reset", "-u", &tip])
            .run()?;
        // `git clean` keeps nested repositories, whose contents may exist nowhere else.
        git("clean")?.args(["-fdq", "--", "."]).run()?;
        Ok(())
    }

    /// Returns the diff of the branch since it forked from `from`, and true if the diff is complete. Truncates a diff
    /// of more than `max` bytes, and puts a summary of the changed files before it.
    pub fn diff(&self, from: &str, max: usize) -> Result<(String, bool), WorkspaceError> {
        let range = format!("{from}...{}", self.branch);
        let call = |shape: &str| -> Result<Git, WorkspaceError> {
            let shape = ["--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short", shape];
            Ok(self.git("diff")?.args(shape))
        };
        let (bytes, is_all) =
            call("--patch")?.arg(&range).arg("--").max_output(max).start()?.read_partial()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if is_all {
            return Ok((text, true));
        }
        // Limit the summary as well, because the diff becomes part of a prompt to an agent.
        let stat = call("--stat=120")?.args(["--stat-count=500", &range, "--"]).max_output(128 << 10);
        let (stat, _) = stat.start()?.read_partial()?;
        Ok((format!("{}\n{text}", String::from_utf8_lossy(&stat)), false))
    }

    /// Returns the paths below the directory `dir` that differ between two commits. Ignores the case of `dir`.
    pub fn changed_below(&self, from: &str, to: &str, dir: &str) -> Result<Vec<String>, WorkspaceError> {
        let paths = format!(":(literal,icase){dir}");
        let shape = ["--name-only", "--no-renames", "-z", from, to, "--", &paths];
        let output = self.git("diff")?.args(shape).run()?;
        let names = output.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// Returns the paths that the branch has changed since it forked from `from`.
    pub fn changed_since(&self, from: &str) -> Result<Vec<String>, WorkspaceError> {
        let range = format!("{from}...{}", self.branch);
        let output = self.git("diff")?.args(["--name-only", "--no-renames", "-z", &range, "--"]).run()?;
        let names = output.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// Returns the changes of the branch outside the directory `dir` since it forked from `from`, in git's raw diff
    /// format. Equal results before and after a step show that the step made no progress.
    pub fn changed_outside(&self, from: &str, dir: &str) -> Result<Vec<u8>, WorkspaceError> {
        let range = format!("{from}...{}", self.branch);
        let paths = [".".to_string(), format!(":(exclude,literal){dir}")];
        Ok(self
            .git("diff")?
            .args(["--raw", "--no-renames", "--abbrev=64", "-z", &range, "--"])
            .args(&paths)
            .run()?)
    }

    /// Returns the short ids and subjects of the branch's commits since the commit `since`, oldest first. Follows only
    /// the first parent of a merge. Returns at most the oldest 500 commits, with at most 200 characters for each.
    pub fn subjects(&self, since: &str) -> Result<Vec<String>, WorkspaceError> {
        let range = format!("{since}..{}", self.branch);
        let output =
            self.git("log")?.args(["--reverse", "--first-parent", "--format=%h %s", &range, "--"]).run()?;
        // An agent may have written the subjects: truncate them, and remove terminal control characters.
        let plain = |line: &str| {
            line.chars().filter(|c| !crate::text::terminal_text::is_unsafe(*c)).take(200).collect()
        };
        Ok(String::from_utf8_lossy(&output).lines().take(500).map(plain).collect())
    }

    /// Disposes of the workspaces of killed runs in this worktree, so that the worktree's `.git` file points to the
    /// user's repository again. Commits that guard has not received stay in the run's directory. Waits at most a minute
    /// for processes of these runs to end, and then fails.
    pub fn dispose_killed_runs(&self, runs: &Path) -> Result<(), WorkspaceError> {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        for entry in list(runs)? {
            let Ok(found) = &entry.record else { continue };
            let is_over = matches!(found.state, State::Kept | State::Removed);
            if found.worktree != self.worktree || is_over {
                continue;
            }
            loop {
                match Workspace::load(&entry.run_folder).and_then(|mut run| run.dispose(KeepPolicy::Keep)) {
                    // The processes of a killed run take a moment to end.
                    Err(WorkspaceError::Busy(_)) if Instant::now() < deadline => {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    settled => break settled.map(drop)?,
                }
            }
        }
        Ok(())
    }
}
