//! Finds out which program a file really is, through symlinks, copies, scripts and descriptors.
//!
//! Input is a path or descriptor, which this module resolves as the kernel would for the thread of the run that uses
//! it. Output is the chain of files that the kernel would execute: the file itself, then its interpreters. guard
//! recognises a copy of a well-known program by its content, and judges the copy by the original's path, so it judges a
//! renamed copy of `git` as `git`. This module must resolve a magic link of `/proc` for that thread, never for the
//! supervisor's own process.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::judge::policy::Policy;
use crate::sys::fs::{Walk, mount_of, open_in};

/// Identifies a file by its device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// A file's size and times. A cached result about the file is valid only while these are unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// How the kernel executes a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The kernel executes the file as a binary.
    Program,
    /// The kernel executes the file as a script, with this interpreter. The second field is the optional
    /// argument in the `#!` line.
    Script(Vec<u8>, Option<Vec<u8>>),
}

/// A file that a process asks to execute.
#[derive(Debug, Clone)]
pub(crate) struct Executable {
    pub(crate) identity: Identity,
    /// The resolved path of the file; `memfd:NAME` for a memfd, which has no path.
    pub(crate) path: Vec<u8>,
    /// The path of the known program (see [`Known`]) of which this file is a copy; `None` if it is no copy.
    pub(crate) copy_of: Option<Vec<u8>>,
    pub(crate) kind: Kind,
}

impl Executable {
    /// Returns the path that the policy judges: the original's path if the file is a copy.
    pub(crate) fn judged_path(&self) -> &[u8] {
        self.copy_of.as_deref().unwrap_or(&self.path)
    }
}

/// A copy of a known program that the dynamic loader may run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LoadedProgram {
    /// The name by which the loader calls the copy, and the copy's arguments.
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) original: Vec<u8>,
}

/// Identifies executables and caches the results.
pub(crate) struct Identities {
    facts: HashMap<Identity, (State, Option<Vec<u8>>, Kind)>,
    known: Option<Known>,
    /// The policy. guard must recognise copies of the programs that its rules name.
    policy: Arc<Policy>,
    /// Directories in which the agent can create copies of programs.
    writable: Vec<PathBuf>,
    /// The root directory of the run's mount namespace, opened when it is first needed.
    root: Option<OwnedFd>,
    has_mount_namespace: bool,
    /// Ids of the mounts that the run may write to.
    mounts: Vec<u64>,
}

/// The paths of known programs, whose copies guard recognises (see [`recognised_names`]), grouped by file size, because
/// guard needs to compare only files of equal size.
struct Known(HashMap<u64, Vec<PathBuf>>);

/// The maximum number of identified files in the cache. guard clears a full cache before it adds another file.
const MAX_FACTS: usize = 10_000;
/// How many interpreters the kernel follows if the interpreter of a script is itself a script.
const MAX_INTERPRETERS: usize = 5;
/// How many bytes of a `#!` line the kernel reads.
const MAX_FIRST_LINE: usize = 256;

/// The directories in which guard searches for known programs, whose copies it recognises.
const PROGRAM_DIRECTORIES: [&str; 7] =
    ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/git-core"];

impl Identities {
    pub(crate) fn new(policy: Arc<Policy>, writable: Vec<PathBuf>, has_mount_namespace: bool) -> Self {
        let (facts, mounts) = (HashMap::new(), Vec::new());
        Self { facts, known: None, policy, writable, root: None, has_mount_namespace, mounts }
    }

    /// Resolves a path as the kernel would for the thread `tid`. Returns the file; if it is a script, its interpreter
    /// follows, and so on down to a binary.
    pub(crate) fn resolve_exec(&mut self, tid: i32, cwd: &Path, path: &[u8]) -> io::Result<Vec<Executable>> {
        let fd = self.open(tid, cwd, path, true)?;
        self.with_interpreters(tid, cwd, &fd)
    }

    /// Finds the file behind a descriptor of the thread `tid` (`execveat` with an empty path). Returns the file; if
    /// it is a script, its interpreter follows, and so on down to a binary.
    pub(crate) fn resolve_exec_descriptor(
        &mut self,
        tid: i32,
        cwd: &Path,
        number: i32,
    ) -> io::Result<Vec<Executable>> {
        let fd = open_path_fd(Path::new(&format!("/proc/{tid}/fd/{number}")))?;
        self.with_interpreters(tid, cwd, &fd)
    }

