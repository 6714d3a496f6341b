//! Creates the quarantine repository: a run's private git directory with its own HEAD, index, configuration, refs and
//! objects, and read access to the objects of the user's repository.
//!
//! guard writes the files itself, in their documented formats, without running git. It writes refs in the `files`
//! format, whatever format the user's repository uses.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::checkout_files::{CheckoutFiles, Opened};
use crate::git::plumbing::command::Git;
use crate::git::plumbing::config::Settings;
use crate::git::plumbing::outcome::GitError;
use crate::git::plumbing::repository::Repository;
use crate::git::plumbing::setting::{Setting, render};

/// Refs that guard does not copy into the quarantine repository: the user's stash, guard's own refs, refs of single
/// worktrees, and replacements of objects.
const PRIVATE_REFS: &[&[u8]] = &[
    b"refs/stash",
    b"refs/guard/",
    b"refs/bisect/",
    b"refs/worktree/",
    b"refs/rewritten/",
    b"refs/replace/",
];

/// The committer's name and email for the agent's commits if the user has not configured both.
const DEFAULT_IDENTITY: (&str, &str) = ("guard agent", "agent@guard.invalid");

/// The committer's name and email for the agent's commits, and whether git signs them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Committer<'a> {
    /// The name and email; `None` for those in the user's git configuration, or else [`DEFAULT_IDENTITY`].
    pub(crate) identity: Option<(&'a str, &'a str)>,
    pub(crate) sign: bool,
}

/// The inputs for a new quarantine repository (a run's private git directory).
pub(crate) struct QuarantineSpec<'a> {
    pub(crate) repository: &'a Repository,
    pub(crate) settings: &'a Settings,
    /// The output of the git call from [`refs_call`].
    pub(crate) refs: &'a [u8],
    pub(crate) branch: &'a str,
    pub(crate) tip: &'a str,
    /// The worktree's git directory, which is below `worktrees/` in the user's repository.
    pub(crate) admin_dir: &'a Path,
    pub(crate) objects: &'a [PathBuf],
    /// The directory with the copies of the user's hooks.
    pub(crate) hooks: &'a Path,
    pub(crate) committer: Committer<'a>,
}

/// Builds the git call that lists all refs of the user's repository.
pub(crate) fn refs_call(repository: &Repository) -> Result<Git, GitError> {
    // Do not ask for the targets of annotated tags: git would have to read every object.
    Ok(repository.git("for-each-ref")?.arg("--format=%(objectname) %(refname) %(symref)"))
}

/// Creates the quarantine repository (the run's private git directory) in the directory `git`. Also writes a copy of
/// its `packed-refs` to the file `before`, which the agent cannot write.
pub(crate) fn create(
    git: &Path,
    before: &Path,
    parts: &QuarantineSpec<'_>,
    files: &mut CheckoutFiles,
) -> io::Result<()> {
    let create_dir = |name: &str| DirBuilder::new().mode(0o700).recursive(true).create(git.join(name));
    for name in ["objects/info", "objects/pack", "refs/heads", "refs/tags", "info"] {
        create_dir(name)?;
    }
    fs::write(git.join("HEAD"), format!("ref: {}\n", parts.branch))?;
    write_refs(git, before, parts)?;
    fs::write(git.join("objects/info/alternates"), alternates(parts.objects))?;
    fs::write(git.join("config"), render_config(git, parts))?;
    let common = &parts.repository.common_dir;
    let copies = [
        (common.join("info/exclude"), "info/exclude"),
        (common.join("info/attributes"), "info/attributes"),
        (common.join("shallow"), "shallow"),
        (parts.admin_dir.join("info/sparse-checkout"), "info/sparse-checkout"),
        (parts.admin_dir.join("index"), "index"),
        (user_git_file(parts.repository, parts.settings, "core.excludesfile", "ignore"), EXCLUDES),
        (user_git_file(parts.repository, parts.settings, "core.attributesfile", "attributes"), ATTRIBUTES),
    ];
    for (from, to) in copies {
        copy_if_exists(&from, &git.join(to), files)?;
    }
    // A split index stores its larger part in other files in the same directory.
    for entry in fs::read_dir(parts.admin_dir)?.flatten() {
        if entry.file_name().as_bytes().starts_with(b"sharedindex.") {
            copy_if_exists(&entry.path(), &git.join(entry.file_name()), files)?;
        }
    }
    Ok(())
}

/// The paths, inside the quarantine repository, of copies of the user's global ignore and attribute files. The
/// agent's git needs copies because it cannot read the user's home directory.
const EXCLUDES: &str = "info/user-excludes";
const ATTRIBUTES: &str = "info/user-attributes";

/// Maximum size of each file that guard copies into the quarantine repository, in bytes. The file `index` may have any
/// size.
const MAX_BYTES: u64 = 64 << 20;

