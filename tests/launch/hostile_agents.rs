// slow
//! Agents try to survive the end of their run. Every run must end, and must leave no process.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    agent_process, expect_no_process_left, in_every_environment, in_every_environment_at_once, init_process,
    unique_mark,
};

#[test]
fn agents_that_ignore_signals_are_ended() {
    in_every_environment_at_once(|environment| {
        let stubborn = "import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: os.setpgid(0, 0)
time.sleep(600)";
        // The processes are stopped, so the kernel does not deliver SIGTERM to them.
        let stopped = "import os, signal
if os.fork() == 0:
    os.setsid()
    os.kill(os.getpid(), signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)";
        for program in [stubborn, stopped] {
            let mark = unique_mark();
            // The time limit is long enough for the agent to set itself up on a busy machine.
            let outcome = environment.run(&["--env", &mark, "--timeout", "3"], &["python3", "-c", program]);
            outcome.expect_code_and_kind(124, "idle_timeout");
            assert!(outcome.took < Duration::from_secs(30), "{}: {:?}", environment.name(), outcome.took);
            assert_eq!(outcome.result["exit_code"], 137, "{outcome}");
            outcome.expect_complete_transcript();
            expect_no_process_left(&mark, Duration::ZERO);
        }
    });
}

#[test]
fn run_ends_correctly_if_the_agent_deletes_its_home() {
    in_every_environment(|environment| {
        // The agent deletes its home and its temporary directory, and tries to delete guard's shims, which it may
        // not.
        let destroy = "import os, shutil
for path in (os.environ['HOME'], os.environ['TMPDIR'], os.path.dirname(shutil.which('git'))):
    shutil.rmtree(path, ignore_errors=True)";
        std::fs::write(environment.directory.join("destroy.py"), destroy).unwrap();
        let script = "python3 destroy.py; git log --oneline | wc -l; sh -c 'echo still here'";
        let outcome = environment.run_bash(script);
        assert_eq!((outcome.code, outcome.printed()), (0, "1\nstill here\n".to_string()), "{outcome}");
        outcome.expect_complete_transcript();
        // The agent tries to kill every other process.
        let script = "(sleep 60 &) ; git log > /dev/null & kill -9 -1 2>/dev/null; kill -9 1 2>/dev/null; kill -9 $PPID 2>/dev/null; echo alone";
        let outcome = environment.run_bash(script);
        assert_eq!((outcome.code, outcome.printed()), (0, "alone\n".to_string()), "{outcome}");
        outcome.expect_complete_transcript();
        // The agent deletes its own working directory.
        let outcome =
            environment.run_bash("rm -rf .[a-z]* * ; mkdir x && cd x && rmdir ../x; /bin/echo nowhere");
        assert_eq!(outcome.printed(), "nowhere\n", "{outcome}");
        // The agent removes all permissions from its own directories. guard must remove them all the same.
        let outcome = environment.run_bash("mkdir -p $HOME/a/b $TMPDIR/c/d; touch $HOME/a/b/f $TMPDIR/c/d/f; chmod -R 0 $HOME/a $TMPDIR/c; echo closed");
        assert_eq!(outcome.printed(), "closed\n", "{outcome}");
        let run = outcome.transcript().parent().unwrap().to_path_buf();
        assert!(!run.join("home").exists(), "{}: the private home is still there", environment.name());
        assert_eq!(
            std::fs::read_dir(environment.temporary_directory()).unwrap().count(),
            0,
            "{}",
            environment.name()
        );
    });
}

/// A daemon must end with the command that started it, and must not delay the end of the run.
#[test]
fn daemons_end_with_the_command() {
    in_every_environment(|environment| {
        let mark = unique_mark();
        let script = "(setsid sleep 60 &); nohup setsid bash -c 'sleep 60; :' & disown; echo done";
        let outcome = environment.run(&["--env", &mark], &["bash", "-c", script]);
        assert_eq!((outcome.code, outcome.printed()), (0, "done\n".to_string()), "{outcome}");
        assert!(outcome.took < Duration::from_secs(60), "{}: {:?}", environment.name(), outcome.took);
        expect_no_process_left(&mark, Duration::ZERO);
    });
}

