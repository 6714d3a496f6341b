//! Plans which paths a run may read, write and execute: those in the policy, those in the caller's options, and those
//! of the program.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::environment::value;
use super::error::LaunchError;
use super::request::RunRequest;
use super::system_paths;
use crate::run::launch::discover::program_files::{Scope, installation};
use crate::run::launch::discover::toolchains::Toolchain;
use crate::sandbox::{Grant, Rights};
use crate::sys::agent_paths::{AgentPaths, Resolved};

/// The values of the placeholders in a policy's paths.
pub(super) struct Placeholders<'p> {
    pub(super) worktree: &'p Path,
    pub(super) home: &'p Path,
    pub(super) tmp: &'p Path,
    pub(super) var_tmp: &'p Path,
    pub(super) toolchains: &'p [Toolchain],
    /// The grants for the policy placeholder `{system}` (the directories of programs and libraries) and the notes about
    /// them. Computed on first use, because finding them takes time.
    pub(super) system: OnceCell<(Vec<Grant>, Vec<String>)>,
}

impl Placeholders<'_> {
    pub(super) fn system(&self, as_root: bool) -> &(Vec<Grant>, Vec<String>) {
        self.system.get_or_init(|| {
            let mut notes = Vec::new();
            let grants = system_paths::grants(as_root, &mut notes);
            (grants, notes)
        })
    }

    /// Returns the grants for one path in a policy. The path may begin with a placeholder such as `{home}`. Returns no
    /// grants for an unknown placeholder. The grants for `{system}` and `{toolchains}` have rights of their own; all
    /// others get `rights`.
    fn expand(&self, entry: &str, rights: Rights, as_root: bool) -> Vec<Grant> {
        let (name, rest) = match entry.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((name, rest)) => (name, rest.trim_start_matches('/')),
            None => return vec![Grant { path: PathBuf::from(entry), rights, why: "policy".to_string() }],
        };
        let one = |base: &Path, why: &str| {
            let path = if rest.is_empty() { base.to_path_buf() } else { base.join(rest) };
            vec![Grant { path, rights, why: why.to_string() }]
        };
        match name {
            "worktree" => one(self.worktree, "working directory"),
            "home" => one(self.home, "private home"),
            "tmp" => one(self.tmp, "private temporary files"),
            "system" => self.system(as_root).0.clone(),
            "toolchains" => self.toolchains.iter().flat_map(toolchain_grants).collect(),
            // `{artifact}` stands for the documents of a task's step, which the task grants with `--write`.
            _ => Vec::new(),
        }
    }
}

fn toolchain_grants(toolchain: &Toolchain) -> Vec<Grant> {
    let caches = toolchain.layers.iter().map(|layer| (&layer.lower, Rights::Read));
    let programs = toolchain.read.iter().map(|path| (path, Rights::ReadExecute));
    let grant = |(path, rights): (&PathBuf, Rights)| Grant {
        path: path.clone(),
        rights,
        why: format!("toolchain {}: {}", toolchain.name, toolchain.why),
    };
    programs.chain(caches).map(grant).collect()
}