/// Copies a file if it exists. Follows the user's own symbolic links, because users often keep such files as links.
fn copy_if_exists(from: &Path, to: &Path, files: &mut CheckoutFiles) -> io::Result<()> {
    let is_index = to.file_name().is_some_and(|name| name.as_bytes().ends_with(b"index"));
    let opened = match files.open_tracked(&from.display().to_string(), from) {
        // Skip a file that the user cannot read: git ignores it too.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_index => return Ok(()),
        opened => opened?,
    };
    let Some(Opened { file, .. }) = opened else { return Ok(()) };
    let data = file.metadata()?;
    let most = if is_index { u64::MAX } else { MAX_BYTES };
    if !data.is_file() || data.len() > most {
        let problem = format!("{} is not a regular file, or is too large to be copied", from.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    let mut copied = fs::File::create(to)?;
    io::copy(&mut file.take(most), &mut copied)?;
    // Keep the modification time, because git compares file times with that of an index: see `gitfile::copy_index`.
    copied.set_modified(data.modified()?)
}

/// Returns the path of a global git file of the user: the path in the setting `key`, or git's default path for the
/// file `name`.
pub(crate) fn user_git_file(repository: &Repository, settings: &Settings, key: &str, name: &str) -> PathBuf {
    match settings.get(key).filter(|path| !path.is_empty()) {
        Some(path) => resolve_setting_path(repository, path),
        None => {
            let dir = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty());
            dir.map_or_else(|| home().join(".config"), PathBuf::from).join("git").join(name)
        }
    }
}

fn home() -> PathBuf {
    PathBuf::from(std::env::var_os("HOME").unwrap_or_default())
}

/// Resolves the path in a git setting. `~/` stands for the user's home directory. A relative path starts at the top of
/// the working tree, where git runs hooks, and not at the directory in which the user started guard. Without a working
/// tree, a relative path starts at the common directory.
pub(crate) fn resolve_setting_path(repository: &Repository, value: &[u8]) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(value));
    match path.strip_prefix("~") {
        Ok(rest) => home().join(rest),
        Err(_) => repository.toplevel.as_ref().unwrap_or(&repository.common_dir).join(path),
    }
}

/// Writes the refs of the user's repository, except [`PRIVATE_REFS`], into one `packed-refs` file. Writes each symbolic
/// ref and the run's branch into a file of its own.
fn write_refs(git: &Path, before: &Path, parts: &QuarantineSpec<'_>) -> io::Result<()> {
    let mut packed = b"# pack-refs with: sorted \n".to_vec();
    for line in parts.refs.split(|byte| *byte == b'\n') {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let (Some(id), Some(name), Some(target)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if name == parts.branch.as_bytes() || PRIVATE_REFS.iter().any(|private| name.starts_with(private)) {
            continue;
        }
        if !target.is_empty() {
            let file = git.join(OsStr::from_bytes(name));
            file.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(file, [b"ref: ", target, b"\n"].concat())?;
            continue;
        }
        packed.extend_from_slice(id);
        packed.push(b' ');
        packed.extend_from_slice(name);
        packed.push(b'\n');
    }
    fs::write(before, &packed)?;
    fs::write(git.join("packed-refs"), &packed)?;
    let own = git.join(parts.branch);
    own.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(own, format!("{}\n", parts.tip))
}

/// Returns the content of an `alternates` file that names these object directories.
pub(crate) fn alternates(dirs: &[PathBuf]) -> Vec<u8> {
    let mut text = Vec::new();
    for dir in dirs {
        let bytes = dir.as_os_str().as_bytes();
        let is_plain = !bytes.iter().any(|byte| matches!(byte, b'\n' | b'\r')) && !bytes.starts_with(b"\"");
        if is_plain {
            text.extend_from_slice(bytes);
        } else {
            text.push(b'"');
            for byte in bytes {
                text.extend(format!("\\{byte:03o}").bytes());
            }
            text.push(b'"');
        }
        text.push(b'\n');
    }
    text
}

fn render_config(git: &Path, parts: &QuarantineSpec<'_>) -> Vec<u8> {
    let set = |key: &str, value: &[u8]| Setting {
        key: key.to_string(),
        value: Some(value.to_vec()),
        is_from_repository: false,
        is_from_run: false,
    };
    let sha256 = parts.repository.object_format == "sha256";
    let mut settings = vec![set("core.repositoryformatversion", if sha256 { b"1" } else { b"0" })];
    if sha256 {
        settings.push(set("extensions.objectformat", b"sha256"));
    }
    settings.extend(parts.settings.for_quarantine());
    settings.push(set("core.bare", b"false"));
    settings.push(set("core.hooksPath", parts.hooks.as_os_str().as_bytes()));
    settings.push(set("core.excludesFile", git.join(EXCLUDES).as_os_str().as_bytes()));
    settings.push(set("core.attributesFile", git.join(ATTRIBUTES).as_os_str().as_bytes()));
    // guard deletes the quarantine repository after the run, so garbage collection would waste time.
    settings.push(set("gc.auto", b"0"));
    settings.push(set("maintenance.auto", b"false"));
    // Without an identity, git refuses to commit.
    let is_known = |key: &str| parts.settings.get(key).is_some_and(|value| !value.is_empty());
    let unknown = (!is_known("user.name") || !is_known("user.email")).then_some(DEFAULT_IDENTITY);
    if let Some((name, email)) = parts.committer.identity.or(unknown) {
        settings.push(set("user.name", name.as_bytes()));
        settings.push(set("user.email", email.as_bytes()));
    }
    if parts.committer.sign {
        for key in ["user.signingkey", "gpg.format", "gpg.program", "gpg.ssh.program"] {
            settings.extend(parts.settings.get(key).map(|value| set(key, value)));
        }
    }
    settings.push(set("commit.gpgSign", if parts.committer.sign { b"true" } else { b"false" }));
    settings.push(set("tag.gpgSign", b"false"));
    render(&settings)
}
