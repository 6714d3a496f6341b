// slow
//! A refused program must stay refused in every disguise, and the transcript must name it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Report;
use super::shim_socket::{git, policy, repository, was_won};
use crate::support::{
    SandboxConfiguration, SandboxFixture, SandboxUser, copy_program, probe_directory, sandbox_configurations,
    skip, system_python,
};

/// Writes a policy that extends `strict` and also refuses the programs `marker` and `touch`.
pub(super) fn marker_policy(fixture: &SandboxFixture) -> PathBuf {
    let path = fixture.outside.join("marked.toml");
    let text = "version = 1\nname = \"marked\"\nextends = \"strict\"\n\
        description = \"strict, and one program more is refused.\"\n\n[[command]]\nid = \"test.marker\"\n\
        program = [\"marker\", \"touch\"]\naction = \"deny\"\nreason = \"The test says so.\"\ninstead = \"Nothing.\"\n";
    std::fs::write(&path, text).unwrap();
    path
}

/// Copies `touch` to a file named `marker`, which [`marker_policy`] refuses. If a run can start it despite the
/// policy, the file that it creates proves that.
pub(super) fn marker(fixture: &SandboxFixture) -> PathBuf {
    let path = fixture.outside.join("marker");
    copy_program(Path::new("/usr/bin/touch"), &path);
    path
}

/// The disguises under which the tests start a refused program. guard recognizes the program under each of them, even
/// as a copy.
const ALL: &[&str] = &[
    "absolute",
    "dotted",
    "copy",
    "renamed",
    "hard-link",
    "moved",
    "symlink",
    "two-symlinks",
    "unreadable",
    "loader",
    "loader-copy",
    "loader-options",
    "loader-called",
    "loader-script",
    "plain-loader",
    "loader-argv0",
    "copied-loader",
    "memory",
    "memory-path",
    "descriptor",
    "descriptor-path",
    "dev-fd",
    "folder-descriptor",
    "current-folder",
    "through-root",
    "through-cwd",
    "through-linked-cwd",
    "python",
    "spawn",
    "vfork-env",
    "perl",
    "node",
    "shell",
    "shell-script",
    "shell-input",
    "env",
    "env-path",
    "env-split",
    "xargs",
    "nested",
    "lie",
    "empty-name",
    "timeout",
    "nice",
    "background",
];

/// Returns false, and reports a skip, if a program that is needed to start another program under this disguise is not
/// installed.
fn is_possible(way: &str) -> bool {
    let needed = match way {
        "perl" => "/usr/bin/perl",
        "node" => "/usr/bin/node",
        "xargs" => "/usr/bin/xargs",
        _ => return true,
    };
    let there = Path::new(needed).exists();
    if !there {
        skip(&format!("a refused program through {way}"), &format!("there is no {needed}"));
    }
    there
}

fn denials(fixture: &SandboxFixture) -> Vec<(String, String)> {
    let of = |event: &Value| {
        Some((event["event_type"].as_str()?.to_string(), event["data"]["rule"].as_str()?.to_string()))
    };
    fixture.events().iter().filter_map(of).filter(|(kind, _)| kind.starts_with("deny.")).collect()
}

