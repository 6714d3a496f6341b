//! Counts the paths in the trees of commits without listing the paths.
//!
//! If each of ten tree objects contains the next one ten times, the first one has billions of paths. Every git command
//! that reads such a commit into an index, compares it or checks it out spends memory and time on each path. Therefore
//! guard reads every tree object only once, through a jailed `git cat-file --batch`, and computes the number of paths
//! below a tree from the numbers below its entries.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, Stdio};

use nix::poll::{PollFd, PollFlags, poll};

use crate::git::plumbing::command::{Git, Running};
use crate::git::plumbing::outcome::GitError;

/// The number of paths (files and directories) that a commit may always have. The limit is higher for a repository
/// that already has many paths.
const MAX_PATHS: u64 = 2_000_000;
/// Maximum number of paths in a received commit, as a multiple of the number of paths in the index before the run.
const MAX_GROWTH_FACTOR: u64 = 4;
/// Maximum total length of the paths in a commit, divided by the maximum number of paths in a commit, in bytes.
const MAX_AVERAGE_PATH_BYTES: u64 = 512;
/// Maximum number of different tree objects to read.
const MAX_TREES: usize = 2_000_000;
/// Maximum size of all tree objects together, in bytes.
const MAX_BYTES: u64 = 2 << 30;
const MAX_TREE_BYTES: u64 = 64 << 20;
/// Number of trees to request from git at once. Their ids must fit into the pipe's buffer, because guard reads no
/// answer before it has written all of the ids.
const BATCH: usize = 256;

/// Why the trees of a commit are too large, or why guard cannot measure them.
#[derive(Debug, thiserror::Error)]
pub enum TreeSizeError {
    #[error(
        "the commit {commit} has {} files and directories, {}; it probably contains \
         the same directories many times, and git would run out of memory when it reads the commit",
        path_count_text(.paths), excess_text(*.paths, *.limit)
    )]
    TooManyPaths {
        commit: String,
        /// The number of paths in the commit; `u64::MAX` if it is too large to count.
        paths: u64,
        /// The maximum number of paths in a commit.
        limit: u64,
    },
    /// The commits have more tree objects, or larger ones, than guard reads; the text says which limit they exceed.
    #[error("cannot count the files in the commits: {0}")]
    TooLarge(String),
    /// git cannot read a tree, or its output is malformed.
    #[error("cannot read the trees of the commits: {0}")]
    Unreadable(String),
    #[error(transparent)]
    Git(#[from] GitError),
}

fn path_count_text(paths: &u64) -> String {
    if *paths == u64::MAX { format!("at least {paths}") } else { paths.to_string() }
}

/// Returns which limit a commit with `paths` paths exceeds. If the number of paths does not exceed `limit`, the paths
/// together are too long.
fn excess_text(paths: u64, limit: u64) -> String {
    if paths > limit {
        return format!("and the limit is {limit}");
    }
    let bytes = limit.saturating_mul(MAX_AVERAGE_PATH_BYTES);
    format!("whose paths together are longer than the limit of {bytes} bytes")
}

/// Returns the maximum number of paths in a commit, for a repository whose index has `index_entries` entries.
pub(crate) fn max_paths(index_entries: u64) -> u64 {
    MAX_PATHS.max(index_entries.saturating_mul(MAX_GROWTH_FACTOR))
}

/// Returns the number of entries in an index file, according to its header; 0 if the file has no valid header.
pub(crate) fn index_entries(index: &std::path::Path) -> u64 {
    let mut header = [0u8; 12];
    let read = std::fs::File::open(index).and_then(|mut file| file.read_exact(&mut header));
    match (read, header) {
        (Ok(()), [b'D', b'I', b'R', b'C', _, _, _, _, a, b, c, d]) => {
            u64::from(u32::from_be_bytes([a, b, c, d]))
        }
        _ => 0,
    }
}

/// Fails if any of the commits has more than `limit` paths, if their total length is too large, or if guard cannot read
/// all trees. `git` is a jailed `cat-file` call in the repository that has the commits.
pub(crate) fn check(git: Git, commits: &[String], limit: u64) -> Result<(), TreeSizeError> {
    if commits.is_empty() {
        return Ok(());
    }
    let mut trees = Trees::start(git)?;
    let mut roots = Vec::with_capacity(commits.len());
    for batch in commits.chunks(BATCH) {
        let names: Vec<String> = batch.iter().map(|commit| format!("{commit}^{{tree}}")).collect();
        roots.extend(trees.request(&names)?);
    }
    while !trees.unread.is_empty() {
        let at = trees.unread.len().saturating_sub(BATCH);
        let batch: Vec<u32> = trees.unread.split_off(at);
        let names: Vec<String> =
            batch.iter().map(|index| trees.nodes[*index as usize].name.clone()).collect();
        trees.request(&names)?;
    }
    let sizes = trees.sizes();
    for (commit, root) in commits.iter().zip(roots) {
        let Size { paths, bytes } = sizes[root as usize];
        if paths > limit || bytes > limit.saturating_mul(MAX_AVERAGE_PATH_BYTES) {
            return Err(TreeSizeError::TooManyPaths { commit: commit.clone(), paths, limit });
        }
    }
    Ok(())
}

