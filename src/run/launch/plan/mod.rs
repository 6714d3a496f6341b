//! Turns a request and its policy into a [`LaunchPlan`]: a complete description of a run that has not started yet.
//!
//! [`plan`] inspects the machine (which paths exist, where a program is) but must create and change nothing that a run
//! uses. It may run package tools to find their default hosts, and caches the answers. So guard can show a plan (`guard
//! run --dry-run`), and tests can compare plans. The code that executes a plan makes no decisions.
pub(crate) mod ancestor_configs;
pub(crate) mod api_keys;
pub(crate) mod checkout;
mod environment;
pub(crate) mod error;
pub(crate) mod git_paths;
mod grants;
mod imports;
pub(crate) mod launch_plan;
pub(crate) mod linked_caches;
pub(crate) mod network;
pub(crate) mod request;
pub(crate) mod shims;
pub(crate) mod system_paths;
pub(crate) mod workdir;

use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::discover::guard_directories;
use super::discover::toolchains;
use super::discover::toolchains::Toolchain;
use crate::judge::policy::Namespaces;
use crate::run::launch::lifecycle::nested_repositories;
use crate::run::launch::lifecycle::nested_repositories::SearchedDirectory;
use crate::sandbox;
use crate::sandbox::{Grant, Layer, MountPlan, Rights};
use crate::sys::agent_paths::AgentPaths;
use ancestor_configs::find_ancestor_configs;
use environment::{environment, value};
pub use error::LaunchError;
use git_paths::readable_git_paths;
use grants::{Placeholders, policy_grants, program_grants, without_duplicates};
use imports::imports;
pub use launch_plan::{LaunchPlan, SnapshotPlan};
use linked_caches::{caches, dependencies};
use network::NetworkPlan;
pub(crate) use request::RunPaths;
pub use request::{Limits, Options, RunRequest};
use shims::{Shims, why_no_shims};
use workdir::working_directory;

/// Returns the files that guard writes into the private home directory, with the caller's files first: (path, content).
/// In the caller's files, replaces `{directory}` by the path of the worktree, escaped as in a JSON string.
fn home_files(
    request: &RunRequest,
    network: &NetworkPlan,
    home: &Path,
    worktree: &Path,
) -> Vec<(PathBuf, String)> {
    let quoted = serde_json::Value::from(worktree.to_string_lossy()).to_string();
    let directory = quoted.get(1..quoted.len() - 1).unwrap_or_default();
    let own = request.options.home_files.iter();
    let own = own.map(|(path, text)| (home.join(path), text.replace("{directory}", directory)));
    own.chain(network.home_files().into_iter().map(|(path, text)| (home.join(path), text))).collect()
}