fn in_parallel(ways: &[&str], check: impl Fn(&str) -> Vec<String> + Sync) {
    let check = &check;
    let failures: Vec<String> = std::thread::scope(|scope| {
        let parts = ways.chunks(ways.len().div_ceil(4));
        let running: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().flat_map(|way| check(way)).collect::<Vec<_>>()))
            .collect();
        running.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn git_checkout_is_refused_in_every_disguise() {
    let (Some(python), Some(git)) = (system_python(), git()) else { return };
    let probe = |fixture: &SandboxFixture, mut command: std::process::Command, way: &str| {
        let repository = repository(fixture);
        command
            .args([python, "-B"])
            .arg(probe_directory().join("exec.py"))
            .args([way, git, "-C"])
            .arg(&repository);
        let report = Report::of(&command.args(["checkout", "-q", "-b", "won"]).output().unwrap());
        (was_won(&repository), report)
    };
    in_parallel(ALL, |way| {
        let mut failures = Vec::new();
        if !is_possible(way) {
            return failures;
        }
        let fixture = SandboxFixture::new(SandboxUser::Ordinary);
        let (won, report) = probe(&fixture, fixture.command("/usr/bin/env"), way);
        if !won {
            failures.push(format!("without guard {way} should work: {report:?}"));
        }
        for configuration in sandbox_configurations() {
            let fixture = SandboxFixture::new(configuration.user);
            let command = fixture
                .guard(configuration, &["--allow-unprotected-repositories", "--policy", &policy(&fixture)]);
            let (won, report) = probe(&fixture, command, way);
            if won {
                failures.push(format!("{configuration:?} {way} does not hold: {report:?}"));
            }
            // In a mount namespace, a link into /proc/self does not lead to the program, so there may be no denial.
            let unfound = way == "through-linked-cwd" && configuration.namespaces;
            if report.errno().is_none() || denials(&fixture).is_empty() && !unfound {
                failures.push(format!("{configuration:?} {way}: {:?} {report:?}", denials(&fixture)));
            }
        }
        failures
    });
}

/// A user's policy refuses a program by its name. guard must refuse the program under every disguise, except those that
/// copy, rename or move the file: guard does not recognize copies of such a program.
#[test]
fn program_refused_by_a_user_policy_is_refused_in_disguises() {
    let Some(python) = system_python() else { return };
    let copies = [
        "copy",
        "renamed",
        "hard-link",
        "moved",
        "unreadable",
        "loader-copy",
        "loader-options",
        "loader-called",
        "loader-script",
        "plain-loader",
        "memory",
        "memory-path",
        "through-cwd",
        "through-linked-cwd",
    ];
    let ways: Vec<&str> = ALL.iter().copied().filter(|way| !copies.contains(way)).collect();
    let run = |fixture: &SandboxFixture, configuration: Option<SandboxConfiguration>, way: &str| {
        let (policy, marker) = (marker_policy(fixture), marker(fixture));
        let mut command = match configuration {
            Some(configuration) => fixture.guard(configuration, &["--policy", policy.to_str().unwrap()]),
            None => fixture.command("/usr/bin/env"),
        };
        command
            .args([python, "-B"])
            .arg(probe_directory().join("exec.py"))
            .arg(way)
            .arg(marker)
            .arg(fixture.work.join("won"));
        let report = Report::of(&command.output().unwrap());
        (fixture.work.join("won").exists(), report)
    };
    in_parallel(&ways, |way| {
        let mut failures = Vec::new();
        if !is_possible(way) {
            return failures;
        }
        let (won, report) = run(&SandboxFixture::new(SandboxUser::Ordinary), None, way);
        if !won {
            failures.push(format!("without guard {way} should work: {report:?}"));
        }
        for configuration in sandbox_configurations() {
            let fixture = SandboxFixture::new(configuration.user);
            let (won, report) = run(&fixture, Some(configuration), way);
            let named = denials(&fixture).iter().any(|(_, rule)| rule == "test.marker");
            if won || !named {
                failures
                    .push(format!("{configuration:?} {way}: won {won}, {:?} {report:?}", denials(&fixture)));
            }
        }
        failures
    });
}

/// guard must refuse the program without arguments and with very many, and the transcript must name the rule.
#[test]
fn exec_without_and_with_very_many_arguments_is_judged() {
    let Some(python) = system_python() else { return };
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let (policy, marker) = (marker_policy(&fixture), marker(&fixture));
        let won = fixture.work.join("won");
        // guard refuses this program by its name, whatever its arguments are. If it ran, its last argument would
        // create a file.
        let code = format!(
            "import ctypes, os\nlibc = ctypes.CDLL(None)\np = {marker:?}.encode()\n\
             if os.fork() == 0:\n    libc.execve(p, None, None)\n    os._exit(1)\nos.wait()\n\
             if os.fork() == 0:\n    try:\n        os.execv(p, [p] + [b'-c'] * 100000 + [b'--', {won:?}.encode()])\n    finally:\n        os._exit(1)\n\
             os.wait()\nprint('{{\"errno\": 0}}')\n",
        );
        let mut command = fixture.guard(configuration, &["--policy", policy.to_str().unwrap()]);
        let report = Report::of(&command.args([python, "-c", &code]).output().unwrap());
        let rules: Vec<String> = denials(&fixture).into_iter().map(|(_, rule)| rule).collect();
        assert!(report.succeeded() && !won.exists(), "{configuration:?}: {report:?}");
        assert_eq!(
            rules.iter().filter(|rule| *rule == "test.marker").count(),
            2,
            "{configuration:?}: {rules:?}"
        );
    }
}

