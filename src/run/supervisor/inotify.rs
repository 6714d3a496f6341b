//! Handles `inotify_add_watch`, which Landlock does not cover: a watch on a directory reveals the names of files
//! created in it, even if the run may not list it.
//!
//! The supervisor opens the watched object once, checks that the run may read its location, and adds the watch through
//! the opened object to a duplicate of the caller's inotify descriptor. If the agent swaps the path meanwhile, that has
//! no effect.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::call_context::CallContext;
use super::process_info::cwd_of;
use crate::run::transcript::EventType;
use crate::sys::fs;
use crate::sys::seccomp::{Notification, Reply};

const LONGEST_PATH: usize = 4096;

pub(crate) struct WatchHandler {
    /// The paths of all grants of the run. The run may watch files only at and below them.
    granted: Vec<PathBuf>,
    /// The granted paths with symlinks resolved; `None` until the supervisor first needs them.
    resolved: Option<Vec<PathBuf>>,
    has_mount_namespace: bool,
}

impl WatchHandler {
    pub(crate) fn new(granted: Vec<PathBuf>, has_mount_namespace: bool) -> Self {
        Self { granted, resolved: None, has_mount_namespace }
    }

    /// Handles `inotify_add_watch`: adds the watch for the caller if the run may read the object. Otherwise denies the
    /// call and records the denial.
    pub(crate) fn add_watch(&mut self, context: &mut CallContext, notification: &Notification) -> Reply {
        match self.try_add_watch(context, notification) {
            Ok(watch) => Reply::Value(i64::from(watch)),
            Err(error) => Reply::Error(error.raw_os_error().unwrap_or(libc::EACCES)),
        }
    }

    fn try_add_watch(&mut self, context: &mut CallContext, notification: &Notification) -> io::Result<i32> {
        let [number, path, mask, ..] = notification.arguments;
        let (tid, mask) = (notification.tid, mask as u32);
        let path = context.memory_of(tid).string(path, LONGEST_PATH)?;
        let directory = cwd_of(tid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        let follow = mask & libc::IN_DONT_FOLLOW == 0;
        let object = context.identities().open(tid, &directory, &path, follow)?;
        // If guard can duplicate the caller's descriptor, the path was read from the caller's process and not from
        // another one with a reused id.
        let inotify = context.duplicate_descriptor(notification, number as i32)?;
        if !self.is_readable(context, tid, object.as_fd()) {
            let shown =
                std::fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd())).unwrap_or_default();
            context.record_denial_by_sandbox(
                EventType::DenyWatch,
                tid,
                &format!("watch {}", shown.display()),
                "sandbox.watch",
                "The path is outside the directories that the run may read.",
            );
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        let through = CString::new(format!("/proc/self/fd/{}", object.as_raw_fd()))?;
        // The flags of the call have decided whether to follow a symlink when the supervisor opened the object. This
        // path is a link in `/proc`, which the kernel must follow.
        fs::add_watch(inotify.as_fd(), &through, mask & !libc::IN_DONT_FOLLOW)
    }

    /// Returns true if an opened object is at or below a granted path. In a run with a mount namespace, the run must
    /// also see this object at that path.
    fn is_readable(&mut self, context: &mut CallContext, tid: i32, object: BorrowedFd<'_>) -> bool {
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd())) else {
            return false;
        };
        let granted = &self.granted;
        let real = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let readable = self.resolved.get_or_insert_with(|| granted.iter().map(real).collect());
        if !readable.iter().any(|root| path.starts_with(root)) {
            return false;
        }
        if !self.has_mount_namespace {
            return true;
        }
        // The host and the run's mount namespace use the same paths. Inside the run, this path must lead to the same
        // object.
        let Ok(inside) = context.identities().open(tid, Path::new("/"), path.as_os_str().as_bytes(), false)
        else {
            return false;
        };
        let identity =
            |fd: BorrowedFd<'_>| nix::sys::stat::fstat(fd).map(|found| (found.st_dev, found.st_ino));
        matches!((identity(object), identity(inside.as_fd())), (Ok(one), Ok(other)) if one == other)
    }
}
