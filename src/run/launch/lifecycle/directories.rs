//! Creates the directories and files that a run needs before it starts, and removes them afterwards. This module must
//! never use an existing directory that another user may have created, and never remove the transcript.

use std::fs::{DirBuilder, create_dir_all};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::cache_links;
use crate::run::launch::plan::launch_plan::LaunchPlan;
use crate::run::launch::plan::network::FETCH;
use crate::run::launch::plan::shims::Shims;
use crate::run::outcome::KeptFiles;
use crate::sys::agent_paths::AgentPaths;
use crate::sys::copy_tree::{CopyBudget, copy_path};

/// Creates the run's private directories. Fails if one already exists: another user may have created it in a shared
/// directory such as `/tmp`. Does not create the run's directory if the run has a worktree, because guard created
/// that directory along with the worktree.
pub(crate) fn make_directories(plan: &LaunchPlan) -> io::Result<()> {
    let runs = plan.run_folder.parent().unwrap_or(&plan.run_folder);
    DirBuilder::new().mode(0o700).recursive(true).create(runs)?;
    let run_directory = plan.checkout.is_none().then_some(plan.run_folder.as_path());
    let private = run_directory.into_iter().chain([plan.home.as_path(), plan.tmp_parent(), &plan.tmp]);
    private.into_iter().try_for_each(|directory| DirBuilder::new().mode(0o700).create(directory))
}

/// Writes the directories that the run can write into guard's record of places where agents work, so that later runs
/// trust no link in them.
pub(crate) fn record_agent_directories(plan: &LaunchPlan, home: Option<&Path>) -> io::Result<()> {
    let Some(state) = plan.run_folder.parent().and_then(Path::parent) else { return Ok(()) };
    let is_private = |path: &Path| path.starts_with(&plan.tmp) || path.starts_with(&plan.run_folder);
    let written = plan.grants.iter().filter(|grant| grant.rights.is_write() && !is_private(&grant.path));
    AgentPaths::record(
        state,
        &AgentPaths::read(home, Some(state))?,
        written.map(|grant| grant.path.as_path()),
    )
}

/// Copies the saved files (with the agent's history and login), the planned files and the imports into the private home
/// directory, writes the script that makes Node's `fetch` use the proxy if the run may reach any host, and creates the
/// shims. Returns which files an earlier run has left.
pub(crate) fn write_files(plan: &LaunchPlan) -> io::Result<KeptFiles> {
    let carried = plan.home_state.copy_into(&plan.home)?;
    for (to, text) in &plan.home_files {
        to.parent().map_or(Ok(()), create_dir_all)?;
        std::fs::write(to, text)?;
    }
    for (from, to) in &plan.imports {
        to.parent().map_or(Ok(()), create_dir_all)?;
        // The file may be in the saved history too.
        let _ = std::fs::remove_file(to);
        // The plan contains the real path, in which another process may have put a link meanwhile.
        let (root, budget) = (std::fs::File::open("/")?, &mut CopyBudget::default());
        copy_path(root.as_fd(), from, to, budget)?;
    }
    if plan.network.reaches_hosts() {
        let (script, name) = FETCH;
        let to = plan.home.join(name);
        to.parent().map_or(Ok(()), create_dir_all)?;
        std::fs::write(to, script)?;
    }
    plan.shims.as_ref().map_or(Ok(()), Shims::make)?;
    Ok(carried)
}

/// Creates the directories that only a run with a mount namespace needs: those that guard mounts at `/tmp` and
/// `/var/tmp`, and the mount points, upper and work directories of overlays.
pub(crate) fn make_mount_directories(plan: &LaunchPlan) -> io::Result<()> {
    for (directory, _) in &plan.view.private {
        match DirBuilder::new().mode(0o700).create(directory) {
            // `make_directories` or an earlier attempt to start the run has created this directory.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_owned_directory(directory) => {}
            made => made?,
        }
    }
    for layer in &plan.view.layers {
        for directory in [&layer.upper, &layer.work, &layer.at] {
            create_dir_all(directory)?;
        }
    }
    Ok(())
}

/// Returns true if a path is a directory of the current user, and not a symbolic link.
fn is_owned_directory(path: &Path) -> bool {
    let user = nix::unistd::geteuid().as_raw();
    path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == user)
}

/// The directories and files that guard removes after a run. The transcript stays.
pub(crate) struct RunCleanup {
    directories: [PathBuf; 4],
    control: PathBuf,
    run_folder: PathBuf,
}

impl RunCleanup {
    pub(crate) fn for_plan(plan: &LaunchPlan) -> Self {
        let tmp = plan.tmp_parent().to_path_buf();
        let directories =
            [plan.home.clone(), tmp, plan.run_folder.join("layers"), cache_links::staging_directory(plan)];
        Self { directories, control: plan.control.clone(), run_folder: plan.run_folder.clone() }
    }

    /// Removes the directory of a run that never started. Such a run has no transcript, so the directory is empty.
    pub(crate) fn remove_empty_run_directory(&self) {
        // This fails if there is a transcript after all, which must stay.
        let _ = std::fs::remove_dir(&self.run_folder);
    }

    /// Removes the run's private directories and the socket of the shims. Ignores errors.
    pub(crate) fn clean(&self) {
        for directory in &self.directories {
            // Ignore errors: a finished run must not fail because guard cannot remove a directory.
            let _ = crate::sys::remove_tree::remove_tree(directory);
        }
        let _ = std::fs::remove_file(&self.control);
    }
}
