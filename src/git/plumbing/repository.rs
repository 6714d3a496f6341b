//! Finds the user's repository before an agent runs, starting from the directory in which the user started guard.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::command::{Git, Trust};
use super::gitfile::{read_following_links, read_small};
use super::outcome::GitError;
use super::refs;
use super::stderr_messages::GitMessage;
use crate::git::{WorkspaceError, at};

/// What the `HEAD` of a working tree points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// A branch with commits: its full ref name, and its newest commit.
    Branch(String, String),
    /// A commit that is checked out without a branch.
    Detached(String),
    /// A branch that has no commit yet: its full ref name. The name is empty if `HEAD` names neither a branch nor a
    /// commit.
    Unborn(String),
}

impl Head {
    /// Returns the commit that `HEAD` points to; `None` for a branch without commits.
    pub fn commit(&self) -> Option<&str> {
        match self {
            Self::Branch(_, commit) | Self::Detached(commit) => Some(commit),
            Self::Unborn(_) => None,
        }
    }
}

/// The user's repository, and the working tree from which guard found it.
#[derive(Debug, Clone)]
pub struct Repository {
    pub git_dir: PathBuf,
    /// The common directory, which all working trees of the repository share.
    pub common_dir: PathBuf,
    /// The top of the working tree; `None` in a bare repository, or inside a git directory.
    pub toplevel: Option<PathBuf>,
    /// The hash function of object ids: `sha1` or `sha256`.
    pub object_format: String,
    /// The storage format of refs: `files` or `reftable`.
    pub ref_format: String,
    /// True if the repository has no main working tree.
    pub bare: bool,
    /// True if the history is truncated (a shallow clone).
    pub shallow: bool,
    pub head: Head,
    /// True if the user trusts the repository's configuration and the paths in it (option `--trust-repository`).
    pub trusted: bool,
}

/// Timeout for simple queries: git would block forever if a file that it reads were a FIFO.
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The options of the `rev-parse` call in [`Repository::find`], without the options that print paths.
const REV_PARSE_QUERIES: [&str; 4] =
    ["--is-bare-repository", "--is-shallow-repository", "--show-object-format", "--show-ref-format"];

/// Returns the directory that users call the repository: the parent of its `.git`, or else the common directory
/// itself.
pub fn main_directory(common_dir: &Path) -> &Path {
    let is_dot_git = common_dir.file_name() == Some(OsStr::new(".git"));
    common_dir.parent().filter(|_| is_dot_git).unwrap_or(common_dir)
}

impl Repository {
    /// Finds the repository that contains the directory `dir`; `None` if no repository contains it.
    pub fn find(dir: &Path) -> Result<Option<Self>, WorkspaceError> {
        // If `HEAD` names no commit, git ends without an error, and answers none of the later questions.
        let Some((mut repository, commit)) = Self::query(dir, &["--revs-only", "HEAD^{commit}"])? else {
            return Ok(None);
        };
        if commit.is_none() {
            let Some(with_top) = Self::find_without_head(dir)? else { return Ok(None) };
            repository = with_top;
        }
        repository.head = repository.head_at(commit)?;
        Ok(Some(repository))
    }

    /// Finds the repository as [`Self::find`] does, but does not determine its `head`.
    pub(crate) fn find_without_head(dir: &Path) -> Result<Option<Self>, WorkspaceError> {
        Ok(Self::query(dir, &[])?.map(|(repository, _)| repository))
    }

    /// Asks git for the repository that contains a directory, and for the commit that the arguments `revision` name.
    fn query(dir: &Path, revision: &[&str]) -> Result<Option<(Self, Option<String>)>, WorkspaceError> {
        let answer = Git::new(Trust::User, "rev-parse")?
            .current_dir(dir)
            .timeout(QUERY_TIMEOUT)
            // A partial clone must not fetch the commit.
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_ALLOW_PROTOCOL", "none")
            .args(REV_PARSE_QUERIES)
            .args(["--path-format=absolute", "--absolute-git-dir", "--git-common-dir"])
            .args(revision)
            .arg("--show-toplevel")
            .output()?;
        if answer.output.is_empty() {
            return Ok(classify_failure(dir, &answer.message, answer.code())?.map(|found| (found, None)));
        }
        Self::parse(&answer.output, dir).map(Some)
    }

