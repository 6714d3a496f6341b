//! The shim: the agent finds it on PATH as `git`, `sh`, `bash` and so on. The shim executes the real program, or
//! prints why the supervisor denied it.
//!
//! It is blocking code with no dependencies but `std` and no configuration. `build.rs` compiles it separately, and
//! guard embeds it in its binary. The supervisor judges the exec of the real program like every other exec. If the
//! supervisor denies the exec, the shim asks the supervisor for the reason. So the shim is not part of the security
//! boundary: neither the shim nor a replacement for it can start a program that the policy does not allow.
#![allow(clippy::print_stderr, reason = "the refusal is printed where the agent looks")]

#[path = "../src/run/supervisor/shim/protocol.rs"]
#[allow(dead_code, unreachable_pub, reason = "the supervisor's half of the protocol is in the same file")]
mod protocol;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use protocol::{Answer, Question, SOCKET_VARIABLE, is_relevant};

/// The exit code of a denied command. Shells return the same code for a command that they cannot execute.
const DENIED: u8 = 126;
const NOT_FOUND: u8 = 127;
/// How long to wait for the supervisor's answer.
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    shim(&argv).into()
}

fn shim(argv: &[OsString]) -> u8 {
    let name = argv.first().map(Path::new).and_then(Path::file_name).unwrap_or(OsStr::new(""));
    let Some(program) = find_real_program(name) else {
        eprintln!("guard: {}: command not found", name.to_string_lossy());
        return NOT_FOUND;
    };
    // The supervisor judges this exec. The shim does not ask the supervisor before the exec: most commands are allowed,
    // and the supervisor would judge each of them twice.
    let error = exec_program(&program, argv);
    if error.kind() != std::io::ErrorKind::PermissionDenied {
        eprintln!("guard: {}: {error}", program.display());
        return DENIED;
    }
    match ask_for_reason(argv) {
        Ok(Answer::Allow) => eprintln!("guard: {}: {error}", program.display()),
        Ok(Answer::Deny(message)) => eprintln!("{message}"),
        Err(problem) => {
            let name = name.to_string_lossy();
            eprintln!(
                "guard: Permission denied: {name}: guard cannot ask its supervisor for the reason ({problem}). Do not retry."
            );
        }
    }
    DENIED
}

fn ask_for_reason(argv: &[OsString]) -> Result<Answer, String> {
    let socket = std::env::var_os(SOCKET_VARIABLE).ok_or_else(|| format!("{SOCKET_VARIABLE} is not set"))?;
    let question = Question {
        argv: argv.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        directory: std::env::current_dir().map_err(|error| error.to_string())?.into_os_string().into_vec(),
        environment: std::env::vars_os()
            .map(
                |(name, value)| {
                    if sets_hooks_path(&name, &value) { (name, DROPPED.into()) } else { (name, value) }
                },
            )
            .filter(|(name, _)| is_relevant(name.as_bytes()))
            .map(|(name, value)| (name.into_vec(), value.into_vec()))
            .collect(),
    };
    let exchange = || -> std::io::Result<Answer> {
        let mut stream = UnixStream::connect(Path::new(&socket))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        question.write(&mut stream)?;
        Answer::read(&mut stream)
    };
    exchange().map_err(|error| error.to_string())
}

/// The name that replaces `core.hooksPath` in environment variables of the real program such as `GIT_CONFIG_KEY_0`.
/// git has no setting of this name, so it ignores the value in the matching `GIT_CONFIG_VALUE_0`.
const DROPPED: &str = "guard.dropped";

/// Returns true if an environment variable sets git's `core.hooksPath`. Some agents set it for every command to keep
/// the repository's hooks from running. In the sandbox the hooks are harmless, so the shim drops the setting; otherwise
/// the policy would deny every such command.
fn sets_hooks_path(name: &OsStr, value: &OsStr) -> bool {
    name.as_bytes().starts_with(b"GIT_CONFIG_KEY_")
        && value.as_bytes().eq_ignore_ascii_case(b"core.hookspath")
}

/// Executes the real program. Returns only on failure, with the error.
fn exec_program(program: &Path, argv: &[OsString]) -> std::io::Error {
    let dropped = std::env::vars_os().filter(|(name, value)| sets_hooks_path(name, value));
    let dropped = dropped.map(|(name, _)| (name, DROPPED));
    Command::new(program).arg0(&argv[0]).args(&argv[1..]).envs(dropped).exec()
}

/// Finds the first executable file with the given name on PATH that is not the shim itself. Ignores relative
/// directories in PATH.
fn find_real_program(name: &OsStr) -> Option<PathBuf> {
    let own = std::fs::metadata("/proc/self/exe").ok()?;
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).filter(|entry| entry.is_absolute()).map(|entry| entry.join(name)).find(
        |file| {
            std::fs::metadata(file).is_ok_and(|found| {
                let is_shim = found.dev() == own.dev() && found.ino() == own.ino();
                found.is_file() && found.mode() & 0o111 != 0 && !is_shim
            })
        },
    )
}
