//! Merges one commit into another, and checks whether somebody else's merge contains what it should.
//!
//! git merges in a jail, without a working tree: no ref moves, and nothing is checked out.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{TaskTree, line};
use crate::workspace::git::command::{Git, Trust, program};
use crate::workspace::git::jail::{Bounds, Jail};
use crate::workspace::run::run_record;
use crate::workspace::{WorkspaceError, at};

/// The result of a merge. No ref has moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merged {
    /// There is nothing to merge.
    UpToDate,
    /// No conflicts; the id of the merged tree.
    Clean(String),
    /// The files with conflicts, and the text with conflict markers.
    Conflict(Vec<String>, String),
}

/// What is wrong with a merge, as paths in text form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// Files that only the other side changed, and that lack this change in the merge.
    pub lost: Vec<String>,
    /// Files with conflicts that somebody had to resolve.
    pub conflicts: Vec<String>,
}

/// The merge that git makes automatically.
struct Automatic {
    tree: String,
    conflicts: Vec<Vec<u8>>,
}

impl TaskTree {
    /// Merges a commit into the branch's commit. The resulting objects are in the repository, but no ref
    /// points to them.
    pub fn merge(&self, ours: &str, theirs: &str) -> Result<Merged, WorkspaceError> {
        if self.contains(ours, theirs)? {
            return Ok(Merged::UpToDate);
        }
        let Automatic { tree, conflicts } = self.automatic(ours, theirs)?;
        if conflicts.is_empty() {
            return Ok(Merged::Clean(tree));
        }
        let files: Vec<String> = conflicts.iter().map(|path| written(path)).collect();
        let said = self.conflicts(&tree, &files)?;
        Ok(Merged::Conflict(files, said))
    }

    /// Compares a merge with the one that git makes automatically. Where git takes the other side's file
    /// unchanged, the merge must too. Where git combines both sides, the merge must not equal our old
    /// version. Conflicts are left to whoever merged.
    pub fn compare_merge(&self, ours: &str, theirs: &str, merged: &str) -> Result<Compared, WorkspaceError> {
        if self.contains(ours, theirs)? {
            return Ok(Compared::default());
        }
        let Automatic { tree, conflicts } = self.automatic(ours, theirs)?;
        let (brought, differs) = (self.differing(ours, &tree)?, self.differing(&tree, merged)?);
        let (joined, changed) = (self.differing(&tree, theirs)?, self.differing(ours, merged)?);
        let is_lost = |path: &&Vec<u8>| {
            brought.contains(*path)
                && !conflicts.contains(path)
                && (!joined.contains(*path) || !changed.contains(*path))
        };
        Ok(Compared {
            lost: differs.iter().filter(is_lost).map(|path| written(path)).collect(),
            conflicts: conflicts.iter().map(|path| written(path)).collect(),
        })
    }

    /// The first of these files that has a line starting with a conflict marker, however large the file is.
    pub fn with_markers(&self, commit: &str, files: &[String]) -> Result<Option<String>, WorkspaceError> {
        for some in files.chunks(200) {
            let mut git = self.git("grep")?.args(["-z", "-l", "-a", "--no-textconv", "-E"]);
            git = git.args(["-e", "^(<<<<<<<|>>>>>>>) ", "--end-of-options", commit, "--"]);
            for path in some.iter().filter_map(|file| run_record::path::parse(file)) {
                let mut literal = std::ffi::OsString::from(":(top,literal)");
                literal.push(path.as_os_str());
                git = git.arg(literal);
            }
            let answer = git.answer()?;
            if answer.code() > 1 {
                let (verb, code) = ("grep".to_string(), answer.code());
                return Err(crate::workspace::GitError::Failed { verb, code, message: answer.message }.into());
            }
            let name = format!("{commit}:");
            let found =
                answer.output.split(|byte| *byte == 0).find_map(|path| path.strip_prefix(name.as_bytes()));
            if let Some(path) = found {
                return Ok(Some(written(path)));
            }
        }
        Ok(None)
    }

    /// The paths that differ between two trees.
    fn differing(&self, from: &str, to: &str) -> Result<BTreeSet<Vec<u8>>, WorkspaceError> {
        let shape = ["-r", "-z", "--name-only", "--no-renames", "--end-of-options", from, to];
        let output = self.git("diff-tree")?.args(shape).run()?;
        Ok(output.split(|byte| *byte == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect())
    }

    fn automatic(&self, ours: &str, theirs: &str) -> Result<Automatic, WorkspaceError> {
        // The drivers that attributes and configuration name run in this jail, where they have no access to
        // anything.
        let objects = self.objects();
        at("make", &self.scratch, fs::create_dir_all(&self.scratch))?;
        let bounds = Bounds { cpu_seconds: 600, memory: 4 << 30, file: libc::RLIM_INFINITY };
        let jail = Jail::new(program()?, &[&self.common_dir], &[&self.scratch, &objects[0]], false, bounds)?;
        let git =
            Git::new(Trust::Neutral, "merge-tree")?.dir(&self.common_dir).jailed(jail).within(&self.scratch);
        let answer = git.args(["--write-tree", "--name-only", "--messages", "-z", ours, theirs]).answer()?;
        let mut parts = answer.output.split(|byte| *byte == 0);
        let tree = parts.next().map(line).unwrap_or_default();
        match answer.code() {
            0 => Ok(Automatic { tree, conflicts: Vec::new() }),
            1 => {
                let conflicts = parts.take_while(|part| !part.is_empty()).map(<[u8]>::to_vec).collect();
                Ok(Automatic { tree, conflicts })
            }
            code => {
                let verb = "merge-tree".to_string();
                Err(crate::workspace::GitError::Failed { verb, code, message: answer.message }.into())
            }
        }
    }

    /// The conflicting files with their conflict markers, as far as they fit.
    fn conflicts(&self, tree: &str, files: &[String]) -> Result<String, WorkspaceError> {
        let mut said = String::new();
        for file in files.iter().take(50) {
            said.push_str(&format!("CONFLICT in {file}\n"));
            let Some(content) = self.file_at(tree, file)? else { continue };
            let text = String::from_utf8_lossy(&content);
            let mut is_inside = false;
            for line in text.lines() {
                is_inside |= line.starts_with("<<<<<<<");
                if is_inside && said.len() < 64 << 10 {
                    said.push_str(line);
                    said.push('\n');
                }
                is_inside &= !line.starts_with(">>>>>>>");
            }
        }
        Ok(said)
    }
}

/// The text form of a path: `hex:…` if it is not UTF-8.
fn written(path: &[u8]) -> String {
    run_record::path::text(Path::new(OsStr::from_bytes(path)))
}
