//! Plans how a run shares the user's package caches and dependencies: as overlays, or as directories of links.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::checkout::Checkout;
use crate::run::launch::discover::toolchains::{OfflineAdditions, Toolchain};
use crate::sandbox;

/// A package cache of the user that the run gets as a directory of symbolic links.
#[derive(Debug, Clone, Serialize)]
pub struct LinkedCache {
    /// The name of the toolchain whose programs use the cache.
    pub toolchain: &'static str,
    /// The user's cache, to whose entries the links point.
    pub from: PathBuf,
    /// The path of the linked cache in the run's private home directory.
    pub at: PathBuf,
    /// The number of levels of directories below `at` that are real directories, in which the run can add entries.
    /// The entries of the deepest real directories are links.
    pub depth: usize,
    /// The directory of the archives that programs unpack into this cache, if guard knows it. If all archives are
    /// unpacked already, the run will add nothing, and guard uses 0 instead of `depth`.
    pub unpacked_from: Option<PathBuf>,
}

/// Returns the package caches of the toolchains in two forms: as overlays for a run with a mount namespace, and as
/// directories of links for a run without one. `fetches` is true if the run can fetch packages. If it is false, the run
/// adds fewer entries, so fewer levels of directories need to be real.
pub(crate) fn caches(
    toolchains: &[Toolchain],
    run_folder: &Path,
    home: &Path,
    fetches: bool,
) -> (Vec<sandbox::Layer>, Vec<LinkedCache>) {
    let mut layers = Vec::new();
    let mut linked = Vec::new();
    let with_name = |toolchain: &'static str| move |layer| (toolchain, layer);
    let all = toolchains.iter().flat_map(|toolchain| toolchain.layers.iter().map(with_name(toolchain.name)));
    for (index, (toolchain, layer)) in all.enumerate() {
        let at = home.join(&layer.upper);
        let own = run_folder.join("layers").join(index.to_string());
        let (depth, unpacked_from) = match &layer.offline_additions {
            OfflineAdditions::None if !fetches => (0, None),
            OfflineAdditions::Unpacked(archives) if !fetches => (layer.depth, Some(archives.clone())),
            _ => (layer.depth, None),
        };
        linked.push(LinkedCache {
            toolchain,
            from: layer.lower.clone(),
            at: at.clone(),
            depth,
            unpacked_from,
        });
        layers.push(sandbox::Layer {
            // The mount follows no links.
            lower: layer.lower.canonicalize().unwrap_or_else(|_| layer.lower.clone()),
            upper: own.join("upper"),
            work: own.join("work"),
            at,
        });
    }
    (layers, linked)
}

/// Returns the dependencies in the user's checkout as overlays for a run with a mount namespace.
pub(crate) fn dependencies(checkout: Option<&Checkout>, run_folder: &Path) -> Vec<sandbox::Layer> {
    let all = checkout.iter().flat_map(|checkout| &checkout.dependencies).enumerate();
    let layer = |(index, (at, from)): (usize, &(PathBuf, PathBuf))| {
        let own = run_folder.join("layers").join(format!("dependency-{index}"));
        sandbox::Layer {
            lower: from.clone(),
            upper: own.join("upper"),
            work: own.join("work"),
            at: at.clone(),
        }
    };
    all.map(layer).collect()
}
