//! Carries out an undo. Reaches every path from a descriptor of the directory, one component after the other, and never
//! through a symbolic link: the run may have replaced any file and directory. Writes a file under a temporary name,
//! and exchanges it with what it replaces, so that nothing is lost that appeared since the plan.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, mkfifoat, symlinkat, unlinkat};

use super::content::{Copy, with_contents};
use super::manifest::{Content, Item};
use super::plan::{StepKind, Undo, UndoPlan, UndoStep};
use super::take::copy_sparse;
use super::tree::FileState;
use crate::git::WorkspaceError;
use crate::git::snapshot::{Name, OpenDirectory};
use crate::sys::fs::{Existing, Walk, chmod, chown, open_with_flags, rename_in};

/// The beginning of the names of temporary files, in the directories of the files that they become.
const TEMPORARY: &str = ".guard-undo-";

#[derive(Debug, Default)]
pub struct UndoReport {
    /// The number of paths for each kind of step.
    pub done: BTreeMap<StepKind, usize>,
    /// The paths at which guard failed, each with the reason.
    pub failed: Vec<(Name, String)>,
}

/// Opens the directory at an absolute path that may contain no symbolic links. If the run took away the user's own
/// permissions on it, first gives them back. Returns the permission bits of before in that case.
pub(super) fn open_top(path: &Path) -> io::Result<(OpenDirectory, Option<u32>)> {
    use std::os::unix::ffi::OsStrExt;
    let root = File::open("/")?;
    let below = path.strip_prefix("/").map_err(io::Error::other)?;
    let name = match below.as_os_str().as_bytes() {
        b"" => CString::new(".")?,
        bytes => CString::new(bytes)?,
    };
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let top = open_with_flags(root.as_fd(), &name, flags, Walk::Beneath)?;
    let mode = make_usable(top.as_fd(), &fstat(&top)?)?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok((OpenDirectory::from(openat(&top, c".", flags, Mode::empty())?), mode))
}

/// Gives the user all permissions on a directory of theirs. Returns the permission bits of before if that was necessary.
fn make_usable(directory: BorrowedFd<'_>, found: &nix::sys::stat::FileStat) -> io::Result<Option<u32>> {
    let mode = found.st_mode & 0o7777;
    if mode & 0o700 == 0o700 || found.st_uid != nix::unistd::geteuid().as_raw() {
        return Ok(None);
    }
    chmod(directory, mode | 0o700)?;
    Ok(Some(mode))
}

impl Undo {
    /// Carries out a plan. Continues after a failure, which the report then names. If guard is killed, the same undo can
    /// be repeated.
    pub fn apply(&self, plan: &UndoPlan) -> Result<UndoReport, WorkspaceError> {
        let mut work =
            Work { undo: self, modes: BTreeMap::new(), parent: None, report: UndoReport::default() };
        let steps = |kinds: &'static [StepKind], directories: bool| {
            plan.steps
                .iter()
                .filter(move |step| kinds.contains(&step.kind) && step.is_directory == directories)
        };
        for step in steps(&[StepKind::Mode], true) {
            work.attempt(step, |work| work.restore_mode(step));
        }
        for step in steps(&[StepKind::Remove], false) {
            work.attempt(step, |work| work.remove(step));
        }
        let mut created: Vec<&UndoStep> = steps(&[StepKind::Remove], true).collect();
        created.reverse();
        for step in created {
            match work.remove(step) {
                Ok(()) => work.count(step),
                // It contains files that the user made, or that guard leaves alone for another reason.
                Err(error) if error.raw_os_error() == Some(libc::ENOTEMPTY) => {}
                Err(error) => work.failed(&step.path, error),
            }
        }
        const CONTENT: &[StepKind] = &[StepKind::Restore, StepKind::Revert];
        for step in steps(CONTENT, true) {
            work.attempt(step, |work| work.make_directory(step));
        }
        let (mut files, mut by_path) = (Vec::new(), BTreeMap::new());
        for step in steps(CONTENT, false) {
            match &step.item {
                Some(item) if item.state.is_file() => {
                    files.push((&step.path, item));
                    by_path.insert(&step.path, step);
                }
                _ => work.attempt(step, |work| work.write(step, None)),
            }
        }
        with_contents(&self.saved, &files, |path, _, copy| {
            let Some(step) = by_path.get(path) else { return };
            match copy {
                Ok(copy) => work.attempt(step, |work| work.write(step, Some(&copy))),
                Err(problem) => work.report.failed.push((path.clone(), problem)),
            }
        })?;
        for step in steps(&[StepKind::Mode], false) {
            work.attempt(step, |work| work.restore_mode(step));
        }
        work.finish_directories();
        if let Some(mode) = plan.top_mode {
            self.final_mode.set(Some(mode));
        }
        Ok(work.report)
    }
}

