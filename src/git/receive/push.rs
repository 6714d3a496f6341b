//! Transfers objects from a run's quarantine repository to the user's repository through a pipe, and updates one ref
//! there.
//!
//! ```text
//!   agent's objects ──► git pack-objects ══ pipe ══► git receive-pack ──► git's own quarantine, fsck, connectivity
//!                       jailed, in a git directory       jailed too; one ref,
//!                       guard made; no configuration     compared and swapped
//! ```
//!
//! guard transfers the commits that it makes itself from files of the worktree in the same way, because the agent wrote
//! these files.
//!
//! The agent's objects may exploit a bug in the sending git. Therefore the sending git may write only to the pipe,
//! and may not start processes. The receiving git checks everything that it reads from the pipe.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::tree_size;
use super::tree_size::TreeSizeError;
use super::{Limits, ReceiveError};
use crate::git::WorkspaceError;
use crate::git::plumbing::command::{Git, Running, Trust, program};
use crate::git::plumbing::jail::{Bounds, Jail};
use crate::git::plumbing::outcome::GitError;
use crate::git::plumbing::stderr_messages::GitMessage;
use crate::git::workspace::create::Workspace;
use crate::git::workspace::quarantine;

/// Where the objects of new commits are, and which commits the user's repository has already.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// The object directory with the new objects.
    pub(crate) objects: PathBuf,
    /// The commit from which the new commits must descend.
    pub(crate) base: String,
    /// Another commit that the user's repository has.
    pub(crate) tip: String,
}

impl Workspace {
    /// Transfers the objects of the agent's commit `new` to the user's repository, and asks the receiving git to move
    /// the ref `name` there from the commit `old` to the commit `new`. Returns the receiving git's answer. Fails before
    /// the transfer if `new` does not descend from the run's base commit, or if guard cannot accept the agent's objects.
    pub(crate) fn push(
        &self,
        name: &str,
        old: &str,
        new: &str,
        limits: &Limits,
    ) -> Result<Report, ReceiveError> {
        let source = Source {
            objects: self.quarantine().join("objects"),
            base: self.record.base.clone(),
            tip: self.record.tip.clone(),
        };
        self.push_from(&source, name, old, new, limits)
    }

    /// Checks the objects of the commit `new`, which guard made from files of the worktree, as [`Self::push_from`] checks
    /// those of received commits. Transfers nothing.
    pub(crate) fn check_objects(
        &self,
        source: &Source,
        new: &str,
        limits: &Limits,
    ) -> Result<(), ReceiveError> {
        let dir = self.prepare_sender(source)?;
        let failed = |error: io::Error| {
            ReceiveError::Unreadable(format!("cannot use a pipe between two git processes: {error}"))
        };
        let (from, to) = io::pipe().map_err(failed)?;
        self.check_trees(source, new, limits)?;
        let mut sender = self.sender(source, new, to.into(), limits)?;
        let checker = self.checker(source, from.into(), limits);
        let checker = match checker {
            Ok(checker) => checker,
            Err(error) => {
                sender.terminate();
                return Err(error);
            }
        };
        let answer = checker.finish();
        let sent = sender.finish();
        let answer = answer?;
        crate::git::at("remove", &dir, crate::sys::remove_tree::remove_tree(&dir))?;
        if GitMessage::PackTooLarge.is_in(&answer.message) {
            return Err(ReceiveError::TooLarge { limit: limits.bytes });
        }
        let sent = sent?;
        if !answer.status.success() {
            return Err(ReceiveError::BadObjects(answer.message));
        }
        if !sent.status.success() {
            return Err(ReceiveError::Unreadable(sent.message));
        }
        Ok(())
    }

    /// Starts `git index-pack`, which reads a pack from the pipe `from` and checks its objects. It is the program with
    /// which `git receive-pack` checks them, and it gets the same options.
    fn checker(&self, source: &Source, from: OwnedFd, limits: &Limits) -> Result<Running, ReceiveError> {
        let dir = self.run_folder.join("sender");
        let checker = self
            .sender_git("index-pack", source, &[&dir], limits)?
            .args(["--stdin", "--fix-thin", "--strict"])
            .arg(format!("--max-input-size={}", limits.bytes))
            .max_output(1 << 20);
        Ok(checker.start_with_stdin(from)?)
    }

