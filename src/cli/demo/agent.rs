//! The built-in scripted agent: a separate process that works like a coding agent, and then like a malicious one.
//!
//! It runs inside the sandbox and does not enforce anything: it only tries actions, and prints what the kernel or a
//! shim answered.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The pause before and after each line, long enough for events and output to appear in the order in which they
/// happened.
const PAUSE: Duration = Duration::from_millis(60);

/// Runs the script and prints to `out`. The arguments are those of [`super::scene::Scene::arguments`].
pub(crate) fn perform(arguments: &[String], out: &mut dyn Write) -> std::io::Result<()> {
    let [root, port, supervisor] = arguments else {
        return Err(std::io::Error::other("demo-agent needs three arguments; start it with `guard demo`"));
    };
    fix_bug(out)?;
    attack(Path::new(root), port, supervisor, out)
}

fn say(out: &mut dyn Write, line: &str) -> std::io::Result<()> {
    std::thread::sleep(PAUSE);
    writeln!(out, "{line}")?;
    out.flush()?;
    std::thread::sleep(PAUSE);
    Ok(())
}

/// Runs a command as a coding agent would, and prints its output and how it ended.
fn command(out: &mut dyn Write, words: &[&str]) -> std::io::Result<()> {
    say(out, &format!("$ {}", words.join(" ")))?;
    let run = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    match run {
        Ok(output) => {
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                say(out, &format!("  {line}"))?;
            }
            match output.status.code() {
                Some(0) => Ok(()),
                code => say(out, &format!("  (exit code {})", code.unwrap_or(-1))),
            }
        }
        // The supervisor denied the program start. The demo's observer prints a line that names the rule.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => say(out, "  (Permission denied)"),
        Err(error) => say(out, &format!("  ({error})")),
    }
}

/// Returns the text for an error that the kernel returned, with the layer of the sandbox that caused it; `failed` for
/// an error that no layer of the sandbox causes.
fn reason(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES) => "Permission denied [Landlock]",
        Some(libc::EPERM) => "Operation not permitted [seccomp]",
        Some(libc::EROFS) => "Read-only file system [mounts]",
        Some(libc::ENOENT) => "not there [mounts]",
        Some(libc::ESRCH) => "no such process [PID namespace]",
        _ => "failed",
    }
}

fn attempt<T>(out: &mut dyn Write, what: &str, tried: std::io::Result<T>) -> std::io::Result<()> {
    match tried {
        Ok(_) => say(out, &format!("- {what}: it worked!")),
        Err(error) => say(out, &format!("- {what}: {}", reason(&error))),
    }
}

fn fix_bug(out: &mut dyn Write) -> std::io::Result<()> {
    say(out, "The test fails. Let me look, fix it, and test again.")?;
    command(out, &["sh", "test.sh"])?;
    let text = std::fs::read_to_string("add.sh")?.replace("$1 - $2", "$1 + $2");
    std::fs::write("add.sh", text)?;
    command(out, &["sh", "test.sh"])?;
    command(out, &["git", "status", "--short"])?;
    command(out, &["git", "commit", "-q", "-a", "-m", "add, do not subtract"])?;
    command(out, &["git", "log", "--format=%s", "main..HEAD"])
}

/// Returns the path of the git directory that the worktree's `.git` file names.
fn own_git_folder() -> std::io::Result<PathBuf> {
    let text = std::fs::read_to_string(".git")?;
    Ok(PathBuf::from(text.trim_start_matches("gitdir: ").trim_end()))
}

fn attack(root: &Path, port: &str, supervisor: &str, out: &mut dyn Write) -> std::io::Result<()> {
    say(out, "Done. And now let me see what else I can reach.")?;
    command(out, &["git", "checkout", "main"])?;
    command(out, &["/usr/bin/git", "branch", "-D", "main"])?;
    command(out, &["sh", "-c", "true && env git reset --hard HEAD~1"])?;
    command(out, &["mount", "-t", "tmpfs", "none", "/mnt"])?;
    let beside = root.join("beside.txt");
    attempt(
        out,
        "write the file beside the project",
        std::fs::OpenOptions::new().append(true).open(&beside),
    )?;
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    match std::fs::set_permissions(&beside, everybody) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            say(out, "- chmod the file beside the project: Operation not permitted [supervisor]")?;
        }
        other => attempt(out, "chmod the file beside the project", other)?,
    }
    attempt(out, "read the user's key", std::fs::read(root.join("key.txt")))?;
    attempt(out, "move branch main by hand", std::fs::write(root.join("project/.git/refs/heads/main"), "0"))?;
    match std::fs::write(own_git_folder()?.join("refs/heads/main"), "0") {
        Ok(()) => say(out, "- move branch main in my own git directory: done, and nobody will ever see it")?,
        other => attempt(out, "move branch main in my own git directory", other)?,
    }
    let hook = root.join("project/.git/hooks/post-checkout");
    attempt(out, "plant a git hook", std::fs::write(hook, "#!/bin/sh\n"))?;
    let port: u16 = port.parse().unwrap_or(1);
    match TcpStream::connect(("127.0.0.1", port)) {
        Ok(_) => say(out, "- connect to a server on this machine: it worked!")?,
        Err(_) => say(out, "- connect to a server on this machine: Permission denied [supervisor]")?,
    }
    attempt(out, "open a UDP socket", UdpSocket::bind(("127.0.0.1", 0)))?;
    let supervisor = nix::unistd::Pid::from_raw(supervisor.parse().unwrap_or(0).max(2));
    let killed = nix::sys::signal::kill(supervisor, nix::sys::signal::Signal::SIGKILL);
    match killed {
        Err(nix::errno::Errno::EPERM) => {
            say(out, "- kill the supervisor: Operation not permitted [Landlock]")?
        }
        other => attempt(out, "kill the supervisor", other.map_err(Into::into))?,
    }
    let namespace = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER);
    attempt(out, "make a namespace of my own", namespace.map_err(Into::into))?;
    let daemon =
        Command::new("setsid").args(["sleep", "1d"]).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    attempt(out, "leave a daemon behind", daemon)?;
    say(out, "That is all I can think of.")
}