    fn with_interpreters(&mut self, tid: i32, cwd: &Path, fd: &OwnedFd) -> io::Result<Vec<Executable>> {
        let mut chain = vec![self.identify(fd)?];
        while let Some(Executable { kind: Kind::Script(interpreter, _), .. }) = chain.last() {
            if chain.len() > MAX_INTERPRETERS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            let interpreter = interpreter.clone();
            let fd = self.open(tid, cwd, &interpreter, true)?;
            chain.push(self.identify(&fd)?);
        }
        Ok(chain)
    }

    /// Opens a path with `O_PATH`, resolved as the kernel would for the thread `tid` in the directory `cwd`. Follows a
    /// symlink at the end of the path only if `follow` is true. A leading magic link such as `/proc/self/cwd` leads to
    /// a different place for every process, so this function resolves it once, for that thread. The kernel resolves the
    /// rest of the path, below the root of the run's mount namespace if it has one, and fails at any other magic link.
    pub(crate) fn open(&mut self, tid: i32, cwd: &Path, path: &[u8], follow: bool) -> io::Result<OwnedFd> {
        if path.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let mut full = without_empty_components(cwd.join(OsStr::from_bytes(path)).as_os_str().as_bytes());
        if let Some((link, rest)) = magic_link(&full) {
            let outer = PathBuf::from(format!("/proc/{tid}/{link}"));
            if rest.is_empty() {
                return if follow {
                    open_path_fd(&outer)
                } else {
                    Err(io::Error::from_raw_os_error(libc::EPERM))
                };
            }
            let base = std::fs::read_link(&outer)?.into_os_string().into_vec();
            if base.first() != Some(&b'/') {
                return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
            }
            full = [base.as_slice(), b"/", &rest].concat();
        }
        let text = CString::new(full)?;
        let (root, walk) = self.root(tid)?;
        open_in(root, &text, walk, follow)
    }

    /// Returns the directory from which the kernel resolves absolute paths of the run, and how to resolve them.
    fn root(&mut self, tid: i32) -> io::Result<(BorrowedFd<'_>, Walk)> {
        let (place, walk) = if self.has_mount_namespace {
            (format!("/proc/{tid}/root"), Walk::InRoot)
        } else {
            ("/".to_string(), Walk::NoMagic)
        };
        if self.root.is_none() {
            self.root = Some(open_path_fd(Path::new(&place))?);
        }
        let root = self.root.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok((root.as_fd(), walk))
    }