    /// Creates the git directory in which the sending git runs, and returns its path. Fails if guard cannot accept the
    /// files in the source's object directory.
    fn prepare_sender(&self, source: &Source) -> Result<PathBuf, ReceiveError> {
        check_only_plain_files(&source.objects).map_err(ReceiveError::Unreadable)?;
        let dir = self.run_folder.join("sender");
        let objects = self.sender_object_dirs(source);
        crate::git::at("create", &dir, create_sender_dir(&dir, &objects, self))?;
        Ok(dir)
    }

    /// Transfers the objects of the commit `new` from `source` to the user's repository, and asks the receiving git to
    /// move the ref `name` there from the commit `old` to the commit `new`. Returns the receiving git's answer. Fails
    /// before the transfer if `new` does not descend from the base of the source, or if guard cannot accept the objects.
    pub(crate) fn push_from(
        &self,
        source: &Source,
        name: &str,
        old: &str,
        new: &str,
        limits: &Limits,
    ) -> Result<Report, ReceiveError> {
        self.prepare_sender(source)?;
        // The sending git packs objects while another git checks the ancestry. No process reads the pipe until that
        // check has passed.
        let failed = |error: io::Error| {
            ReceiveError::Unreadable(format!("cannot use a pipe between two git processes: {error}"))
        };
        let (from, to) = io::pipe().map_err(failed)?;
        let mut ancestry_check = self.start_ancestry_check(source, new, limits)?;
        let format = &self.record.object_format;
        let command = format!("{old} {new} {name}\0 report-status quiet object-format={format} agent=guard");
        let written = (&to).write_all(format!("{:04x}{command}0000", command.len() + 4).as_bytes());
        let sender = written.map_err(failed).and_then(|()| self.sender(source, new, to.into(), limits));
        let mut sender = match sender {
            Ok(sender) => sender,
            Err(error) => {
                ancestry_check.terminate();
                return Err(error);
            }
        };
        let receiver = self
            .finish_ancestry_check(source, new, ancestry_check, limits)
            .and_then(|()| self.check_trees(source, new, limits))
            .and_then(|()| self.receiver(from.into(), limits));
        let receiver = match receiver {
            Ok(receiver) => receiver,
            Err(error) => {
                sender.terminate();
                return Err(error);
            }
        };
        let answer = receiver.finish();
        let sent = sender.finish();
        let answer = answer?;
        let report = parse_report(&answer.output, name);
        if matches!(report, Some(Report::Done)) {
            return Ok(Report::Done);
        }
        if GitMessage::PackTooLarge.is_in(&answer.message) {
            return Err(ReceiveError::TooLarge { limit: limits.bytes });
        }
        let sent = sent?;
        let killed_by_sigpipe = sent.code() == 128 + libc::SIGPIPE;
        if !sent.status.success() && !killed_by_sigpipe {
            let message =
                if sent.message.is_empty() { format!("exit code {}", sent.code()) } else { sent.message };
            return Err(ReceiveError::Unreadable(message));
        }
        match report {
            Some(Report::Refused(reason)) if GitMessage::NotUnpacked.is_in(&reason) => {
                Err(ReceiveError::BadObjects(if answer.message.is_empty() { reason } else { answer.message }))
            }
            Some(Report::Refused(reason)) if !answer.message.is_empty() => {
                Ok(Report::Refused(format!("{reason} ({})", answer.message)))
            }
            Some(report) => Ok(report),
            None => Err(ReceiveError::BadObjects(format!(
                "git receive-pack exited without a report: {}",
                answer.message
            ))),
        }
    }

