//! Merges one commit into another, and checks whether a merge commit of an agent lost changes.
//!
//! git merges in a jail and without a working tree: it moves no ref, and checks out no file.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{TaskTree, line};
use crate::git::plumbing::command::{Git, Trust, program};
use crate::git::plumbing::jail::{Bounds, Jail};
use crate::git::workspace::path_text;
use crate::git::{WorkspaceError, at};

/// The result of merging a commit into the task's branch. The merge itself moves no ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merged {
    /// The branch already contains the commit that was to be merged.
    UpToDate,
    /// The merge has no conflicts; this is the id of the merged tree.
    Clean(String),
    /// The merge has conflicts: the paths of the files with conflicts, and an excerpt of at most about 64 KiB with the
    /// conflicting parts of the first 50 files, between conflict markers.
    Conflict(Vec<String>, String),
}

/// The result of comparing an agent's merge commit with git's automatic merge. Paths that are not UTF-8 have the form
/// `hex:…`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// Files in which the agent's merge lost changes of the merged commit.
    pub lost: Vec<String>,
    /// Files that have conflicts in git's automatic merge. guard does not check the agent's version of these files.
    pub conflicts: Vec<String>,
}

/// The result of git's automatic merge: the id of its tree, and the paths with conflicts.
struct AutomaticMerge {
    tree: String,
    conflicts: Vec<Vec<u8>>,
}

impl TaskTree {
    /// Merges the commit `theirs` into `ours`, the tip of the task's branch. git stores the resulting objects in the
    /// repository, but no ref points to them.
    pub fn merge(&self, ours: &str, theirs: &str) -> Result<Merged, WorkspaceError> {
        if self.contains(ours, theirs)? {
            return Ok(Merged::UpToDate);
        }
        let AutomaticMerge { tree, conflicts } = self.merge_automatically(ours, theirs)?;
        if conflicts.is_empty() {
            return Ok(Merged::Clean(tree));
        }
        let files: Vec<String> = conflicts.iter().map(|path| path_text(path)).collect();
        let excerpt = self.conflict_excerpt(&tree, &files)?;
        Ok(Merged::Conflict(files, excerpt))
    }

    /// Compares the commit `merged`, a merge that an agent made, with the merge that git makes automatically. If git
    /// takes a file from `theirs` unchanged, the agent's merge must do so too. If git combines both sides of a file,
    /// the agent's merge must not contain the version in `ours`. Does not check files with conflicts.
    pub fn compare_merge(&self, ours: &str, theirs: &str, merged: &str) -> Result<Compared, WorkspaceError> {
        if self.contains(ours, theirs)? {
            return Ok(Compared::default());
        }
        let AutomaticMerge { tree, conflicts } = self.merge_automatically(ours, theirs)?;
        let (brought, differs) = (self.differing_paths(ours, &tree)?, self.differing_paths(&tree, merged)?);
        let (joined, changed) = (self.differing_paths(&tree, theirs)?, self.differing_paths(ours, merged)?);
        let is_lost = |path: &&Vec<u8>| {
            brought.contains(*path)
                && !conflicts.contains(path)
                && (!joined.contains(*path) || !changed.contains(*path))
        };
        Ok(Compared {
            lost: differs.iter().filter(is_lost).map(|path| path_text(path)).collect(),
            conflicts: conflicts.iter().map(|path| path_text(path)).collect(),
        })
    }

    /// Returns the first of the given files in a commit that has a line with a conflict marker; `None` if there is
    /// none.
    pub fn file_with_conflict_marker(
        &self,
        commit: &str,
        files: &[String],
    ) -> Result<Option<String>, WorkspaceError> {
        for some in files.chunks(200) {
            let mut git = self.git("grep")?.args(["-z", "-l", "-a", "--no-textconv", "-E"]);
            git = git.args(["-e", "^(<<<<<<<|>>>>>>>) ", "--end-of-options", commit, "--"]);
            for path in some.iter().filter_map(|file| path_text::parse(file)) {
                let mut literal = std::ffi::OsString::from(":(top,literal)");
                literal.push(path.as_os_str());
                git = git.arg(literal);
            }
            let answer = git.output()?;
            if answer.code() > 1 {
                let (verb, code) = ("grep".to_string(), answer.code());
                return Err(crate::git::GitError::Failed { verb, code, message: answer.message }.into());
            }
            let name = format!("{commit}:");
            let found =
                answer.output.split(|byte| *byte == 0).find_map(|path| path.strip_prefix(name.as_bytes()));
            if let Some(path) = found {
                return Ok(Some(path_text(path)));
            }
        }
        Ok(None)
    }

    /// Returns the paths that differ between two trees.
    fn differing_paths(&self, from: &str, to: &str) -> Result<BTreeSet<Vec<u8>>, WorkspaceError> {
        let shape = ["-r", "-z", "--name-only", "--no-renames", "--end-of-options", from, to];
        let output = self.git("diff-tree")?.args(shape).run()?;
        Ok(output.split(|byte| *byte == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect())
    }

    fn merge_automatically(&self, ours: &str, theirs: &str) -> Result<AutomaticMerge, WorkspaceError> {
        // git starts the merge drivers that the attributes and the configuration name, so it runs in a jail.
        let objects = self.objects();
        at("create", &self.scratch, fs::create_dir_all(&self.scratch))?;
        let bounds = Bounds { cpu_seconds: 600, memory: 4 << 30, file: libc::RLIM_INFINITY };
        let jail = Jail::new(program()?, &[&self.common_dir], &[&self.scratch, &objects[0]], false, bounds)?;
        let git = Git::new(Trust::Neutral, "merge-tree")?.git_dir(&self.common_dir).jailed(jail);
        let git = git.current_dir(&self.scratch);
        let answer = git.args(["--write-tree", "--name-only", "--messages", "-z", ours, theirs]).output()?;
        let mut parts = answer.output.split(|byte| *byte == 0);
        let tree = parts.next().map(line).unwrap_or_default();
        match answer.code() {
            0 => Ok(AutomaticMerge { tree, conflicts: Vec::new() }),
            1 => {
                let conflicts = parts.take_while(|part| !part.is_empty()).map(<[u8]>::to_vec).collect();
                Ok(AutomaticMerge { tree, conflicts })
            }
            code => {
                let verb = "merge-tree".to_string();
                Err(crate::git::GitError::Failed { verb, code, message: answer.message }.into())
            }
        }
    }

    /// Returns an excerpt of the first 50 conflicting files: their paths, and the parts between conflict markers, up to
    /// about 64 KiB.
    fn conflict_excerpt(&self, tree: &str, files: &[String]) -> Result<String, WorkspaceError> {
        let mut excerpt = String::new();
        for file in files.iter().take(50) {
            excerpt.push_str(&format!("CONFLICT in {file}\n"));
            let Some(content) = self.file_at(tree, file)? else { continue };
            let text = String::from_utf8_lossy(&content);
            let mut is_inside = false;
            for line in text.lines() {
                is_inside |= line.starts_with("<<<<<<<");
                if is_inside && excerpt.len() < 64 << 10 {
                    excerpt.push_str(line);
                    excerpt.push('\n');
                }
                is_inside &= !line.starts_with(">>>>>>>");
            }
        }
        Ok(excerpt)
    }
}

/// Returns a path as text. A path that is not UTF-8 has the form `hex:…`.
fn path_text(path: &[u8]) -> String {
    path_text::text(Path::new(OsStr::from_bytes(path)))
}
