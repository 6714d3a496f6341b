//! Remembers which execs the supervisor has allowed, so that it does not judge the same exec again.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use super::request::ExecRequest;

/// Hashes of allowed execs. An exec with the same files, arguments, directory and environment as an earlier one has the
/// same hash.
#[derive(Default)]
pub(crate) struct Cache {
    allowed: HashSet<u64>,
    keys: RandomState,
}

/// The maximum number of execs in the cache. The supervisor clears a full cache before it adds another exec.
const MAX_CACHED: usize = 50_000;

impl Cache {
    pub(crate) fn key(&self, exec_request: &ExecRequest) -> u64 {
        let mut hasher = self.keys.build_hasher();
        exec_request.path.hash(&mut hasher);
        exec_request.argv.hash(&mut hasher);
        exec_request.environment.hash(&mut hasher);
        exec_request.cwd.hash(&mut hasher);
        for file in &exec_request.chain {
            file.judged_path().hash(&mut hasher);
            file.kind.hash(&mut hasher);
        }
        exec_request.loaded.hash(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn contains(&self, key: u64) -> bool {
        self.allowed.contains(&key)
    }

    pub(crate) fn insert(&mut self, key: u64) {
        if self.allowed.len() >= MAX_CACHED {
            self.allowed.clear();
        }
        self.allowed.insert(key);
    }
}