    /// Returns true if an object opened with `O_PATH` is in a directory that the run may write to. In a run with a
    /// mount namespace, the object must also be on a mount that the run may write to. Returns false if guard cannot
    /// find that out.
    pub(crate) fn is_in_writable_mount(&mut self, tid: i32, object: BorrowedFd<'_>) -> bool {
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd())) else {
            return false;
        };
        if !self.writable.iter().any(|root| path.starts_with(root)) {
            return false;
        }
        if !self.has_mount_namespace {
            return true;
        }
        // The host and the run's mount namespace use the same paths. Only the mount id shows in which of the two the
        // object is.
        let Ok(mount) = mount_of(object) else { return false };
        self.writable_mounts(tid).contains(&mount)
    }

    fn writable_mounts(&mut self, tid: i32) -> &[u64] {
        if self.mounts.is_empty() {
            let places = self.writable.clone();
            let found = places.iter().filter_map(|place| {
                let object = self.open(tid, Path::new("/"), place.as_os_str().as_bytes(), true).ok()?;
                mount_of(object.as_fd()).ok()
            });
            self.mounts = found.collect();
        }
        &self.mounts
    }

    /// Identifies an open file. Fails with EACCES if the file is not a regular file or not executable, and with EPERM
    /// if the agent could have written the file but guard cannot read it.
    pub(crate) fn identify(&mut self, fd: &OwnedFd) -> io::Result<Executable> {
        let found = nix::sys::stat::fstat(fd)?;
        if found.st_mode & libc::S_IFMT != libc::S_IFREG || found.st_mode & 0o111 == 0 {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        let identity = Identity { device: found.st_dev, inode: found.st_ino };
        let state = State {
            size: u64::try_from(found.st_size).unwrap_or(0),
            modified: (found.st_mtime, found.st_mtime_nsec),
            changed: (found.st_ctime, found.st_ctime_nsec),
        };
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let path = memfd_or_path(std::fs::read_link(&link)?.into_os_string().into_vec());
        // Through a mapping, the agent can change one of its own files without changing the file's times. So guard
        // never caches a result about a file that the agent can write.
        let is_foreign = !self.is_agent_writable(&path);
        if is_foreign
            && let Some((known, copy_of, kind)) = self.facts.get(&identity)
            && *known == state
        {
            return Ok(Executable { identity, path, copy_of: copy_of.clone(), kind: kind.clone() });
        }
        let Ok(mut file) = File::open(&link) else {
            if is_foreign {
                // Executable but not readable, and not the agent's file. The policy judges it by its path.
                return Ok(Executable { identity, path, copy_of: None, kind: Kind::Program });
            }
            // The agent made its own file unreadable, which hides what it is.
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        };
        let kind = kind_of(&mut file)?;
        let copy_of = if is_foreign { None } else { self.find_original(&mut file, state.size, &path) };
        if is_foreign {
            if self.facts.len() >= MAX_FACTS {
                self.facts.clear();
            }
            self.facts.insert(identity, (state, copy_of.clone(), kind.clone()));
        }
        Ok(Executable { identity, path, copy_of, kind })
    }

    /// Returns the path of the known program of which a file is a copy. `None` if it is no such copy, if the agent
    /// cannot write the file, or if guard cannot read it. The file need not be executable, because the dynamic loader
    /// can run any file that it can read.
    pub(crate) fn original_of_copy(&mut self, tid: i32, cwd: &Path, path: &[u8]) -> Option<Vec<u8>> {
        let fd = self.open(tid, cwd, path, true).ok()?;
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let own = memfd_or_path(std::fs::read_link(&link).ok()?.into_os_string().into_vec());
        let metadata = std::fs::metadata(&link).ok()?;
        if !metadata.is_file() || !self.is_agent_writable(&own) {
            return None;
        }
        let mut file = File::open(&link).ok()?;
        self.find_original(&mut file, metadata.size(), &own)
    }

    /// Returns the command of each copy of a known program that the dynamic loader with this `argv` may run. The loader
    /// runs any file that it gets as an argument. Fails with `E2BIG` if the loader has so many options that checking
    /// their values would take long.
    pub(super) fn loaded_programs(
        &mut self,
        tid: i32,
        cwd: &Path,
        argv: &[Vec<u8>],
    ) -> io::Result<Vec<LoadedProgram>> {
        const MOST_POSSIBLE: usize = 256;
        let possible = possible_programs(argv);
        if possible.len() > MOST_POSSIBLE {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        let mut found = Vec::new();
        for at in possible {
            let Some(original) = self.original_of_copy(tid, cwd, &argv[at]) else { continue };
            for name in std::iter::once(argv[at].clone()).chain(names_by_option(&argv[..at])) {
                let argv = std::iter::once(name).chain(argv[at + 1..].iter().cloned()).collect();
                found.push(LoadedProgram { argv, original: original.clone() });
            }
        }
        Ok(found)
    }

    /// Returns the program that a process runs now. `foreign` is the expected program, if the agent cannot write to its
    /// file. guard recognises such a program by its device and inode alone, without reading it.
    pub(crate) fn running_program(
        &mut self,
        pid: i32,
        foreign: Option<&Executable>,
    ) -> io::Result<Executable> {
        let link = format!("/proc/{pid}/exe");
        let metadata = std::fs::metadata(&link)?;
        let identity = Identity { device: metadata.dev(), inode: metadata.ino() };
        if let Some(program) = foreign.filter(|program| program.identity == identity) {
            return Ok(program.clone());
        }
        let path = memfd_or_path(std::fs::read_link(&link)?.into_os_string().into_vec());
        if self.is_agent_writable(&path) {
            // The agent may have written to the file since guard judged it.
            let program = self.identify(&open_path_fd(Path::new(&link))?)?;
            return Ok(Executable { path, kind: Kind::Program, ..program });
        }
        Ok(Executable { identity, path, copy_of: None, kind: Kind::Program })
    }

    /// Returns true if the agent could have created or changed the file at this path. Always true for a relative path,
    /// such as the `memfd:NAME` of a memfd.
    pub(crate) fn is_agent_writable(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        !path.is_absolute() || self.writable.iter().any(|root| path.starts_with(root))
    }

    /// Returns the path of the known program with the same content as a file; `None` if there is none, or if `own`, the
    /// file's own path, is the only one.
    fn find_original(&mut self, file: &mut File, size: u64, own: &[u8]) -> Option<Vec<u8>> {
        let known = self.known.get_or_insert_with(|| Known::find(&recognised_names(&self.policy)));
        let candidates = known.0.get(&size)?;
        let candidate = candidates.iter().find(|candidate| {
            candidate.as_os_str().as_bytes() != own
                && File::open(candidate).is_ok_and(|mut original| is_same_content(file, &mut original))
        });
        candidate.map(|path| path.as_os_str().as_bytes().to_vec())
    }
}

impl Known {
    fn find(names: &[String]) -> Self {
        let mut by_size: HashMap<u64, Vec<PathBuf>> = HashMap::new();
        let programs_in = |at: &'static str| names.iter().map(move |name| Path::new(at).join(name));
        let programs = PROGRAM_DIRECTORIES.iter().copied().flat_map(programs_in);
        for path in programs.chain(loaders()) {
            if let Ok(found) = std::fs::metadata(&path)
                && found.is_file()
            {
                by_size.entry(found.len()).or_default().push(path);
            }
        }
        Self(by_size)
    }
}

/// Returns the names of the programs whose copies guard recognises: those in the policy's rules that contain no
/// wildcard or slash, git, shells, and programs that run other programs.
fn recognised_names(policy: &Policy) -> Vec<String> {
    let of_rules = policy.rules.iter().flat_map(|rule| &rule.when.programs).map(|pattern| pattern.as_str());
    let plain = of_rules.filter(|name| !name.contains(['*', '?', '[', '/'])).map(str::to_string);
    let always = ["git", "sh", "bash", "dash", "zsh", "env", "busybox", "xargs", "python3", "perl"];
    let mut names: Vec<String> = plain.chain(always.map(str::to_string)).collect();
    names.sort();
    names.dedup();
    names
}

/// Returns true if the last component of a path is the name of a dynamic loader.
pub(crate) fn is_loader(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"ld-") || name.starts_with(b"ld.so")
}

