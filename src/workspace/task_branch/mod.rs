//! The worktree and branch of a task, which outlive many runs. Guard itself commits to the branch between
//! runs.
//!
//! Between runs only guard works here. It builds a commit with git plumbing from recorded inputs (parent,
//! date, message), without the worktree's index. Building it twice gives the same commit, and the branch
//! moves from the parent to it atomically. So after a crash guard can repeat the operation, and nothing
//! happens twice.
pub(crate) mod merge;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::dispose::KeepPolicy;
use super::git::command::{Git, Trust};
use super::git::gitfile;
use super::git::jailed_worktree::Tree;
use super::git::repository::{Repository, is_id};
use super::inspect::list;
use super::run::create::{
    Request, Workspace, base, branch_taken, missing_objects, names, root, trusted_settings,
};
use super::run::run_record;
use super::run::run_record::State;
use super::{WorkspaceError, at};
use crate::sys::remove_tree::remove_tree;

/// How long to wait for a run to end that was killed together with its runner.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes git-lfs leave pointer files: it would otherwise fetch what an agent's commit names, from where its
/// `.lfsconfig` says, with the user's credentials.
const SKIP_SMUDGE: (&str, &str) = ("GIT_LFS_SKIP_SMUDGE", "1");

/// A task's worktree and branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskTree {
    /// Identifies the task in reflogs.
    pub mark: String,
    /// The common directory that all working trees share.
    #[serde(with = "run_record::path")]
    pub common_dir: PathBuf,
    /// `sha1` or `sha256`.
    pub object_format: String,
    /// The full ref name of the branch.
    pub branch: String,
    /// The commit that the branch started from.
    pub base: String,
    /// The path of the working tree.
    #[serde(with = "run_record::path")]
    pub worktree: PathBuf,
    /// A directory for guard's temporary files.
    #[serde(with = "run_record::path")]
    pub scratch: PathBuf,
}

/// The inputs of a commit. All of them are recorded before the commit is made, so that repeating it gives the
/// same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCommit {
    /// The first parent; the branch must be at this commit.
    pub parent: String,
    /// The second parent of a merge.
    #[serde(default)]
    pub merges: Option<String>,
    /// The id of its tree; the parent's tree by default.
    #[serde(default)]
    pub tree: Option<String>,
    /// The commit message.
    pub message: String,
    /// The committer's name and address.
    pub who: (String, String),
    /// The date in git's format: `1700000000 +0000`.
    pub date: String,
}

/// True if a working tree of the user's has uncommitted changes of tracked files.
pub fn has_changes(top: &Path) -> Result<bool, WorkspaceError> {
    let Some(repository) = Repository::find(top)? else { return Ok(false) };
    let git = repository.git("status")?.worktree(top).limit(Duration::from_secs(10));
    Ok(git.args(["--porcelain", "-z", "-uno", "--ignore-submodules=all"]).start()?.says_anything())
}

pub(crate) fn line(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim_end().to_string()
}

impl TaskTree {
    /// What [`Self::make`] would create. Creates nothing.
    pub fn planned(
        repository: &Repository,
        request: &Request,
        mark: &str,
        scratch: &Path,
    ) -> Result<Self, WorkspaceError> {
        trusted_settings(repository)?;
        let base = base(repository, request)?;
        let (branch, folder) = names(repository, request)?;
        let worktree = root(repository, request)?.join(folder);
        if worktree.symlink_metadata().is_ok() {
            let what = worktree.display().to_string();
            return Err(WorkspaceError::NameTaken { what, hint: "give another --name, or remove it" });
        }
        if repository.commit(&branch)?.is_some() {
            return Err(branch_taken(&branch));
        }
        Ok(Self {
            mark: mark.to_string(),
            common_dir: repository.common_dir.clone(),
            object_format: repository.object_format.clone(),
            branch,
            base,
            worktree,
            scratch: scratch.to_path_buf(),
        })
    }

