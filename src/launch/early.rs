//! What depends on nothing but the machine, done while the policy is read.

use std::ffi::OsString;
use std::path::PathBuf;
use std::thread::JoinHandle;

use super::toolchain::{self, Toolchain};
use crate::policy::{Caches, TOOLCHAINS};

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
