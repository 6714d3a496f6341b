//! Starts programs that inherit nothing from the environment of the user who runs the tests, except the path of the
//! directory for temporary files.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Scratch;

/// The PATH of isolated commands: only directories of the machine's programs. A directory of the user could contain
/// an agent, which would change what a test sees. So could `/usr/local/bin`: a test of what guard does without an agent
/// needs [`ProgramLinks`].
pub(crate) const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Returns a command with a fixed PATH and locale and this home. It has no `GIT_*`, `XDG_*` or `LC_*` variable, no
/// proxy and no API key.
pub(crate) fn isolated_command(program: impl AsRef<OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", SYSTEM_PATH)
        .env("HOME", home)
        .env("LANG", "C.UTF-8")
        .env("TMPDIR", std::env::temp_dir());
    command
}

/// Runs a program that prepares a test. Fails the test if the program fails.
pub(crate) fn run_tool(program: &str, arguments: &[&OsStr]) {
    let home = std::env::temp_dir();
    let output = isolated_command(program, &home).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A directory of links to some programs of this machine. As PATH it hides all others, such as installed agents.
pub(crate) struct ProgramLinks(Scratch);

impl ProgramLinks {
    pub(crate) fn new(programs: &[&str]) -> Self {
        let directory = Scratch::new("programs");
        for name in programs {
            let found =
                std::env::split_paths(SYSTEM_PATH).map(|place| place.join(name)).find(|path| path.exists());
            let program: PathBuf = found.unwrap_or_else(|| panic!("{name} is not in {SYSTEM_PATH}"));
            symlink(program, directory.0.join(name)).unwrap();
        }
        Self(directory)
    }

    /// Returns the PATH that has only these programs.
    pub(crate) fn path(&self) -> &str {
        self.0.0.to_str().unwrap()
    }
}