    /// Creates the branch and the worktree, or whichever is missing. An existing branch must belong to this
    /// task: `is_known` if the journal says so, otherwise its reflog must name the task.
    pub fn make(&self, repository: &Repository, is_known: bool) -> Result<(), WorkspaceError> {
        if self.admin_dir().is_ok() && self.worktree.is_dir() && self.tip()?.is_some() {
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
        // If the creation of a worktree was interrupted, it has no index yet, and nobody has worked in it.
        if self.worktree.symlink_metadata().is_ok() {
            at("remove", &self.worktree, remove_tree(&self.worktree))?;
            let prune = repository.git("worktree")?.args(["prune", "--expire", "now"]);
            prune.run()?;
        }
        super::git::command::again_when_interfered(|| {
            let git = repository.git("worktree")?.config("core.sparseCheckout", "false");
            let git = if is_known { git.env(SKIP_SMUDGE.0, SKIP_SMUDGE.1) } else { git };
            let git = git.args(["add", "--quiet", "--force", "--"]);
            git.arg(&self.worktree).arg(self.short_branch()).run()
        })
        .map_err(|error| missing_objects(error, repository))?;
        Ok(())
    }

    /// True if the branch was created for this task, according to its reflog.
    fn is_ours(&self, repository: &Repository) -> Result<bool, WorkspaceError> {
        let said = repository.git("reflog")?.args(["show", "--format=%gs", &self.branch, "--"]).run()?;
        Ok(said.trim_ascii_end().rsplit(|byte| *byte == b'\n').next() == Some(self.mark.as_bytes()))
    }

    /// The branch without `refs/heads/`.
    pub fn short_branch(&self) -> &str {
        self.branch.strip_prefix("refs/heads/").unwrap_or(&self.branch)
    }

    /// The worktree's own git directory: the one in the repository that names the worktree's path and has an
    /// index. What the worktree itself says is not trusted, because an agent can write it.
    fn admin_dir(&self) -> Result<PathBuf, WorkspaceError> {
        let wanted = self.worktree.join(".git");
        let leads_here = |folder: &PathBuf| {
            let text = gitfile::read_linked(&folder.join("gitdir"), 8192).unwrap_or_default();
            let place = folder.join(OsStr::from_bytes(text.trim_ascii_end()));
            let is_same = place == wanted
                || place.parent().and_then(|parent| parent.canonicalize().ok())
                    == self.worktree.canonicalize().ok();
            is_same && folder.join("index").is_file()
        };
        let worktrees = self.common_dir.join("worktrees");
        let found = fs::read_dir(&worktrees)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .find(leads_here)
            .filter(|_| self.worktree.is_dir());
        found.ok_or_else(|| {
            WorkspaceError::refused(
                format!("{} is no worktree of the repository any more", self.worktree.display()),
                "`guard task resume` makes it again from the branch; what was not committed in it is gone",
            )
        })
    }

    /// Fails if the worktree does not exist.
    pub fn is_there(&self) -> Result<(), WorkspaceError> {
        self.admin_dir().map(drop)
    }

    /// A git call on the repository that reads no working tree.
    pub(crate) fn git(&self, verb: &str) -> Result<Git, WorkspaceError> {
        Ok(Git::new(Trust::Neutral, verb)?.dir(&self.common_dir).within(&self.common_dir))
    }

    pub(crate) fn objects(&self) -> Vec<PathBuf> {
        vec![self.common_dir.join("objects")]
    }

    /// A jailed git call on the working tree, with a copy of its index.
    fn tree_git(&self, verb: &str, index: &Path, writes_objects: bool) -> Result<Git, WorkspaceError> {
        let (admin_dir, objects) = (self.admin_dir()?, self.objects());
        let tree = Tree {
            common_dir: &self.common_dir,
            admin_dir: &admin_dir,
            worktree: &self.worktree,
            objects: &objects,
            object_format: &self.object_format,
            excludes: Path::new("/dev/null"),
            scratch: &self.scratch,
        };
        Ok(tree.git(verb, writes_objects)?.env("GIT_INDEX_FILE", index))
    }

    fn index_copy(&self) -> Result<PathBuf, WorkspaceError> {
        let (from, to) = (self.admin_dir()?.join("index"), self.scratch.join("index"));
        at("make", &self.scratch, fs::create_dir_all(&self.scratch))?;
        let _ = fs::remove_file(self.scratch.join("index.lock"));
        at("copy", &from, fs::copy(&from, &to))?;
        Ok(to)
    }

    /// The commit of the branch.
    pub fn tip(&self) -> Result<Option<String>, WorkspaceError> {
        self.commit_named(&self.branch)
    }

    /// The commit that a name resolves to.
    pub fn commit_named(&self, name: &str) -> Result<Option<String>, WorkspaceError> {
        let asked = format!("{name}^{{commit}}");
        let answer =
            self.git("rev-parse")?.args(["--verify", "--quiet", "--end-of-options", &asked]).answer()?;
        let id = line(&answer.output);
        Ok((answer.status.success() && is_id(&id, &self.object_format)).then_some(id))
    }

    /// True if `ancestor` is an ancestor of `descendant`, or the same commit.
    pub fn contains(&self, descendant: &str, ancestor: &str) -> Result<bool, WorkspaceError> {
        let answer = self.git("merge-base")?.args(["--is-ancestor", ancestor, descendant]).answer()?;
        Ok(answer.status.success())
    }

    /// The user's name and address from their git configuration.
    pub fn identity(repository: &Repository) -> Result<(String, String), WorkspaceError> {
        let ask = |key: &str| -> Result<Option<String>, WorkspaceError> {
            let answer = repository.git("config")?.args(["--get", key]).answer()?;
            Ok(answer.status.success().then(|| line(&answer.output)).filter(|text| !text.is_empty()))
        };
        let name = ask("user.name")?.unwrap_or_else(|| "guard".to_string());
        Ok((name, ask("user.email")?.unwrap_or_else(|| "guard@localhost".to_string())))
    }

    /// The name and address of the current user: from git, otherwise from their login.
    pub fn person(repository: &Repository) -> Result<(String, String), WorkspaceError> {
        let (name, address) = Self::identity(repository)?;
        let login = || std::env::var("USER").ok().filter(|login| !login.is_empty());
        let is_known = name != "guard";
        Ok((if is_known { name } else { login().unwrap_or_else(|| "a person".to_string()) }, address))
    }

    /// The content of a file in a commit; only the beginning of a very large one. A path that is not UTF-8 is
    /// given as `hex:…`.
    pub fn file_at(&self, commit: &str, path: &str) -> Result<Option<Vec<u8>>, WorkspaceError> {
        let Some(plain) = run_record::path::parse(path) else { return Ok(None) };
        let mut name = std::ffi::OsString::from(format!("{commit}:"));
        name.push(plain.as_os_str());
        match self.git("cat-file")?.arg("blob").arg(name).most(16 << 20).start()?.part() {
            Ok((content, _)) => Ok(Some(content)),
            Err(super::GitError::Failed { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The paths of a commit's regular files, without those that are not UTF-8.
    pub fn files(&self, commit: &str) -> Result<Vec<String>, WorkspaceError> {
        let output = self.git("ls-tree")?.args(["-r", "-z", "--end-of-options", commit]).run()?;
        let path = |entry: &[u8]| {
            let tab = entry.iter().position(|byte| *byte == b'\t')?;
            let text = String::from_utf8(entry[tab + 1..].to_vec()).ok()?;
            entry.starts_with(b"100").then_some(text)
        };
        Ok(output.split(|byte| *byte == 0).filter_map(path).collect())
    }

    /// The names at the top of a commit's tree, without those that are not UTF-8.
    pub fn top_files(&self, commit: &str) -> Result<Vec<String>, WorkspaceError> {
        let output = self.git("ls-tree")?.args(["--name-only", "-z", "--end-of-options", commit]).run()?;
        let names = output.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect())
    }

    /// True if there are merges among the commits in `from..to`.
    pub fn has_merges(&self, from: &str, to: &str) -> Result<bool, WorkspaceError> {
        let range = format!("{from}..{to}");
        let output = self.git("rev-list")?.args(["--merges", "--max-count=1", &range, "--"]).run()?;
        Ok(!output.is_empty())
    }

    /// The first of these paths that exists in a commit and is no directory.
    pub fn no_folder(&self, commit: &str, ways: &[String]) -> Result<Option<String>, WorkspaceError> {
        let output = self.git("ls-tree")?.args(["-z", commit, "--"]).args(ways).run()?;
        // If one path lies below another, git also lists its siblings.
        let name = |entry: &[u8]| {
            let at = entry.iter().position(|byte| *byte == b'\t').map_or(0, |tab| tab + 1);
            String::from_utf8_lossy(&entry[at..]).into_owned()
        };
        let mut others =
            output.split(|byte| *byte == 0).filter(|entry| !entry.starts_with(b"040000 ")).map(name);
        Ok(others.find(|name| ways.contains(name)))
    }

    /// Makes a commit with these files changed (`None` deletes) and moves the branch to it. Idempotent.
    pub fn commit(
        &self,
        commit: &StepCommit,
        changes: &[(String, Option<Vec<u8>>)],
    ) -> Result<String, WorkspaceError> {
        at("make", &self.scratch, fs::create_dir_all(&self.scratch))?;
        let entries = self.entries(changes)?;
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
        self.note(&entries)?;
        Ok(id)
    }

    /// Stores the files' contents in the repository, and returns the lines for `update-index --index-info`.
    fn entries(&self, changes: &[(String, Option<Vec<u8>>)]) -> Result<Vec<u8>, WorkspaceError> {
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
        let on_it = |verb: &str| Ok::<_, WorkspaceError>(self.git(verb)?.env("GIT_INDEX_FILE", &index));
        on_it("read-tree")?.arg(&tree).run()?;
        on_it("update-index")?.args(["-z", "--index-info"]).input(entries.to_vec()).run()?;
        let id = line(&on_it("write-tree")?.run()?);
        clear();
        Ok(id)
    }

    /// Moves the branch from one commit to another, unless it is already there.
    pub fn move_branch(&self, to: &str, from: &str) -> Result<(), WorkspaceError> {
        if self.tip()?.as_deref() == Some(to) {
            return Ok(());
        }
        let file = self.common_dir.join(format!("{}.lock", self.branch));
        let moved = self.git("update-ref")?.args(["-m", &self.mark, &self.branch, to, from]).run();
        let moved = match moved {
            // A killed git left this lock. This process holds the task's lock, so nobody else moves its
            // branch.
            Err(_) if file.exists() => {
                let _ = fs::remove_file(&file);
                self.git("update-ref")?.args(["-m", &self.mark, &self.branch, to, from]).run()
            }
            moved => moved,
        };
        Ok(moved.map(drop)?)
    }

    /// Adds entries to the worktree's own index; the files are not touched.
    fn note(&self, entries: &[u8]) -> Result<(), WorkspaceError> {
        if entries.is_empty() {
            return Ok(());
        }
        let admin_dir = self.admin_dir()?;
        self.remove_index_lock(&admin_dir);
        let git = Git::new(Trust::Neutral, "update-index")?.dir(&admin_dir).within(&self.common_dir);
        Ok(git.args(["-z", "--index-info"]).input(entries.to_vec()).run().map(drop)?)
    }

    /// Removes a lock that a killed guard left. This process holds the task's lock, so nobody else uses it.
    fn remove_index_lock(&self, admin_dir: &Path) {
        let _ = fs::remove_file(admin_dir.join("index.lock"));
    }

    /// The paths with work that is neither committed nor ignored.
    pub fn uncommitted(&self) -> Result<Vec<String>, WorkspaceError> {
        let index = self.index_copy()?;
        let output = self
            .tree_git("status", &index, false)?
            .args(["--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=all"])
            .run()?;
        let paths = output.split(|byte| *byte == 0).filter(|line| line.len() > 3);
        Ok(paths.map(|line| String::from_utf8_lossy(&line[3..]).into_owned()).collect())
    }

    /// True if git ignores anything below a directory, by whatever rule: such files do not appear in
    /// `uncommitted`.
    pub fn passes_over(&self, folder: &str) -> Result<bool, WorkspaceError> {
        let index = self.index_copy()?;
        let below = format!(":(top,literal){folder}");
        let shape = ["--others", "--ignored", "--exclude-standard", "--directory", "-z", "--", &below];
        Ok(!self.tree_git("ls-files", &index, false)?.args(shape).run()?.is_empty())
    }

    /// Removes a directory of the working tree with all of its contents. A checkout brings committed files
    /// back.
    pub fn take_away(&self, folder: &str) -> Result<(), WorkspaceError> {
        let place = self.worktree.join(folder);
        at("remove", &place, remove_tree(&place))
    }

    /// Removes the worktree, and the branch if `base` contains all of its commits. The caller must keep
    /// uncommitted work first. Returns whether the branch was removed.
    pub fn remove(&self, base: &str) -> Result<bool, WorkspaceError> {
        let admin_dir = self.admin_dir().ok();
        if let Some(admin_dir) = admin_dir {
            at("remove", &self.worktree, remove_tree(&self.worktree))?;
            at("remove", &admin_dir, remove_tree(&admin_dir))?;
            // As git does, remove the directory of all worktrees with the last one.
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

    /// Keeps the contents of the working tree and the branch under a ref of guard's own.
    pub fn keep(&self, name: &str) -> Result<String, WorkspaceError> {
        let kept = format!("refs/guard/{name}");
        let tip = self.tip()?.unwrap_or_else(|| self.base.clone());
        let index = self.index_copy()?;
        self.tree_git("add", &index, true)?.args(["--all", "--ignore-errors", "--", "."]).answer()?;
        let tree = line(&self.tree_git("write-tree", &index, true)?.run()?);
        let commit = self.git("commit-tree")?.arg(&tree).args(["-p", &tip]);
        let commit = ["AUTHOR", "COMMITTER"].iter().fold(commit, |git, role| {
            git.env(&format!("GIT_{role}_NAME"), "guard").env(&format!("GIT_{role}_EMAIL"), "guard@localhost")
        });
        let id = line(&commit.input(format!("{}: kept\n", self.mark).into_bytes()).run()?);
        self.git("update-ref")?.args(["-m", &self.mark, &kept, &id]).run()?;
        Ok(kept)
    }

    /// Resets the working tree and its index to the branch. Other files that are not ignored are deleted, so
    /// keep them first. The user's own filters run, as for every checkout.
    pub fn check_out(&self, repository: &Repository) -> Result<(), WorkspaceError> {
        let admin_dir = self.admin_dir()?;
        self.remove_index_lock(&admin_dir);
        let tip = self.tip()?.unwrap_or_else(|| self.base.clone());
        let git = |verb: &str| -> Result<Git, WorkspaceError> {
            Ok(repository
                .git(verb)?
                .dir(&admin_dir)
                .worktree(&self.worktree)
                .env(SKIP_SMUDGE.0, SKIP_SMUDGE.1)
                .config("core.sparseCheckout", "false"))
        };
        // Use the attributes of the commit, not those in the tree: git would block on a FIFO of that name.
        git("read-tree")?
            .env("GIT_ATTR_SOURCE", &tip)
            .limit(PATIENCE * 5)
            .args(["--reset", "-u", &tip])
            .run()?;
        // `git clean` leaves nested repositories alone: their contents may exist nowhere else.
        git("clean")?.args(["-fdq", "--", "."]).run()?;
        Ok(())
    }

    /// The changes of the branch since it left another one, at most `most` bytes, and whether that is
    /// complete.
    pub fn diff(&self, from: &str, most: usize) -> Result<(String, bool), WorkspaceError> {
        let range = format!("{from}...{}", self.branch);
        let call = |shape: &str| -> Result<Git, WorkspaceError> {
            let shape = ["--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short", shape];
            Ok(self.git("diff")?.args(shape))
        };
        let (bytes, is_all) = call("--patch")?.arg(&range).arg("--").most(most).start()?.part()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if is_all {
            return Ok((text, true));
        }
        // Only the first of very many files: as much as a prompt can hold.
        let (stat, _) =
            call("--stat=120")?.args(["--stat-count=500", &range, "--"]).most(128 << 10).start()?.part()?;
        Ok((format!("{}\n{text}", String::from_utf8_lossy(&stat)), false))
    }

    /// The paths below a directory that differ between two commits.
    pub fn changed_below(&self, from: &str, to: &str, folder: &str) -> Result<Vec<String>, WorkspaceError> {
        let paths = format!(":(literal,icase){folder}");
        let shape = ["--name-only", "--no-renames", "-z", from, to, "--", &paths];
        let output = self.git("diff")?.args(shape).run()?;
        let names = output.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// The paths that the branch has changed since it left another one.
    pub fn changed_since(&self, from: &str) -> Result<Vec<String>, WorkspaceError> {
        let range = format!("{from}...{}", self.branch);
        let output = self.git("diff")?.args(["--name-only", "--no-renames", "-z", &range, "--"]).run()?;
        let names = output.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// The raw changes of the branch since it left another one, outside a directory. Used to detect rounds
    /// without progress.
    pub fn changed_outside(&self, from: &str, folder: &str) -> Result<Vec<u8>, WorkspaceError> {
        let range = format!("{from}...{}", self.branch);
        let paths = [".".to_string(), format!(":(exclude,literal){folder}")];
        Ok(self
            .git("diff")?
            .args(["--raw", "--no-renames", "--abbrev=64", "-z", &range, "--"])
            .args(&paths)
            .run()?)
    }

    /// The subjects of the commits since another one, oldest first.
    pub fn subjects(&self, since: &str) -> Result<Vec<String>, WorkspaceError> {
        let range = format!("{since}..{}", self.branch);
        let output =
            self.git("log")?.args(["--reverse", "--first-parent", "--format=%h %s", &range, "--"]).run()?;
        // An agent wrote them: truncate, and remove terminal control characters.
        let plain =
            |line: &str| line.chars().filter(|c| !crate::terminal_text::is_unsafe(*c)).take(200).collect();
        Ok(String::from_utf8_lossy(&output).lines().take(500).map(plain).collect())
    }

    /// Ends runs that were killed in this worktree, so that its `.git` names the repository again. Commits
    /// that were not received stay in the run's own directory.
    pub fn settle_runs(&self, runs: &Path) -> Result<(), WorkspaceError> {
        let deadline = Instant::now() + PATIENCE;
        for entry in list(runs)? {
            let Ok(found) = &entry.record else { continue };
            let is_over = matches!(found.state, State::Kept | State::Removed);
            if found.worktree != self.worktree || is_over {
                continue;
            }
            loop {
                match Workspace::load(&entry.run_folder).and_then(|mut run| run.settle(KeepPolicy::Keep)) {
                    // A run dies with the process that started it, but not at the same moment.
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
