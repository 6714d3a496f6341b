//! The run's cgroups, which bound its number of processes and its memory, with cgroup version 1 or 2.
//!
//! They are created only where the user has the right to. Where they cannot be, another mechanism bounds the number of
//! processes and nothing bounds the memory; [`Group`] says which bounds are in force.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::launch::plan::Limits;

/// The cgroups created for a run. They are removed when the run is over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Group {
    folders: Vec<PathBuf>,
    /// The memory limit is in force.
    pub(crate) bounds_memory: bool,
    /// What enforces the limit on processes.
    pub(crate) process_bound: ProcessBound,
    /// Why no cgroup could be created. Empty if none was needed or all were created.
    pub(crate) problem: String,
}

/// The mechanism that enforces the limit on processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ProcessBound {
    /// The run has no such limit.
    #[default]
    None,
    Cgroup,
    /// `RLIMIT_NPROC`, which the kernel applies to every user but root.
    Rlimit,
    /// The supervisor, which is notified of every fork.
    Supervisor,
}

impl ProcessBound {
    /// The name used in the run's result.
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
    /// Creates the cgroups that this user may create. Creating none is not an error: the caller reports which limits
    /// are not enforced. Without a cgroup, the supervisor counts root's processes and `RLIMIT_NPROC` those of other
    /// users.
    pub(crate) fn make(run_id: &str, limits: &Limits, is_root: bool) -> Self {
        let mut group = Self::default();
        group.make_folders(run_id, limits);
        if limits.processes.is_some() && group.process_bound == ProcessBound::None {
            group.process_bound = if is_root { ProcessBound::Supervisor } else { ProcessBound::Rlimit };
        }
        group
    }

    fn make_folders(&mut self, run_id: &str, limits: &Limits) {
        let group = self;
        let Ok(own) = std::fs::read_to_string("/proc/self/cgroup") else {
            group.problem = "this process is in none".to_string();
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
                "" => group.unified(path, &name, memory, processes),
                "pids" if processes.is_some() && group.process_bound == ProcessBound::None => {
                    let folder =
                        Path::new("/sys/fs/cgroup/pids").join(path.trim_start_matches('/')).join(&name);
                    if group.add(&folder, &[("pids.max", processes)]) {
                        group.process_bound = ProcessBound::Cgroup;
                    }
                }
                "memory" if memory.is_some() && !group.bounds_memory => {
                    let folder =
                        Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')).join(&name);
                    group.bounds_memory = group.add(&folder, &[("memory.limit_in_bytes", memory)]);
                }
                _ => {}
            }
        }
    }

    /// Creates the cgroup (version 2) as a sibling of guard's own: a cgroup with processes in it cannot enable
    /// controllers for children.
    fn unified(&mut self, path: &str, name: &str, memory: Option<u64>, processes: Option<u64>) {
        let own = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'));
        let Some(beside) = own.parent().filter(|beside| beside.join("cgroup.subtree_control").exists())
        else {
            if self.problem.is_empty() {
                self.problem = format!("there are no groups beside {}", own.display());
            }
            return;
        };
        let enabled = std::fs::read_to_string(beside.join("cgroup.subtree_control")).unwrap_or_default();
        let has = |controller: &str| enabled.split_whitespace().any(|word| word == controller);
        let memory = memory.filter(|_| has("memory"));
        let processes = processes.filter(|_| has("pids"));
        if memory.is_none() && processes.is_none() {
            self.problem = format!("{} hands no controller of memory or processes on", beside.display());
            return;
        }
        if self.add(&beside.join(name), &[("memory.max", memory), ("pids.max", processes)]) {
            self.bounds_memory = memory.is_some();
            if processes.is_some() {
                self.process_bound = ProcessBound::Cgroup;
            }
        }
    }

    fn add(&mut self, folder: &Path, bounds: &[(&str, Option<u64>)]) -> bool {
        if let Err(error) = std::fs::create_dir(folder) {
            self.problem = format!("{}: {error}", folder.display());
            return false;
        }
        folder.parent().into_iter().for_each(sweep);
        for (file, value) in bounds {
            let Some(value) = value else { continue };
            if let Err(error) = std::fs::write(folder.join(file), value.to_string()) {
                self.problem = format!("{}: {error}", folder.join(file).display());
                let _ = std::fs::remove_dir(folder);
                return false;
            }
        }
        self.folders.push(folder.to_path_buf());
        true
    }

    /// Moves the calling process, and so everything it starts, into the cgroups.
    pub(crate) fn join(&self) -> std::io::Result<()> {
        for folder in &self.folders {
            std::fs::OpenOptions::new().write(true).open(folder.join("cgroup.procs"))?.write_all(b"0")?;
        }
        Ok(())
    }

    /// Whether the kernel killed a process of the run because its memory limit was reached.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        // The counter has the same name in cgroup versions 1 and 2.
        let killed = |folder: &PathBuf| {
            let texts = ["memory.events", "memory.oom_control"]
                .map(|file| std::fs::read_to_string(folder.join(file)));
            texts.iter().flatten().flat_map(|text| text.lines()).any(|line| {
                line.strip_prefix("oom_kill ")
                    .and_then(|count| count.parse::<u64>().ok())
                    .is_some_and(|count| count > 0)
            })
        };
        self.bounds_memory && self.folders.iter().any(killed)
    }

    /// Removes the cgroups, which must be empty.
    pub(crate) fn remove(&self) {
        for folder in &self.folders {
            // A process that was just killed may still be in it.
            for _ in 0..MOST_TRIES {
                match std::fs::remove_dir(folder) {
                    Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// How often to try to remove a cgroup, with a millisecond between the tries.
const MOST_TRIES: usize = 100;

/// A run moves its init into a new cgroup within less than this time.
const FRESH: Duration = Duration::from_secs(60);

/// Removes the cgroups of runs whose supervisor was killed. The kernel keeps those that still have processes.
fn sweep(beside: &Path) {
    for entry in std::fs::read_dir(beside).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(b"guard-");
        let modified = || entry.metadata().and_then(|found| found.modified());
        if is_ours && modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > FRESH)) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// The number of threads on the whole machine, from one small file instead of a walk through `/proc`.
pub(crate) fn threads_on_machine() -> u64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let counts = text.split_whitespace().nth(3).unwrap_or_default();
    counts.split('/').nth(1).and_then(|total| total.parse().ok()).unwrap_or(0)
}
