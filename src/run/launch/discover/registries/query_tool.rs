//! Runs a package tool to learn its default host, and caches the answer. Either the tool prints the host, or guard
//! acts as the tool's proxy and reads the host of the tool's first request.
//!
//! This module must never run a program that an agent may have written, or let a program read a file that an agent
//! may have written. It must not start a thread, because guard must have only one thread until it has started the
//! run.

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

use super::search::Search;
use crate::run::transcript::base64;
use crate::sys::fs::{Durability, Links, read_regular_file, replace_file};
use crate::sys::process::wait_until;
use crate::sys::programs::ProgramSearch;

/// How long a package tool may take to answer. npm takes half a second, and more on a busy machine.
const TOOL_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which guard checks again whether a program that has made no request yet still runs.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The maximum size of the output or request that guard accepts from a package tool, in bytes.
const MAX_ANSWER_BYTES: usize = 4096;

/// The directory for the answers of package tools, in guard's state directory.
const ANSWERS: &str = "registry-hosts";
/// Variables that make package tools read no settings of the user. guard has read those itself, without the files that an
/// agent may have written.
const NO_SETTINGS: [(&str, &str); 3] = [
    ("npm_config_userconfig", "/dev/null"),
    // npm fails if both are the same file.
    ("npm_config_globalconfig", "/nonexistent/npmrc"),
    ("PIP_CONFIG_FILE", "/dev/null"),
];

/// Runs the first of these programs that is installed, and returns its output, or a cached output if there is one.
/// Returns `None` if none is installed, or if the program fails, prints nothing or takes too long.
pub(crate) fn query_output(search: &Search<'_>, programs: &[&str], arguments: &[&str]) -> Option<String> {
    cached(search, programs, arguments, |program| run_tool(program, arguments, &environment(search)))
}

/// Returns the `host:port` of a program's first request, for a program that does not print its default host; `None` if
/// the program makes no request in time. guard acts as the program's proxy, reads the host and closes the connection.
/// Uses a cached answer if there is one. `proxied` gets the proxy's URL and a directory that the program may write to,
/// and returns the environment variables to set.
pub(crate) fn first_requested_host(
    search: &Search<'_>,
    programs: &[&str],
    arguments: &[&str],
    proxied: impl Fn(&str, &Path) -> Vec<(OsString, OsString)>,
) -> Option<String> {
    cached(search, programs, arguments, |program| {
        let password = uuid::Uuid::new_v4().simple().to_string();
        let directory = std::env::temp_dir().join(format!("guard-{password}"));
        std::fs::DirBuilder::new().mode(0o700).create(&directory).ok()?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).ok();
        let host = listener.and_then(|listener| {
            let port = listener.local_addr().ok()?.port();
            let mut environment = environment(search);
            environment.extend(proxied(&format!("http://guard:{password}@127.0.0.1:{port}"), &directory));
            let mut child = start(program, arguments, &environment, Stdio::null())?;
            let host = await_request(&listener, &password, &mut child);
            kill_group(&child);
            let _ = child.wait();
            host
        });
        let _ = std::fs::remove_dir_all(&directory);
        host
    })
}

/// Returns the cached answer of the first of these programs that is installed, if the program file has not changed
/// since guard cached the answer. Otherwise calls `query`, and caches its answer unless that is `None`.
fn cached(
    search: &Search<'_>,
    programs: &[&str],
    arguments: &[&str],
    query: impl FnOnce(&Path) -> Option<String>,
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
    let key = crate::text::hex::encode(&key.finalize()[..12]);
    // No run can write below the state directory. The answer decides which hosts later runs may reach.
    let state = search.base("XDG_STATE_HOME", ".local/state").map(|base| base.join("guard").join(ANSWERS));
    let file = state.map(|answers| answers.join(format!("{}-{key}", search.tool.name())));
    let read = |file: &Path| read_regular_file(file, MAX_ANSWER_BYTES as u64, Links::Refuse).ok();
    if let Some(answer) = file.as_deref().and_then(read).and_then(|bytes| String::from_utf8(bytes).ok()) {
        return Some(answer);
    }
    let answer = query(&program)?;
    if let Some(file) = file {
        write_cache(&file, &answer);
    }
    Some(answer)
}

/// Returns the path of a program in the user's PATH; `None` if it is not there. Skips files that an agent may have
/// written.
fn installed(search: &Search<'_>, name: &str) -> Option<PathBuf> {
    let is_wanted = |file: &Path| {
        let is_listed = std::env::split_paths(search.variable("PATH").unwrap_or_default())
            .any(|directory| file.parent() == Some(&directory));
        let is_trusted = |path: &Path| !search.is_agent_writable(path);
        is_listed && is_trusted(file) && file.parent().is_some_and(is_trusted)
    };
    programs(search).find_if(name, is_wanted).ok()
}

fn programs(search: &Search<'_>) -> ProgramSearch {
    ProgramSearch::new(search.variable("PATH").unwrap_or_default(), search.home)
}

