//! The run's cgroups (version 1 or 2), which limit the number of its processes and its memory.
//!
//! guard creates cgroups if the user has the right to. Otherwise another mechanism limits the number of processes,
//! and nothing limits the memory. [`Group`] says which limits are in force.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::run::launch::plan::Limits;

/// The cgroups of a run. guard removes them when the run is over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Group {
    directories: Vec<PathBuf>,
    /// True if a cgroup enforces the memory limit.
    pub(crate) bounds_memory: bool,
    pub(crate) process_bound: ProcessBound,
    /// A problem that guard had while it created the cgroups; empty if it had none. There can be a problem although
    /// cgroups enforce all limits, because guard may have succeeded with the other cgroup version.
    pub(crate) problem: String,
}

/// The mechanism that enforces the limit on the number of processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ProcessBound {
    #[default]
    None,
    Cgroup,
    /// `RLIMIT_NPROC`, which the kernel applies to every user but root.
    Rlimit,
    /// The supervisor, which the kernel notifies of every fork.
    Supervisor,
}

impl ProcessBound {
    /// Returns the name of the mechanism as the run's result shows it; `None` if there is no limit.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Cgroup => Some("cgroup"),
            Self::Rlimit => Some("rlimit"),
            Self::Supervisor => Some("supervisor"),
        }
    }
}

impl Group {
    /// Creates the cgroups that this user may create. Does not fail if the user may create none; the caller then
    /// reports which limits are not enforced. Without a cgroup, `RLIMIT_NPROC` limits the number of processes or, for
    /// root, the supervisor does.
    pub(crate) fn make(run_id: &str, limits: &Limits, is_root: bool) -> Self {
        let mut group = Self::default();
        group.create_cgroups(run_id, limits);
        if limits.processes.is_some() && group.process_bound == ProcessBound::None {
            group.process_bound = if is_root { ProcessBound::Supervisor } else { ProcessBound::Rlimit };
        }
        group
    }