#[test]
fn garbage_on_the_control_socket_changes_no_decision() {
    let script = "import os, socket, struct
for number in range(150):
    client = socket.socket(socket.AF_UNIX)
    client.connect(os.environ['GUARD_CONTROL'])
    garbage = [b'', os.urandom(1000), b'\\xff' * 8, struct.pack('<I', 0xffffffff) + b'x', b'GET / HTTP/1.1\\r\\n\\r\\n', b'\\0' * 100][number % 6]
    try:
        client.sendall(garbage)
        if number % 2: client.shutdown(socket.SHUT_WR)
        if number % 10 == 1: client.recv(10)
    except OSError: pass
kept = client
os.system('git status --short > /dev/null && echo answered')
import subprocess
print(subprocess.run(['git', 'push'], stderr=subprocess.PIPE).stderr.count(b'Permission denied'), flush=True)";
    in_every_environment(|environment| {
        std::fs::write(environment.directory.join("garbage.py"), script).unwrap();
        let outcome = environment.run(&["--timeout", "30"], &["python3", "garbage.py"]);
        assert_eq!((outcome.code, outcome.printed()), (0, "answered\n1\n".to_string()), "{outcome}");
        assert!(outcome.took < Duration::from_secs(20), "{}: {:?}", environment.name(), outcome.took);
        let told = outcome.events().iter().filter(|event| event["event_type"] == "control.garbage").count();
        assert!(told >= 50, "{}: {told} of 150 are in the transcript", environment.name());
        outcome.expect_complete_transcript();
    });
}

/// Once the program runs, init must not be dumpable, so that no process of the user can read its memory. The program
/// itself must be dumpable, because the supervisor reads its memory.
#[test]
fn init_is_not_dumpable_while_the_program_runs() {
    in_every_environment(|environment| {
        let user = environment.user.ids.map_or_else(|| nix::unistd::geteuid().as_raw(), |(user, _)| user);
        if user == 0 {
            // Root may read the memory of its processes in any case, so the test only applies to other users.
            return;
        }
        let mut command =
            environment.guard_run(&["-q", "--no-toolchains"], &["bash", "-c", "echo started; read line"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "started\n", "{}", environment.name());
        let first = init_process(child.id() as i32, Instant::now());
        let agent = agent_process(child.id() as i32, Instant::now());
        let owner = |pid: i32| std::fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid();
        assert_eq!((owner(first), owner(agent)), (0, user), "{}", environment.name());
        drop(child.stdin.take());
        child.wait().unwrap();
    });
}

/// A process of the same user stops init from outside. guard must end the run without init.
#[test]
fn stopped_init_does_not_keep_the_run_alive() {
    in_every_environment_at_once(|environment| {
        let mark = unique_mark();
        let script = "setsid sleep 600 & sleep 600";
        let mut command = environment.guard_run(&["--json", "--env", &mark], &["bash", "-c", script]);
        let started = Instant::now();
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let guard = child.id();
        let deadline = started + Duration::from_secs(20);
        while crate::support::marked_processes(&mark)
            .iter()
            .filter(|(_, what)| what.starts_with("sleep"))
            .count()
            < 2
        {
            assert!(Instant::now() < deadline, "{}: it does not start", environment.name());
            std::thread::sleep(Duration::from_millis(20));
        }
        let children = std::fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).unwrap();
        let first: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
        kill(Pid::from_raw(first), Signal::SIGSTOP).unwrap();
        kill(Pid::from_raw(guard as i32), Signal::SIGTERM).unwrap();
        let outcome = environment.collect_outcome(child, started);
        expect_no_process_left(&mark, Duration::ZERO);
        assert!(outcome.took < Duration::from_secs(60), "{}: {:?}", environment.name(), outcome.took);
        assert_eq!(outcome.result["success"], false, "{outcome}");
        outcome.expect_complete_transcript();
    });
}
