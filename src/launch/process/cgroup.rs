//! A cgroup of the run's own, where one can be made: the number of its processes and its memory.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::launch::plan::Limits;

/// The groups made for a run; removed when it is over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Group {
    folders: Vec<PathBuf>,
    /// The memory bound is in force.
    pub(crate) bounds_memory: bool,
    /// What bounds the number of processes.
    pub(crate) process_bound: ProcessBound,
    /// Why a group could not be made; empty where it was not tried or was made.
    pub(crate) problem: String,
}

/// What holds a run to its limit on processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ProcessBound {
    /// There is no limit.
    #[default]
    None,
    /// The cgroup.
    Cgroup,
    /// `RLIMIT_NPROC`, which the kernel applies to every user but root.
    Rlimit,
    /// The supervisor, which is asked about every fork.
    Supervisor,
}

impl ProcessBound {
    /// As a result names it.
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
    /// Makes what the machine lets this user make. Nothing is no failure: the caller says what is not bounded. Root's
    /// processes are counted by the supervisor where no group counts them.
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

    /// Beside the group this process is in: one that has processes cannot have groups with bounds below it.
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

    /// Puts this process, and so all it starts, into the groups.
    pub(crate) fn join(&self) -> std::io::Result<()> {
        for folder in &self.folders {
            std::fs::OpenOptions::new().write(true).open(folder.join("cgroup.procs"))?.write_all(b"0")?;
        }
        Ok(())
    }

    /// Whether the kernel killed something of the run because its memory was used up.
    pub(crate) fn ran_out_of_memory(&self) -> bool {
        // The counter has the same name in both versions of cgroups.
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

    /// Removes the groups, which must be empty.
    pub(crate) fn remove(&self) {
        for folder in &self.folders {
            // What was killed a moment ago may still be in it.
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

/// How often it is tried to remove a group, once in a millisecond.
const MOST_TRIES: usize = 100;

/// Longer than any run needs from the making of its group to init in it.
const FRESH: Duration = Duration::from_secs(60);

/// Removes the groups of runs whose supervisor was killed. One that still has processes refuses.
fn sweep(beside: &Path) {
    for entry in std::fs::read_dir(beside).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(b"guard-");
        let modified = || entry.metadata().and_then(|found| found.modified());
        if is_ours && modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > FRESH)) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// Threads alive on the whole machine, cheaply.
pub(crate) fn threads_on_machine() -> u64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let counts = text.split_whitespace().nth(3).unwrap_or_default();
    counts.split('/').nth(1).and_then(|total| total.parse().ok()).unwrap_or(0)
}