    /// Starts `git receive-pack`. It reads two things from the pipe `from`: the ref update that guard has written (old
    /// commit, new commit, ref) and the pack.
    fn receiver(&self, from: OwnedFd, limits: &Limits) -> Result<Running, ReceiveError> {
        let record = &self.record;
        // The receiving git may write objects and refs, but not the configuration or the hooks beside them.
        let mut write: Vec<PathBuf> =
            ["refs", "logs", "reftable"].map(|name| record.common_dir.join(name)).to_vec();
        if record.ref_format == "reftable" {
            // git also updates the reftable of the worktree in which the branch is checked out.
            write.push(record.admin_dir.join("reftable"));
        }
        write.extend(record.objects.first().cloned());
        let write: Vec<&Path> = write.iter().map(PathBuf::as_path).collect();
        let mut read: Vec<&Path> = record.objects.iter().map(PathBuf::as_path).collect();
        read.push(&record.common_dir);
        let bounds =
            Bounds { cpu_seconds: limits.time.as_secs() + 1, memory: 4 << 30, file: libc::RLIM_INFINITY };
        let jail = Jail::new(program()?, &read, &write, false, bounds).map_err(WorkspaceError::from)?;
        let receiver = self
            .real_git("receive-pack")?
            .arg("--stateless-rpc")
            .arg(&record.common_dir)
            .config("receive.fsckObjects", "true")
            .config("transfer.fsckObjects", "true")
            .config("receive.maxInputSize", limits.bytes.to_string())
            .config("receive.denyDeletes", "true")
            .config("receive.denyNonFastForwards", "true")
            .config("receive.denyCurrentBranch", "ignore")
            .config("receive.autogc", "false")
            .config("receive.updateServerInfo", "false")
            .config("receive.shallowUpdate", "false")
            .config("receive.advertisePushOptions", "false")
            // Make git stream large blobs to disk, so that a small pack cannot fill the memory.
            .config("core.bigFileThreshold", "64m")
            .timeout(limits.time)
            .max_output(1 << 20)
            .jailed(jail);
        Ok(receiver.start_with_stdin(from)?)
    }

    /// Starts a git process that checks whether the commit `new` descends from the base of the source. The receiving
    /// git checks that too, but only after it has stored the objects, and the objects of a refused push must not stay
    /// in the repository.
    fn start_ancestry_check(
        &self,
        source: &Source,
        new: &str,
        limits: &Limits,
    ) -> Result<Running, ReceiveError> {
        let base = format!("^{}", source.base);
        let way = self.reader("rev-list", source, limits)?.args([
            "--ancestry-path",
            "--max-count=1",
            new,
            &base,
            "--",
        ]);
        Ok(way.start()?)
    }

    /// Waits for the process from [`Self::start_ancestry_check`]. Fails if the commit `new` does not descend from the
    /// base of the source.
    fn finish_ancestry_check(
        &self,
        source: &Source,
        new: &str,
        ancestry_check: Running,
        limits: &Limits,
    ) -> Result<(), ReceiveError> {
        let answer = ancestry_check.finish()?;
        let is_there = answer.status.success() && answer.output.trim_ascii_end() == new.as_bytes();
        if is_there || new == source.base {
            return Ok(());
        }
        let kind = self.reader("cat-file", source, limits)?.args(["-t", new]).output()?;
        if !kind.status.success() {
            return Err(ReceiveError::Unreadable(kind.message));
        }
        if kind.output.trim_ascii_end() != b"commit" {
            return Err(ReceiveError::NotACommit(new.to_string()));
        }
        if !answer.status.success() {
            return Err(ReceiveError::Unreadable(answer.message));
        }
        Err(self.not_descending(new))
    }

