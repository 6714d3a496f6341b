//! The folders and files a run needs before it starts, and their removal afterwards.

use std::fs::{DirBuilder, create_dir_all};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::plan::{LaunchPlan, OwnPlaces};
use super::shims::Shims;
use super::{links, network};

/// The run's own folders, as they are before anything is in them.
#[derive(Debug, Clone)]
pub(super) struct Folders {
    /// Where runs are kept.
    runs: PathBuf,
    /// Those that are made for this one, in this order.
    own: Vec<PathBuf>,
}

impl Folders {
    /// Of a run that has a folder, unless that was made with its worktree, and in it a home; of one that has namespaces, if
    /// it is to have them, more among the temporary files.
    pub(super) fn of(places: &OwnPlaces, has_checkout: bool, has_view: bool) -> Self {
        let runs = places.run_folder.parent().unwrap_or(&places.run_folder).to_path_buf();
        let run_folder = Some(places.run_folder.clone()).filter(|_| !has_checkout);
        let around_tmp = places.tmp.parent().map(Path::to_path_buf);
        let for_view = Some(places.other_tmp()).filter(|_| has_view);
        let beside = [places.home.clone()].into_iter().chain(around_tmp).chain([places.tmp.clone()]);
        Self { runs, own: run_folder.into_iter().chain(beside).chain(for_view).collect() }
    }

    /// Makes them. Exclusively: somebody else's folder of that name in a shared place is not taken over.
    pub(super) fn make(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).recursive(true).create(&self.runs)?;
        self.own.iter().try_for_each(|folder| DirBuilder::new().mode(0o700).create(folder))
    }

    /// Removes what was made of them, and not used.
    pub(super) fn remove(&self) {
        for folder in self.own.iter().rev() {
            // What is not there was not made; what has something in it is not ours.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// Puts everything that the plan names into the run's own folders.
pub(super) fn furnish(plan: &LaunchPlan) -> io::Result<()> {
    plan.belongings.bring(&plan.home)?;
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

/// The folders that only a view of the run's own needs: those seen as `/tmp` and the like, and those that layered caches
/// are mounted on and written to.
pub(super) fn view_folders(plan: &LaunchPlan) -> io::Result<()> {
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

/// A folder of this user, and no link to one.
fn is_own(folder: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    folder.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == own)
}

/// What only the run itself needs; the transcript stays.
pub(super) struct Belongs {
    folders: [PathBuf; 4],
    control: PathBuf,
    run_folder: PathBuf,
}

impl Belongs {
    pub(super) fn to(plan: &LaunchPlan) -> Self {
        let tmp = plan.around_tmp().to_path_buf();
        let folders = [plan.home.clone(), tmp, plan.run_folder.join("layers"), links::aside(plan)];
        Self { folders, control: plan.control.clone(), run_folder: plan.run_folder.clone() }
    }

    /// Removes the folder of a run that never came to be: one without a record.
    pub(super) fn forget_run(&self) {
        // With anything in it, it stays.
        let _ = std::fs::remove_dir(&self.run_folder);
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
