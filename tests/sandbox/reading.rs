// slow
//! A run must not read keys, files of other users, password hashes, or guard's records.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::Boundary;
use crate::support::{
    ORDINARY, SandboxFixture, SandboxUser, make_directory, own_id, probe_directory, sandbox_configurations,
    set_mode, skip, system_python,
};

const SECRET: &str = "a secret that must not be read";

fn leaked(report: &super::Report) -> bool {
    report.output.contains(SECRET)
}

#[test]
fn run_cannot_read_ssh_keys_of_the_user() {
    let setup = |fixture: &SandboxFixture| {
        let folder = fixture.home.join(".ssh");
        make_directory(&folder, Some(fixture.id), 0o700);
        fixture.file(&folder.join("id_ed25519"), SECRET)
    };
    for attack in ["read", "read-through-root", "read-through-link"] {
        Boundary::new("files.py", &[attack, "{home}/.ssh/id_ed25519"])
            .check(setup, |_, _: &mut PathBuf, report| leaked(report));
    }
    let listed =
        |_: &SandboxFixture, _: &mut PathBuf, report: &super::Report| report.output.contains("id_ed25519");
    Boundary::new("files.py", &["list", "{home}/.ssh"]).check(setup, listed);
}

/// Root in a run has no capabilities, and must not read the files of other users.
#[test]
fn root_in_a_run_cannot_read_files_of_other_users() {
    let setup = |fixture: &SandboxFixture| {
        let path = fixture.outside.join("theirs");
        std::fs::write(&path, SECRET).unwrap();
        set_mode(&path, 0o600);
        std::os::unix::fs::chown(&path, Some(ORDINARY), Some(ORDINARY)).unwrap();
    };
    Boundary::new("files.py", &["read", "{outside}/theirs"])
        .only(SandboxUser::Root)
        .check(setup, |_, (), report| leaked(report));
}

#[test]
fn root_in_a_run_cannot_read_password_hashes() {
    let Ok(shadow) = std::fs::read_to_string("/etc/shadow") else {
        return skip("/etc/shadow", "it cannot be read here");
    };
    let first = shadow.lines().next().unwrap_or_default().to_string();
    for attack in ["read", "read-through-root"] {
        Boundary::new("files.py", &[attack, "/etc/shadow"])
            .only(SandboxUser::Root)
            .check(|_| (), |_, (), report| !first.is_empty() && report.output.contains(&first));
    }
}

