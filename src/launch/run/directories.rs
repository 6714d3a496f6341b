//! The directories and files a run needs before it starts, and their removal afterwards.

use std::fs::{DirBuilder, create_dir_all};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::cache_links;
use crate::launch::network;
use crate::launch::plan::LaunchPlan;
use crate::launch::plan::shims::Shims;

/// Makes the run's own directories, empty. Exclusively: somebody else's directory of that name in a shared place is not taken
/// over. The run directory of a run with a worktree was made with that.
pub(crate) fn make_directories(plan: &LaunchPlan) -> io::Result<()> {
    let runs = plan.run_folder.parent().unwrap_or(&plan.run_folder);
    DirBuilder::new().mode(0o700).recursive(true).create(runs)?;
    let run_directory = plan.checkout.is_none().then_some(plan.run_folder.as_path());
    let own = run_directory.into_iter().chain([plan.home.as_path(), plan.around_tmp(), &plan.tmp]);
    own.into_iter().try_for_each(|directory| DirBuilder::new().mode(0o700).create(directory))
}

/// Puts everything that the plan names into the run's own directories.
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

/// The directories that only a view of the run's own needs: those seen as `/tmp` and the like, and those that layered caches
/// are mounted on and written to.
pub(crate) fn view_folders(plan: &LaunchPlan) -> io::Result<()> {
    for (folder, _) in &plan.view.private {
        match DirBuilder::new().mode(0o700).create(folder) {
            // The run's temporary files; a second try with fewer layers.
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

/// A directory of this user, and no link to one.
fn is_own(folder: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    folder.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == own)
}

/// What only the run itself needs; the transcript stays.
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

    /// Removes the directory of a run that never came to be: one without a record.
    pub(crate) fn forget_run(&self) {
        // With anything in it, it stays.
        let _ = std::fs::remove_dir(&self.run_folder);
    }

    /// Removes it.
    pub(crate) fn clean(&self) {
        for folder in &self.folders {
            // What cannot be removed is no reason for a run that has ended to fail.
            let _ = crate::sys::remove_tree::remove_tree(folder);
        }
        let _ = std::fs::remove_file(&self.control);
    }
}
