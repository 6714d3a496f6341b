//! Reads the base commit and the tip of a run's branch from the user's repository through a jailed git process, which
//! cannot write files or start processes.
//!
//! The agent made the objects. A few small trees can have so many paths that listing them would never end, and a file
//! can be larger than memory. Therefore guard limits all of git's output in size and time.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::model::Inspection;
use crate::git::WorkspaceError;
use crate::git::plumbing::command::{Git, Running, Trust, program};
use crate::git::plumbing::jail::{Bounds, Jail};
use crate::git::snapshot::Name;

/// The mode and object id of a path in a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) mode: u32,
    pub(crate) object: String,
}

impl Blob {
    pub(crate) const LINK: u32 = 0o120_000;
    pub(crate) const GITLINK: u32 = 0o160_000;

    pub(crate) fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    pub(crate) fn is_executable(&self) -> bool {
        self.is_file() && self.mode & 0o111 != 0
    }
}

/// The files in the tip of the run's branch, and which of them differ from the run's base commit.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    /// All files in the tip, by path.
    pub(crate) tip: BTreeMap<Name, Blob>,
    /// The paths that differ between base and tip, each with its mode and object in the base; `None` for a new file.
    pub(crate) changed: BTreeMap<Name, Option<Blob>>,
    /// True if git's list of files was truncated.
    pub(crate) is_truncated: bool,
}

impl Commits {
    /// Returns the mode and object id of a path in the base commit; `None` if the path did not exist there.
    pub(crate) fn base(&self, path: &Name) -> Option<&Blob> {
        match self.changed.get(path) {
            Some(old) => old.as_ref(),
            None => self.tip.get(path),
        }
    }
}

/// Maximum size of one list of files from git, in bytes: enough for several hundred thousand files.
const MAX_LISTED_BYTES: usize = 64 << 20;
/// Maximum size of a file whose content guard checks, in bytes. guard does not read larger files.
pub(crate) const MAX_CONTENT_BYTES: u64 = 1 << 20;

/// Reads objects of the user's repository through jailed (sandboxed) git processes.
pub(crate) struct Objects<'a> {
    inspection: &'a Inspection,
    deadline: Instant,
    reader: Option<(Running, ChildStdin, ChildStdout)>,
    /// True if a request to the `cat-file` process failed. guard then cannot use the process again, because it may
    /// still write output of the failed request.
    is_unusable: bool,
}

