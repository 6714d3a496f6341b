//! The system call filters, compiled while other things are read: they depend on nothing but the machine.

use std::thread::JoinHandle;

use crate::sandbox::{self, Entry, Filters, SandboxError};

/// Filters in the making. The thread that makes them has ended before the first process of a run is forked.
pub struct Early {
    thread: Option<JoinHandle<Result<(Vec<Entry>, Filters), SandboxError>>>,
    shared: bool,
    list: Vec<Entry>,
}

impl Early {
    /// Begins: `shared` when the run will most likely have no namespaces of its own.
    pub fn begin(shared: bool) -> Self {
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