/// A run must not read or change its own transcript while guard writes it.
#[test]
fn run_cannot_read_or_write_its_transcript() {
    let Some(python) = system_python() else { return };
    for configuration in sandbox_configurations() {
        for attack in ["read", "append", "unlink", "truncate"] {
            let fixture = SandboxFixture::new(configuration.user);
            // The private home is beside the transcript, so the run can guess the transcript's path.
            let code = format!(
                "import os,sys;sys.path.insert(0,{tools:?});\
                 path=os.path.join(os.path.dirname(os.environ['HOME']),'transcript.jsonl');\
                 sys.argv=['files.py',{attack:?},path];print('TRIED',path);import files",
                tools = probe_directory().to_str().unwrap(),
            );
            let output =
                fixture.guard(configuration, &[]).args([python, "-B", "-c", &code]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let events = fixture.events();
            let path = text
                .lines()
                .find_map(|line| line.strip_prefix("TRIED "))
                .unwrap_or_else(|| panic!("{output:?}"));
            assert!(path.starts_with(fixture.state.to_str().unwrap()), "{path}");
            assert!(!text.contains("event_type"), "{configuration:?}: the transcript was read: {text}");
            assert!(
                text.contains("\"errno\": 13") || text.contains("\"errno\": 2"),
                "{configuration:?}: {text}"
            );
            let first = events.first().and_then(|event| event["event_type"].as_str()).unwrap();
            let last = events.last().and_then(|event| event["event_type"].as_str()).unwrap();
            assert_eq!((first, last), ("run.started", "run.finished"), "{configuration:?}: after {attack}");
        }
    }
}

/// A run makes its temporary files and its home accessible to everybody. Other users of the machine must still not
/// reach them.
#[test]
fn files_a_run_opens_to_all_stay_unreachable_for_other_users() {
    const OTHER: &str = "64021";
    if own_id() != 0 {
        return skip("folders a run opens to everybody", "only root can become another user");
    }
    for configuration in sandbox_configurations() {
        let fixture = SandboxFixture::new(configuration.user);
        let scratch = fixture.base.join("scratch");
        make_directory(&scratch, Some(fixture.id), 0o777);
        // Other users can enter `scratch`, in which guard makes the run's temporary directory.
        let own = format!(
            "for f in $TMPDIR /tmp /var/tmp $HOME .; do echo '{SECRET}' > $f/leak; chmod 777 $f $f/leak; done 2>/dev/null; \
             echo ready; while [ ! -e done ]; do sleep 0.02; done"
        );
        let mut run = fixture.guard(configuration, &[]);
        run.args(["/bin/sh", "-c", &own]).env("TMPDIR", &scratch).stdout(Stdio::piped());
        let mut run = run.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let search = |user: Option<&str>| {
            let mut search = match user {
                Some(user) => {
                    let mut search = Command::new("setpriv");
                    search.args(["--reuid", user, "--regid", user, "--clear-groups", "grep"]);
                    search
                }
                None => Command::new("grep"),
            };
            let found = search.args(["-rl", SECRET]).arg(&fixture.base).output().unwrap();
            let found = String::from_utf8_lossy(&found.stdout).into_owned();
            found.lines().map(PathBuf::from).collect::<Vec<_>>()
        };
        let (everything, seen) = (search(None), search(Some(OTHER)));
        std::fs::write(fixture.work.join("done"), "").unwrap();
        assert!(run.wait().unwrap().success(), "{configuration:?}");
        let in_scratch = everything.iter().filter(|path| path.starts_with(&scratch)).count();
        let in_state = everything.iter().filter(|path| path.ends_with("home/leak")).count();
        assert_eq!((line.trim(), in_state), ("ready", 1), "{configuration:?}: {everything:?}");
        assert_eq!(
            in_scratch,
            if configuration.namespaces { 2 } else { 1 },
            "{configuration:?}: {everything:?}"
        );
        // Only the file in the working directory may be visible: the user owns that directory and has opened the ones
        // above it.
        assert_eq!(seen, [fixture.work.join("leak")], "{configuration:?}");
    }
}

/// Administrators keep licences and keys below `/opt` and `/usr/local`. A run of root must not read files there that
/// only root may read, and must read those that everybody may.
#[test]
fn root_in_a_run_cannot_read_files_only_root_may_read() {
    if own_id() != 0 {
        return skip("root's files below /opt and /usr/local", "only root can make some");
    }
    let places = ["/opt", "/usr/local/share"];
    if !std::path::Path::new(places[1]).is_dir() {
        return skip("root's files below /usr/local", "there is no /usr/local/share");
    }
    // The test mounts its own file systems there, so that the machine's directories stay unchanged.
    let prepare = format!(
        "set -e; umask 022; for d in {}; do mount -t tmpfs -o mode=755 tmpfs $d; mkdir -p $d/open $d/closed $d/1/2/3/4/5/6/7; \
         for f in secret closed/secret 1/2/3/4/5/6/7/secret; do echo '{SECRET}' > $d/$f; chmod 600 $d/$f; done; chmod 700 $d/closed; \
         for f in public open/public 1/2/3/4/5/6/7/public; do echo \"public $d\" > $d/$f; done; \
         printf '#!/bin/sh\\necho ran\\n' > $d/open/program; chmod 755 $d/open/program; done; exec \"$@\"",
        places.join(" ")
    );
    let attack = format!(
        "for d in {}; do cat $d/secret $d/closed/secret $d/1/2/3/4/5/6/7/secret 2>/dev/null; ls $d/closed; \
         cat $d/public $d/open/public $d/1/2/3/4/5/6/7/public; $d/open/program; done; exit 0",
        places.join(" ")
    );
    let mut failures = Vec::new();
    let ways = sandbox_configurations().into_iter().filter(|one| one.user == SandboxUser::Root);
    for configuration in ways.map(Some).chain([None]) {
        let fixture = SandboxFixture::new(SandboxUser::Root);
        let mut command = Command::new("unshare");
        command.args(["--mount", "/bin/sh", "-c", &prepare, "sh"]);
        if let Some(configuration) = configuration {
            let guard = fixture.guard(configuration, &[]);
            command.arg(guard.get_program()).args(guard.get_args());
        }
        command.args(["/bin/sh", "-c", &attack]);
        command.env("HOME", &fixture.home).env("XDG_STATE_HOME", &fixture.state).env("PATH", "/usr/bin:/bin");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let seen = text.matches(SECRET).count() + text.lines().filter(|line| *line == "secret").count();
        let usable = (text.matches("public ").count(), text.matches("ran").count());
        let wanted = if configuration.is_some() { 0 } else { 8 };
        if seen != wanted || usable != (6, 2) {
            failures.push(format!("{configuration:?}: {seen} secrets, {usable:?} usable: {output:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