/// Runs Python code under `strict` in every configuration, and fails unless the code prints a report with errno 0. Then
/// calls `look`, which checks what the code left.
fn python_succeeds(code: &str, look: impl Fn(SandboxConfiguration, &SandboxFixture)) {
    let Some(python) = system_python() else { return };
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let mut command = fixture.guard(configuration, &["--policy", "strict"]);
        let report = Report::of(&command.args([python, "-c", code]).output().unwrap());
        assert!(report.succeeded(), "{configuration:?}: {report:?}");
        look(configuration, &fixture);
    }
}

/// The supervisor must still judge program starts of a process with its own seccomp filter, of a thread whose main
/// thread has ended, and of the last process that is left.
#[test]
fn supervisor_judges_execs_of_the_last_thread() {
    let code = r##"
import ctypes, os, struct, threading, time
libc = ctypes.CDLL(None)
def refused(name):
    # Outside a repository git itself would end with 128; 127 says that it did not start.
    code = os.spawnv(os.P_WAIT, "/usr/bin/git", ["git", "checkout", name])
    open(name, "w").write(str(code))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
if os.fork() == 0:
    allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
    program = Program(1, ctypes.addressof(allow))
    assert libc.prctl(22, 2, ctypes.byref(program)) == 0
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.1)
        refused("filtered")
    os._exit(0)
if os.fork() == 0:
    def late():
        time.sleep(0.1)
        refused("threaded")
        os._exit(0)
    threading.Thread(target=late).start()
    libc.syscall(60, 0)
deadline = time.time() + 30
while time.time() < deadline and not (os.path.exists("filtered") and os.path.exists("threaded")):
    time.sleep(0.02)
time.sleep(0.1)
refused("last")
print('{"errno": 0}')
"##;
    python_succeeds(code, |configuration, fixture| {
        for name in ["filtered", "threaded", "last"] {
            let said = std::fs::read_to_string(fixture.work.join(name)).unwrap_or_default();
            assert_eq!(said, "127", "{configuration:?}: {name}");
            let is_told = |event: &Value| {
                event["event_type"] == "deny.exec" && event["message"].to_string().contains(name)
            };
            assert!(
                fixture.events().iter().any(is_told),
                "{configuration:?}: {name}: {:#?}",
                fixture.events()
            );
        }
    });
}