    fn parse(output: &[u8], dir: &Path) -> Result<(Self, Option<String>), WorkspaceError> {
        let unexpected = || {
            WorkspaceError::refused(
                format!("guard cannot parse what git reports about the repository of {}", dir.display()),
                "use git 2.38 or newer, and a repository path without line breaks",
            )
        };
        let lines: Vec<&[u8]> =
            output.strip_suffix(b"\n").unwrap_or(output).split(|byte| *byte == b'\n').collect();
        let [bare, shallow, object_format, ref_format, git_dir, common_dir, rest @ ..] = lines.as_slice()
        else {
            return Err(unexpected());
        };
        let word = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let (object_format, ref_format) = (word(object_format), word(ref_format));
        // git prints no top directory in a bare repository, and none inside a git directory.
        let (commit, toplevel) = match rest {
            [] => (None, None),
            [commit] if is_id(&word(commit), &object_format) => (Some(word(commit)), None),
            [top] => (None, Some(path(top))),
            [commit, top] if is_id(&word(commit), &object_format) => (Some(word(commit)), Some(path(top))),
            _ => return Err(unexpected()),
        };
        let (git_dir, common_dir) = (path(git_dir), path(common_dir));
        if !matches!(object_format.as_str(), "sha1" | "sha256")
            || !git_dir.is_absolute()
            || !common_dir.is_absolute()
        {
            return Err(unexpected());
        }
        // An older git prints an option that it does not know, and supports only the format `files`.
        let ref_format = if ref_format == "--show-ref-format" { "files".to_string() } else { ref_format };
        if !matches!(ref_format.as_str(), "files" | "reftable") {
            return Err(WorkspaceError::refused(
                format!("the repository uses the unknown ref format {ref_format:?}"),
                "use a repository with the ref format `files` or `reftable`",
            ));
        }
        let repository = Self {
            git_dir,
            common_dir,
            toplevel,
            bare: *bare == b"true",
            shallow: *shallow == b"true",
            object_format,
            ref_format,
            head: Head::Unborn(String::new()),
            trusted: false,
        };
        Ok((repository, commit))
    }

    /// Reads what `HEAD` points to, in both ref formats.
    pub(crate) fn read_head(&self) -> Result<Head, WorkspaceError> {
        self.head_at(self.commit("HEAD")?)
    }

    /// Reads which branch is checked out, whose newest commit is `commit`.
    fn head_at(&self, commit: Option<String>) -> Result<Head, WorkspaceError> {
        // In the format `files`, the file `HEAD` contains the branch. With a reftable, only a git call can find the
        // branch.
        let text = at("read", &self.git_dir, read_following_links(&self.git_dir.join("HEAD"), 64 << 10))?;
        let mut branch =
            text.strip_prefix(b"ref: ").map(|name| String::from_utf8_lossy(name).trim_end().to_string());
        if self.ref_format == "reftable" {
            let answer = self.git("symbolic-ref")?.args(["--quiet", "HEAD"]).output()?;
            let name = String::from_utf8_lossy(&answer.output).trim_end().to_string();
            branch = answer.status.success().then_some(name);
        }
        Ok(match (branch, commit) {
            (Some(branch), Some(commit)) => Head::Branch(branch, commit),
            (Some(branch), None) => Head::Unborn(branch),
            (None, Some(commit)) => Head::Detached(commit),
            (None, None) => Head::Unborn(String::new()),
        })
    }

