//! Resources of a run that guard creates when a program first needs them, and the execs that wait for them.

use super::background::{BackgroundResult, BackgroundSender};
use super::exec::request::ExecRequest;
use crate::sys::seccomp::Notification;

/// How many of the first arguments may name the program that really runs: `node …/npm-cli.js`, `python3 -m pip`.
const MAX_NAMING_ARGUMENTS: usize = 3;

/// A resource of the run that is slow to create and that few programs use.
pub struct LazyResource {
    /// Name prefixes of the programs that use the resource. Their execs wait until it is ready.
    pub users: &'static [&'static str],
    /// Creates the resource, on a separate thread, at the first exec of a program that uses the resource. `None` once
    /// the supervisor has called it.
    pub make: Option<Box<dyn FnOnce() + Send>>,
}

pub(crate) struct LazyResources {
    resources: Vec<LazyResource>,
    /// Indices of the resources that threads are creating.
    in_progress: Vec<usize>,
    /// Execs that wait for a resource.
    waiting: Vec<Notification>,
}

impl LazyResources {
    pub(crate) fn new(resources: Vec<LazyResource>) -> Self {
        Self { resources, in_progress: Vec::new(), waiting: Vec::new() }
    }

    /// Makes an exec wait if it needs a resource that is not ready, and returns true if the exec waits. The first exec
    /// that needs a resource starts the creation of the resource. Does not wait for a resource if guard cannot start
    /// the thread that creates it.
    pub(crate) fn wait_if_needed(
        &mut self,
        notification: &Notification,
        exec_request: &ExecRequest,
        background: &BackgroundSender,
    ) -> bool {
        let must_wait = self.must_wait(exec_request, background);
        if must_wait {
            self.waiting.push(*notification);
        }
        must_wait
    }

    fn must_wait(&mut self, exec_request: &ExecRequest, background: &BackgroundSender) -> bool {
        if self.resources.is_empty() {
            return false;
        }
        let files = exec_request.chain.iter().map(|file| file.path.as_slice());
        let words = exec_request.argv.iter().take(MAX_NAMING_ARGUMENTS).map(Vec::as_slice);
        let names = files.chain(words).map(|path| path.rsplit(|&byte| byte == b'/').next().unwrap_or(path));
        let is_used = |resource: &LazyResource| {
            names.clone().any(|name| resource.users.iter().any(|user| name.starts_with(user.as_bytes())))
        };
        let used: Vec<usize> =
            (0..self.resources.len()).filter(|&index| is_used(&self.resources[index])).collect();
        for &index in &used {
            let Some(make) = self.resources[index].make.take() else { continue };
            let background = background.clone();
            let work = move || {
                make();
                background.send(BackgroundResult::ResourceReady(index));
            };
            // If the thread cannot start, guard never makes the resource, and programs run without it.
            if std::thread::Builder::new().name("caches".to_string()).spawn(work).is_ok() {
                self.in_progress.push(index);
            }
        }
        used.iter().any(|index| self.in_progress.contains(index))
    }

    /// Marks a resource as ready. Returns all waiting execs, which the caller must handle again. An exec that needs
    /// another resource then waits once more.
    pub(crate) fn set_ready(&mut self, index: usize) -> Vec<Notification> {
        self.in_progress.retain(|known| *known != index);
        std::mem::take(&mut self.waiting)
    }
}