/// When a program has started, guard compares it with the program that it allowed. For unusual arguments,
/// environments and scripts, guard must recognize the allowed program, and must not report a changed one.
#[test]
fn started_program_is_recognised_as_the_allowed_one() {
    let code = r##"
import ctypes, os
libc = ctypes.CDLL(None)
def words(list):
    return None if list is None else (ctypes.c_char_p * (len(list) + 1))(*list, None)
def run(path, argv, environment):
    argv, environment = words(argv), words(environment)
    child = os.fork()
    if child == 0:
        libc.execve(path, argv, environment)
        os._exit(99)
    assert os.waitpid(child, 0)[1] == 0, (path, argv)
for name, text in [("plain", "/bin/sh"), ("worded", "/bin/sh -u"), ("nested", "./plain")]:
    open(name, "w").write(f"#!{text}\nexit 0\n")
    os.chmod(name, 0o755)
true = b"/usr/bin/true"
run(true, None, None)
run(true, [], [])
run(true, [b""], [b"GIT_A=1"])
run(true, [b"\xff\xfe", b"", b"a b", b""], [b"", b"=", b"=x", b"GIT_A", b"GIT_=", b"GIT_A=1", b"GIT_A=2", b"\xff=1"])
run(true, [b"true"] + [b"word"] * 20000, [b"LD_NOTHING=1"])
run(true, [b"true", b"w" * 100000], [b"GIT_LONG=" + b"v" * 100000, b"GIT_LAST=1"])
run(true, [b"true"], [b"V%d=%s" % (n, b"v" * (n % 200)) for n in range(3000)] + [b"GIT_LAST=1"])
for pages in range(1, 9):
    # Whatever lies at the end of a page.
    for beside in range(-20, 20):
        run(true, [b"true", b"w" * (pages * 4096 // 2)], [b"GIT_A=" + b"v" * (pages * 4096 // 2 + beside)])
run(b"./plain", [b"called", b"one", b"two"], [b"GIT_A=1"])
run(b"./worded", [b"called"], [])
run(b"./nested", [b"called", b"one"], [])
run(b"./nested", None, None)
print('{"errno": 0}')
"##;
    python_succeeds(code, |configuration, fixture| {
        let events = fixture.events();
        let of = |kind: &str| events.iter().filter(|event| event["event_type"] == kind).count();
        assert!(of("exec") >= 11 + 8 * 40, "{configuration:?}: {} programs were recorded", of("exec"));
        assert_eq!((of("exec.changed"), of("deny.exec")), (0, 0), "{configuration:?}");
    });
}

/// The transcript must not record a program start that the kernel aborted or only tested.
#[test]
fn failed_exec_is_not_recorded_as_a_start() {
    let code = r##"
import ctypes, os, resource, shutil
libc = ctypes.CDLL(None, use_errno=True)
def words(list):
    return (ctypes.c_char_p * (len(list) + 1))(*list, None)
def child(start):
    pid = os.fork()
    if pid == 0:
        start()
        os._exit(99)
    return os.waitpid(pid, 0)[1]
def execve(path, *argv):
    return lambda: libc.execve(path, words(argv), words([]))
# A question whether it could be executed, of newer kernels; others refuse the flag.
AT_FDCWD, AT_EXECVE_CHECK, SYS_execveat = -100, 0x10000, 322 if os.uname().machine == "x86_64" else 281
check = lambda: libc.syscall(SYS_execveat, AT_FDCWD, b"/usr/bin/true", words([b"true", b"never-check"]), words([]), AT_EXECVE_CHECK)
assert child(check) == 99 << 8
# No room for its arguments.
def small_stack():
    resource.setrlimit(resource.RLIMIT_STACK, (4096, 4096))
    execve(b"/usr/bin/true", b"true", b"never-stack", b"x" * 100000)()
assert child(small_stack) != 0
# An interpreter that does not exist.
data = open("/usr/bin/true", "rb").read()
at = data.index(b"/ld-linux")
open("odd", "wb").write(data[:at] + b"/no-linux" + data[at + 9:])
os.chmod("odd", 0o755)
assert child(execve(b"./odd", b"odd", b"never-interpreter")) == 99 << 8
# Neither a program nor a text.
open("garbage", "wb").write(b"\x7fELF" + b"\0" * 100)
os.chmod("garbage", 0o755)
assert child(execve(b"./garbage", b"garbage", b"never-format")) == 99 << 8
assert child(execve(b"/usr/bin/true", b"true", b"really")) == 0
print('{"errno": 0}')
"##;
    python_succeeds(code, |configuration, fixture| {
        let events = fixture.events();
        let of = |kind: &str, word: &str| {
            let first = |event: &Value| event["data"]["argv"][1].as_str().unwrap_or_default().to_string();
            let is_it = |event: &&Value| event["event_type"] == kind && first(event).starts_with(word);
            events.iter().filter(is_it).count()
        };
        assert_eq!(of("exec", "really"), 1, "{configuration:?}");
        assert_eq!(of("exec", "never"), 0, "{configuration:?}: {events:#?}");
        for (word, errno) in
            [("stack", libc::E2BIG), ("interpreter", libc::ENOENT), ("format", libc::ENOEXEC)]
        {
            let word = format!("never-{word}");
            assert_eq!(of("exec.failed", &word), 1, "{configuration:?}: {word}");
            let failed = events
                .iter()
                .find(|event| event["event_type"] == "exec.failed" && event["data"]["argv"][1] == word);
            let failed = failed.unwrap();
            assert_eq!(failed["data"]["errno"], errno, "{configuration:?}: {failed:#}");
            assert!(failed["message"].as_str().unwrap().starts_with("did not start"), "{failed:#}");
        }
        // This call only tests whether the program could start, so it must not be recorded as failed.
        assert_eq!(of("exec.failed", "never-check"), 0, "{configuration:?}");
        let started = events.iter().filter(|event| event["event_type"] == "exec").count();
        let last = events.iter().find(|event| event["event_type"] == "run.finished").unwrap();
        assert_eq!(last["data"]["usage"]["programs"], started, "{configuration:?}");
    });
}

/// guard must record and judge arguments that follow thousands of others, and must find a git subcommand between
/// thousands of options.
#[test]
fn subcommand_behind_thousands_of_arguments_is_judged() {
    if git().is_none() {
        return;
    }
    let code = r##"
import subprocess
def start(*argv):
    try:
        subprocess.run(argv, stderr=subprocess.DEVNULL)
    except PermissionError:
        pass
filler = ["-c", "alpha.beta=" + "x" * 88] * 1000
start("/usr/bin/true", *filler, "behind-the-arguments")
start("/usr/bin/true", "y" * 100000 + "-end-of-a-word")
start("/usr/bin/git", *filler, "checkout", "-b", "behind-the-settings")
start("/usr/bin/git", *filler, "log", *(["path" * 25] * 1000))
print('{"errno": 0}')
"##;
    python_succeeds(code, |configuration, fixture| {
        let events = fixture.events();
        let of = |kind: &str, word: &str| -> Vec<Value> {
            let is_it = |event: &&Value| {
                let argv = event["data"]["argv"].as_array().cloned().unwrap_or_default();
                let has = |part: &Value| part.as_str().unwrap_or_default().ends_with(word);
                event["event_type"] == kind && argv.iter().any(has) && argv[0] != "python3"
            };
            events.iter().filter(is_it).cloned().collect()
        };
        for (kind, word) in [
            ("exec", "behind-the-arguments"),
            ("exec", "-end-of-a-word"),
            ("deny.exec", "behind-the-settings"),
        ] {
            let found = of(kind, word);
            assert_eq!(found.len(), 1, "{configuration:?}: {kind} {word}");
            let recorded = found[0]["data"]["argv"].to_string();
            assert!(recorded.contains("bytes are not recorded"), "{configuration:?}: {recorded}");
            assert!(recorded.len() < 80_000, "{configuration:?}: {}", recorded.len());
            let message = found[0]["message"].as_str().unwrap();
            assert!(message.contains(word) && message.len() < 1500, "{configuration:?}: {message}");
        }
        let log = of("exec", "path").into_iter().find(|event| event["data"]["git"] == "log");
        let log = log.unwrap_or_else(|| panic!("{configuration:?}: the verb in the middle is not recorded"));
        assert!(log["message"].as_str().unwrap().contains("git log"), "{configuration:?}: {log:#}");
    });
}

/// With `--no-verify` guard cannot know whether an allowed program started, so the transcript must record it only as
/// allowed.
#[test]
fn no_verify_records_a_start_only_as_allowed() {
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let mut command = fixture.guard(configuration, &["--no-verify"]);
        assert!(command.args(["/bin/sh", "-c", "/usr/bin/true one"]).status().unwrap().success());
        let events = fixture.events();
        let of = |kind: &str| events.iter().filter(|event| event["event_type"] == kind).count();
        assert_eq!((of("exec"), of("exec.allowed")), (0, 2), "{configuration:?}: {events:#?}");
    }
}

/// A process is killed while it starts a program. The transcript must not show this as a refusal.
#[test]
fn program_killed_during_its_start_is_not_recorded_as_refused() {
    let code = r#"
import os, random, signal, time
for _ in range(300):
    child = os.fork()
    if child == 0:
        os.execv("/bin/true", ["true"])
    until = time.perf_counter() + random.random() * 0.0015
    while time.perf_counter() < until:
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print('{"errno": 0}')
"#;
    python_succeeds(code, |configuration, fixture| assert_eq!(denials(fixture), [], "{configuration:?}"));
}

/// While many `connect` calls wait, guard must still tell a shim why a command is refused.
#[test]
fn refusal_is_explained_while_many_connects_wait() {
    let code = r#"
import os, socket, subprocess, threading, time
server = socket.socket(socket.AF_UNIX)
server.bind("busy")
server.listen(0)
def wait():
    try:
        socket.socket(socket.AF_UNIX).connect("busy")
    except OSError:
        pass
threading.stack_size(64 << 10)
for _ in range(300):
    threading.Thread(target=wait, daemon=True).start()
time.sleep(0.5)
said = subprocess.run(["git", "push"], stderr=subprocess.PIPE, text=True).stderr
print('{"errno": 0}' if "git.remote" in said else said, flush=True)
os._exit(0)
"#;
    python_succeeds(code, |_, _| {});
}

#[test]
fn refused_command_of_busybox_is_refused() {
    let Some(busybox) =
        ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists())
    else {
        return skip("a refused command of busybox", "there is no busybox");
    };
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let policy = marker_policy(&fixture);
        let won = fixture.work.join("won");
        let mut command = fixture.guard(configuration, &["--policy", policy.to_str().unwrap()]);
        let output = command.args([busybox, "touch"]).arg(&won).output().unwrap();
        assert!(!won.exists(), "{configuration:?}: {output:?}");
    }
}