/// Plans the run that `request` describes, and gives it the id `run_id`. Changes nothing on disk except the cached
/// answers of package tools. Fails if guard may not or cannot start such a run.
pub fn plan(request: &RunRequest, run_id: String) -> Result<LaunchPlan, LaunchError> {
    let _span = tracing::info_span!("plan", run = %run_id, policy = %request.policy.name).entered();
    let folder = working_directory(request)?;
    let policy = &request.policy;
    let paths = request.run_paths(&run_id);
    let var_tmp = paths.var_tmp();
    let RunPaths { run_folder, home, tmp } = paths;
    let mut notes = request.checkout.as_ref().map(|checkout| checkout.notes.clone()).unwrap_or_default();
    let agent_paths = agent_paths(request, &folder)?;
    let toolchains = find_toolchains(request, &agent_paths);
    notes.extend(toolchains.iter().flat_map(|toolchain| toolchain.notes.iter().cloned()));
    let shims = shims(request, &mut notes);
    let shim_folder = shims.as_ref().map(|shims| shims.directory.as_path());
    if let Some(path) = request.options.home_state.invalid_path() {
        return Err(LaunchError::Input(format!(
            "--home-keep {}: expected a relative path inside the private home directory, without `..`",
            path.display()
        )));
    }
    let network = network::plan(request, &mut notes)?;
    let environment = environment(request, shim_folder, &home, &tmp, &toolchains, &network);
    let program = find_program(&request.command, &folder, &environment, shim_folder)?;
    let namespaces = request.wanted_namespaces();
    let worktree = request.checkout.as_ref().map_or(folder.as_path(), |checkout| &checkout.worktree);
    let placeholders = Placeholders {
        worktree,
        home: &home,
        tmp: &tmp,
        var_tmp: &var_tmp,
        toolchains: &toolchains,
        system: OnceCell::new(),
    };
    let mut grants = policy_grants(request, &placeholders, &agent_paths, &mut notes)?;
    notes.extend(placeholders.system.get().iter().flat_map(|(_, notes)| notes.iter().cloned()));
    grants.extend(program_grants(request, &program, &environment, &grants, &agent_paths, &mut notes));
    grants.extend(shims.iter().map(|shims| Grant {
        path: shims.directory.clone(),
        rights: Rights::ReadExecute,
        why: "shims".to_string(),
    }));
    grants.extend(system_paths::devices());
    let git = match &request.checkout {
        Some(checkout) => {
            grants.extend(checkout.grants());
            Vec::new()
        }
        None => readable_git_paths(request, &folder),
    };
    grants.extend(git.iter().map(|path| Grant {
        path: path.clone(),
        rights: Rights::Read,
        why: "the repository's git directory".to_string(),
    }));
    sandbox::resolve_links(&mut grants);
    let grants = without_duplicates(grants);
    guard_directories::check(request, &grants, &[&run_folder, worktree])?;
    let mut private = vec![home.as_path(), &tmp, &var_tmp];
    private.extend(request.checkout.iter().flat_map(|own| [own.worktree.as_path(), &own.git_folder]));
    let searched = nested_repositories::search(&grants, &folder, &private);
    let allow_unprotected = request.options.allow_unprotected_repositories;
    if !allow_unprotected {
        nested_repositories::check(&searched)?;
    }
    let snapshot = snapshot(request, &folder, &grants);
    let above = find_ancestor_configs(worktree, &grants);
    let (mut layers, linked_caches) = caches(&toolchains, &run_folder, &home, network.reaches_hosts());
    layers.extend(dependencies(request.checkout.as_ref(), &run_folder));
    let view = match namespaces {
        Namespaces::Off => MountPlan::default(),
        _ => mount_plan(request, &grants, &placeholders, &searched, layers, &mut notes),
    };
    let imports = imports(request, &home, &agent_paths, &mut notes);
    let mut plan = LaunchPlan {
        policy: policy.name.clone(),
        policy_extends: policy.extends.clone(),
        policy_file: Some(&policy.sources[policy.own_source()])
            .filter(|source| !source.built_in)
            .map(|source| source.name.clone()),
        argv: request.command.clone(),
        program,
        control: run_folder.join("control"),
        redact: policy.environment.redact.clone(),
        home_state: request.options.home_state.clone(),
        home_files: home_files(request, &network, &home, worktree),
        network,
        limits: request.limits(),
        namespaces,
        view,
        linked_caches,
        imports,
        shims,
        verify_exec: policy.sandbox.verify_exec && !request.options.no_verify,
        needs_view: nested_repositories::needs_mounts(&searched).filter(|_| !allow_unprotected),
        protected_repositories: searched
            .iter()
            .flat_map(|one| one.protected().map(Path::to_path_buf))
            .collect(),
        searched,
        snapshot,
        notes,
        run_id,
        checkout: request.checkout.clone(),
        folder,
        run_folder,
        home,
        tmp,
        environment,
        grants,
        settings_above: above.grants,
    };
    for (path, why) in above.withheld {
        if !plan.view_covers(&path) {
            let path = path.display();
            plan.notes.push(format!(
                "guard does not let the run read {path}, which {why}; build tools that need the file may fail. To let the run read it: `--read {path}`"
            ));
        }
    }
    Ok(plan)
}