    /// Fails if a new commit has more paths than git can handle in reasonable memory and time, or if there are more
    /// than [`MAX_NEW_COMMITS`] new commits.
    fn check_trees(&self, source: &Source, new: &str, limits: &Limits) -> Result<(), ReceiveError> {
        let listed = self
            .reader("rev-list", source, limits)?
            .arg(format!("--max-count={}", MAX_NEW_COMMITS + 1))
            .args([new, &format!("^{}", source.base), &format!("^{}", source.tip), "--"])
            .max_output(16 << 20)
            .run()
            .map_err(|error| match error {
                GitError::Failed { message, .. } => ReceiveError::Unreadable(message),
                other => other.into(),
            })?;
        let commits: Vec<String> = String::from_utf8_lossy(&listed).lines().map(str::to_string).collect();
        if commits.len() > MAX_NEW_COMMITS {
            let problem = format!("there are more than {MAX_NEW_COMMITS} new commits");
            return Err(ReceiveError::Trees(TreeSizeError::TooLarge(problem)));
        }
        Ok(tree_size::check(self.reader("cat-file", source, limits)?, &commits, self.max_paths())?)
    }

    pub(crate) fn max_paths(&self) -> u64 {
        tree_size::max_paths(tree_size::index_entries(&self.record.admin_dir.join("index")))
    }

    /// Returns the object directories that the sending git reads: first that of the source, then those of the user's
    /// repository.
    fn sender_object_dirs(&self, source: &Source) -> Vec<PathBuf> {
        let mut objects = vec![source.objects.clone()];
        objects.extend(self.record.objects.iter().cloned());
        objects
    }

    /// Starts the sending git, which writes the pack of the commit `new` to the pipe `to`.
    fn sender(
        &self,
        source: &Source,
        new: &str,
        to: OwnedFd,
        limits: &Limits,
    ) -> Result<Running, ReceiveError> {
        let wanted = format!("{new}\n^{}\n^{}\n", source.base, source.tip);
        let sender = self
            .reader("pack-objects", source, limits)?
            .args(["--revs", "--thin", "--stdout", "--delta-base-offset", "--quiet"])
            .arg(format!("--threads={}", threads()))
            .input(wanted.into_bytes());
        Ok(sender.start_with_stdout(to)?)
    }

    /// Builds a jailed (sandboxed) git call that reads the objects of the source, and writes nothing.
    fn reader(&self, verb: &str, source: &Source, limits: &Limits) -> Result<Git, ReceiveError> {
        self.sender_git(verb, source, &[], limits)
    }

    /// Builds a jailed (sandboxed) git call that reads the objects of the source, and may write to the directories
    /// `write`. The call uses a git directory that guard has created, so the agent's configuration does not apply.
    fn sender_git(
        &self,
        verb: &str,
        source: &Source,
        write: &[&Path],
        limits: &Limits,
    ) -> Result<Git, ReceiveError> {
        let dir = self.run_folder.join("sender");
        let objects = self.sender_object_dirs(source);
        let mut read: Vec<&Path> = objects.iter().map(PathBuf::as_path).collect();
        read.push(&dir);
        let file = if write.is_empty() { 1 << 20 } else { libc::RLIM_INFINITY };
        let bounds = Bounds { cpu_seconds: limits.time.as_secs() + 1, memory: 4 << 30, file };
        let jail = Jail::new(program()?, &read, write, true, bounds).map_err(WorkspaceError::from)?;
        Ok(Git::new(Trust::Neutral, verb)?
            .git_dir(&dir)
            .current_dir(&dir)
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            // Disable the files that make git faster, because the agent could have written them.
            .config("core.commitGraph", "false")
            .config("core.multiPackIndex", "false")
            .config("pack.useBitmaps", "false")
            .config("pack.readReverseIndex", "false")
            .config("core.bigFileThreshold", "64m")
            .timeout(limits.time)
            .jailed(jail))
    }
}

const MAX_NEW_COMMITS: usize = 100_000;

/// Maximum number of threads with which git searches for deltas: each thread needs memory.
const MAX_THREADS: usize = 4;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

