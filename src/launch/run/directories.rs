//! Creates the directories and files that a run needs before it starts, and removes them afterwards. It must never take
//! over an existing directory of another user, and never remove the transcript.

use std::fs::{DirBuilder, create_dir_all};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::cache_links;
use crate::launch::network;
use crate::launch::plan::LaunchPlan;
use crate::launch::plan::shims::Shims;

/// Creates the run's own directories, empty. Fails if one exists: another user may have created it in a shared
/// directory. A run with a worktree already has its run directory.
pub(crate) fn make_directories(plan: &LaunchPlan) -> io::Result<()> {
    let runs = plan.run_folder.parent().unwrap_or(&plan.run_folder);
    DirBuilder::new().mode(0o700).recursive(true).create(runs)?;
    let run_directory = plan.checkout.is_none().then_some(plan.run_folder.as_path());
    let own = run_directory.into_iter().chain([plan.home.as_path(), plan.around_tmp(), &plan.tmp]);
    own.into_iter().try_for_each(|directory| DirBuilder::new().mode(0o700).create(directory))
}

/// Writes the files that the plan names into the run's own directories.
pub(crate) fn furnish(plan: &LaunchPlan) -> io::Result<()> {
    plan.home_state.bring(&plan.home)?;
    for (to, text) in &plan.home_files {
        to.parent().map_or(Ok(()), create_dir_all)?;
        std::fs::write(to, text)?;
    }
    for (from, to) in &plan.imports {
        to.parent().map_or(Ok(()), create_dir_all)?;
        std::fs::copy(from, to)?;
    }
    if plan.network.reaches_hosts() {
        let (script, name) = network::FETCH;
        let to = plan.home.join(name);
        to.parent().map_or(Ok(()), create_dir_all)?;
        std::fs::write(to, script)?;
    }
    plan.shims.as_ref().map_or(Ok(()), Shims::make)
}

/// Creates the directories that only a run with mounts needs: those mounted at `/tmp` and `/var/tmp`, and the mount
/// points and upper layers of overlays.
pub(crate) fn view_folders(plan: &LaunchPlan) -> io::Result<()> {
    for (folder, _) in &plan.view.private {
        match DirBuilder::new().mode(0o700).create(folder) {
            // Created with the run's directories, or by an earlier attempt to start with more overlays.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_own(folder) => {}
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

/// Whether this is a directory of the current user and not a symbolic link.
fn is_own(folder: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    folder.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == own)
}

/// The directories and files to remove after a run. The transcript stays.
pub(crate) struct RunCleanup {
    folders: [PathBuf; 4],
    control: PathBuf,
    run_folder: PathBuf,
}

impl RunCleanup {
    pub(crate) fn to(plan: &LaunchPlan) -> Self {
        let tmp = plan.around_tmp().to_path_buf();
        let folders = [plan.home.clone(), tmp, plan.run_folder.join("layers"), cache_links::aside(plan)];
        Self { folders, control: plan.control.clone(), run_folder: plan.run_folder.clone() }
    }

    /// Removes the directory of a run that never started, and so has no transcript.
    pub(crate) fn forget_run(&self) {
        // Fails if the directory is not empty.
        let _ = std::fs::remove_dir(&self.run_folder);
    }

    /// Removes the run's own directories and its control socket.
    pub(crate) fn clean(&self) {
        for folder in &self.folders {
            // A directory that cannot be removed must not make the finished run fail.
            let _ = crate::sys::remove_tree::remove_tree(folder);
        }
        let _ = std::fs::remove_file(&self.control);
    }
}
