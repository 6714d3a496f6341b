//! What merging one commit into another comes to, and whether a merge that somebody else made has taken what it merges.
//!
//! git itself merges, in a jail, beside every working tree: nothing moves, and nothing is checked out.

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

/// What merging came to. Nothing has moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merged {
    /// There is nothing to merge.
    UpToDate,
    /// Without conflicts: the tree.
    Clean(String),
    /// Files that conflict, and what git says.
    Conflict(Vec<String>, String),
}

/// What is wrong with a merge: paths, as they are written down.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compared {
    /// What the other side alone has changed, and is not so in the merge.
    pub lost: Vec<String>,
    /// What somebody had to decide about.
    pub conflicts: Vec<String>,
}

/// What git makes of a merge by itself.
struct Automatic {
    tree: String,
    conflicts: Vec<Vec<u8>>,
}

impl TaskTree {
    /// What merging a commit into the branch comes to. The objects of the merge are in the repository; nothing points at them.
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

    /// Compares a merge with the one git makes by itself. Where that takes the other side's file as it is, so must the merge;
    /// where it joins both, the merge may not be what ours was before. What conflicts is for whoever merged to decide.
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

    /// The first of these files that has a line which begins like a conflict marker in a commit, however large it is.
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

    /// Paths that are not the same in two trees.
    fn differing(&self, from: &str, to: &str) -> Result<BTreeSet<Vec<u8>>, WorkspaceError> {
        let shape = ["-r", "-z", "--name-only", "--no-renames", "--end-of-options", from, to];
        let output = self.git("diff-tree")?.args(shape).run()?;
        Ok(output.split(|byte| *byte == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect())
    }

    fn automatic(&self, ours: &str, theirs: &str) -> Result<Automatic, WorkspaceError> {
        // Drivers that attributes and configuration name run where they can reach nothing.
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

    /// The files with their conflict markers, as far as they can be shown.
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

/// A path as it is written down: names that are no text as `hex:…`.
fn written(path: &[u8]) -> String {
    run_record::path::text(Path::new(OsStr::from_bytes(path)))
}
