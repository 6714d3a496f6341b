// slow
//! Attacks that once got out of the sandbox or stopped guard. Each must fail now.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::exec::marker;
use super::race::lost;
use super::shim_socket::git;
use super::{Boundary, Report};
use crate::support::{
    ORDINARY, SandboxConfiguration, SandboxFixture, SandboxUser, holds_within, make_directory, make_program,
    own_id, peak_memory, probe_directory, sandbox_configurations, set_mode, skip, skip_unsupported,
    system_python,
};

const PROBE: &str = "escapes.py";
const SECRET: &str = "a secret that must not be read";

/// Runs the check in all configurations at the same time.
fn everywhere(check: impl Fn(SandboxConfiguration, &SandboxFixture) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for configuration in sandbox_configurations() {
            scope.spawn(move || check(configuration, &SandboxFixture::new(configuration.user)));
        }
    });
}

/// Returns a command that runs the probe in the sandbox.
fn probe(
    fixture: &SandboxFixture,
    configuration: SandboxConfiguration,
    options: &[&str],
    arguments: &[&str],
) -> Command {
    let mut command = fixture.guard(configuration, options);
    command.arg(system_python().unwrap()).arg(probe_directory().join(PROBE)).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for a process, and kills it after the time limit. Returns its output and its peak memory in MiB.
fn watched(mut child: Child, patience: Duration) -> (Option<Output>, u64) {
    let (mut peak, began) = (0, Instant::now());
    while child.try_wait().unwrap().is_none() {
        peak = peak.max(peak_memory(child.id()) / 1024);
        if began.elapsed() > patience {
            let _ = child.kill();
            let _ = child.wait();
            return (None, peak);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    (Some(child.wait_with_output().unwrap()), peak)
}

/// Returns the paths that a run would be granted, each with the reason.
fn grants(mut guard: Command) -> Vec<(PathBuf, String)> {
    let output = guard.output().unwrap();
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let grants = plan["grants"].as_array().unwrap();
    assert!(!grants.is_empty());
    let text = |value: &Value| value.as_str().unwrap().to_string();
    grants.iter().map(|grant| (PathBuf::from(text(&grant["path"])), text(&grant["why"]))).collect()
}

/// Fails if guard would grant this command access to the secret, or if the command can read it.
fn is_not_granted(
    fixture: &SandboxFixture,
    configuration: SandboxConfiguration,
    secret: &Path,
    path: &str,
    words: &[&str],
) {
    let run = |options: &[&str]| {
        // guard would refuse a run with a planted repository for that reason alone, so this option switches that
        // check off.
        let options = [options, &["--allow-unprotected-repositories"]].concat();
        let mut guard = fixture.guard(configuration, &options);
        guard.args(words).env("PATH", path);
        guard
    };
    let found: Vec<_> = grants(run(&["--dry-run", "--json"]))
        .into_iter()
        .filter(|(path, _)| secret.starts_with(path))
        .collect();
    assert!(found.is_empty(), "{configuration:?} {words:?}: {found:?}");
    let output = run(&[]).output().unwrap();
    assert!(
        !String::from_utf8_lossy(&output.stdout).contains(SECRET),
        "{configuration:?} {words:?}: {output:?}"
    );
}

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A Unix socket server in the machine's `/tmp`. A run has its own `/tmp`, so it must not reach this one. Dropping
/// the value removes the socket.
struct Door {
    folder: PathBuf,
    server: UnixListener,
}

impl Door {
    fn new(fixture: &SandboxFixture) -> (Self, BTreeMap<String, String>) {
        let name = fixture.base.file_name().unwrap().display();
        let folder = PathBuf::from(format!("/tmp/guard-door-{}-{name}", std::process::id()));
        make_directory(&folder, Some(fixture.id), 0o755);
        let server = UnixListener::bind(folder.join("server")).unwrap();
        set_mode(&folder.join("server"), 0o777);
        server.set_nonblocking(true).unwrap();
        let facts = BTreeMap::from([("door".to_string(), folder.display().to_string())]);
        (Self { folder, server }, facts)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn proc_paths_do_not_lead_to_the_tmp_of_the_machine() {
    for way in ["cwd", "dots", "dot", "slashes", "thread", "process", "fd"] {
        Boundary::new(PROBE, &["connect", way, "{door}/server"])
            .check_with(Door::new, |_, door, _| door.server.accept().is_ok());
        Boundary::new(PROBE, &["bind", way, "{door}/planted"])
            .check_with(Door::new, |_, door, _| door.folder.join("planted").exists());
    }
    // The run may read the directory `{outside}`, but must not be able to bind a socket in it.
    Boundary::new(PROBE, &["bind", "fd", "{outside}/planted"])
        .check(|_| (), |fixture, (), _| fixture.outside.join("planted").exists());
}

/// guard opens paths on behalf of the run. For a path through `/proc/self` it must not use its own descriptors: the
/// mode of its standard output must not change.
#[test]
fn proc_self_paths_do_not_use_descriptors_of_guard() {
    let Some(python) = system_python() else { return };
    let changed = |mut command: Command, fixture: &SandboxFixture| {
        let (mut ours, theirs) = std::io::pipe().unwrap();
        std::os::unix::fs::fchown(&ours, Some(fixture.id), Some(fixture.id)).unwrap();
        let mode = |end: &std::io::PipeReader| {
            let fd = std::os::fd::AsRawFd::as_raw_fd(end);
            std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().mode()
        };
        let before = mode(&ours);
        // All three streams are pipes, because a change of the mode of `/dev/null` would affect the whole machine.
        command.arg(probe_directory().join(PROBE)).arg("chmod-descriptors");
        command.stdin(Stdio::piped()).stderr(theirs.try_clone().unwrap()).stdout(theirs);
        let ended = command.status().unwrap();
        drop(command);
        let mut said = String::new();
        ours.read_to_string(&mut said).unwrap();
        assert!(ended.success() && said.contains("errno"), "{ended} {said}");
        mode(&ours) != before
    };
    for user in SandboxUser::available() {
        let fixture = SandboxFixture::new(user);
        assert!(changed(fixture.command(python), &fixture), "without guard it is one's own");
    }
    everywhere(|configuration, fixture| {
        let mut guard = fixture.guard(configuration, &[]);
        guard.arg(python);
        assert!(!changed(guard, fixture), "{configuration:?}");
    });
}

/// An earlier run planted a `.git` file. The next run must not be able to read what that file names.
#[test]
fn planted_git_file_makes_nothing_readable() {
    let plants = [
        "mkdir fake; echo x >fake/HEAD; echo COMMON >fake/commondir; echo 'gitdir: fake' >.git",
        // The directory has the content that `git worktree add` would give it, but it is not below the `.git` of a
        // repository.
        "mkdir -p fake/worktrees/x fake/objects fake/refs; cd fake/worktrees/x; echo x | tee HEAD >../../HEAD; \
         echo COMMON >commondir; echo $OLDPWD/.git >gitdir; cd $OLDPWD; echo 'gitdir: fake/worktrees/x' >.git",
        "ln -s COMMON fake; echo 'gitdir: fake' >.git",
        "exec python3 -c 'import os; os.symlink(\"COMMON\", \".git\")'",
    ];
    everywhere(|configuration, _| {
        for plant in plants {
            for whole in [true, false] {
                let fixture = SandboxFixture::new(configuration.user);
                let secret = fixture.file(&fixture.home.join("secret"), SECRET);
                let common = if whole { "/" } else { fixture.home.to_str().unwrap() };
                // The script is in a file, because guard would judge a script in the arguments as a whole and refuse it
                // at once.
                fixture.file(&fixture.work.join("plant"), &plant.replace("COMMON", common));
                let planted =
                    fixture.guard(configuration, &[]).args(["/bin/sh", "-e", "plant"]).output().unwrap();
                assert!(planted.status.success(), "{configuration:?}: {planted:?}");
                assert!(fixture.work.join(".git").symlink_metadata().is_ok());
                let words = ["/bin/cat", secret.to_str().unwrap()];
                is_not_granted(&fixture, configuration, &secret, PATH, &words);
            }
        }
    });
}

#[test]
fn linked_worktree_can_read_its_repository() {
    let Some(git) = git() else { return };
    everywhere(|configuration, fixture| {
        let repository = fixture.base.join("repository");
        let run = |words: &[&str]| {
            let mut command = fixture.command(git);
            command.args(["-c", "user.name=a", "-c", "user.email=a@b.c", "-C", repository.to_str().unwrap()]);
            assert!(command.args(words).status().unwrap().success(), "git {words:?}");
        };
        make_directory(&repository, Some(fixture.id), 0o755);
        run(&["init", "-q", "-b", "main"]);
        run(&["commit", "-q", "--allow-empty", "-m", "the first commit"]);
        run(&["worktree", "add", "-q", "-b", "task", fixture.work.to_str().unwrap()]);
        let read =
            fixture.guard(configuration, &[]).args(["git", "log", "-1", "--format=%s"]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&read.stdout),
            "the first commit\n",
            "{configuration:?}: {read:?}"
        );
        let mut guard = fixture.guard(configuration, &["--dry-run", "--json"]);
        guard.arg("/bin/true");
        let found = grants(guard);
        assert!(
            found.iter().any(|(path, _)| *path == repository.join(".git")),
            "{configuration:?}: {found:?}"
        );
        assert!(!found.iter().any(|(path, _)| *path == repository), "{configuration:?}: {found:?}");
    });
}

/// guard makes a directory above the working directory readable if the directory contains a `.git`. It must not do so
/// if the `.git` belongs to another user.
#[test]
fn git_directory_of_another_user_makes_nothing_readable() {
    if own_id() != 0 {
        return skip("a `.git` of somebody else", "the tests were not started by root");
    }
    everywhere(|configuration, fixture| {
        for (owner, is_granted) in [(fixture.id, true), (ORDINARY + 1, false)] {
            let mut fixture = SandboxFixture::new(configuration.user);
            let tree = fixture.base.join("tree");
            for folder in [&tree, &tree.join(".git"), &tree.join("part")] {
                make_directory(folder, Some(fixture.id), 0o755);
            }
            chown(tree.join(".git"), Some(owner), Some(owner)).unwrap();
            let secret = fixture.file(&tree.join("secret"), SECRET);
            fixture.work = tree.join("part");
            if is_granted {
                let read = fixture.guard(configuration, &[]).arg("/bin/cat").arg(&secret).output().unwrap();
                assert_eq!(String::from_utf8_lossy(&read.stdout), SECRET, "{configuration:?}: {read:?}");
            } else {
                let words = ["/bin/cat", secret.to_str().unwrap()];
                is_not_granted(&fixture, configuration, &secret, PATH, &words);
            }
        }
    });
}

/// A `.git` in `/tmp` must not make `/tmp` readable. The test mounts its own `/tmp`, because all users share the
/// machine's.
#[test]
fn git_directory_in_tmp_does_not_make_tmp_readable() {
    let script = "mount -t tmpfs tmpfs /tmp && mkdir /tmp/.git /tmp/work && cd /tmp/work && \
                  exec \"$0\" run --dry-run --json -- /bin/true";
    let fixture = SandboxFixture::new(SandboxUser::available()[0]);
    let mut command = fixture.command("unshare");
    command.args(["-m", "/bin/sh", "-c", script]).arg(probe_directory().join("guard"));
    let can = fixture
        .command("unshare")
        .args(["-m", "/bin/true"])
        .output()
        .is_ok_and(|outcome| outcome.status.success());
    if !can {
        return skip_unsupported("a `.git` in /tmp", "no /tmp of the test's own can be made");
    }
    let found = grants(command);
    assert!(!found.iter().any(|(path, _)| path == Path::new("/tmp")), "{found:?}");
    assert!(found.iter().any(|(path, _)| path == Path::new("/tmp/work")), "{found:?}");
}

/// An agent makes a path lead to the shim when guard checks it, and to a refused program when the kernel starts it. The
/// refused program must not run.
#[test]
fn path_that_led_to_the_shim_starts_no_refused_program() {
    lost("process", "250", |fixture| {
        let link = |name: &str, target: &Path| {
            let link = fixture.work.join(name);
            symlink(target, &link).unwrap();
            link.display().to_string()
        };
        (link("x-a", &fixture.shim()), link("x-b", &marker(fixture)))
    });
    lost("link", "250", |fixture| {
        (fixture.shim().display().to_string(), marker(fixture).display().to_string())
    });
}

#[test]
fn huge_arguments_need_little_memory_in_guard() {
    if system_python().is_none() {
        return;
    }
    everywhere(|configuration, fixture| {
        let mut command = probe(fixture, configuration, &[], &["argv", "250000"]);
        let (output, peak) = watched(command.spawn().unwrap(), Duration::from_secs(40));
        let report = Report::of(&output.unwrap_or_else(|| panic!("{configuration:?}: guard did not end")));
        assert_eq!(report.value()["refused"], "E2BIG", "{configuration:?}: {report:?}");
        assert!(report.value()["seconds"].as_f64().unwrap() < 5.0, "{configuration:?}: {report:?}");
        assert!((1..100).contains(&peak), "{configuration:?}: {peak} MiB");
        let mut command = probe(fixture, configuration, &["--max-duration", "2"], &["argv-endless", "60000"]);
        let began = Instant::now();
        let (output, peak) = watched(command.spawn().unwrap(), Duration::from_secs(30));
        assert!(output.is_some(), "{configuration:?}: the limit did not end the run");
        assert!(began.elapsed() < Duration::from_secs(12), "{configuration:?}: {:?}", began.elapsed());
        assert!((1..100).contains(&peak), "{configuration:?}: {peak} MiB");
    });
}

#[test]
fn file_names_cannot_control_the_terminal() {
    if system_python().is_none() {
        return;
    }
    everywhere(|configuration, fixture| {
        let quiet = probe(fixture, configuration, &[], &["names"]);
        let mut loud = fixture.command(quiet.get_program());
        let output = loud.args(quiet.get_args().filter(|word| *word != "--quiet")).output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(words.matches("owned").count() >= 2, "{configuration:?}: the names are told: {words}");
        assert!(words.chars().all(|c| c == '\n' || !c.is_control()), "{configuration:?}: {words:?}");
        assert!(!words.contains(['\u{202e}', '\u{2028}']), "{configuration:?}: {words:?}");
        let forged =
            |line: &str| line.starts_with("guard: forged") || line.starts_with("  transcript: forged");
        assert!(!words.lines().any(forged), "{configuration:?}: {words:?}");
    });
}

/// A run must get all bytes of a file that is its standard input. (The tests in `metadata` check that it cannot change
/// the file.)
#[test]
fn standard_input_from_a_file_arrives_whole() {
    everywhere(|configuration, fixture| {
        let text = (0..300_000).map(|number| number.to_string()).collect::<Vec<_>>().join("\n");
        let file = fixture.file(&fixture.home.join("input"), &text);
        let feed = |input: &Path, script: &str| {
            let input = std::fs::File::open(input).unwrap();
            let mut guard = fixture.guard(configuration, &[]);
            guard.args(["/bin/sh", "-c", script]).stdin(Stdio::from(input)).output().unwrap()
        };
        let whole = feed(&file, "cat");
        assert!(
            whole.status.success() && whole.stdout == text.as_bytes(),
            "{configuration:?}: not every byte came"
        );
        // guard must also end if the command reads none or only a part of its input.
        assert!(feed(&file, "true").status.success(), "{configuration:?}");
        assert_eq!(feed(&file, "head -n 1").stdout, b"0\n", "{configuration:?}");
        let folder = feed(&fixture.home, "cat; ls /proc/self/fd/0/; cat /proc/self/fd/0/input");
        assert!(folder.stdout.is_empty(), "{configuration:?}: {folder:?}");
    });
}

/// A run must not change the mode of a named pipe or a device that is its standard input. The test makes its own
/// device.
#[test]
fn mode_of_a_pipe_or_device_on_standard_input_is_unchanged() {
    let Some(python) = system_python() else { return };
    let changed = |mut command: Command, fixture: &SandboxFixture, kind: &[&str]| {
        let path = fixture.home.join("input");
        let made = Command::new("mknod").arg(&path).args(kind).status().is_ok_and(|ended| ended.success());
        if !made {
            skip_unsupported(&format!("standard input as mknod {kind:?}"), "it cannot be made here");
            return None;
        }
        set_mode(&path, 0o666);
        chown(&path, Some(fixture.id), Some(fixture.id)).unwrap();
        let Ok(input) = std::fs::File::options().read(true).write(true).open(&path) else {
            skip_unsupported(&format!("standard input as mknod {kind:?}"), "it cannot be opened here");
            return None;
        };
        command.arg(python).arg(probe_directory().join("metadata.py")).args(["fchmod", "stdin", "input"]);
        let report = Report::of(&command.stdin(Stdio::from(input)).output().unwrap());
        assert!(report.errno().is_some(), "{report:?}");
        Some(std::fs::metadata(path).unwrap().mode() & 0o777 != 0o666)
    };
    for kind in [["p"].as_slice(), &["c", "1", "3"]] {
        for user in SandboxUser::available() {
            let fixture = SandboxFixture::new(user);
            assert_ne!(
                changed(fixture.command("/usr/bin/env"), &fixture, kind),
                Some(false),
                "bare {kind:?}"
            );
        }
        everywhere(|configuration, _| {
            let fixture = SandboxFixture::new(configuration.user);
            let changed = changed(fixture.guard(configuration, &[]), &fixture, kind);
            assert_ne!(changed, Some(true), "{configuration:?} {kind:?}");
        });
    }
}

/// guard starts a program from the working directory, which an earlier run may have written. The file that the
/// program's `#!` line or symbolic link names must not become readable.
#[test]
fn program_in_the_working_directory_grants_nothing() {
    named_by_an_agent(&[
        ("printf '#!SECRET\\n' >t", "work/t"),
        ("printf '#!/bin/cat SECRET\\n' >t", "work/t"),
        ("printf '#!/usr/bin/env SECRET\\n' >t", "work/t"),
        ("printf \"#!/bin/sh\\n'''exec' SECRET '''\\ncat SECRET\\n\" >t", "work/t"),
        ("printf '#!/bin/sh\\n\"exec\" \"SECRET\"\\ncat SECRET\\n' >t", "work/t"),
        ("ln -s SECRET t", "work/t"),
        (
            "mkdir -p v/bin; echo 'home = HOME/x/bin' >v/pyvenv.cfg; printf '#!/bin/cat SECRET\\n' >v/bin/t",
            "work/v/bin/t",
        ),
        ("ln -s HOME/x/bin bin; ln -s bin/tool t", "work/t"),
    ]);
}

/// A program outside the working directory is a symbolic link into that directory, or a script whose interpreter is
/// found there. An agent may have written the file in the working directory. What that file names must not become
/// readable.
#[test]
fn program_leading_into_the_working_directory_grants_nothing() {
    named_by_an_agent(&[
        ("ln -s SECRET t", "outside/linked"),
        ("printf '#!SECRET\\n' >python9", "outside/through-env"),
    ]);
}

/// For each pair, an earlier run executes the script in the working directory, and then guard starts the program. Fails
/// if the secret becomes readable.
fn named_by_an_agent(ways: &[(&str, &str)]) {
    everywhere(|configuration, _| {
        for (plant, program) in ways {
            let fixture = SandboxFixture::new(configuration.user);
            for folder in ["x", "x/bin", "x/lib"] {
                make_directory(&fixture.home.join(folder), Some(fixture.id), 0o755);
            }
            let secret = fixture.home.join("x/bin/tool");
            make_program(&secret, format!("#!/bin/cat\n{SECRET}"));
            symlink(fixture.work.join("t"), fixture.outside.join("linked")).unwrap();
            make_program(&fixture.outside.join("through-env"), "#!/usr/bin/env python9\n");
            let script = plant.replace("SECRET", secret.to_str().unwrap());
            let script = script.replace("HOME", fixture.home.to_str().unwrap());
            let script = format!("{script}; chmod -f +x t python9 v/bin/t || true");
            let planted =
                fixture.guard(configuration, &[]).args(["/bin/sh", "-c", &script]).output().unwrap();
            assert!(planted.status.success(), "{configuration:?}: {planted:?}");
            let path = format!("{PATH}:{}", fixture.work.display());
            let program = fixture.base.join(program);
            is_not_granted(&fixture, configuration, &secret, &path, &[program.to_str().unwrap()]);
        }
    });
}

/// Writes a policy with which the run may connect to its own servers.
fn loopback_policy(fixture: &SandboxFixture) -> String {
    let text = "version = 1\nname = \"local\"\nextends = \"strict\"\n\
        description = \"strict, and own servers can be reached.\"\n\n[network]\noverride = true\nloopback = true\n";
    fixture.file(&fixture.outside.join("local.toml"), text).display().to_string()
}

#[test]
fn listening_on_a_port_does_not_open_the_same_port_of_others() {
    if system_python().is_none() {
        return;
    }
    everywhere(|configuration, fixture| {
        let policy = loopback_policy(fixture);
        for way in ["other", "other-mapped", "six"] {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            server.set_nonblocking(true).unwrap();
            let port = server.local_addr().unwrap().port().to_string();
            let mut command =
                probe(fixture, configuration, &["--policy", &policy], &["loopback", way, &port]);
            let report = Report::of(&command.output().unwrap());
            assert!(report.succeeded(), "{configuration:?} {way}: {report:?}");
            assert!(server.accept().is_err(), "{configuration:?} {way}: {report:?}");
        }
    });
}

/// A server outside shares its port with all processes of the user (`SO_REUSEPORT`). The run must not be able to
/// listen on that port too.
#[test]
fn reuseport_does_not_share_a_port_with_the_outside() {
    let Some(python) = system_python() else { return };
    everywhere(|configuration, fixture| {
        let mut outside = fixture.command(python);
        outside
            .arg(probe_directory().join(PROBE))
            .arg("sharing-server")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut outside = outside.spawn().unwrap();
        let mut said = BufReader::new(outside.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let policy = loopback_policy(fixture);
        let mut command =
            probe(fixture, configuration, &["--policy", &policy], &["loopback", "shared", line.trim()]);
        let report = Report::of(&command.output().unwrap());
        drop(outside.stdin.take());
        let mut end = String::new();
        said.read_line(&mut end).unwrap();
        outside.wait().unwrap();
        // The probe must have tried, and the sandbox must have refused to let it share the port.
        assert_eq!(report.errno(), Some(libc::EPERM.into()), "{configuration:?}: {report:?}");
        assert!(end.contains("\"value\": 0"), "{configuration:?}: {end} {report:?}");
    });
}

#[test]
fn servers_of_the_run_are_reachable_inside() {
    if system_python().is_none() {
        return;
    }
    let six = TcpListener::bind("[::1]:0").is_ok();
    everywhere(|configuration, fixture| {
        let policy = loopback_policy(fixture);
        for address in ["127.0.0.1", "127.0.0.2", "::1"].iter().filter(|address| six || **address != "::1") {
            let mut command = probe(fixture, configuration, &["--policy", &policy], &["own-server", address]);
            let report = Report::of(&command.output().unwrap());
            assert_eq!(report.value(), "hello", "{configuration:?} {address}: {report:?}");
        }
    });
}

#[test]
fn closed_port_of_a_run_is_not_reachable_any_more() {
    if system_python().is_none() {
        return;
    }
    everywhere(|configuration, fixture| {
        let policy = loopback_policy(fixture);
        let child = probe(fixture, configuration, &["--policy", &policy], &["left-port"]).spawn().unwrap();
        let mut port = 0;
        let said =
            || std::fs::read_to_string(fixture.work.join("port")).unwrap_or_default().parse().unwrap_or(0);
        holds_within(Duration::from_secs(20), || {
            port = said();
            port != 0
        });
        let server = TcpListener::bind(("127.0.0.1", port)).unwrap();
        server.set_nonblocking(true).unwrap();
        fixture.file(&fixture.work.join("taken"), "");
        let report = Report::of(&child.wait_with_output().unwrap());
        assert!(port != 0 && report.errno().is_some_and(|errno| errno != 0), "{configuration:?}: {report:?}");
        assert!(server.accept().is_err(), "{configuration:?}: {report:?}");
    });
}

#[test]
fn pending_connects_do_not_delay_the_end_of_guard() {
    if system_python().is_none() {
        return;
    }
    everywhere(|configuration, _| {
        for _ in 0..5 {
            let fixture = SandboxFixture::new(configuration.user);
            let child = probe(&fixture, configuration, &["--json"], &["in-flight"]).spawn().unwrap();
            let (output, _) = watched(child, Duration::from_secs(20));
            let output = output.unwrap_or_else(|| panic!("{configuration:?}: guard did not end"));
            let result: Value =
                serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
            assert_eq!(result["exit_code"], 0, "{configuration:?}: {result}");
            assert_eq!(
                result["result"].as_str().map(str::trim),
                Some("ended"),
                "{configuration:?}: {result}"
            );
        }
    });
}

/// Sends this many rounds of 64 simultaneous requests to the shim socket, each with this many arguments of this length.
/// guard's memory must stay small.
fn flood(rounds: &str, words: &str, length: &str) {
    if system_python().is_none() {
        return;
    }
    // One configuration is enough: guard answers the socket with the same code in all of them, and the test sends
    // much data.
    for configuration in sandbox_configurations().into_iter().rev().take(1) {
        let fixture = SandboxFixture::new(configuration.user);
        let mut command = probe(&fixture, configuration, &[], &["control-flood", rounds, words, length]);
        let (output, peak) = watched(command.spawn().unwrap(), Duration::from_secs(240));
        let report = Report::of(&output.unwrap_or_else(|| panic!("{configuration:?}: guard did not end")));
        assert_eq!(report.value()["answer"], "00", "{configuration:?}: {report:?}");
        assert!(report.value()["seconds"].as_f64().unwrap() < 20.0, "{configuration:?}: {report:?}");
        assert!((1..200).contains(&peak), "{configuration:?}: {peak} MiB");
    }
}

/// Two million empty arguments need more memory in guard than in the message. guard must stay within its limit.
#[test]
fn requests_with_millions_of_arguments_need_little_memory() {
    flood("1", "2097000", "0");
}

/// guard must release the memory of a large request before the next one.
#[test]
fn memory_of_large_requests_is_released() {
    flood("2", "1", "8388000");
    flood("2", "262144", "27");
}

#[test]
fn slow_request_on_the_control_socket_is_cut_off() {
    if system_python().is_none() {
        return;
    }
    everywhere(|configuration, fixture| {
        let report = Report::of(&probe(fixture, configuration, &[], &["control-trickle"]).output().unwrap());
        let seconds = report.value().as_i64();
        assert!(seconds.is_some_and(|seconds| (3..=10).contains(&seconds)), "{configuration:?}: {report:?}");
    });
}