/// Returns the names that the loader's option `--argv0` gives to the program.
fn names_by_option(options: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let separate = options.windows(2).filter(|pair| pair[0] == b"--argv0").map(|pair| pair[1].clone());
    let joined = options.iter().filter_map(|option| option.strip_prefix(b"--argv0=")).map(<[u8]>::to_vec);
    separate.chain(joined).collect()
}

/// Returns the indexes of the arguments that the dynamic loader may run as a program. It runs the first argument that is
/// neither an option nor the value of one. Loaders differ in which options have a value, so an argument after an option
/// counts as a possible program too.
fn possible_programs(argv: &[Vec<u8>]) -> Vec<usize> {
    let is_option = |at: usize| at > 0 && argv[at].starts_with(b"--");
    let mut possible = Vec::new();
    for at in 1..argv.len() {
        if is_option(at) && argv[at - 1] != b"--" {
            continue;
        }
        possible.push(at);
        if !is_option(at) && !is_option(at - 1) {
            break;
        }
    }
    possible
}

/// Returns the paths of the machine's dynamic loaders. A dynamic loader runs any file that it gets as an argument.
fn loaders() -> Vec<PathBuf> {
    // On x86-64, programs name the loader in `/lib64`; on other architectures and with musl, the one in `/lib`.
    let entries = ["/lib64", "/lib"].into_iter().filter_map(|directory| std::fs::read_dir(directory).ok());
    entries
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_loader(path.as_os_str().as_bytes()))
        .collect()
}

/// Converts the target of a `/proc/…/fd` link: `memfd:NAME` for a memfd, otherwise the path itself.
fn memfd_or_path(link: Vec<u8>) -> Vec<u8> {
    let Some(rest) = link.strip_prefix(b"/memfd:") else { return link };
    let name = rest.strip_suffix(b" (deleted)").unwrap_or(rest);
    // A slash would make the rest of the name look like a program's file name.
    let name: Vec<u8> = name.iter().map(|&byte| if byte == b'/' { b'_' } else { byte }).collect();
    [b"memfd:".as_slice(), &name].concat()
}

fn open_path_fd(path: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)?;
    Ok(file.into())
}

/// Removes `.` and repeated slashes from a path, and makes it begin with a slash. `..` stays, because its meaning
/// depends on symlinks that only the kernel resolves.
fn without_empty_components(path: &[u8]) -> Vec<u8> {
    let mut clean = Vec::with_capacity(path.len());
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        clean.push(b'/');
        clean.extend_from_slice(part);
    }
    clean
}