/// An undo that is being carried out.
struct Work<'u> {
    undo: &'u Undo,
    /// The final permission bits of directories that guard creates, or to which it gives permissions for the time being.
    modes: BTreeMap<Name, u32>,
    /// The directory in which guard worked last, for the next path in it.
    parent: Option<(Vec<u8>, OwnedFd)>,
    report: UndoReport,
}

impl Work<'_> {
    fn attempt(&mut self, step: &UndoStep, act: impl FnOnce(&mut Self) -> io::Result<()>) {
        match act(self) {
            Ok(()) => self.count(step),
            Err(error) => self.failed(&step.path, error),
        }
    }

    fn count(&mut self, step: &UndoStep) {
        *self.report.done.entry(step.kind).or_default() += 1;
    }

    #[allow(clippy::needless_pass_by_value, reason = "it is the argument of `Err`")]
    fn failed(&mut self, path: &Name, error: io::Error) {
        self.report.failed.push((path.clone(), error.to_string()));
    }

    /// Opens the directory that contains a path. Creates directories on the way if they existed before the run, and
    /// gives the user the permissions to change them. Returns the directory and the last component of the path.
    fn open_parent(&mut self, path: &Name) -> io::Result<(OwnedFd, CString)> {
        const FLAGS: OFlag =
            OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
        let bytes = path.bytes();
        let above = memchr::memrchr(b'/', bytes).map_or(&bytes[..0], |at| &bytes[..at]);
        if let Some((known, directory)) = &self.parent
            && known == above
            && !above.is_empty()
        {
            return Ok((directory.try_clone()?, CString::new(&bytes[above.len() + 1..])?));
        }
        let mut directory = openat(&self.undo.top, c".", FLAGS, Mode::empty())?;
        let mut start = 0;
        for end in bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at) {
            let name = CString::new(&bytes[start..end])?;
            start = end + 1;
            let so_far = Name::from(&bytes[..end]);
            let existed = self.undo.before.get(&so_far).filter(|item| item.state.is_directory());
            let opened = match openat(&directory, name.as_c_str(), FLAGS, Mode::empty()) {
                Err(Errno::ENOENT) if existed.is_some() => {
                    mkdirat(&directory, name.as_c_str(), Mode::S_IRWXU)?;
                    self.set_later(&so_far, existed);
                    openat(&directory, name.as_c_str(), FLAGS, Mode::empty())?
                }
                opened => opened?,
            };
            directory = opened;
            if let Some(mode) = make_usable(directory.as_fd(), &fstat(&directory)?)? {
                self.modes.entry(so_far).or_insert(mode);
            }
        }
        self.parent = Some((above.to_vec(), directory.try_clone()?));
        Ok((directory, CString::new(&bytes[start..])?))
    }

    /// Forgets the directory in which guard worked last, because guard may be about to replace it.
    fn leave_parent(&mut self) {
        self.parent = None;
    }

    /// Gives a directory its mode of before when everything in it is done.
    fn set_later(&mut self, path: &Name, item: Option<&Item>) {
        if let Some(item) = item {
            self.modes.insert(path.clone(), item.state.permissions());
        }
    }

    /// Fails unless the entry still has the state that it had when guard made the plan.
    fn check(directory: &OwnedFd, name: &CStr, expected: Option<&FileState>) -> io::Result<()> {
        let found = match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => Some(FileState::of(&found)),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error.into()),
        };
        let is_same = match (&found, expected) {
            (Some(found), Some(expected)) => expected.is_same_after_undo(found),
            (None, None) => true,
            _ => false,
        };
        if is_same { Ok(()) } else { Err(changed()) }
    }

    fn remove(&mut self, step: &UndoStep) -> io::Result<()> {
        if step.is_directory {
            self.leave_parent();
        }
        let (directory, name) = self.open_parent(&step.path)?;
        // The removal of what is in a directory changes only its times.
        Self::check(&directory, &name, step.current.as_ref())?;
        let flags = if step.is_directory { UnlinkatFlags::RemoveDir } else { UnlinkatFlags::NoRemoveDir };
        Ok(unlinkat(&directory, name.as_c_str(), flags)?)
    }

    /// Removes what is in the place of a path and is not to be exchanged: anything in the place of a directory, and a
    /// directory in the place of a file.
    fn clear_place(directory: &OwnedFd, name: &CStr, step: &UndoStep) -> io::Result<()> {
        let Some(current) = &step.current else { return Ok(()) };
        let is_file_for_directory = step.is_directory && !current.is_directory();
        if !is_file_for_directory && !current.is_directory() {
            return Ok(());
        }
        Self::check(directory, name, Some(current))?;
        let flags =
            if current.is_directory() { UnlinkatFlags::RemoveDir } else { UnlinkatFlags::NoRemoveDir };
        Ok(unlinkat(directory, name, flags)?)
    }

    fn make_directory(&mut self, step: &UndoStep) -> io::Result<()> {
        self.leave_parent();
        let (directory, name) = self.open_parent(&step.path)?;
        Self::clear_place(&directory, &name, step)?;
        match mkdirat(&directory, name.as_c_str(), Mode::S_IRWXU) {
            // An earlier step has created it already.
            Err(Errno::EEXIST) if self.modes.contains_key(&step.path) => {}
            made => made?,
        }
        self.set_later(&step.path, step.item.as_ref());
        Ok(())
    }

    /// Writes a file, a link or a FIFO, and puts it in its place.
    fn write(&mut self, step: &UndoStep, copy: Option<&Copy<'_>>) -> io::Result<()> {
        let Some(item) = &step.item else { return Err(io::ErrorKind::InvalidInput.into()) };
        let (directory, name) = self.open_parent(&step.path)?;
        Self::clear_place(&directory, &name, step)?;
        let temporary = self.temporary_name(&step.path)?;
        let expected = step.current.as_ref().filter(|current| !current.is_directory());
        let written = create(&directory, &temporary, item, copy)
            .and_then(|()| exchange(&directory, &temporary, &name, expected));
        if written.is_err() {
            // If this fails, the next undo removes it.
            let _ = unlinkat(&directory, temporary.as_c_str(), UnlinkatFlags::NoRemoveDir);
        }
        written
    }

    /// Returns the name of the temporary file for a path. It is the same for each attempt, so that a repeated undo
    /// replaces what a killed one has left.
    fn temporary_name(&self, path: &Name) -> io::Result<CString> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (self.undo.saved.id(), path.bytes()).hash(&mut hasher);
        Ok(CString::new(format!("{TEMPORARY}{:016x}", hasher.finish()))?)
    }

    fn restore_mode(&mut self, step: &UndoStep) -> io::Result<()> {
        let Some(item) = &step.item else { return Err(io::ErrorKind::InvalidInput.into()) };
        let (directory, name) = self.open_parent(&step.path)?;
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&directory, name.as_c_str(), flags, Mode::empty())?;
        let owner_and_mode = |state: &FileState| (state.inode, state.mode, state.uid, state.gid);
        let wanted = step
            .current
            .as_ref()
            .map(|current| owner_and_mode(&FileState { inode: current.inode, ..item.state.clone() }));
        if !step.is_directory && wanted == Some(owner_and_mode(&FileState::of(&fstat(&file)?))) {
            // guard has restored the mode of another hard link of the file.
            return Ok(());
        }
        Self::check(&directory, &name, step.current.as_ref())?;
        set_owner_and_mode(file.as_fd(), &item.state)?;
        if step.is_directory {
            self.set_later(&step.path, Some(item));
        }
        Ok(())
    }

    /// Gives all directories their final modes, the deepest first.
    fn finish_directories(&mut self) {
        self.leave_parent();
        let modes = std::mem::take(&mut self.modes);
        for (path, mode) in modes.iter().rev() {
            self.leave_parent();
            let set = self.open_parent(path).and_then(|(directory, name)| {
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let opened = openat(&directory, name.as_c_str(), flags, Mode::empty())?;
                match self.undo.before.get(path) {
                    Some(item) if item.state.permissions() == *mode => {
                        set_owner_and_mode(opened.as_fd(), &item.state)
                    }
                    _ => chmod(opened.as_fd(), *mode),
                }
            });
            match set {
                // guard has removed a directory that the run created.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => self.failed(path, error),
                Ok(()) => {}
            }
        }
    }
}

