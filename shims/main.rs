//! The shim: the agent finds it on PATH as `git`, `sh`, `bash` and so on. It executes the real program, or prints why
//! that was denied.
//!
//! It is blocking code with no dependencies but `std` and no configuration. `build.rs` compiles it separately, and
//! guard embeds it in its binary. The supervisor judges the real program's start like every other. If it denies it, the
//! shim asks the supervisor for the reason. So the shim is no part of the security boundary: neither it nor a
//! replacement for it can start anything that is not allowed.
#![allow(clippy::print_stderr, reason = "the refusal is printed where the agent looks")]

#[path = "../src/supervisor/shim/protocol.rs"]
#[allow(dead_code, unreachable_pub, reason = "the supervisor's half of the protocol is in the same file")]
mod wire;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use wire::{Answer, Question, SOCKET_VARIABLE, is_relevant};

/// The exit code of a denied command: "cannot execute", as in shells.
const REFUSED: u8 = 126;
const NOT_FOUND: u8 = 127;
/// How long to wait for the supervisor.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    shim(&argv).into()
}

fn shim(argv: &[OsString]) -> u8 {
    let name = argv.first().map(Path::new).and_then(Path::file_name).unwrap_or(OsStr::new(""));
    let Some(program) = real(name) else {
        eprintln!("guard: {}: command not found", name.to_string_lossy());
        return NOT_FOUND;
    };
    // The supervisor judges this exec. Most commands are allowed, so asking first would be a second question for each.
    let error = become_program(&program, argv);
    if error.kind() != std::io::ErrorKind::PermissionDenied {
        eprintln!("guard: {}: {error}", program.display());
        return REFUSED;
    }
    match ask(argv) {
        Ok(Answer::Go) => eprintln!("guard: {}: {error}", program.display()),
        Ok(Answer::Deny(message)) => eprintln!("{message}"),
        Err(problem) => {
            let name = name.to_string_lossy();
            eprintln!(
                "guard: Permission denied: {name}: the supervisor cannot be asked ({problem}). Do not retry."
            );
        }
    }
    REFUSED
}

fn ask(argv: &[OsString]) -> Result<Answer, String> {
    let socket = std::env::var_os(SOCKET_VARIABLE).ok_or_else(|| format!("{SOCKET_VARIABLE} is not set"))?;
    let question = Question {
        argv: argv.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
        folder: std::env::current_dir().map_err(|error| error.to_string())?.into_os_string().into_vec(),
        environment: std::env::vars_os()
            .map(
                |(name, value)| {
                    if skips_hooks(&name, &value) { (name, DROPPED.into()) } else { (name, value) }
                },
            )
            .filter(|(name, _)| is_relevant(name.as_bytes()))
            .map(|(name, value)| (name.into_vec(), value.into_vec()))
            .collect(),
    };
    let talk = || -> std::io::Result<Answer> {
        let mut stream = UnixStream::connect(Path::new(&socket))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        question.write(&mut stream)?;
        Answer::read(&mut stream)
    };
    talk().map_err(|error| error.to_string())
}

/// The key that replaces a setting which is not passed on.
const DROPPED: &str = "guard.dropped";

/// Whether a variable sets git's `core.hooksPath`. Agents set it for every command to keep the repository's hooks from
/// running. Here the hooks run in the sandbox too, so the shim drops the setting instead of having the command denied.
fn skips_hooks(name: &OsStr, value: &OsStr) -> bool {
    name.as_bytes().starts_with(b"GIT_CONFIG_KEY_")
        && value.as_bytes().eq_ignore_ascii_case(b"core.hookspath")
}

/// Executes the real program. Returns only on failure, with the error.
fn become_program(program: &Path, argv: &[OsString]) -> std::io::Error {
    let dropped = std::env::vars_os().filter(|(name, value)| skips_hooks(name, value));
    let dropped = dropped.map(|(name, _)| (name, DROPPED));
    Command::new(program).arg0(&argv[0]).args(&argv[1..]).envs(dropped).exec()
}

/// The next program of that name on PATH that is not a shim.
fn real(name: &OsStr) -> Option<PathBuf> {
    let own = std::fs::metadata("/proc/self/exe").ok()?;
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)).find(
        |file| {
            std::fs::metadata(file).is_ok_and(|found| {
                let is_shim = found.dev() == own.dev() && found.ino() == own.ino();
                found.is_file() && found.mode() & 0o111 != 0 && !is_shim
            })
        },
    )
}