/// The number of paths below a tree, and the total length of these paths in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    paths: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Node {
    name: String,
    is_read: bool,
    /// The number of the tree's direct entries, and the total length of their names.
    own: Size,
    /// The direct entries that are trees themselves: (index in `Trees::nodes`, length of the name).
    children: Vec<(u32, u32)>,
}

struct Trees {
    // This field is dropped first, so that git's standard input is closed and git ends.
    input: ChildStdin,
    output: ChildStdout,
    running: Running,
    buffer: Vec<u8>,
    at: usize,
    nodes: Vec<Node>,
    known: HashMap<String, u32>,
    unread: Vec<u32>,
    bytes: u64,
}

impl Trees {
    fn start(git: Git) -> Result<Self, TreeSizeError> {
        let mut running = git.args(["--batch"]).start_with_stdin(Stdio::piped())?;
        let (Some(input), Some(output)) = (running.child.stdin.take(), running.child.stdout.take()) else {
            return Err(TreeSizeError::Unreadable("git was started without pipes".to_string()));
        };
        Ok(Self {
            running,
            input,
            output,
            buffer: Vec::new(),
            at: 0,
            nodes: Vec::new(),
            known: HashMap::new(),
            unread: Vec::new(),
            bytes: 0,
        })
    }

    fn unreadable(&mut self, what: &str) -> TreeSizeError {
        let message = self.running.message();
        TreeSizeError::Unreadable(if message.is_empty() {
            what.to_string()
        } else {
            format!("{what}: {message}")
        })
    }

    /// Requests trees from git, reads the answers, and returns the index of each tree in `nodes`.
    fn request(&mut self, names: &[String]) -> Result<Vec<u32>, TreeSizeError> {
        let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
        if let Err(error) = self.input.write_all(lines.as_bytes()).and_then(|()| self.input.flush()) {
            return Err(self.unreadable(&error.to_string()));
        }
        names.iter().map(|name| self.read_answer(name)).collect()
    }

    /// Reads git's answer for one tree: `NAME tree SIZE`, a newline, SIZE bytes, a newline.
    fn read_answer(&mut self, requested: &str) -> Result<u32, TreeSizeError> {
        let line = self.line()?;
        let words: Vec<&str> = line.split(' ').collect();
        let (name, size) = match words[..] {
            [name, "tree", size] => (name.to_string(), size.parse::<u64>().unwrap_or(u64::MAX)),
            _ => return Err(self.unreadable(&format!("git cannot read the tree {requested}"))),
        };
        if size > MAX_TREE_BYTES {
            let problem = format!("a tree object has {size} bytes, and the limit is {MAX_TREE_BYTES}");
            return Err(TreeSizeError::TooLarge(problem));
        }
        self.bytes += size;
        if self.bytes > MAX_BYTES {
            return Err(TreeSizeError::TooLarge(format!(
                "the tree objects have more than {MAX_BYTES} bytes"
            )));
        }
        let content = self.take(size as usize + 1)?;
        let index = self.index_of(name.clone())?;
        if !std::mem::replace(&mut self.nodes[index as usize].is_read, true) {
            self.read(index, &content[..size as usize], name.len() / 2)?;
        }
        Ok(index)
    }

    fn index_of(&mut self, name: String) -> Result<u32, TreeSizeError> {
        if let Some(index) = self.known.get(&name) {
            return Ok(*index);
        }
        if self.nodes.len() >= MAX_TREES {
            let problem = format!("there are more than {MAX_TREES} different tree objects");
            return Err(TreeSizeError::TooLarge(problem));
        }
        let index = self.nodes.len() as u32;
        self.known.insert(name.clone(), index);
        self.nodes.push(Node { name, ..Node::default() });
        Ok(index)
    }