/// Fails if an object directory contains anything except regular files and directories: git would block on a FIFO,
/// and would follow a symbolic link to files elsewhere. Checks the whole tree, because a file with alternates can
/// name any directory in it.
fn check_only_plain_files(objects: &Path) -> Result<(), String> {
    let unreadable = |path: &Path, error: &io::Error| format!("{}: {error}", path.display());
    let data = objects.symlink_metadata().map_err(|error| unreadable(objects, &error))?;
    if !data.is_dir() {
        return Err(format!("{} is not a directory", objects.display()));
    }
    let mut dirs = vec![objects.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).map_err(|error| unreadable(&dir, &error))? {
            let entry = entry.map_err(|error| unreadable(&dir, &error))?;
            let kind = entry.file_type().map_err(|error| unreadable(&dir, &error))?;
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if !kind.is_file() {
                return Err(format!("{} is neither a regular file nor a directory", entry.path().display()));
            }
        }
    }
    Ok(())
}

fn create_sender_dir(dir: &Path, objects: &[PathBuf], workspace: &Workspace) -> io::Result<()> {
    crate::sys::remove_tree::remove_tree(dir)?;
    for name in ["objects/info", "refs"] {
        DirBuilder::new().mode(0o700).recursive(true).create(dir.join(name))?;
    }
    fs::write(dir.join("HEAD"), "ref: refs/heads/none\n")?;
    let extension = match workspace.record.object_format.as_str() {
        "sha256" => "\trepositoryformatversion = 1\n[extensions]\n\tobjectformat = sha256\n",
        _ => "\trepositoryformatversion = 0\n",
    };
    fs::write(dir.join("config"), format!("[core]\n\tbare = true\n{extension}"))?;
    fs::write(dir.join("objects/info/alternates"), quarantine::alternates(objects))?;
    match fs::copy(workspace.record.common_dir.join("shallow"), dir.join("shallow")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        copied => copied.map(drop),
    }
}

/// The answer of the receiving git about the ref that guard asked it to move.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The receiving git moved the ref.
    Done,
    /// The receiving git refused to move the ref, because the new commit does not descend from the old one.
    NotForward,
    /// The receiving git refused to move the ref for another reason; the text is that reason.
    Refused(String),
}

/// Parses the answer of the receiving git: pkt-lines `unpack ok`, and `ok REF` or `ng REF REASON`. Returns `None` if
/// the answer is malformed or does not mention the ref `name`.
fn parse_report(output: &[u8], name: &str) -> Option<Report> {
    let mut rest = output;
    let mut unpacked = None;
    while rest.len() >= 4 {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..4]).ok()?, 16).ok()?;
        if length < 4 {
            break;
        }
        let line = rest.get(4..length)?;
        rest = &rest[length..];
        let line = String::from_utf8_lossy(line);
        let line: String = line.trim_end().chars().filter(|c| !c.is_control()).collect();
        if let Some(state) = line.strip_prefix("unpack ") {
            if state != "ok" {
                return Some(Report::Refused(line));
            }
            unpacked = Some(());
        } else if line == format!("ok {name}") {
            return unpacked.map(|()| Report::Done);
        } else if let Some(reason) = line.strip_prefix(&format!("ng {name} ")) {
            let is_forward = reason != "non-fast-forward";
            return Some(if is_forward { Report::Refused(reason.to_string()) } else { Report::NotForward });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Report, parse_report};

    #[test]
    fn reports_are_read_strictly() {
        let name = "refs/heads/task/x";
        assert_eq!(parse_report(b"000eunpack ok\n0019ok refs/heads/task/x\n0000", name), Some(Report::Done));
        assert_eq!(parse_report(b"0019ok refs/heads/task/x\n0000", name), None, "nothing was unpacked");
        assert_eq!(parse_report(b"000eunpack ok\n0019ok refs/heads/task/y\n0000", name), None);
        assert_eq!(
            parse_report(b"000eunpack ok\n002ang refs/heads/task/x non-fast-forward\n0000", name),
            Some(Report::NotForward)
        );
        assert_eq!(parse_report(b"ffff", name), None);
        assert_eq!(parse_report(b"zzzz", name), None);
        assert_eq!(parse_report("000é".as_bytes(), name), None);
    }
}