/// Plans the snapshot of the directory of a run that has no worktree of its own.
fn snapshot(request: &RunRequest, folder: &Path, grants: &[Grant]) -> Option<SnapshotPlan> {
    let directory = match &request.checkout {
        None => folder,
        Some(checkout) if request.options.is_users_worktree => checkout.worktree.as_path(),
        Some(_) => return None,
    };
    let (max_bytes, max_ignored_bytes) = request.config.state.snapshot_bytes()?;
    let can_write = |grant: &Grant| {
        grant.rights.is_write() && (grant.path.starts_with(directory) || directory.starts_with(&grant.path))
    };
    grants.iter().any(can_write).then(|| SnapshotPlan {
        directory: directory.to_path_buf(),
        max_bytes,
        max_ignored_bytes,
        trusts_objects: !request.options.allow_unprotected_repositories,
    })
}

/// Returns the places in which agents may have written, before this run or at the same time.
fn agent_paths(request: &RunRequest, directory: &Path) -> Result<AgentPaths, LaunchError> {
    let state = request.runs.parent();
    let mut paths = AgentPaths::read(request.home.as_deref(), state).map_err(|error| {
        let state = state.unwrap_or(&request.runs).display();
        LaunchError::Input(format!("guard cannot read in {state} where agents have worked: {error}"))
    })?;
    // A run in a worktree does not write to the directory in which the user started it.
    if request.checkout.is_none() {
        paths.add(directory);
    }
    Ok(paths)
}

fn find_toolchains(request: &RunRequest, agent_paths: &AgentPaths) -> Vec<Toolchain> {
    let Some(home) = request.home.as_ref().filter(|_| !request.options.no_toolchains) else {
        return Vec::new();
    };
    let wanted = &request.policy.toolchains;
    toolchains::detect(home, &request.environment, &wanted.detect, wanted.caches, agent_paths)
}

/// Plans the shims. Returns `None` if the caller wants no shims. Also returns `None`, and adds a note with the reason,
/// if guard cannot use them.
fn shims(request: &RunRequest, notes: &mut Vec<String>) -> Option<Shims> {
    if request.options.no_shims {
        return None;
    }
    if let Some(problem) = why_no_shims(&request.runs) {
        notes.push(format!("the run has no shims (guard's wrappers of git and the shells): {problem}"));
        return None;
    }
    let path = value(&request.environment, "PATH").unwrap_or_default();
    Some(Shims::plan(&request.runs, &path))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Returns the path of the program that the first word of the command names. A word with a slash is a path relative to
/// `directory`. For any other word, guard searches the agent's PATH except the directory of the shims.
fn find_program(
    command: &[OsString],
    directory: &Path,
    environment: &[(OsString, OsString)],
    shims: Option<&Path>,
) -> Result<PathBuf, LaunchError> {
    let Some(name) = command.first().filter(|name| !name.is_empty()) else {
        return Err(LaunchError::Input("the command is missing; give it after `--`".to_string()));
    };
    if command.iter().any(|argument| argument.as_bytes().contains(&0)) {
        return Err(LaunchError::Input(
            "an argument of the command contains a NUL byte; remove the byte".to_string(),
        ));
    }
    let shown = || name.to_string_lossy().into_owned();
    if name.as_bytes().contains(&b'/') {
        let path = directory.join(name);
        return match path.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(LaunchError::CommandNotFound(shown()))
            }
            Err(error) => Err(LaunchError::NotExecutable { program: shown(), problem: error.to_string() }),
            Ok(_) if is_program(&path) => Ok(path),
            Ok(found) => Err(LaunchError::NotExecutable {
                program: shown(),
                problem: if found.is_dir() { "it is a directory" } else { "it is not executable" }
                    .to_string(),
            }),
        };
    }
    let path = value(environment, "PATH").unwrap_or_default();
    // Skip the shims: the supervisor judges the agent's own start like every other exec.
    std::env::split_paths(&path)
        .filter(|directory| Some(directory.as_path()) != shims)
        .map(|directory| directory.join(name))
        .find(|file| is_program(file))
        .ok_or_else(|| LaunchError::CommandNotFound(shown()))
}

