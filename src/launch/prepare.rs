//! The folders and files a run needs before it starts, and their removal afterwards.

use std::fs::{DirBuilder, create_dir_all};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use super::plan::LaunchPlan;
use super::{links, network};

/// Makes everything the plan names inside the run's own folders.
pub(super) fn prepare(plan: &LaunchPlan) -> io::Result<()> {
    let private = |path: &Path| DirBuilder::new().mode(0o700).create(path);
    if let Some(runs) = plan.run_folder.parent() {
        DirBuilder::new().mode(0o700).recursive(true).create(runs)?;
    }
    if plan.checkout.is_none() {
        private(&plan.run_folder)?;
    }
    private(&plan.home)?;
    // Exclusive: somebody else's folder of that name in a shared place is not taken over.
    private(plan.around_tmp())?;
    private(&plan.tmp)?;
    plan.belongings.bring(&plan.home)?;
    for (to, text) in &plan.home_files {
        to.parent().map_or(Ok(()), create_dir_all)?;
        std::fs::write(to, text)?;
    }
    for (from, to) in &plan.imports {
        to.parent().map_or(Ok(()), create_dir_all)?;
        std::fs::copy(from, to)?;
    }
    if plan.network.has_proxy() {
        let (script, name) = network::FETCH;
        let to = plan.home.join(name);
        to.parent().map_or(Ok(()), create_dir_all)?;
        std::fs::write(to, script)?;
    }
    if let Some((folder, shim, names)) = &plan.shims {
        make_shims(folder, shim, names)?;
    }
    Ok(())
}

/// Makes the shims' folder, unless an earlier run has. It appears all at once: another run may be looking for it.
fn make_shims(folder: &Path, shim: &Path, names: &[String]) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().unwrap_or(folder);
    DirBuilder::new().mode(0o700).recursive(true).create(parent)?;
    let made = parent.join(format!("new-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&made)?;
    for name in names {
        symlink(shim, made.join(name))?;
    }
    match std::fs::rename(&made, folder) {
        // Another run was faster.
        Err(_) if folder.is_dir() => std::fs::remove_dir_all(&made),
        renamed => renamed,
    }
}

/// The folders that only a view of the run's own needs: those seen as `/tmp` and the like, and those that layered caches
/// are mounted on and written to.
pub(super) fn view_folders(plan: &LaunchPlan) -> io::Result<()> {
    for (folder, _) in &plan.view.private {
        match DirBuilder::new().mode(0o700).create(folder) {
            // The run's temporary files; a second try with fewer layers.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
    }
    for layer in &plan.view.layers {
        for folder in [&layer.upper, &layer.work, &layer.at] {
            create_dir_all(folder)?;
        }
    }
    Ok(())
}

/// What only the run itself needs; the transcript stays.
pub(super) struct Belongs {
    folders: [PathBuf; 4],
    control: PathBuf,
}

impl Belongs {
    pub(super) fn to(plan: &LaunchPlan) -> Self {
        let tmp = plan.around_tmp().to_path_buf();
        let folders = [plan.home.clone(), tmp, plan.run_folder.join("layers"), links::aside(plan)];
        Self { folders, control: plan.control.clone() }
    }

    /// Removes it.
    pub(super) fn clean(&self) {
        for folder in &self.folders {
            // What cannot be removed is no reason for a run that has ended to fail.
            let _ = crate::sys::tree::remove_tree(folder);
        }
        let _ = std::fs::remove_file(&self.control);
    }
}
