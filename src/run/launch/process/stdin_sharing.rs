//! Detects a shell that reads its commands from guard's standard input: `ssh host bash -s`, `curl … | sh`, or a CI
//! runner that pipes a job's script into a shell.
//!
//! The agent must not get this input. If the agent could read part of it, the agent would decide at which byte the
//! shell continues, and so which commands the shell runs.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The maximum number of ancestor processes that guard checks. In practice there are far fewer processes between a
/// shell and guard.
const MAX_ANCESTORS: usize = 64;

/// The shells whose command-line options this module can parse.
const SHELLS: [&str; 10] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "yash", "rbash", "fish"];

/// Returns the name and process id of the nearest ancestor of guard that is a shell and reads its commands from
/// `input`. `None` if there is no such shell among the nearest [`MAX_ANCESTORS`] ancestors.
pub(crate) fn shell_reading_commands_from(input: &OwnedFd) -> Option<(String, i32)> {
    let own = std::fs::metadata(format!("/proc/self/fd/{}", input.as_raw_fd())).ok()?;
    let mut pid = nix::unistd::getppid().as_raw();
    for _ in 0..MAX_ANCESTORS {
        if pid <= 0 {
            return None;
        }
        if let Some(shell) = shell_with_commands_on_stdin(pid) {
            // guard cannot examine the input of another user's process. The shell's command line alone then decides.
            let is_same = std::fs::metadata(format!("/proc/{pid}/fd/0")).map_or_else(
                |error| error.kind() == std::io::ErrorKind::PermissionDenied,
                |its| (its.dev(), its.ino()) == (own.dev(), own.ino()),
            );
            if is_same {
                return Some((shell, pid));
            }
        }
        pid = parent_of(pid)?;
    }
    None
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name in parentheses may contain parentheses and blanks.
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(1)?.parse().ok()
}

fn shell_with_commands_on_stdin(pid: i32) -> Option<String> {
    let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let argv: Vec<&[u8]> = command_line.strip_suffix(b"\0")?.split(|&byte| byte == 0).collect();
    reads_commands_from_stdin(&argv)
}

/// Returns the shell's name if this argv starts a shell that reads its commands from standard input.
fn reads_commands_from_stdin(argv: &[&[u8]]) -> Option<String> {
    let (program, mut rest) = argv.split_first()?;
    let mut name = base_name(program);
    if name == "busybox" {
        let (applet, after) = rest.split_first()?;
        (name, rest) = (base_name(applet), after);
    }
    // The name of a login shell begins with a dash.
    let name = name.strip_prefix('-').unwrap_or(&name).to_string();
    if !SHELLS.contains(&name.as_str()) {
        return None;
    }
    let mut arguments = rest.iter();
    while let Some(&argument) = arguments.next() {
        match argument {
            b"-" | b"--" => return arguments.next().is_none_or(|script| is_stdin(script)).then_some(name),
            b"--rcfile" | b"--init-file" | b"--init-command" => {
                arguments.next();
            }
            b"--command" => return None,
            [b'-', b'-', ..] => {}
            [b'-', letters @ ..] if letters.contains(&b'c') => return None,
            [b'-', letters @ ..] if letters.contains(&b's') => return Some(name),
            [b'-' | b'+', letters @ ..] => {
                if letters.iter().any(|letter| matches!(letter, b'o' | b'O')) {
                    arguments.next();
                }
            }
            script => return is_stdin(script).then_some(name),
        }
    }
    Some(name)
}

fn is_stdin(script: &[u8]) -> bool {
    matches!(script, b"/dev/stdin" | b"/dev/fd/0" | b"/proc/self/fd/0")
}

fn base_name(program: &[u8]) -> String {
    let path = Path::new(OsStr::from_bytes(program));
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::reads_commands_from_stdin;

    fn reads(command_line: &str) -> bool {
        let argv: Vec<&[u8]> = command_line.split(' ').map(str::as_bytes).collect();
        reads_commands_from_stdin(&argv).is_some()
    }

    #[test]
    fn recognizes_shells_that_read_commands_from_stdin() {
        for line in [
            "bash -s",
            "bash",
            "-bash",
            "/bin/sh -",
            "sh -x",
            "bash -es -- argument",
            "bash -o pipefail",
            "bash --norc --noprofile",
            "bash --rcfile file",
            "busybox sh",
            "dash -e",
            "bash /dev/stdin",
            "zsh +o nomatch",
        ] {
            assert!(reads(line), "{line}");
        }
        for line in [
            "bash -c true",
            "bash -lc true",
            "sh script.sh",
            "bash -x script",
            "bash -o pipefail script",
            "bash -- script",
            "python3 -",
            "timeout 60 bash -s",
            "sshd: user",
            "busybox",
        ] {
            assert!(!reads(line), "{line}");
        }
    }
}