/// Splits off a magic link of `/proc` (`fd/3`, `cwd`, `root`, `exe`) at the start of a path: returns the link and the
/// rest of the path. `/dev/fd/3` counts as `fd/3`. Returns `None` if the path begins with no such link.
fn magic_link(path: &[u8]) -> Option<(String, Vec<u8>)> {
    let prefixes: [&[u8]; 2] = [b"/proc/self/", b"/proc/thread-self/"];
    let inner = match prefixes.iter().find_map(|prefix| path.strip_prefix(*prefix)) {
        Some(inner) => inner.to_vec(),
        None => [b"fd/".as_slice(), path.strip_prefix(b"/dev/fd/")?].concat(),
    };
    let mut parts = inner.splitn(2, |&byte| byte == b'/');
    let (first, rest) = (parts.next()?, parts.next().unwrap_or_default());
    match first {
        b"cwd" | b"root" | b"exe" => Some((String::from_utf8_lossy(first).into_owned(), rest.to_vec())),
        b"fd" => {
            let mut parts = rest.splitn(2, |&byte| byte == b'/');
            let (number, rest) = (parts.next()?, parts.next().unwrap_or_default());
            let number: u32 = std::str::from_utf8(number).ok()?.parse().ok()?;
            Some((format!("fd/{number}"), rest.to_vec()))
        }
        _ => None,
    }
}

fn kind_of(file: &mut File) -> io::Result<Kind> {
    let mut head = [0u8; MAX_FIRST_LINE];
    let mut got = 0;
    while got < head.len() {
        match file.read(&mut head[got..])? {
            0 => break,
            more => got += more,
        }
    }
    Ok(script_of(&head[..got])
        .map_or(Kind::Program, |(interpreter, argument)| Kind::Script(interpreter, argument)))
}

/// Parses a `#!` line as the kernel does: the interpreter and its optional argument. `None` if the file does not begin
/// with such a line.
fn script_of(head: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.trim_ascii();
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    let (interpreter, rest) = line.split_at(end);
    if interpreter.is_empty() {
        return None;
    }
    let argument = rest.trim_ascii();
    Some((interpreter.to_vec(), (!argument.is_empty()).then(|| argument.to_vec())))
}

fn is_same_content(a: &mut File, b: &mut File) -> bool {
    use std::io::Seek;
    let (mut left, mut right) = ([0u8; 65536], [0u8; 65536]);
    if a.rewind().is_err() || b.rewind().is_err() {
        return false;
    }
    loop {
        let (Ok(got), Ok(other)) = (read_full(a, &mut left), read_full(b, &mut right)) else { return false };
        if left[..got] != right[..other] {
            return false;
        }
        if got < left.len() {
            return true;
        }
    }
}

fn read_full(file: &mut File, into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match file.read(&mut into[got..])? {
            0 => break,
            more => got += more,
        }
    }
    Ok(got)
}

pub(crate) fn identity_of(path: &Path) -> Option<Identity> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(Identity { device: metadata.dev(), inode: metadata.ino() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_of_every_architecture_are_known() {
        let found = loaders();
        for path in [
            "/lib64/ld-linux-x86-64.so.2",
            "/lib/ld-linux-aarch64.so.1",
            "/lib/ld-linux-riscv64-lp64d.so.1",
            "/lib/ld-linux.so.2",
            "/lib/ld-musl-x86_64.so.1",
            "/lib/ld-musl-aarch64.so.1",
        ] {
            let path = PathBuf::from(path);
            assert!(found.contains(&path) || !path.exists(), "{}", path.display());
        }
        assert!(!found.is_empty());
    }

    #[test]
    fn the_program_of_the_loader_is_found_after_any_options() {
        let possible = |line: &str| {
            let argv: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            let words = possible_programs(&argv).into_iter();
            words.map(|at| String::from_utf8_lossy(&argv[at]).into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(possible("ld.so"), "");
        assert_eq!(possible("ld.so git checkout main"), "git");
        assert_eq!(possible("ld.so --inhibit-cache git checkout main"), "git checkout");
        assert_eq!(possible("ld.so --library-path /x git checkout main"), "/x git");
        assert_eq!(possible("ld.so --argv0 -- --library-path /x git main"), "--library-path /x git");
        assert_eq!(possible("ld.so -- --git checkout main"), "--git checkout main");
        let options = "--inhibit-cache ".repeat(1000);
        assert_eq!(possible(&format!("ld.so {options}git checkout main")), "git checkout");
    }
}