    /// Returns the commit that a revision (a branch, a tag, an id) names; `None` if there is no such commit.
    pub fn commit(&self, name: &str) -> Result<Option<String>, WorkspaceError> {
        let answer = self
            .git("rev-parse")?
            .args(["--verify", "--quiet", "--end-of-options"])
            .arg(format!("{name}^{{commit}}"))
            .timeout(QUERY_TIMEOUT)
            .output()?;
        let text = String::from_utf8_lossy(&answer.output).trim_end().to_string();
        Ok((answer.status.success() && self.is_id(&text)).then_some(text))
    }

    /// True if the text is a full object id in this repository's object format.
    pub fn is_id(&self, text: &str) -> bool {
        is_id(text, &self.object_format)
    }

    /// True if the working tree is a linked one, created by `git worktree add`.
    pub fn is_linked(&self) -> bool {
        self.git_dir != self.common_dir
    }

    /// Returns the operation that the user has begun but not finished in the working tree, such as `a merge`; `None` if
    /// there is none.
    pub(crate) fn operation_in_progress(&self) -> Option<&'static str> {
        let operations = [
            ("MERGE_HEAD", "a merge"),
            ("rebase-merge", "a rebase"),
            ("rebase-apply", "a rebase"),
            ("CHERRY_PICK_HEAD", "a cherry-pick"),
            ("REVERT_HEAD", "a revert"),
            ("BISECT_LOG", "a bisection"),
        ];
        let is_there = |file: &str| self.git_dir.join(file).symlink_metadata().is_ok();
        operations.iter().find(|(file, _)| is_there(file)).map(|(_, operation)| *operation)
    }

    /// Returns a short name of the repository, for use in directory names: the name of its main working tree or bare
    /// repository, without `.git` and leading dots.
    pub fn name(&self) -> Vec<u8> {
        let place = self.place();
        let name = place.file_name().unwrap_or(OsStr::new("repository")).as_bytes();
        let name = name.strip_suffix(b".git").filter(|rest| !rest.is_empty()).unwrap_or(name);
        let visible = name.iter().position(|byte| *byte != b'.').unwrap_or(0);
        name[visible..].to_vec()
    }

    /// Returns the path of the main working tree, or of the bare repository.
    pub fn place(&self) -> PathBuf {
        if !self.is_linked()
            && let Some(top) = &self.toplevel
        {
            return top.clone();
        }
        main_directory(&self.common_dir).to_path_buf()
    }

    /// Builds a git call in this repository with the user's configuration. The call cannot use the network, unless the
    /// user trusts the repository.
    pub(crate) fn git(&self, verb: &str) -> Result<Git, GitError> {
        // `safe.directory` can be `*`, because git checked the owner when guard found the repository.
        let git = Git::new(Trust::User, verb)?
            .git_dir(&self.git_dir)
            .current_dir(&self.common_dir)
            .config("safe.directory", "*");
        // A partial clone fetches missing objects with any program that its configuration names: forbid that.
        // `GIT_ALLOW_PROTOCOL` is for versions of git that do not know `GIT_NO_LAZY_FETCH`; no configuration
        // overrides it.
        let offline = |git: Git| git.env("GIT_NO_LAZY_FETCH", "1").env("GIT_ALLOW_PROTOCOL", "none");
        Ok(if self.trusted { git } else { offline(git) })
    }

    /// Returns the object directories that the repository uses: its own, and those of its alternates that exist.
    pub(crate) fn object_dirs(&self) -> Vec<PathBuf> {
        let mut dirs = vec![self.common_dir.join("objects")];
        let mut next = 0;
        // Read no further `alternates` file once there are 32 directories. git itself follows alternates for at most
        // five levels.
        while next < dirs.len() && dirs.len() < 32 {
            let dir = dirs[next].clone();
            next += 1;
            let Ok(text) = read_following_links(&dir.join("info/alternates"), 1 << 20) else { continue };
            for line in text.split(|byte| *byte == b'\n') {
                let Some(found) = parse_alternate(line, &dir) else { continue };
                if !dirs.contains(&found) {
                    dirs.push(found);
                }
            }
        }
        dirs
    }
}