pub(super) fn policy_grants(
    request: &RunRequest,
    placeholders: &Placeholders<'_>,
    agent_paths: &AgentPaths,
    notes: &mut Vec<String>,
) -> Result<Vec<Grant>, LaunchError> {
    let files = &request.policy.filesystem;
    let as_root = request.uid == 0;
    let mut grants: Vec<Grant> = Vec::new();
    // The run's private directories need not exist yet. Skip other paths that do not exist, and paths to which a link of
    // an earlier run leads, and add a note.
    let mut is_usable = |grant: &Grant| {
        let is_planned = request.checkout.is_some() && grant.path.starts_with(placeholders.worktree);
        let is_private = is_planned
            || grant.path.starts_with(placeholders.home)
            || grant.path.starts_with(placeholders.tmp);
        let problem = match agent_paths.resolve(&grant.path).map(Resolved::own) {
            Ok(Ok(_)) => return true,
            Ok(Err(link)) => link.to_string(),
            Err(_) if is_private => return true,
            Err(_) => "the path does not exist".to_string(),
        };
        notes.push(format!("guard ignores the policy's grant of {}: {problem}", grant.path.display()));
        false
    };
    for (entries, rights) in [(&files.read, Rights::ReadExecute), (&files.write, Rights::WriteExecute)] {
        for entry in entries {
            let named = placeholders.expand(entry, rights, as_root);
            if entry == "{system}" {
                grants.extend(named);
            } else {
                grants.extend(named.into_iter().filter(&mut is_usable));
            }
        }
    }
    let given = [
        ("--read", &request.options.read, Rights::ReadExecute),
        ("--write", &request.options.write, Rights::WriteExecute),
    ];
    for (option, paths, rights) in given {
        for path in paths {
            let resolved = agent_paths.resolve(path).map_err(|error| match error.kind() {
                ErrorKind::NotFound => LaunchError::GrantedPathMissing { option, path: path.clone() },
                _ => LaunchError::Input(format!("cannot grant {}: {error}", path.display())),
            })?;
            match resolved.own() {
                Ok(path) => grants.push(Grant { path, rights, why: "command line".to_string() }),
                // The link adds nothing to what the run may do.
                Err(link) if covers(&grants, &link.target, rights) => {}
                Err(link) => {
                    let path = path.display();
                    return Err(LaunchError::Input(format!("{option} {path}: {link}; give the real path")));
                }
            }
        }
    }
    if let Some(execute) = &files.execute {
        let directories: Vec<PathBuf> = execute
            .iter()
            .flat_map(|entry| placeholders.expand(entry, Rights::ReadExecute, as_root))
            .filter(|grant| grant.path.symlink_metadata().is_err() || is_usable(grant))
            .map(|grant| grant.path)
            .collect();
        for grant in &mut grants {
            if !directories.iter().any(|directory| grant.path.starts_with(directory)) {
                grant.rights = match grant.rights {
                    Rights::ReadExecute => Rights::Read,
                    Rights::WriteExecute => Rights::Write,
                    other => other,
                };
            }
        }
        // A directory of programs may be inside a directory in which the run may not execute files, so it needs its
        // own grant.
        grants.extend(directories.into_iter().filter(|path| path.exists()).map(|path| Grant {
            path,
            rights: Rights::ReadExecute,
            why: "policy: programs".to_string(),
        }));
    }
    Ok(grants)
}

/// Returns true if one of the grants includes these rights for a real path.
fn covers(grants: &[Grant], real: &Path, rights: Rights) -> bool {
    let includes = |grant: &Grant| grant.rights == rights || grant.rights.exceeds(rights);
    grants.iter().any(|grant| includes(grant) && real.starts_with(&grant.path))
}

/// Returns read and execute grants for the files of the program's installation: the program, its interpreters, and the
/// packages or installation prefixes that contain them. Returns none if the run may write a path that leads to the
/// program. Adds a note for each file that guard leaves out because only an agent may have named it.
pub(super) fn program_grants(
    request: &RunRequest,
    program: &Path,
    environment: &[(OsString, OsString)],
    grants: &[Grant],
    agent_paths: &AgentPaths,
    notes: &mut Vec<String>,
) -> Vec<Grant> {
    let writable: Vec<PathBuf> =
        grants.iter().filter(|grant| grant.rights.is_write()).map(|grant| grant.path.clone()).collect();
    let path = value(environment, "PATH").unwrap_or_default();
    let home = request.home.clone().unwrap_or_default();
    let scope = Scope {
        home: &home,
        path: &path,
        writable: &writable,
        agent_paths,
        is_granted: &|real| covers(grants, real, Rights::ReadExecute),
    };
    let found = installation(program, &scope);
    notes.extend(found.notes);
    let why = "the program's installation";
    let grant = |path| Grant { path, rights: Rights::ReadExecute, why: why.to_string() };
    found.paths.into_iter().map(grant).collect()
}

pub(super) fn without_duplicates(grants: Vec<Grant>) -> Vec<Grant> {
    let mut seen: std::collections::HashSet<(PathBuf, Rights)> = std::collections::HashSet::new();
    grants.into_iter().filter(|grant| seen.insert((grant.path.clone(), grant.rights))).collect()
}
