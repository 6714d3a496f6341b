//! The arguments of an exec are in memory that other threads can change, and its path is in directories that others can
//! change. A process that guard judged as one program must not become another.

use super::exec::{marker, marker_policy};
use crate::support::{
    SandboxConfiguration, SandboxFixture, SandboxUser, copy_program, make_directory, probe_directory,
    sandbox_configurations, skip_unsupported, system_python,
};

/// Runs a probe that races against guard: the probe lets guard judge an allowed program, and tries to start a refused
/// program instead. `paths` returns the paths of both. Returns how often the refused program ran, and guard's stderr.
fn wins(
    configuration: SandboxConfiguration,
    options: &[&str],
    probe: &[&str],
    paths: impl Fn(&SandboxFixture) -> (String, String),
) -> (usize, String) {
    let fixture = SandboxFixture::new(configuration.user);
    let policy = marker_policy(&fixture);
    let (safe, refused) = paths(&fixture);
    let out = fixture.work.join("out");
    make_directory(&out, Some(fixture.id), 0o755);
    let mut options = options.to_vec();
    options.extend(["--policy", policy.to_str().unwrap()]);
    let mut command = fixture.guard(configuration, &options);
    command
        .args([system_python().unwrap(), "-B"])
        .arg(probe_directory().join("race.py"))
        .args(probe)
        .args([&safe, &refused]);
    let output = command.arg("innocent").arg(out.join("won-{n}")).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{configuration:?}: {words}");
    (std::fs::read_dir(&out).unwrap().count(), words)
}

/// Returns the path of an allowed program, and that of a program that guard refuses by its name.
fn named(fixture: &SandboxFixture) -> (String, String) {
    ("/usr/bin/true".to_string(), marker(fixture).display().to_string())
}

/// Returns the path of an allowed program, and that of a copy of a refused program in the working directory.
fn copied(fixture: &SandboxFixture) -> (String, String) {
    let path = fixture.work.join("innocent");
    copy_program("/usr/bin/touch".as_ref(), &path);
    ("/usr/bin/true".to_string(), path.display().to_string())
}

/// Returns the path of the shim, which guard allows because the shim itself asks guard, and the path of a refused
/// program.
fn shim(fixture: &SandboxFixture) -> (String, String) {
    (fixture.shim().display().to_string(), marker(fixture).display().to_string())
}

pub(super) fn lost(how: &str, tries: &str, paths: impl Fn(&SandboxFixture) -> (String, String) + Sync) {
    if system_python().is_none() {
        return;
    }
    for configuration in sandbox_configurations() {
        let (won, words) = wins(configuration, &[], &[how, tries], &paths);
        assert_eq!(won, 0, "{configuration:?}: {how} won {won} of {tries}");
        assert!(
            words.contains("test.marker") || how == "content",
            "{configuration:?}: the refused one never came up"
        );
    }
}

// slow
#[test]
fn race_with_arguments_changed_by_a_process_starts_no_refused_program() {
    lost("process", "250", named);
}

// slow
#[test]
fn race_with_arguments_changed_by_a_thread_starts_no_refused_program() {
    lost("thread", "250", named);
}

// slow
#[test]
fn race_with_a_copied_program_starts_no_refused_program() {
    lost("process", "250", copied);
}

// slow
#[test]
fn race_with_the_path_of_a_shim_starts_no_refused_program() {
    lost("process", "250", shim);
}

/// While another process keeps switching a symbolic link between an allowed and a refused program, an exec through the
/// link must never start the refused one.
// slow
#[test]
fn race_with_a_switching_link_starts_no_refused_program() {
    lost("link", "250", copied);
}

/// guard checks a file with an allowed program, and then the attacker replaces the file's content by a refused program.
/// That program must not run.
// slow
#[test]
fn race_with_changing_file_content_starts_no_refused_program() {
    lost("content", "60", copied);
}

/// With `--no-verify` the attacker can win the race, which proves that the other tests test the verification. If the
/// attacker never wins on this machine, the test reports that and passes.
// slow
#[test]
fn race_is_won_without_verification() {
    if system_python().is_none() {
        return;
    }
    for (how, namespaces) in [("process", true), ("thread", false)] {
        let configuration = SandboxConfiguration { user: SandboxUser::Ordinary, namespaces };
        if !sandbox_configurations().contains(&configuration) {
            continue;
        }
        let mut tried = 0;
        while tried < 3000 {
            tried += 150;
            if wins(configuration, &["--no-verify"], &[how, "150"], named).0 > 0 {
                break;
            }
        }
        if tried >= 3000 {
            skip_unsupported(&format!("that the race by a {how} is real"), "it was not won in 3,000 tries");
        }
    }
}

/// A process changes the flags of its socket while the supervisor connects it to a listener that accepts nothing. The
/// supervisor must go on to answer other processes of the run.
#[test]
fn changing_socket_flags_do_not_block_the_supervisor() {
    let script = r#"
import fcntl, os, signal, socket, subprocess, time
listener = socket.socket(socket.AF_UNIX)
listener.bind("full")
listener.listen(0)
waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
for one in waiting:
    one.setblocking(False)
    one.connect_ex("full")
children = []
def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    children.append(pid)
for _ in range(40):
    peer = socket.socket(socket.AF_UNIX)
    flags = fcntl.fcntl(peer, fcntl.F_GETFL)
    def change():
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            fcntl.fcntl(peer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
            fcntl.fcntl(peer, fcntl.F_SETFL, flags)
    def connect():
        peer.settimeout(None)
        peer.connect_ex("full")
    child(change)
    child(connect)
    subprocess.run(["/bin/true"], check=True, timeout=30)
for pid in children:
    os.kill(pid, signal.SIGKILL)
print("done")
"#;
    let environment = crate::support::one_environment();
    let outcome = environment.run(&["--max-duration", "120s"], &["python3", "-c", script]);
    assert_eq!(outcome.printed(), "done\n", "{outcome}");
}

/// Several threads of a process start programs at the same time, of which the kernel lets only one succeed. The
/// supervisor must go on to answer other processes of the run.
#[test]
fn concurrent_execs_of_threads_do_not_block_the_supervisor() {
    let script = r#"
import os, subprocess, threading
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        barrier = threading.Barrier(4)
        def start():
            barrier.wait()
            os.execv("/bin/true", ["true"])
        for _ in range(4):
            threading.Thread(target=start).start()
        threading.Event().wait(60)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    subprocess.run(["/bin/true"], check=True, timeout=30)
print("done")
"#;
    let environment = crate::support::one_environment();
    let outcome = environment.run(&["--max-duration", "120s"], &["python3", "-c", script]);
    assert_eq!(outcome.printed(), "done\n", "{outcome}");
}
