// slow
//! Tests a run that creates a huge number of refs in its private repository.

use std::time::Instant;

use super::bombs::{SOON, guard, run};
use crate::support::in_every_environment;

/// Returns a Python program that appends `parts` times a hundred thousand refs to `packed-refs`.
fn pack(parts: usize) -> String {
    format!(
        "
git = open('.git').read().split(None, 1)[1].strip()
path = git + '/packed-refs'
tip = [line for line in open(path) if not line.startswith(('#', '^'))][0].split()[0]
with open(path, 'a') as refs:
    for part in range({parts}):
        refs.write(''.join(f'{{tip}} refs/heads/x/{{part:04}}-{{i:06}}\\n' for i in range(100000)))"
    )
}

#[test]
fn millions_of_refs_need_little_memory_and_a_short_result() {
    in_every_environment(|environment| {
        for (name, parts) in [("many", 2), ("millions", 12)] {
            let began = Instant::now();
            // guard itself may use only this much memory for its data, and would die if it needed more.
            let outcome = run(environment, &["prlimit", "--data=300000000", "--"], name, &pack(parts));
            let took = began.elapsed();
            let start = outcome.result.to_string().get(..4000).unwrap_or_default().to_string();
            let problem = || format!("{}: {name}: {took:?} {start}\n{}", environment.name(), outcome.error);
            assert!(outcome.output.len() < 4 << 20, "{} bytes: {}", outcome.output.len(), problem());
            assert!(took < SOON, "{}", problem());
            let transcript = outcome.transcript().metadata().unwrap().len();
            assert!(transcript < 8 << 20, "{transcript} bytes: {}", problem());
            if parts == 2 {
                assert_eq!(outcome.code, 0, "{}", problem());
                let worktree = &outcome.result["worktree"];
                assert_eq!(worktree["other_refs"].as_array().map(Vec::len), Some(1_000), "{}", problem());
                assert_eq!(worktree["other_refs_left_out"], 199_000, "{}", problem());
            } else {
                assert_eq!(outcome.kind(), "receive_refused", "{}", problem());
                assert!(
                    outcome.result["error"].to_string().contains("packed-refs is larger"),
                    "{}",
                    problem()
                );
            }
            let cleaned = guard(environment, &[], &["worktree", "clean", &format!("task/{name}")]);
            assert_eq!(cleaned.code, 0, "{}: {}", environment.name(), cleaned.error);
        }
    });
}
