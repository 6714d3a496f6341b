//! `guard run --request-fd`: how one guard process passes the settings of a run to another. The descriptor must be a
//! sealed memory file of the same user with a valid request; anything else is an error at once.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use guard::judge::policy::Namespaces;
use guard::run::settings::{HomeSettings, RunSettings, WorktreeSettings, send};
use guard::sys::pre_exec::inherit;
use guard::sys::sealed_memory;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::support::{
    RunOutcome, TestEnvironment, guard_program, in_every_environment, one_environment, system_python,
};

/// Starts `guard run --request-fd` with this descriptor. Fails if it does not end.
fn run_with(environment: &TestEnvironment, descriptor: OwnedFd) -> RunOutcome {
    let mut guard = environment.command(guard_program());
    guard.args(["run", "--request-fd", &descriptor.as_raw_fd().to_string()]);
    inherit(&mut guard, descriptor);
    environment.run_to_end(guard, b"")
}

fn expect_refusal(outcome: &RunOutcome, reason: &str) {
    assert_eq!((outcome.code, outcome.output.as_slice()), (2, &b""[..]), "{reason}: {outcome}");
    assert!(outcome.error.contains(reason), "{reason}: {outcome}");
    assert!(outcome.error.contains("hint: --request-fd is for guard itself"), "{outcome}");
}

fn settings(environment: &TestEnvironment, script: &str) -> RunSettings {
    RunSettings {
        command: ["bash", "-c", script].map(Into::into).to_vec(),
        environment: vec![("WORD".into(), Some("passed=on".into()))],
        worktree: WorktreeSettings { in_place: true, ..WorktreeSettings::default() },
        namespaces: Some(if environment.namespaces { Namespaces::Require } else { Namespaces::Off }),
        ..RunSettings::default()
    }
}

#[test]
fn the_settings_come_from_a_sealed_memory_file_of_the_same_user() {
    in_every_environment(|environment| {
        let outcome = run_with(environment, send(&settings(environment, "echo $WORD")).unwrap());
        if environment.user.ids.is_some() {
            // The tests, which made the file, run as root.
            return expect_refusal(&outcome, "it belongs to another user");
        }
        assert_eq!((outcome.code, outcome.printed().as_str()), (0, "passed=on\n"), "{outcome}");
        let events = String::from_utf8_lossy(&outcome.output).lines().count();
        assert!(events > 3, "{outcome}");
    });
}

#[test]
fn other_descriptors_are_refused_at_once() {
    let environment = one_environment();
    // Nobody writes to the pipe and nobody closes it: reading it would never end.
    let (pipe, _writer) = nix::unistd::pipe().unwrap();
    expect_refusal(&run_with(&environment, pipe), "it is not a memory file");
    let terminal = nix::pty::openpty(None, None).unwrap();
    expect_refusal(&run_with(&environment, terminal.slave), "it is not a memory file");
    let file = environment.directory.join("request.json");
    std::fs::write(&file, "{}").unwrap();
    let refused = run_with(&environment, File::open(&file).unwrap().into());
    assert!(refused.error.contains("memory file"), "{refused}");
    let unsealed = memfd_create(c"request", MFdFlags::MFD_CLOEXEC).unwrap();
    expect_refusal(&run_with(&environment, unsealed), "it is not a sealed memory file");
    for number in ["0", "2", "987"] {
        let mut guard = environment.command(guard_program());
        guard.args(["run", "--request-fd", number]);
        let reason = if number == "987" { "Bad file descriptor" } else { "it is not a memory file" };
        expect_refusal(&environment.run_to_end(guard, b""), reason);
    }
}

#[test]
fn unusable_requests_are_refused() {
    let environment = one_environment();
    let sealed = |text: &[u8]| sealed_memory::create(c"request", text).unwrap();
    for text in ["", "{", "5", "{\"unknown\": 1}", "{\"command\": 5}", "\u{0}"] {
        expect_refusal(&run_with(&environment, sealed(text.as_bytes())), "the request is not valid");
    }
    expect_refusal(
        &run_with(&environment, sealed(&vec![b' '; (16 << 20) + 1])),
        "it is larger than 16777216 bytes",
    );
    let nested = "[".repeat(1 << 20);
    expect_refusal(&run_with(&environment, sealed(nested.as_bytes())), "the request is not valid");
    // A request that the receiver would refuse is not sent.
    let huge = RunSettings { policy: Some("x".repeat(16 << 20)), ..RunSettings::default() };
    assert!(send(&huge).is_err());
    let outside = RunSettings {
        home: HomeSettings { files: vec![("../outside".into(), String::new())], ..HomeSettings::default() },
        ..settings(&environment, "true")
    };
    let refused = run_with(&environment, send(&outside).unwrap());
    assert!(refused.code == 2 && refused.error.contains("the path leads out of it"), "{refused}");
}

#[test]
fn a_request_goes_with_no_other_option() {
    let environment = one_environment();
    for more in [&["--", "true"][..], &["--json"], &["--write", "/"], &["--detach"]] {
        let mut guard = environment.command(guard_program());
        guard.args(["run", "--request-fd", "9"]).args(more);
        let outcome = environment.run_to_end(guard, b"");
        assert!(outcome.code == 2 && outcome.error.contains("cannot be used with"), "{more:?}: {outcome}");
    }
}

/// Makes a sealed memory file with a request, as guard does, and starts guard with it.
const AGENT: &str = r#"
import fcntl, json, os, sys
file = os.memfd_create("request", os.MFD_ALLOW_SEALING)
os.write(file, json.dumps({"command": [{"Unix": list(word)} for word in [b"touch", sys.argv[2].encode()]],
                           "write": [os.path.dirname(sys.argv[2])], "worktree": {"in_place": True}}).encode())
fcntl.fcntl(file, 1033, 15)
os.set_inheritable(file, True)
os.execv(sys.argv[1], [sys.argv[1], "run", "--request-fd", str(file)])
"#;

#[test]
fn an_agent_gains_nothing_by_a_request_of_its_own() {
    let Some(python) = system_python() else { return };
    in_every_environment(|environment| {
        environment.run_outside("mkdir outside");
        let target = environment.directory.with_file_name("outside").join("made").display().to_string();
        let guard = guard_program().display().to_string();
        let words = [python, "-c", AGENT, &guard, &target];
        // Outside a run, the same program succeeds.
        let mut agent = environment.command(python);
        agent.args(&words[1..]);
        let outcome = environment.run_to_end(agent, b"");
        assert_eq!(outcome.code, 0, "{outcome}");
        std::fs::remove_file(&target).unwrap();
        let outcome = environment.run(&["--read", &guard], &words);
        assert!(outcome.code != 0, "{outcome}");
        assert!(!std::path::Path::new(&target).exists(), "{outcome}");
    });
}