/// Returns the environment for the package tool: the user's, without variables and PATH entries that could make the
/// tool load files of an agent or use another proxy.
fn environment(search: &Search<'_>) -> Vec<(OsString, OsString)> {
    let is_unsafe = |name: &OsStr| {
        let name = name.as_bytes();
        name == b"PATH"
            || name.to_ascii_lowercase().ends_with(b"_proxy")
            || NO_SETTINGS.iter().any(|(setting, _)| name.eq_ignore_ascii_case(setting.as_bytes()))
            || [&b"NODE_"[..], b"PYTHON"].iter().any(|start| name.starts_with(start))
    };
    let others = search.environment.iter().filter(|(name, _)| !is_unsafe(name)).cloned();
    let path = programs(search).path();
    let trusted = std::env::split_paths(&path).filter(|directory| !search.is_agent_writable(directory));
    let none = NO_SETTINGS.map(|(name, value)| (name.into(), value.into()));
    others.chain(std::env::join_paths(trusted).ok().map(|path| ("PATH".into(), path))).chain(none).collect()
}

/// Starts a program in a new process group, with only this environment and without input. Returns `None` if that fails.
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
        // Start the tool in `/`: tools read settings, and Python loads modules, from the working directory.
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .ok()
}

fn kill_group(child: &Child) {
    if let Ok(group) = i32::try_from(child.id()).map(nix::unistd::Pid::from_raw) {
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
    }
}

/// Returns the trimmed output of a program. Returns `None` if the program fails, prints nothing or more than
/// [`MAX_ANSWER_BYTES`], or does not end within [`TOOL_TIMEOUT`].
fn run_tool(program: &Path, arguments: &[&str], environment: &[(OsString, OsString)]) -> Option<String> {
    let deadline = Instant::now() + TOOL_TIMEOUT;
    let mut child = start(program, arguments, environment, Stdio::piped())?;
    let output = read_output(&mut child, deadline);
    if output.is_none() {
        kill_group(&child);
    }
    let status = child.wait().ok()?;
    let text = String::from_utf8(output?).ok()?;
    status.success().then(|| text.trim().to_string()).filter(|text| !text.is_empty())
}

/// Waits for the program's first request to guard, which acts as its proxy, and returns the requested host. Returns
/// `None` if the program ends or [`TOOL_TIMEOUT`] is over before that. Any process on the machine can connect to the
/// port, and guard will allow the host in the request. So guard accepts only a request with the password, which only
/// the program knows.
fn await_request(listener: &TcpListener, password: &str, child: &mut Child) -> Option<String> {
    let authorization = format!("Basic {}", base64(format!("guard:{password}").as_bytes()));
    let deadline = Instant::now() + TOOL_TIMEOUT;
    loop {
        let left = deadline.checked_duration_since(Instant::now())?;
        let mut waiting = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left.min(POLL_INTERVAL)).ok()?;
        let is_over = !matches!(child.try_wait(), Ok(None));
        match poll(&mut waiting, timeout) {
            Ok(0) if is_over => return None,
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Err(_) => return None,
            Ok(_) => {}
        }
        let Ok((stream, _)) = listener.accept() else { continue };
        if let Some(host) = read_connect_request(stream, &authorization) {
            return Some(host);
        }
    }
}

/// Reads a CONNECT request and returns its host. Returns `None` if the client sends anything else, or if its
/// `Proxy-Authorization` header is not `authorization`.
fn read_connect_request(mut stream: TcpStream, authorization: &str) -> Option<String> {
    // Set a timeout, so that another client that sends nothing does not block the program's own connection for long.
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).ok()? {
            0 => return None,
            length => request.extend_from_slice(&piece[..length]),
        }
        (request.len() <= MAX_ANSWER_BYTES).then_some(())?;
    }
    let text = String::from_utf8(request).ok()?;
    let mut lines = text.lines();
    let host = lines.next()?.strip_prefix("CONNECT ")?.split(' ').next()?;
    let is_authorized = |line: &str| {
        line.split_once(": ").is_some_and(|(name, value)| {
            name.eq_ignore_ascii_case("proxy-authorization") && value == authorization
        })
    };
    lines.any(is_authorized).then(|| host.to_string())
}

/// Reads a program's output to its end and waits for the program to exit. Returns `None` if that takes until
/// `deadline`, or if the output is longer than [`MAX_ANSWER_BYTES`]. Uses no thread, because guard must have only one
/// thread until it has started the run.
fn read_output(child: &mut Child, deadline: Instant) -> Option<Vec<u8>> {
    let mut output = child.stdout.take()?;
    let mut bytes = Vec::new();
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
            length => bytes.extend_from_slice(&piece[..length]),
        }
        if bytes.len() > MAX_ANSWER_BYTES {
            return None;
        }
    }
    // The program has closed its output but may still run.
    wait_until(child, deadline).ok()??;
    Some(bytes)
}

/// Writes an answer to the cache. If that fails, guard runs the tool again the next time.
fn write_cache(file: &Path, answer: &str) {
    let Some(directory) = file.parent() else { return };
    let _ = std::fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(directory)
        .and_then(|()| replace_file(file, answer.as_bytes(), 0o600, Durability::Unsynced));
}