/// Returns the commit that a revision names in the repository that contains `folder`; `None` if there is no such
/// commit.
fn resolve(folder: &Path, revision: &str) -> Result<Option<String>, WorkspaceError> {
    let answer = Git::new(Trust::User, "rev-parse")?
        .current_dir(folder)
        .args(["--verify", "--quiet", "--end-of-options"])
        .arg(format!("{revision}^{{commit}}"))
        .timeout(QUERY_TIMEOUT)
        .output()?;
    let commit = String::from_utf8_lossy(&answer.output).trim_end().to_string();
    Ok(answer.status.success().then_some(commit))
}

/// Reads files at a revision of the repository that contains the user's directory `folder`. Returns the content for
/// each path, or `None` if the path is not a file in that revision. Returns `Ok(None)` if there is no repository that
/// git may use. For a revision that does not exist, returns either `Ok(None)` or `None` for each path. Fails if the
/// files together have more than about `most` bytes.
pub fn files_at(
    folder: &Path,
    revision: &str,
    paths: &[&str],
    most: usize,
) -> Result<Option<Vec<Option<Vec<u8>>>>, WorkspaceError> {
    // `git cat-file` would take the colon in `HEAD^{/fix: it}` for the colon before the path.
    let mut revision = revision.to_string();
    if revision.contains(['\n', ':']) {
        match resolve(folder, &revision)? {
            Some(commit) => revision = commit,
            None => return Ok(None),
        }
    }
    let names: String = paths.iter().map(|path| format!("{revision}:{path}\n")).collect();
    let answer = Git::new(Trust::User, "cat-file")?
        .current_dir(folder)
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_ALLOW_PROTOCOL", "none")
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .arg("--batch")
        .input(names.into_bytes())
        .timeout(QUERY_TIMEOUT)
        .max_output(most + (paths.len() << 10))
        .output()?;
    // git exits with 128 if there is no repository that it may use. guard reports the reason when it creates the
    // worktree.
    if answer.code() == 128 {
        return Ok(None);
    }
    if !answer.status.success() {
        let problem = format!("git cat-file failed with code {}: {}", answer.code(), answer.message);
        return Err(WorkspaceError::refused(problem, "try again; `git status` shows whether git works here"));
    }
    let mut rest = answer.output.as_slice();
    let mut contents = Vec::new();
    for _ in paths {
        let end = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        let (header, after) = (&rest[..end], rest.get(end + 1..).unwrap_or_default());
        let header = String::from_utf8_lossy(header);
        let words: Vec<&str> = header.split(' ').collect();
        let object = match words.as_slice() {
            [_, kind @ ("blob" | "tree" | "commit" | "tag"), size] => {
                size.parse::<usize>().ok().filter(|size| *size <= after.len()).map(|size| (*kind, size))
            }
            _ => None,
        };
        let Some((kind, size)) = object else {
            contents.push(None);
            rest = after;
            continue;
        };
        contents.push((kind == "blob").then(|| after[..size].to_vec()));
        rest = after.get(size + 1..).unwrap_or_default();
    }
    Ok(Some(contents))
}