    fn create_cgroups(&mut self, run_id: &str, limits: &Limits) {
        let group = self;
        let Ok(own) = std::fs::read_to_string("/proc/self/cgroup") else {
            group.problem = "/proc/self/cgroup cannot be read".to_string();
            return;
        };
        let name = format!("guard-{run_id}");
        let memory = limits.memory_mib.map(|mib| mib.saturating_mul(1 << 20));
        let processes = limits.processes;
        for line in own.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            match controllers {
                "" => {
                    let own = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'));
                    let memory = memory.filter(|_| !group.bounds_memory);
                    let processes = processes.filter(|_| group.process_bound == ProcessBound::None);
                    group.create_v2(&own, &name, memory, processes);
                }
                "pids" if processes.is_some() && group.process_bound == ProcessBound::None => {
                    let directory =
                        Path::new("/sys/fs/cgroup/pids").join(path.trim_start_matches('/')).join(&name);
                    if group.add(&directory, &[("pids.max", processes)]) {
                        group.process_bound = ProcessBound::Cgroup;
                    }
                }
                "memory" if memory.is_some() && !group.bounds_memory => {
                    let directory =
                        Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')).join(&name);
                    group.bounds_memory = group.add(&directory, &[("memory.limit_in_bytes", memory)]);
                }
                _ => {}
            }
        }
    }

    /// Creates a version 2 cgroup as a sibling of `own`, guard's own cgroup, with those limits whose controllers the
    /// parent enables. A child cgroup is not possible: a cgroup that contains processes cannot enable controllers for
    /// its children. If the cgroup does not enforce all limits, there is a `problem` afterwards.
    fn create_v2(&mut self, own: &Path, name: &str, memory: Option<u64>, processes: Option<u64>) {
        if memory.is_none() && processes.is_none() {
            return;
        }
        let Some(parent) = own.parent().filter(|parent| parent.join("cgroup.subtree_control").exists())
        else {
            if self.problem.is_empty() {
                self.problem = format!("the parent of {} has no cgroup.subtree_control", own.display());
            }
            return;
        };
        let enabled = std::fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
        let has = |controller: &str| enabled.split_whitespace().any(|enabled| enabled == controller);
        let wanted = [("memory", memory.is_some()), ("pids", processes.is_some())];
        let missing: Vec<&str> = wanted
            .into_iter()
            .filter(|(controller, is_wanted)| *is_wanted && !has(controller))
            .map(|(controller, _)| controller)
            .collect();
        if !missing.is_empty() && self.problem.is_empty() {
            self.problem = format!(
                "{} does not enable the {} controller in cgroup.subtree_control",
                parent.display(),
                missing.join(" or ")
            );
        }
        let memory = memory.filter(|_| has("memory"));
        let processes = processes.filter(|_| has("pids"));
        if memory.is_none() && processes.is_none() {
            return;
        }
        if self.add(&parent.join(name), &[("memory.max", memory), ("pids.max", processes)]) {
            self.bounds_memory |= memory.is_some();
            if processes.is_some() {
                self.process_bound = ProcessBound::Cgroup;
            }
        }
    }

    /// Creates one cgroup and writes its limits: (file, value). Returns true if it could create the cgroup with all
    /// limits; otherwise sets `problem`. Also removes the abandoned cgroups beside the new one.
    fn add(&mut self, directory: &Path, limits: &[(&str, Option<u64>)]) -> bool {
        if let Err(error) = std::fs::create_dir(directory) {
            self.problem = format!("cannot create {}: {error}", directory.display());
            return false;
        }
        directory.parent().into_iter().for_each(remove_abandoned);
        for (file, value) in limits {
            let Some(value) = value else { continue };
            if let Err(error) = std::fs::write(directory.join(file), value.to_string()) {
                self.problem = format!("cannot write {}: {error}", directory.join(file).display());
                let _ = std::fs::remove_dir(directory);
                return false;
            }
        }
        self.directories.push(directory.to_path_buf());
        true
    }

    /// Moves the calling process, which must have only one thread, into the cgroups. The processes that it starts will
    /// be in the same cgroups.
    pub(crate) fn join(&self) -> std::io::Result<()> {
        for directory in &self.directories {
            let open = |file: &str| std::fs::OpenOptions::new().write(true).open(directory.join(file));
            // Only version 1 has `tasks`. A write there moves one thread without waiting for an RCU grace period. A
            // write to `cgroup.procs` of version 1 waited 16 ms for it, which was half the time of the launch.
            open("tasks").or_else(|_| open("cgroup.procs"))?.write_all(b"0")?;
        }
        Ok(())
    }

    /// Returns true if the kernel killed a process of the run because the run reached its memory limit. Always false if
    /// no cgroup enforces a memory limit.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        // The counter `oom_kill` has the same name in cgroup versions 1 and 2.
        let has_killed = |directory: &PathBuf| {
            let texts = ["memory.events", "memory.oom_control"]
                .map(|file| std::fs::read_to_string(directory.join(file)));
            texts.iter().flatten().flat_map(|text| text.lines()).any(|line| {
                line.strip_prefix("oom_kill ")
                    .and_then(|count| count.parse::<u64>().ok())
                    .is_some_and(|count| count > 0)
            })
        };
        self.bounds_memory && self.directories.iter().any(has_killed)
    }

    /// Removes the cgroups, whose processes must all have been killed. After [`MAX_TRIES`] attempts, leaves a cgroup
    /// that is still busy to a later run ([`remove_abandoned`]).
    pub(crate) fn remove(&self) {
        for directory in &self.directories {
            // A process that was just killed may still be in the cgroup.
            for _ in 0..MAX_TRIES {
                match std::fs::remove_dir(directory) {
                    Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// The maximum number of attempts to remove a cgroup, with a millisecond between them.
const MAX_TRIES: usize = 100;

/// The minimum age of another run's cgroup before guard removes it: a younger one may be empty because that run has
/// not yet moved its init into it.
const MIN_AGE: Duration = Duration::from_secs(60);

/// Removes the cgroups that earlier runs left, for example because their guard process was killed, if they are older
/// than [`MIN_AGE`]. The kernel refuses to remove cgroups that contain processes.
fn remove_abandoned(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(b"guard-");
        let modified = || entry.metadata().and_then(|found| found.modified());
        if is_ours && modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > MIN_AGE)) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Returns the number of threads on the whole machine, from `/proc/loadavg`; 0 if guard cannot read that file. Reading
/// the file is faster than listing `/proc`.
pub(crate) fn threads_on_machine() -> u64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let counts = text.split_whitespace().nth(3).unwrap_or_default();
    counts.split('/').nth(1).and_then(|total| total.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_controller_is_named() {
        let directory = std::env::temp_dir().join(format!("guard-cgroup-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let made = |enabled: &str, memory: Option<u64>, processes: Option<u64>| {
            let parent = directory.join(format!("{enabled}-{}-{}", memory.is_some(), processes.is_some()));
            std::fs::create_dir_all(&parent).unwrap_or_else(|error| panic!("{error}"));
            std::fs::write(parent.join("cgroup.subtree_control"), enabled)
                .unwrap_or_else(|error| panic!("{error}"));
            let mut group = Group::default();
            group.create_v2(&parent.join("own"), "guard-test", memory, processes);
            let problem = group.problem.replace(&parent.display().to_string(), "parent");
            (group.bounds_memory, group.process_bound, problem)
        };
        let missing =
            |names: &str| format!("parent does not enable the {names} controller in cgroup.subtree_control");
        assert_eq!(made("memory pids", Some(1), Some(1)), (true, ProcessBound::Cgroup, String::new()));
        assert_eq!(made("pids", Some(1), Some(1)), (false, ProcessBound::Cgroup, missing("memory")));
        assert_eq!(made("memory", Some(1), Some(1)), (true, ProcessBound::None, missing("pids")));
        assert_eq!(made("cpu", Some(1), Some(1)), (false, ProcessBound::None, missing("memory or pids")));
        assert_eq!(made("cpu", Some(1), None), (false, ProcessBound::None, missing("memory")));
        assert_eq!(made("cpu", None, None), (false, ProcessBound::None, String::new()));
        // A cgroup of version 1 already enforces the memory limit.
        let parent = directory.join("mixed");
        std::fs::create_dir_all(&parent).unwrap_or_else(|error| panic!("{error}"));
        std::fs::write(parent.join("cgroup.subtree_control"), "pids")
            .unwrap_or_else(|error| panic!("{error}"));
        let mut group = Group { bounds_memory: true, ..Group::default() };
        group.create_v2(&parent.join("own"), "guard-test", None, Some(1));
        assert_eq!((group.bounds_memory, group.process_bound), (true, ProcessBound::Cgroup));
        let _ = std::fs::remove_dir_all(&directory);
    }
}