/// Returns the mounts of a run with namespaces: the paths that the run sees, those that it may write, and those that
/// are hidden from it.
fn mount_plan(
    request: &RunRequest,
    grants: &[Grant],
    placeholders: &Placeholders<'_>,
    searched: &[SearchedDirectory],
    layers: Vec<Layer>,
    notes: &mut Vec<String>,
) -> MountPlan {
    let hidden = hidden_directories(request, notes);
    let private = [(placeholders.tmp, "/tmp"), (placeholders.var_tmp, "/var/tmp")];
    let private = private.into_iter().map(|(from, at)| (from.to_path_buf(), PathBuf::from(at)));
    let private = private.filter(|(_, at)| at.is_dir()).collect();
    // Resolve the path, because guard does not mount over a symbolic link.
    let memory = std::fs::canonicalize("/dev/shm").into_iter().filter(|at| at.is_dir()).collect();
    let mut view = MountPlan { private, memory, layers, ..MountPlan::default() };
    // A private directory already hides everything below it.
    let is_own = |path: &Path| view.own().any(|directory| path.starts_with(directory));
    let hidden: Vec<PathBuf> = hidden.into_iter().filter(|directory| !is_own(directory)).collect();
    let is_covered = |path: &Path| is_own(path) || hidden.iter().any(|directory| path.starts_with(directory));
    let mut writable: Vec<PathBuf> = Vec::new();
    let mut repositories: Vec<PathBuf> =
        searched.iter().flat_map(|one| one.protected().map(Path::to_path_buf)).collect();
    repositories.sort();
    let mut visible: Vec<PathBuf> = repositories.clone();
    for grant in grants {
        let path = grant.path.clone();
        if path.starts_with(placeholders.tmp) {
            // The run sees this directory as `/tmp` or `/var/tmp` instead.
            continue;
        }
        if grant.rights.is_write() {
            writable.push(path);
        } else if grant.rights != Rights::Device && is_covered(&path) {
            visible.push(path);
        }
    }
    writable.sort();
    writable.dedup();
    visible.sort();
    visible.dedup();
    // A mount of a writable directory already includes everything in it.
    let roots = writable.clone();
    visible.retain(|path| {
        repositories.binary_search(path).is_ok() || !roots.iter().any(|root| path.starts_with(root))
    });
    writable.extend(searched.iter().flat_map(SearchedDirectory::pinned));
    view.pointers = request.checkout.iter().flat_map(checkout::Checkout::mounted_files).collect();
    MountPlan { writable, visible, hidden, ..view }
}

/// Returns the directories that the run sees as empty: the user's home directory and the directory of all runs. Leaves
/// out a directory that contains system directories, and adds a note.
fn hidden_directories(request: &RunRequest, notes: &mut Vec<String>) -> Vec<PathBuf> {
    let mut hidden: Vec<PathBuf> = Vec::new();
    for directory in request.home.iter().chain([&request.runs]) {
        let Ok(directory) = std::fs::canonicalize(directory) else { continue };
        let system = ["/usr", "/etc", "/dev", "/proc", "/lib", "/bin", "/tmp"];
        if system.iter().any(|part| Path::new(part).starts_with(&directory)) {
            let path = directory.display();
            notes.push(format!(
                "guard does not hide {path} from the run, because the directory contains system directories"
            ));
            continue;
        }
        if !hidden.iter().any(|known| directory.starts_with(known)) {
            hidden.push(directory);
        }
    }
    hidden
}
