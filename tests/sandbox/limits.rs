// slow
//! The limits of a policy must be in force, also for root and without cgroups. If a limit is not in force, the result
//! must say so.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{
    SandboxConfiguration, SandboxFixture, SandboxUser, holds_within, probe_directory, sandbox_configurations,
    skip_unsupported, system_python,
};

/// The process limit of the tests. The probe tries to start more.
const LIMIT: usize = 64;
const TRIED: usize = 1200;

/// Returns a command that runs guard without cgroups, as in most containers. Only root can hide the cgroups; for
/// ordinary users nothing is hidden, because they usually cannot create cgroups anyway.
fn without_cgroups(guard: &Command) -> Command {
    let hide = "mount -t tmpfs tmpfs /sys/fs/cgroup && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "/bin/sh", "-c", hide, "sh"]).arg(guard.get_program()).args(guard.get_args());
    command.env_clear();
    for (name, value) in guard.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.current_dir(guard.get_current_dir().unwrap());
    command
}

fn policy(fixture: &SandboxFixture, limits: &str) -> String {
    let text = format!(
        "version = 1\nname = \"limited\"\nextends = \"strict\"\n[limits]\noverride = true\n{limits}\n"
    );
    fixture.file(&fixture.base.join("limited.toml"), &text).display().to_string()
}

fn run(configuration: SandboxConfiguration, fixture: &SandboxFixture, limits: &str) -> Command {
    let policy = policy(fixture, limits);
    let guard = fixture.guard(configuration, &["--policy", &policy]);
    match configuration.user {
        SandboxUser::Root => without_cgroups(&guard),
        SandboxUser::Ordinary => guard,
    }
}

/// Returns the number of processes with this name on the machine.
fn processes_called(name: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let names = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("comm")).ok());
    names.filter(|comm| comm.trim() == name).count()
}

/// Returns the enforcement section of the result of the only run.
fn enforcement(fixture: &SandboxFixture) -> Value {
    let events = fixture.events();
    let last = events.last().unwrap();
    assert_eq!(last["event_type"], "run.finished");
    last["data"]["enforcement"].clone()
}

#[test]
fn process_limit_holds_without_a_cgroup() {
    let Some(python) = system_python() else { return };
    let mut failures = Vec::new();
    for (index, configuration) in sandbox_configurations().into_iter().enumerate() {
        let fixture = SandboxFixture::new(configuration.user);
        let name = format!("many-{}-{index}", std::process::id() % 10_000);
        let mut command = run(configuration, &fixture, &format!("processes = {LIMIT}"));
        command.arg(python).arg(probe_directory().join("limits.py")).args([
            "processes",
            &name,
            &TRIED.to_string(),
        ]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let alive = processes_called(&name);
        drop(child.stdin.take());
        child.wait().unwrap();
        // Without namespaces, the limit of an ordinary user also counts the user's other processes on the machine.
        let most = if configuration.user == SandboxUser::Ordinary && !configuration.namespaces {
            TRIED
        } else {
            2 * LIMIT
        };
        let enforcement = enforcement(&fixture);
        let bound_by = &enforcement["process_bound_by"];
        if !(LIMIT / 2..most).contains(&alive)
            || !["supervisor", "rlimit", "cgroup"].iter().any(|way| bound_by == way)
        {
            failures.push(format!("{configuration:?}: {alive} alive, bound by {bound_by}: {said}"));
        }
        assert!(holds_within(std::time::Duration::from_secs(5), || processes_called(&name) == 0));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A run starts far more processes than may live at once, one after the other. All must succeed.
#[test]
fn ended_processes_do_not_count_towards_the_limit() {
    let Some(python) = system_python() else { return };
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let mut command = run(configuration, &fixture, &format!("processes = {LIMIT}"));
        command.arg(python).arg(probe_directory().join("limits.py")).args(["busy", "200"]);
        let report = super::Report::of(&command.output().unwrap());
        assert!(report.succeeded(), "{configuration:?}: {report:?}");
    }
}

/// `strict` must limit memory where that is possible, and the result must say where it is not.
#[test]
fn limits_that_cannot_be_enforced_are_reported() {
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let output = run(configuration, &fixture, "processes = 64").arg("/bin/true").output().unwrap();
        assert!(output.status.success(), "{configuration:?}: {output:?}");
        let enforcement = enforcement(&fixture);
        let told = enforcement["not_in_force"].as_array().cloned().unwrap_or_default();
        let limits: Vec<&Value> = told.iter().map(|one| &one["limit"]).collect();
        // On most machines, the ordinary user of the tests cannot make a cgroup.
        if enforcement["memory_bound"] == true && configuration.user == SandboxUser::Ordinary {
            assert!(limits.is_empty(), "{configuration:?}: {told:?}");
            continue;
        }
        assert_eq!(limits, ["memory_mib"], "{configuration:?}: {enforcement}");
        assert!(told[0]["reason"].as_str().unwrap().contains("cgroup"), "{configuration:?}: {told:?}");
        let notes: Vec<String> = fixture
            .events()
            .iter()
            .filter(|event| event["event_type"] == "note")
            .map(|event| event["message"].as_str().unwrap().to_string())
            .collect();
        let has_note = |text: &str| notes.iter().any(|note| note.contains(text));
        assert!(has_note("the memory limit of"), "{configuration:?}: {notes:?}");
        assert_eq!(
            has_note("64 processes"),
            configuration.user == SandboxUser::Root,
            "{configuration:?}: {notes:?}"
        );
    }
}

/// The cgroup must end a run that uses more memory than its policy allows, before it gets all the memory it requests.
#[test]
fn memory_limit_of_strict_holds_if_a_cgroup_can_be_made() {
    let Some(python) = system_python() else { return };
    let mut bounded = 0;
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let policy = policy(&fixture, "memory_mib = 96");
        let takes_much = "x = bytearray(b'x') * (512 << 20); print('has it all')";
        let mut command = fixture.guard(configuration, &["--policy", &policy]);
        let output = command.arg(python).args(["-c", takes_much]).output().unwrap();
        let enforcement = enforcement(&fixture);
        let is_bound = enforcement["memory_bound"] == true;
        assert_eq!(is_bound, enforcement.get("not_in_force").is_none(), "{configuration:?}: {enforcement}");
        let had_it_all = String::from_utf8_lossy(&output.stdout).contains("has it all");
        assert_eq!(is_bound, !had_it_all, "{configuration:?}: {output:?}");
        if is_bound {
            let result = fixture.events().last().unwrap()["data"].clone();
            assert_eq!(result["error_kind"], "memory_exhausted", "{configuration:?}: {result}");
        }
        bounded += usize::from(is_bound);
    }
    if bounded == 0 {
        skip_unsupported("the memory limit of strict", "no cgroup can be made here");
    }
}
