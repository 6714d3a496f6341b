// slow
//! Many git calls, and many runs, at once in one repository.

use std::process::Stdio;
use std::time::Instant;

use super::named_runs::{COMMIT, fsck, leftovers, root, task};
use crate::support::{RunOutcome, in_every_environment, in_two_environments, one_environment};

#[test]
fn three_thousand_git_calls_in_one_run_work() {
    let environment = one_environment();
    let head = environment.run_outside("cd repository && git rev-parse HEAD");
    let mut command = task(
        &environment,
        "many",
        &["--timeout", "600", "--max-duration", "1200"],
        "seq 3000 | xargs -P 4 -I{} git rev-parse HEAD | sort | uniq -c",
    );
    // The test waits for guard without the usual time limit, because this many git calls through a shim take long.
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert_eq!(
        result["result"].as_str().unwrap_or_default().trim(),
        format!("3000 {}", head.trim()),
        "{result:#}"
    );
    assert_eq!(result["denials"], serde_json::json!([]), "{result:#}");
}

/// A program that sends invalid data to the shim socket until it is told to stop, and holds some connections open.
const GARBAGE: &str = r#"
import os, random, socket, struct, sys
address, held, random.seed = os.environ["GUARD_CONTROL"], [], random.seed(7)
def send(data, keep=False):
    try:
        s = socket.socket(socket.AF_UNIX); s.settimeout(2); s.connect(address); s.sendall(data)
        if keep: held.append(s); return
        s.shutdown(socket.SHUT_WR); s.recv(64); s.close()
    except OSError: pass
while not os.path.exists("stop.log"):
    send(os.urandom(random.randrange(1, 3000)))
    send(b"GRD\x01" + struct.pack("<I", 0xffffffff) + b"x" * 100)
    send(b"GRD\x01" + struct.pack("<I", 1 << 20) + b"y" * 1000)
    send(b"GRD\x09" + struct.pack("<I", 0))
    send(b"GRD\x01" + struct.pack("<I", 12) + struct.pack("<III", 0xfffffff, 0, 0))
    if len(held) < 16: send(b"GRD", keep=True)
    elif random.random() < 0.3: held.pop(0).close()
"#;

#[test]
fn sixty_four_git_calls_at_once_work_beside_garbage() {
    in_two_environments(|environment| {
        let head = environment.run_outside("cd repository && git rev-parse HEAD");
        let garbage = root(environment).join("garbage.py");
        std::fs::write(&garbage, GARBAGE).unwrap();
        let mut command = environment.guard_run(
            &["--json", "--policy", "strict", "--name", "crowd", "--read", garbage.to_str().unwrap()],
            &[
                "bash",
                "-c",
                &format!(
                    "python3 {} & seq 640 | xargs -P 64 -I{{}} git rev-parse HEAD | sort | uniq -c; touch stop.log; wait; rm stop.log; {COMMIT}",
                    garbage.display()
                ),
            ],
        );
        command.current_dir(root(environment).join("repository"));
        let outcome = environment.run_to_end(command, b"");
        assert_eq!(outcome.printed().trim(), format!("640 {}", head.trim()), "{outcome}");
        assert_eq!(outcome.result["success"], true, "{outcome}");
        assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(1), "{}", environment.name());
        fsck(environment);
    });
}

#[test]
fn many_concurrent_runs_in_one_repository_get_their_branches() {
    in_every_environment(|environment| {
        let start = |name: Option<&str>| {
            let script = format!("{COMMIT}; for i in 1 2 3; do echo $i >> work; git commit -qam $i; done");
            let mut options = vec!["--json", "--auto", "--policy", "strict", "--no-toolchains"];
            options.extend(name.iter().flat_map(|name| ["--name", *name]));
            let mut command = environment.guard_run(&options, &["bash", "-c", &script]);
            command.current_dir(root(environment).join("repository"));
            (command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), Instant::now())
        };
        let running: Vec<_> = [None, None, None, Some("same"), Some("same")].map(start).into_iter().collect();
        let outcome: Vec<RunOutcome> =
            running.into_iter().map(|(child, begun)| environment.collect_outcome(child, begun)).collect();
        for outcome in &outcome[..3] {
            assert_eq!(outcome.result["success"], true, "{outcome}");
            assert_eq!(outcome.result["commits"].as_array().map(Vec::len), Some(4), "{outcome}");
            let broken = outcome.result["findings"].to_string().contains("repository.broken");
            assert!(!broken, "{}: {:#}", environment.name(), outcome.result["findings"]);
        }
        // Of two runs with the same name, exactly one must start.
        let mut codes = [outcome[3].code, outcome[4].code];
        codes.sort();
        assert_eq!(codes, [0, 125], "{}: {} {}", environment.name(), outcome[3].error, outcome[4].error);
        let branches = environment.run_outside("cd repository && git for-each-ref --format='%(refname)' refs/heads/task | grep -v task/work | wc -l");
        assert_eq!(branches.trim(), "4", "{}", environment.name());
        let prunable = environment
            .run_outside("cd repository && git worktree list --porcelain | grep -c prunable || true");
        assert_eq!(prunable.trim(), "0", "{}", environment.name());
        assert_eq!(leftovers(environment), "", "{}", environment.name());
        fsck(environment);
    });
}
