//! Tests `guard run` as a caller sees them: output formats, exit codes and messages.

use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Scratch, guard, skip, text};

fn run(scratch: &Scratch, words: &[&str]) -> Output {
    command(scratch, words).output().unwrap()
}

fn command(scratch: &Scratch, words: &[&str]) -> Command {
    let work = scratch.0.join("work");
    std::fs::create_dir_all(&work).unwrap();
    let mut command = guard();
    command
        .arg("run")
        .args(words)
        .env("HOME", scratch.0.join("home"))
        .env("XDG_STATE_HOME", scratch.0.join("state"))
        .current_dir(work);
    command
}

fn result(output: &Output) -> Value {
    let text = text(output);
    let last = text
        .lines()
        .last()
        .unwrap_or_else(|| panic!("no output: {}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(last).unwrap()
}

#[test]
fn result_fits_its_published_schema() {
    let schema =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/result.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let scratch = Scratch::new("run-schema");
    for words in [
        &["--json", "--", "sh", "-c", "echo hello; echo x > made.txt"][..],
        &["--json", "--", "no-such-program"],
        &["--json", "--", "git", "push"],
        &["--json", "--", "sh", "-c", "exit 7"],
    ] {
        let result = result(&run(&scratch, words));
        let errors: Vec<String> = validator.iter_errors(&result).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{words:?}: {errors:?}\n{result}");
    }
}

#[test]
fn result_reports_exit_code_output_and_changed_files() {
    let scratch = Scratch::new("run-result");
    let output = run(&scratch, &["--json", "--", "sh", "-c", "echo hello; echo x > made.txt"]);
    let result = result(&output);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(result["success"], true);
    assert_eq!(result["tool"], "sh");
    assert_eq!(result["result"], "hello\n");
    assert_eq!(result["exit_code"], 0);
    assert_eq!(result["files_changed"][0]["path"], "made.txt");
    assert_eq!(result["files_changed"][0]["change"], "created");
    assert_eq!(result["enforcement"]["seccomp"], true);
    assert!(result["duration"].as_str().unwrap().starts_with("0m"));
    assert!(std::fs::metadata(result["transcript"]["path"].as_str().unwrap()).is_ok());
    assert_eq!(std::fs::read_to_string(scratch.0.join("work/made.txt")).unwrap(), "x\n");
}

#[test]
fn run_failures_have_their_error_kind_and_exit_code() {
    let scratch = Scratch::new("run-kinds");
    scratch.write("work/plain.txt", "no program");
    for (words, code, kind) in [
        (&["--json", "--", "no-such-program"][..], 127, "command_not_found"),
        (&["--json", "--", "./missing"], 127, "command_not_found"),
        (&["--json", "--", "./plain.txt"], 126, "invalid_input"),
        (&["--json", "--", "git", "push"], 126, "policy_denied"),
        (&["--json", "--", "sh", "-c", "exit 7"], 7, "upstream_error"),
        (&["--json", "--", "sh", "-c", "kill -TERM $$"], 143, "upstream_error"),
        (&["--json", "--dir", "/", "--", "true"], 125, "invalid_input"),
        (&["--json", "--timeout", "1", "--", "sleep", "60"], 124, "idle_timeout"),
        (&["--json", "--max-duration", "1", "--", "sleep", "60"], 124, "timeout"),
    ] {
        let output = run(&scratch, words);
        let result = result(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {result}");
        assert_eq!(result["error_kind"], kind, "{words:?}: {result}");
        assert_eq!(result["success"], false);
        assert!(!result["error_detail"]["message"].as_str().unwrap().is_empty());
    }
}

/// guard must report a misspelt option as an unknown option, and must not run it as the command.
#[test]
fn misspelt_option_is_not_run_as_a_command() {
    let scratch = Scratch::new("run-unknown-option");
    let output = run(&scratch, &["--polcy", "strict", "--", "true"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("unexpected argument '--polcy'") && said.contains("--policy"), "{said}");
    // guard must pass the arguments after the command to the command.
    let output = run(&scratch, &["echo", "--polcy"]);
    assert_eq!(text(&output), "--polcy\n");
}

/// All programs of the machine share the directories for temporary files, and a run may write to its working directory.
/// guard must refuse these directories as working directories, and must accept a directory inside them.
#[test]
fn temporary_directory_is_refused_as_working_directory() {
    let scratch = Scratch::new("run-temporary");
    for directory in ["/tmp", "/var/tmp", "/dev/shm"] {
        let output = run(&scratch, &["--json", "--dir", directory, "--", "touch", "guard-test-made"]);
        let result = result(&output);
        assert_eq!((output.status.code(), &result["error_kind"]), (Some(125), &"invalid_input".into()));
        assert!(
            result["error"].as_str().unwrap().contains("share this directory; create a directory inside it"),
            "{result}"
        );
        let below = format!("{directory}/guard-test-below-{}", std::process::id());
        std::fs::create_dir(&below).unwrap();
        let worked = run(&scratch, &["--json", "--dir", &below, "--", "touch", "made"]);
        let is_made = std::path::Path::new(&below).join("made").exists();
        std::fs::remove_dir_all(&below).unwrap();
        assert!(is_made, "{directory}: {}", self::result(&worked));
    }
}

#[test]
fn refused_command_is_reported_with_its_rule() {
    let scratch = Scratch::new("run-refused");
    let output = run(&scratch, &["--", "git", "push"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(126));
    assert!(said.contains("git.remote") && said.contains("Instead:"), "{said}");
}

#[test]
fn dry_run_shows_the_plan_and_starts_nothing() {
    let scratch = Scratch::new("run-dry");
    let output =
        command(&scratch, &["--dry-run", "--listen", "3000", "--listen", "80", "--", "touch", "made"])
            .env("MY_TOKEN", "s3cret-value")
            .output()
            .unwrap();
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(0));
    for part in [
        "program      ",
        "rwx  ",
        "working directory",
        "loopback   no",
        "listen     127.0.0.1:80",
        "listen     127.0.0.1:3000",
        "hosts      none; the proxy denies all requests",
        "HOME=",
        "idle_seconds",
        "private    /tmp",
    ] {
        assert!(shown.contains(part), "{part} is missing in\n{shown}");
    }
    // If root runs guard, and only root may read something in `/usr/local`, guard grants the parts of `/usr` one by
    // one.
    let is_root = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0;
    let has_system = |path: &str| shown.contains(&format!("r-x  {path}  (system)"));
    assert!(has_system("/usr") || is_root && has_system("/usr/bin"), "{shown}");
    assert!(!shown.contains("s3cret-value"), "a variable that is not passed is not shown");
    assert!(!scratch.0.join("work/made").exists());
    assert!(!scratch.0.join("state").exists(), "nothing was made");
    for port in ["0", "65536", "x"] {
        assert_eq!(
            run(&scratch, &["--dry-run", "--listen", port, "--", "true"]).status.code(),
            Some(2),
            "{port}"
        );
    }
    let json = run(&scratch, &["--dry-run", "--json", "--", "touch", "made"]);
    let plan: Value = serde_json::from_str(&text(&json)).unwrap();
    assert!(plan["grants"].as_array().unwrap().len() > 5);
}

#[test]
fn stream_json_prints_events_and_the_result_last() {
    let scratch = Scratch::new("run-stream");
    let output = run(&scratch, &["--stream-json", "--", "sh", "-c", "echo one; /bin/true"]);
    let lines: Vec<Value> = text(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["event_type"].as_str()).collect();
    assert_eq!(kinds.first(), Some(&"run.started"));
    assert_eq!(kinds.last(), Some(&"run.finished"));
    assert!(kinds.contains(&"exec") && kinds.contains(&"output") && kinds.contains(&"sandbox.applied"));
    assert_eq!(lines.last().unwrap()["success"], true);
}

/// A program in a run connects to its own Unix socket by the name that `getsockname` returns. That is the path by which
/// the supervisor bound the socket, and the connection must succeed.
#[test]
fn unix_socket_is_reached_by_the_name_from_getsockname() {
    // The program opens more sockets than guard itself may have open files.
    let script = "import socket,os\nfor k in range(300):\n s=socket.socket(socket.AF_UNIX);s.bind(os.environ['TMPDIR']+'/s%d'%k);s.listen()\n \
                  c=socket.socket(socket.AF_UNIX);c.connect(s.getsockname());a,_=s.accept();a.send(b'%d'%k);assert c.recv(9)==b'%d'%k\nprint('ok')";
    if Command::new("python3").arg("--version").output().is_err() {
        skip("Unix sockets in a run", "python3 is not installed");
        return;
    }
    for namespaces in ["auto", "off"] {
        let scratch = Scratch::new("run-unix");
        let mut limited = Command::new("sh");
        let guard =
            command(&scratch, &["--quiet", "--namespaces", namespaces, "--", "python3", "-c", script]);
        limited
            .args(["-c", "ulimit -n 256; exec \"$@\"", "sh"])
            .arg(guard.get_program())
            .args(guard.get_args());
        limited.envs(guard.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = limited.current_dir(scratch.0.join("work")).output().unwrap();
        assert_eq!(text(&output), "ok\n", "{}", String::from_utf8_lossy(&output.stderr));
    }
}
