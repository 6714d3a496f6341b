//! Asking a tool for its defaults, once.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sha2::{Digest, Sha256};

use super::Search;
use crate::sys::programs::ProgramSearch;

/// How long a tool may think. npm takes half a second, and more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// A longer answer is none.
const LONGEST: usize = 4096;

/// Asks the first of these programs that is installed. An answer is believed as long as the program does not change.
pub(super) fn ask(search: &mut Search<'_>, programs: &[&str], arguments: &[&str]) -> Option<String> {
    let program = programs.iter().find_map(|name| installed(search, name))?;
    let real = program.canonicalize().ok()?;
    let metadata = real.metadata().ok()?;
    let mut key = Sha256::new();
    for part in [program.as_os_str(), real.as_os_str()].into_iter().chain(arguments.iter().map(OsStr::new)) {
        key.update(part.as_bytes());
        key.update([0]);
    }
    for number in [metadata.mtime(), metadata.mtime_nsec(), metadata.size().cast_signed()] {
        key.update(number.to_le_bytes());
    }
    let key: String = key.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let kept = search
        .base("XDG_CACHE_HOME", ".cache")
        .map(|cache| cache.join("guard").join(format!("{}-{key}", search.tool.name())));
    if let Some(answer) = kept.as_deref().and_then(|kept| std::fs::read_to_string(kept).ok()) {
        return Some(answer);
    }
    let answer = answer(&program, arguments, &environment(search))?;
    if let Some(kept) = kept {
        keep(&kept, &answer);
    }
    Some(answer)
}

/// The program as the user's PATH finds it; not one that an agent may have put there.
fn installed(search: &Search<'_>, name: &str) -> Option<PathBuf> {
    let is_wanted = |file: &Path| {
        let is_listed = std::env::split_paths(search.variable("PATH").unwrap_or_default())
            .any(|folder| file.parent() == Some(&folder));
        is_listed && !search.is_agents(file) && file.parent().is_some_and(|folder| !search.is_agents(folder))
    };
    programs(search).find_if(name, is_wanted).ok()
}

fn programs(search: &Search<'_>) -> ProgramSearch {
    ProgramSearch::new(search.variable("PATH").unwrap_or_default(), search.home)
}

/// The user's environment, without what makes interpreters find something of an agent's.
fn environment(search: &Search<'_>) -> Vec<(OsString, OsString)> {
    let leads_astray = |name: &OsStr| {
        let name = name.as_bytes();
        name == b"PATH" || [&b"NODE_"[..], b"PYTHON"].iter().any(|start| name.starts_with(start))
    };
    let others = search.environment.iter().filter(|(name, _)| !leads_astray(name)).cloned();
    let path = programs(search).path();
    let folders = std::env::split_paths(&path).filter(|folder| !search.is_agents(folder));
    others.chain(std::env::join_paths(folders).ok().map(|path| ("PATH".into(), path))).collect()
}

/// What a program prints, if it works and does not take for ever.
fn answer(program: &Path, arguments: &[&str], environment: &[(OsString, OsString)]) -> Option<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(environment.iter().map(|(key, value)| (key, value)))
        // Tools look for settings where they are; and Python for modules.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .ok()?;
    let printed = printed(&mut child, deadline);
    if printed.is_none() {
        // With what it started: it is a group of its own.
        let group = i32::try_from(child.id()).ok().map(nix::unistd::Pid::from_raw)?;
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
    }
    let status = child.wait().ok()?;
    let text = String::from_utf8(printed?).ok()?;
    status.success().then(|| text.trim().to_string()).filter(|text| !text.is_empty())
}

/// Reads to the end of the output, without a thread: guard has only one until the run is started.
fn printed(child: &mut Child, deadline: Instant) -> Option<Vec<u8>> {
    let mut output = child.stdout.take()?;
    let mut printed = Vec::new();
    loop {
        let left = deadline.checked_duration_since(Instant::now())?;
        let timeout = PollTimeout::try_from(left).ok()?;
        let mut waiting = [PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waiting, timeout) {
            Ok(0) => return None,
            Err(nix::errno::Errno::EINTR) => continue,
            Err(_) => return None,
            Ok(_) => {}
        }
        let mut piece = [0; 1024];
        match output.read(&mut piece).ok()? {
            0 => break,
            length => printed.extend_from_slice(&piece[..length]),
        }
        if printed.len() > LONGEST {
            return None;
        }
    }
    // It has closed its output, but may go on without.
    while matches!(child.try_wait(), Ok(None)) {
        deadline.checked_duration_since(Instant::now())?;
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(printed)
}

/// Keeps an answer for next time. Without, it is asked again.
fn keep(place: &Path, answer: &str) {
    let Some(folder) = place.parent() else { return };
    let new = folder.join(format!(".new-{}", std::process::id()));
    // Renamed into place: two guards may do this at once.
    let _ = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&new, answer))
        .and_then(|()| std::fs::rename(&new, place));
}