    /// Parses the content of a tree object, which consists of entries of this form: `MODE NAME`, a NUL byte, the
    /// object id in `id_length` bytes. Adds the results to the node with this index.
    fn read(&mut self, index: u32, mut content: &[u8], id_length: usize) -> Result<(), TreeSizeError> {
        let broken = || TreeSizeError::Unreadable("a tree object is malformed".to_string());
        while !content.is_empty() {
            let null = content.iter().position(|byte| *byte == 0).ok_or_else(broken)?;
            let space = content[..null].iter().position(|byte| *byte == b' ').ok_or_else(broken)?;
            let id = content.get(null + 1..null + 1 + id_length).ok_or_else(broken)?;
            let length = (null - space - 1) as u32;
            let node = &mut self.nodes[index as usize];
            node.own.paths += 1;
            node.own.bytes += u64::from(length);
            if is_directory(&content[..space]).ok_or_else(broken)? {
                let name = crate::text::hex::encode(id);
                let before = self.nodes.len();
                let child = self.index_of(name)?;
                if self.nodes.len() > before {
                    self.unread.push(child);
                }
                self.nodes[index as usize].children.push((child, length));
            }
            content = &content[null + 1 + id_length..];
        }
        Ok(())
    }

    /// Computes the size of every tree once. Computes the size of a subtree before that of the trees that contain it.
    fn sizes(&self) -> Vec<Size> {
        let mut sizes: Vec<Option<Size>> = vec![None; self.nodes.len()];
        for start in 0..self.nodes.len() {
            let mut open = vec![(start, 0)];
            while let Some((index, next)) = open.pop() {
                if sizes[index].is_some() {
                    continue;
                }
                let node = &self.nodes[index];
                let child =
                    node.children[next..].iter().position(|(child, _)| sizes[*child as usize].is_none());
                match child.map(|offset| next + offset) {
                    // A tree cannot contain itself, because its id is a hash of its content. If one did, it would
                    // count as empty inside itself.
                    Some(place) if open.len() <= self.nodes.len() => {
                        open.push((index, place));
                        open.push((node.children[place].0 as usize, 0));
                    }
                    _ => {
                        let mut size = node.own;
                        for (child, length) in &node.children {
                            let below = sizes[*child as usize].unwrap_or_default();
                            let names = below.paths.saturating_mul(u64::from(*length) + 1);
                            size.paths = size.paths.saturating_add(below.paths);
                            size.bytes = size.bytes.saturating_add(below.bytes).saturating_add(names);
                        }
                        sizes[index] = Some(size);
                    }
                }
            }
        }
        sizes.into_iter().map(Option::unwrap_or_default).collect()
    }

    fn line(&mut self) -> Result<String, TreeSizeError> {
        loop {
            if let Some(end) = self.buffer[self.at..].iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&self.buffer[self.at..self.at + end]).into_owned();
                self.at += end + 1;
                return Ok(line);
            }
            if self.buffer.len() - self.at > 4096 {
                return Err(self.unreadable("git printed a line that is too long"));
            }
            self.fill()?;
        }
    }

    fn take(&mut self, count: usize) -> Result<Vec<u8>, TreeSizeError> {
        while self.buffer.len() - self.at < count {
            self.fill()?;
        }
        let taken = self.buffer[self.at..self.at + count].to_vec();
        self.at += count;
        Ok(taken)
    }

    /// Reads more of git's output into the buffer. Fails if the call's timeout has passed.
    fn fill(&mut self) -> Result<(), TreeSizeError> {
        self.buffer.drain(..self.at);
        self.at = 0;
        loop {
            let timeout = self.running.poll_timeout()?;
            match poll(&mut [PollFd::new(self.output.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(self.unreadable(&error.to_string())),
            }
            let start = self.buffer.len();
            self.buffer.resize(start + (64 << 10), 0);
            let read = self.output.read(&mut self.buffer[start..]);
            self.buffer.truncate(start + read.as_ref().copied().unwrap_or(0));
            return match read {
                Ok(0) => Err(self.unreadable("git exited early")),
                Ok(_) => Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => Err(self.unreadable(&error.to_string())),
            };
        }
    }
}
/// Returns true if the mode of a tree's entry is that of a subdirectory. git accepts any octal number whose file type is
/// a directory, such as `40755`. Returns `None` if the mode is not an octal number.
fn is_directory(mode: &[u8]) -> Option<bool> {
    const FILE_TYPE: u32 = 0o170_000;
    const DIRECTORY: u32 = 0o040_000;
    let digits = mode.iter().try_fold(0u32, |value, digit| match digit {
        b'0'..=b'7' => Some(value << 3 | u32::from(digit - b'0')),
        _ => None,
    })?;
    Some(digits & FILE_TYPE == DIRECTORY)
}