impl Drop for Objects<'_> {
    fn drop(&mut self) {
        if let Some((mut running, ..)) = self.reader.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

impl<'a> Objects<'a> {
    pub(crate) fn new(inspection: &'a Inspection, deadline: Instant) -> Self {
        Self { inspection, deadline, reader: None, is_unusable: false }
    }

    fn git(&self, args: &[&str]) -> Result<Git, WorkspaceError> {
        let Inspection { repository, objects, new_objects, .. } = self.inspection;
        let left = self.deadline.saturating_duration_since(Instant::now());
        let mut read: Vec<&Path> = objects.iter().map(PathBuf::as_path).collect();
        read.push(repository);
        read.extend(new_objects.as_deref());
        let bounds = Bounds { cpu_seconds: left.as_secs() + 1, memory: 4 << 30, file: 0 };
        let jail = Jail::new(program()?, &read, &[], true, bounds)?;
        let (verb, args) = args.split_first().unwrap_or((&"version", &[]));
        let mut git = Git::new(Trust::Neutral, verb)?;
        if let Some(new_objects) = new_objects {
            git = git.env("GIT_ALTERNATE_OBJECT_DIRECTORIES", new_objects);
        }
        Ok(git
            .args(args)
            .git_dir(repository)
            .current_dir(repository)
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .timeout(left)
            .max_output(MAX_LISTED_BYTES)
            .jailed(jail))
    }

    /// Lists the files in the commit or tree `tip`, and which of them differ from the commit or tree `base`. Without a
    /// base, all files are new.
    pub(crate) fn commits(&self, base: Option<&str>, tip: &str) -> io::Result<Commits> {
        let empty = if tip.len() == 64 { EMPTY_SHA256 } else { EMPTY_SHA1 };
        let base = base.unwrap_or(empty);
        let mut commits = Commits::default();
        let (listed, whole) =
            self.output(&["ls-tree", "-r", "-z", "--full-tree", "--end-of-options", tip])?;
        commits.is_truncated |= !whole;
        for line in complete_entries(&listed) {
            // Each line has the form MODE TYPE OBJECT<TAB>PATH.
            let Some(tab) = line.iter().position(|byte| *byte == b'\t') else { continue };
            let mut words = line[..tab].split(|byte| *byte == b' ');
            if let (Some(mode), Some(_), Some(object)) = (words.next(), words.next(), words.next())
                && let Some(blob) = blob(mode, object)
            {
                commits.tip.insert(Name::from(&line[tab + 1..]), blob);
            }
        }
        if base == tip {
            return Ok(commits);
        }
        let words = [
            "diff-tree",
            "-r",
            "-z",
            "--raw",
            "--no-renames",
            "--no-abbrev",
            "--no-ext-diff",
            "--end-of-options",
        ];
        let (listed, whole) = self.output(&[&words[..], &[base, tip]].concat())?;
        commits.is_truncated |= !whole;
        let mut parts = complete_entries(&listed);
        // Each entry has the form :OLDMODE NEWMODE OLD NEW STATUS<NUL>PATH<NUL>.
        while let (Some(what), Some(path)) = (parts.next(), parts.next()) {
            let words: Vec<_> = what.strip_prefix(b":").unwrap_or(what).split(|byte| *byte == b' ').collect();
            if let [old_mode, _, old, _, _] = words[..] {
                commits.changed.insert(Name::from(path), blob(old_mode, old));
            }
        }
        Ok(commits)
    }

    fn output(&self, words: &[&str]) -> io::Result<(Vec<u8>, bool)> {
        let git = self.git(words).map_err(io::Error::other)?;
        git.start().and_then(Running::read_partial).map_err(io::Error::other)
    }

    /// Returns the content of a blob; `None` if the blob is too large or missing, if the inspection has timed out, or
    /// if reading an earlier blob failed.
    pub(crate) fn content(&mut self, object: &str) -> Option<Vec<u8>> {
        if self.is_unusable {
            return None;
        }
        self.is_unusable = true;
        let content = self.request(object).ok()?;
        self.is_unusable = false;
        content
    }

    fn request(&mut self, object: &str) -> io::Result<Option<Vec<u8>>> {
        if self.reader.is_none() {
            let git = self.git(&["cat-file", "--batch-command"]).map_err(io::Error::other)?;
            let mut running = git.start_with_stdin(Stdio::piped()).map_err(io::Error::other)?;
            let (Some(stdin), Some(stdout)) = (running.child.stdin.take(), running.child.stdout.take())
            else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            self.reader = Some((running, stdin, stdout));
        }
        let deadline = self.deadline;
        let Some((_, stdin, stdout)) = self.reader.as_mut() else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        // Ask for the size first, so that git does not send the content of a file that is too large.
        let mut head = |verb: &str, stdout: &mut ChildStdout| -> io::Result<Option<u64>> {
            stdin.write_all(format!("{verb} {object}\n").as_bytes())?;
            let mut line = Vec::new();
            while !line.ends_with(b"\n") {
                if line.len() > 300 || !read_exactly(stdout, &mut line, 1, deadline)? {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
            let line = String::from_utf8_lossy(&line).into_owned();
            let words: Vec<_> = line.split_whitespace().collect();
            Ok(match words[..] {
                [_, "blob", size] => size.parse().ok(),
                _ => None,
            })
        };
        let Some(size) = head("info", stdout)?.filter(|size| *size <= MAX_CONTENT_BYTES) else {
            return Ok(None);
        };
        if head("contents", stdout)? != Some(size) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut content = Vec::new();
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if !read_exactly(stdout, &mut content, size.saturating_add(1), deadline)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        content.truncate(size);
        Ok(Some(content))
    }
}

const EMPTY_SHA1: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";
const EMPTY_SHA256: &str = "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321";

fn blob(mode: &[u8], object: &[u8]) -> Option<Blob> {
    let mode = u32::from_str_radix(std::str::from_utf8(mode).ok()?, 8).ok()?;
    (mode != 0).then(|| Blob { mode, object: String::from_utf8_lossy(object).into_owned() })
}

/// Returns the complete, NUL-terminated entries in git's output. Skips the last entry if it was truncated.
fn complete_entries(listed: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = listed.iter().rposition(|byte| *byte == 0).unwrap_or(0);
    listed[..end].split(|byte| *byte == 0).filter(|part| !part.is_empty())
}

fn read_exactly(
    from: &mut ChildStdout,
    bytes: &mut Vec<u8>,
    count: usize,
    deadline: Instant,
) -> io::Result<bool> {
    let end = bytes.len() + count;
    while bytes.len() < end {
        if !matches!(read_some(from, bytes, end - bytes.len(), deadline)?, Some(1..)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads at most `max` bytes of git's output, and returns their number, which is 0 at the end of the output. Waits
/// until some output is available; returns `None` after the deadline.
fn read_some(
    from: &mut ChildStdout,
    bytes: &mut Vec<u8>,
    max: usize,
    deadline: Instant,
) -> io::Result<Option<usize>> {
    let left = deadline.saturating_duration_since(Instant::now());
    let wait = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX);
    let ready = match poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], wait) {
        Err(nix::errno::Errno::EINTR) => return read_some(from, bytes, max, deadline),
        other => other?,
    };
    if ready == 0 {
        return Ok(None);
    }
    let start = bytes.len();
    bytes.resize(start + max.min(1 << 16), 0);
    let count = from.read(&mut bytes[start..]);
    bytes.truncate(start + *count.as_ref().unwrap_or(&0));
    count.map(Some)
}