fn changed() -> io::Error {
    io::Error::other("it changed while guard worked; run `guard undo` again")
}

/// Sets the owner, if it is another one and guard may do that, and the mode.
fn set_owner_and_mode(file: BorrowedFd<'_>, wanted: &FileState) -> io::Result<()> {
    let found = fstat(file)?;
    let is_owned = (found.st_uid, found.st_gid) == (wanted.uid, wanted.gid)
        || chown(file, wanted.uid, wanted.gid).is_ok();
    // A program must not run with the rights of another user than before.
    let mode = if is_owned { wanted.permissions() } else { wanted.permissions() & 0o1777 };
    chmod(file, mode)
}

/// Creates a file, a link or a FIFO with a new name.
fn create(directory: &OwnedFd, name: &CStr, item: &Item, copy: Option<&Copy<'_>>) -> io::Result<()> {
    let make = || -> Result<Option<File>, Errno> {
        match (&item.content, item.state.kind()) {
            (Content::Link(target), _) => symlinkat(target.bytes(), directory, name).map(|()| None),
            (_, SFlag::S_IFIFO) => mkfifoat(directory, name, Mode::S_IRUSR | Mode::S_IWUSR).map(|()| None),
            _ => {
                let flags =
                    OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(|fd| Some(File::from(fd)))
            }
        }
    };
    let made = match make() {
        // A killed undo left it.
        Err(Errno::EEXIST) => {
            unlinkat(directory, name, UnlinkatFlags::NoRemoveDir)?;
            make()?
        }
        made => made?,
    };
    let Some(mut file) = made else {
        if item.state.is_link() {
            return Ok(());
        }
        let fifo =
            openat(directory, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        return set_owner_and_mode(fifo.as_fd(), &item.state);
    };
    match copy {
        Some(Copy::Bytes(bytes)) => file.write_all(bytes)?,
        Some(Copy::File(from)) => {
            if crate::sys::fs::share_content(from.as_fd(), file.as_fd()).is_err() {
                copy_sparse(from, &file, item.state.size, u64::MAX)?;
            }
        }
        None => return Err(io::ErrorKind::InvalidInput.into()),
    }
    set_owner_and_mode(file.as_fd(), &item.state)
}

/// Gives the entry `temporary` the name `name`, if what has this name now is still as expected.
fn exchange(
    directory: &OwnedFd,
    temporary: &CStr,
    name: &CStr,
    expected: Option<&FileState>,
) -> io::Result<()> {
    let Some(expected) = expected else {
        return match rename_in(directory.as_fd(), temporary, name, Existing::Keep) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Err(changed()),
            // The file system cannot do that.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Work::check(directory, name, None)?;
                rename_in(directory.as_fd(), temporary, name, Existing::Replace)
            }
            renamed => renamed,
        };
    };
    Work::check(directory, name, Some(expected))?;
    match rename_in(directory.as_fd(), temporary, name, Existing::Exchange) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            return rename_in(directory.as_fd(), temporary, name, Existing::Replace);
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Err(changed()),
        exchanged => exchanged?,
    }
    // A rename changes only the ctime.
    let replaced = FileState::of(&fstatat(directory, temporary, AtFlags::AT_SYMLINK_NOFOLLOW)?);
    if (FileState { changed: expected.changed, links: expected.links, ..replaced }) != *expected {
        rename_in(directory.as_fd(), temporary, name, Existing::Exchange)?;
        return Err(changed());
    }
    Ok(unlinkat(directory, temporary, UnlinkatFlags::NoRemoveDir)?)
}
