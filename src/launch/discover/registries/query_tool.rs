//! Asks a package tool for its defaults and caches the answer: by what the tool prints, or by the host it requests
//! first.
//!
//! This module must never run a program, or let one read a file, that an agent may have written. It must not start a
//! thread, because guard has only one until the run is started.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sha2::{Digest, Sha256};

use super::Search;
use crate::sys::programs::ProgramSearch;
use crate::transcript::base64;

/// How long a tool may take. npm takes half a second, and more on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to check whether a program that has requested nothing still runs.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// A longer answer is ignored.
const LONGEST: usize = 4096;

/// Runs the first of these programs that is installed, and returns what it prints.
pub(crate) fn ask(search: &Search<'_>, programs: &[&str], arguments: &[&str]) -> Option<String> {
    remembered(search, programs, arguments, |program| answer(program, arguments, &environment(search)))
}

/// The `host:port` that a program fetches from first, for a program that does not print it. guard listens as the
/// program's proxy, reads the host and closes the connection. `proxied` returns the variables that name this proxy, and
/// gets a directory that the program may write to.
pub(crate) fn first_host(
    search: &Search<'_>,
    programs: &[&str],
    arguments: &[&str],
    proxied: impl Fn(&str, &Path) -> Vec<(OsString, OsString)>,
) -> Option<String> {
    remembered(search, programs, arguments, |program| {
        let word = uuid::Uuid::new_v4().simple().to_string();
        let folder = std::env::temp_dir().join(format!("guard-{word}"));
        std::fs::DirBuilder::new().mode(0o700).create(&folder).ok()?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).ok();
        let heard = listener.and_then(|listener| {
            let port = listener.local_addr().ok()?.port();
            let mut environment = environment(search);
            environment.extend(proxied(&format!("http://guard:{word}@127.0.0.1:{port}"), &folder));
            let mut child = start(program, arguments, &environment, Stdio::null())?;
            let heard = heard(&listener, &word, &mut child);
            end(&child);
            let _ = child.wait();
            heard
        });
        let _ = std::fs::remove_dir_all(&folder);
        heard
    })
}

/// The result of `ask`, or the cached one if the program has not changed.
fn remembered(
    search: &Search<'_>,
    programs: &[&str],
    arguments: &[&str],
    ask: impl FnOnce(&Path) -> Option<String>,
) -> Option<String> {
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
    let answer = ask(&program)?;
    if let Some(kept) = kept {
        keep(&kept, &answer);
    }
    Some(answer)
}

/// The program that the user's PATH finds, unless an agent may have put it there.
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

/// The user's environment, without variables that could make an interpreter load an agent's files.
fn environment(search: &Search<'_>) -> Vec<(OsString, OsString)> {
    let leads_astray = |name: &OsStr| {
        let name = name.as_bytes();
        name == b"PATH"
            || name.to_ascii_lowercase().ends_with(b"_proxy")
            || [&b"NODE_"[..], b"PYTHON"].iter().any(|start| name.starts_with(start))
    };
    let others = search.environment.iter().filter(|(name, _)| !leads_astray(name)).cloned();
    let path = programs(search).path();
    let folders = std::env::split_paths(&path).filter(|folder| !search.is_agents(folder));
    others.chain(std::env::join_paths(folders).ok().map(|path| ("PATH".into(), path))).collect()
}

/// Starts a program in a process group of its own.
fn start(
    program: &Path,
    arguments: &[&str],
    environment: &[(OsString, OsString)],
    output: Stdio,
) -> Option<Child> {
    Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(environment.iter().map(|(key, value)| (key, value)))
        // Tools look for settings in the working directory, and Python for modules.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .ok()
}

/// Kills a program and everything in its process group.
fn end(child: &Child) {
    if let Ok(group) = i32::try_from(child.id()).map(nix::unistd::Pid::from_raw) {
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
    }
}

/// What a program prints, if it succeeds within the time limit.
fn answer(program: &Path, arguments: &[&str], environment: &[(OsString, OsString)]) -> Option<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut child = start(program, arguments, environment, Stdio::piped())?;
    let printed = printed(&mut child, deadline);
    if printed.is_none() {
        end(&child);
    }
    let status = child.wait().ok()?;
    let text = String::from_utf8(printed?).ok()?;
    status.success().then(|| text.trim().to_string()).filter(|text| !text.is_empty())
}

/// The host that the program requests from its proxy. Any process on the machine can connect to this port, and the host
/// becomes a permission. So the proxy requires a password that only the program knows.
fn heard(listener: &TcpListener, word: &str, child: &mut Child) -> Option<String> {
    let password = format!("Basic {}", base64(format!("guard:{word}").as_bytes()));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.checked_duration_since(Instant::now())?;
        let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(left.min(LOOK_AGAIN)).ok()?;
        let is_over = !matches!(child.try_wait(), Ok(None));
        match poll(&mut waiting, patience) {
            Ok(0) if is_over => return None,
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Err(_) => return None,
            Ok(_) => {}
        }
        let Ok((stream, _)) = listener.accept() else { continue };
        if let Some(host) = asked_for(stream, &password) {
            return Some(host);
        }
    }
}

/// The host of a CONNECT request with this password.
fn asked_for(mut stream: TcpStream, password: &str) -> Option<String> {
    // A silent client must not block the program's own connection for long.
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).ok()? {
            0 => return None,
            length => request.extend_from_slice(&piece[..length]),
        }
        (request.len() <= LONGEST).then_some(())?;
    }
    let text = String::from_utf8(request).ok()?;
    let mut lines = text.lines();
    let host = lines.next()?.strip_prefix("CONNECT ")?.split(' ').next()?;
    let is_password = |line: &str| {
        line.split_once(": ").is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("proxy-authorization") && value == password
        })
    };
    lines.any(is_password).then(|| host.to_string())
}

/// Reads the output to its end, without a thread: guard has only one until the run is started.
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
    // The program has closed its output but may still run.
    while matches!(child.try_wait(), Ok(None)) {
        deadline.checked_duration_since(Instant::now())?;
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(printed)
}

/// Caches an answer. If that fails, the tool is asked again next time.
fn keep(place: &Path, answer: &str) {
    let Some(folder) = place.parent() else { return };
    let new = folder.join(format!(".new-{}", std::process::id()));
    // Renamed into place, because two guard processes may do this at once.
    let _ = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&new, answer))
        .and_then(|()| std::fs::rename(&new, place));
}
