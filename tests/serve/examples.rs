//! Runs the examples of the guide unchanged against a real server.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::{Served, echo};
use crate::docs::blocks;
use crate::egress::gemini::Gemini;
use crate::mcp::agents;
use crate::support::http_client::HttpAddress;
use crate::support::scripted_api::{Api, Turn};
use crate::support::{RunOutcome, TestEnvironment, one_environment, skip};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/guide/batch-http.md")).unwrap()
}

fn url(server: &Served) -> String {
    match &server.address {
        HttpAddress::Loopback(address) => format!("http://{address}"),
        HttpAddress::Socket(_) => String::new(),
    }
}

/// Returns true if the programs that the examples use are installed. Otherwise reports that the test is skipped (in CI:
/// fails it), and returns false.
fn has_programs() -> bool {
    let missing: Vec<&str> = ["curl", "jq", "python3"]
        .into_iter()
        .filter(|name| Command::new(name).arg("--version").output().is_err())
        .collect();
    if !missing.is_empty() {
        skip("the examples of the guide", &format!("{} is not installed", missing.join(", ")));
    }
    missing.is_empty()
}

/// Runs an example program in a directory that contains `docs/`. Environment variables name the server and the token
/// file.
fn run(environment: &TestEnvironment, server: &Served, program: &str, arguments: &[&str]) -> RunOutcome {
    let directory = environment.temporary_directory();
    let _ = std::os::unix::fs::symlink(root().join("docs"), directory.join("docs"));
    let mut command = environment.command(program);
    command
        .args(arguments)
        .current_dir(&directory)
        .env("GUARD_URL", url(server))
        .env("GUARD_TOKEN_FILE", &server.token_file);
    environment.run_to_end(command, b"")
}

#[test]
fn curl_commands_of_the_guide_work() {
    if !has_programs() {
        return;
    }
    let environment = one_environment();
    let server = Served::start(&environment, &[]);
    let page = page();
    let block = blocks(&page)
        .into_iter()
        .find(|block| block.text.contains("curl") && block.attributes.contains("serve::examples"));
    let script = block
        .unwrap()
        .text
        .replace("http://127.0.0.1:8732", &url(&server))
        .replace("~/.local/state/guard/serve-token", server.token_file.to_str().unwrap());
    let outcome = run(&environment, &server, "bash", &["-euo", "pipefail", "-c", &script]);
    outcome.expect_code(0);
    let printed = String::from_utf8_lossy(&outcome.output).into_owned();
    for expected in
        ["\"status\": \"completed\"", "tracked", "event: task.completed", "event: batch.completed"]
    {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    let results = std::fs::read_to_string(environment.temporary_directory().join("results.jsonl")).unwrap();
    assert_eq!(results.lines().count(), 2);
}

#[test]
fn documented_python_client_works() {
    if !has_programs() {
        return;
    }
    let file = root().join("docs/examples/batch_client.py");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.lines().count() <= 30);
    assert!(
        blocks(&page()).iter().any(|block| block.language == "python" && block.text == text),
        "the page shows the file"
    );
    let environment = one_environment();
    let server = Served::start(&environment, &[]);
    let tasks = environment.temporary_directory().join("tasks.json");
    std::fs::write(&tasks, json!([echo("a"), echo("b")]).to_string()).unwrap();
    let client = |tasks: &Path| {
        run(&environment, &server, "python3", &["docs/examples/batch_client.py", tasks.to_str().unwrap()])
    };
    let outcome = client(&tasks);
    outcome.expect_code(0);
    assert_eq!(
        String::from_utf8_lossy(&outcome.output),
        "a completed {\"text\": \"a\"}\nb completed {\"text\": \"b\"}\n"
    );
    std::fs::write(&tasks, json!([{ "task_id": "x", "type": "nothing", "parameters": {} }]).to_string())
        .unwrap();
    client(&tasks).expect_code(1);
}

/// Creates a repository with a script. According to the coverage report, no test covers the script's second line.
fn make_project(environment: &TestEnvironment) -> String {
    environment.run_outside(
        r#"git init -q -b main app && cd app && mkdir src && cat > src/add.sh <<'END'
# Adds two numbers.
echo $(($1 + $2))
END
cat > run-tests <<'END'
#!/bin/sh
hits=0
for test in tests/*.sh; do [ -e "$test" ] && { sh "$test" && hits=1 || exit 1; }; done
printf 'SF:src/add.sh\nDA:1,1\nDA:2,%s\nend_of_record\n' $hits
END
chmod +x run-tests && ./run-tests > lcov.info && printf 'lcov.info\n' > .gitignore && git add . \
&& git -c user.name=n -c user.email=e commit -qm first"#,
    );
    environment.directory.parent().unwrap().join("app").display().to_string()
}

// slow
#[test]
fn documented_loops_complete_with_gemini() {
    let Some(gemini) = Gemini::installed().filter(|_| has_programs()) else { return };
    let environment = one_environment();
    let project = make_project(&environment);
    let proposal = |file: &str| {
        let code = "test \"$(sh src/add.sh 2 3)\" = 5\n";
        let answer =
            json!({ "test_name": "adds", "test_file": file, "test_code": code, "explanation": "It adds." });
        Turn::text(&format!("I propose this test.\n{answer}"))
    };
    let good = proposal("tests/add_test.sh");
    let api = Api::plain(vec![good.clone(), proposal("../outside.sh"), good, proposal("/etc/passwd")]);
    let mut command = environment.guard_ignoring_signals("");
    command.args(["serve", "--listen", "127.0.0.1:0", "--root", &project]);
    agents(&mut command, &environment, &gemini, &api.server.url(""));
    let server = Served::of(command);
    for (program, script) in [("bash", "ooda.sh"), ("python3", "ooda.py")] {
        let path = format!("docs/examples/{script}");
        assert!(std::fs::read_to_string(root().join(&path)).unwrap().lines().count() <= 40, "{script}");
        environment.run_outside(&format!("cd {project} && ./run-tests > lcov.info"));
        let outcome = run(&environment, &server, program, &[&path, &project, "./run-tests --lcov"]);
        let printed = String::from_utf8_lossy(&outcome.output).into_owned();
        outcome.expect_code(0);
        let percents: Vec<&str> =
            printed.lines().filter_map(|line| line.strip_prefix("observed: ")?.split(' ').next()).collect();
        assert!(
            percents.len() == 2 && percents[0].starts_with("50") && percents[1].starts_with("100"),
            "{printed}"
        );
        assert!(printed.contains("proposed: adds in tests/add_test.sh"), "{printed}");
        // Now the agent proposes a test outside the directory for tests. The example must decide against it and run
        // nothing.
        environment.run_outside(&format!("cd {project} && ./run-tests > lcov.info"));
        let outcome = run(&environment, &server, program, &[&path, &project, "./run-tests --lcov"]);
        outcome.expect_code(1);
        let told = format!("{}{}", String::from_utf8_lossy(&outcome.output), outcome.error);
        assert!(told.contains("decided: no"), "{told}");
    }
}
