//! What depends on nothing but the machine, done while the policy is read: the system call filters, and the toolchains.

use std::ffi::OsString;
use std::path::PathBuf;
use std::thread::JoinHandle;

use super::toolchain::{self, Toolchain};
use crate::policy::{Caches, TOOLCHAINS};
use crate::sandbox::{self, Entry, Filters, SandboxError};
use crate::sys::process;

type Made = Result<(Vec<Entry>, Filters), SandboxError>;

/// Filters in the making. The thread that makes them has ended before the first process of a run is forked.
pub struct Early {
    thread: Option<JoinHandle<Made>>,
    shared: bool,
    list: Vec<Entry>,
}

/// Toolchains being looked for, as most policies want them: all kinds, with shared caches.
pub struct EarlyToolchains(JoinHandle<Vec<Toolchain>>);

impl EarlyToolchains {
    /// Begins to look.
    pub fn begin(home: PathBuf, environment: Vec<(OsString, OsString)>) -> Option<Self> {
        let work =
            move || toolchain::detect(&home, &environment, &TOOLCHAINS.map(str::to_string), Caches::Shared);
        std::thread::Builder::new().name("toolchains".to_string()).spawn(work).ok().map(Self)
    }

    /// What was found, if this is what a policy wants.
    pub fn take(self, detect: &[String], caches: Caches) -> Option<Vec<Toolchain>> {
        let found = self.0.join().ok()?;
        (caches == Caches::Shared && TOOLCHAINS.iter().eq(detect.iter())).then_some(found)
    }
}

impl Early {
    /// Begins: `shared` when the run will most likely have no namespaces of its own.
    pub fn begin(shared: bool) -> Self {
        process::keep_memory_small();
        let work = move || {
            let list = sandbox::read(sandbox::LIST)?;
            let filters = sandbox::compile(&list, shared)?;
            Ok((list, filters))
        };
        // Without a thread it is done when it is needed.
        let thread = std::thread::Builder::new().name("filters".to_string()).spawn(work).ok();
        Self { thread, shared, list: Vec::new() }
    }

    /// The filters; waits for them, or makes others if it turned out differently.
    pub(super) fn take(&mut self, shared: bool) -> Result<Filters, SandboxError> {
        if let Some(thread) = self.thread.take()
            && let Ok(made) = thread.join()
        {
            let (list, filters) = made?;
            self.list = list;
            if shared == self.shared {
                return Ok(filters);
            }
        }
        if self.list.is_empty() {
            self.list = sandbox::read(sandbox::LIST)?;
        }
        sandbox::compile(&self.list, shared)
    }
}