/// Finds the git directory of the repository that contains `folder`, and the commit at its `HEAD`, without git. Returns
/// `None` in all but the usual case, a repository in a directory `.git` with its refs in files: then only git can tell.
pub fn head_without_git(folder: &Path) -> Option<(PathBuf, String)> {
    let folder = folder.canonicalize().ok()?;
    let exists = |path: PathBuf| path.symlink_metadata().is_ok();
    // git prefers a bare repository to a `.git` further up.
    let level = folder.ancestors().find(|level| exists(level.join(".git")) || exists(level.join("HEAD")))?;
    let git = level.join(".git");
    let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let is_usual = [git.clone(), git.join("objects"), git.join("refs")].iter().all(|path| is_directory(path));
    if !is_usual || exists(git.join("commondir")) {
        return None;
    }
    let head = String::from_utf8(read_small(&git.join("HEAD"), 4096).ok()?).ok()?;
    let head = head.trim_end();
    let is_any_id = |text: &str| is_id(text, "sha1") || is_id(text, "sha256");
    if is_any_id(head) {
        return Some((git, head.to_string()));
    }
    let branch = head.strip_prefix("ref: ").filter(|name| name.starts_with("refs/heads/"))?;
    if branch.split('/').any(|part| part.is_empty() || part.starts_with('.')) {
        return None;
    }
    let formats = ["sha1", "sha256"].into_iter();
    let commit =
        formats.filter_map(|format| refs::read_ref(&git, Path::new(""), branch, format).ok()).next()?;
    Some((git, commit))
}

/// True if the commit `commit` of the repository that contains `folder` has no entry `name` at its top. False if git
/// cannot tell, for example because that repository has no such commit.
pub fn lacks_entry(folder: &Path, commit: &str, name: &str) -> Result<bool, WorkspaceError> {
    let answer = Git::new(Trust::User, "ls-tree")?
        .current_dir(folder)
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_ALLOW_PROTOCOL", "none")
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .args(["-z", "--full-tree", "--end-of-options", commit, "--", name])
        .timeout(QUERY_TIMEOUT)
        .output()?;
    Ok(answer.status.success() && answer.output.is_empty())
}

/// True if the text is a full object id in lower case. `object_format` is `sha1` or `sha256`.
pub(crate) fn is_id(text: &str, object_format: &str) -> bool {
    let length = if object_format == "sha256" { 64 } else { 40 };
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Parses a line of an `alternates` file. A relative path in it starts at the directory `dir`. Returns `None` for an
/// empty line, a comment, a malformed quotation, or a path that does not exist.
fn parse_alternate(line: &[u8], dir: &Path) -> Option<PathBuf> {
    if line.is_empty() || line.starts_with(b"#") {
        return None;
    }
    let plain = if line.starts_with(b"\"") { unquote(line)? } else { line.to_vec() };
    dir.join(PathBuf::from(std::ffi::OsString::from_vec(plain))).canonicalize().ok()
}

/// Decodes a name that git has quoted because of unusual characters: `"a\nb"`, `"\303\244"`. Returns `None` if the
/// quotation is malformed.
fn unquote(line: &[u8]) -> Option<Vec<u8>> {
    let inner = line.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let mut plain = Vec::new();
    let mut bytes = inner.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            plain.push(byte);
            continue;
        }
        plain.push(match bytes.next()? {
            b'a' => 7,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 11,
            b'f' => 12,
            b'r' => b'\r',
            first @ b'0'..=b'3' => {
                let digit = |byte: Option<u8>| {
                    byte.filter(|byte| matches!(byte, b'0'..=b'7')).map(|byte| byte - b'0')
                };
                let (second, third) = (digit(bytes.next())?, digit(bytes.next())?);
                (first - b'0') * 64 + second * 8 + third
            }
            other => other,
        });
    }
    Some(plain)
}

/// Returns `Ok(None)` if git failed because there is no repository at or above `dir`, and an error if git failed for
/// another reason.
fn classify_failure(dir: &Path, message: &str, code: i32) -> Result<Option<Repository>, WorkspaceError> {
    if GitMessage::NotARepository.is_in(message) {
        return Ok(None);
    }
    if GitMessage::DubiousOwnership.is_in(message) {
        let user = nix::unistd::geteuid();
        return Err(WorkspaceError::refused(
            format!(
                "the repository of {} does not belong to the user that guard runs as (uid {user})",
                dir.display()
            ),
            "run guard as the owner, or trust the repository: git config --global --add safe.directory PATH",
        ));
    }
    Err(GitError::Failed { verb: "rev-parse".to_string(), code, message: message.to_string() }.into())
}
