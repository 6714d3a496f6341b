//! What stands on the agent's PATH under the names `git`, `sh`, `bash`, …: becomes the real program, or says why not.
//!
//! Blocking, with nothing but `std`, no configuration of its own: `build.rs` compiles it by itself, and it becomes a part of
//! guard's binary. The program is judged where it starts, as every program is; when that is refused, the supervisor is asked
//! for the words. So the shim is a courtesy, not the boundary: whatever it does, or somebody in its place, starts nothing
//! that is not allowed.
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

/// "Cannot execute", as shells say it: what a refused command ends with.
const REFUSED: u8 = 126;
const NOT_FOUND: u8 = 127;
/// A supervisor that takes longer is not there.
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
    // Judged there: most commands are allowed, and need not be asked about twice.
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

/// What stands in the place of a setting that is not handed on.
const DROPPED: &str = "guard.dropped";

/// Whether a variable is git's setting of another directory for hooks. Agents set it for every command they run, to keep the
/// repository's hooks from running; here the hooks are in the sandbox too, so it is passed over and no reason to refuse.
fn skips_hooks(name: &OsStr, value: &OsStr) -> bool {
    name.as_bytes().starts_with(b"GIT_CONFIG_KEY_")
        && value.as_bytes().eq_ignore_ascii_case(b"core.hookspath")
}

/// Becomes the real program; why not, if it does not.
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
