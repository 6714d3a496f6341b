// slow
//! A run is idle if no descendant prints anything, starts a program, or uses the CPU.

use crate::support::{in_every_environment_at_once, in_two_environments};

/// A run that prints nothing must count as busy while a descendant works, and as idle otherwise.
#[test]
fn silent_run_is_idle_only_if_no_descendant_works() {
    // In each case a descendant works while the agent waits. In the case `a daemon` it is an orphan, whose work must
    // count too. `work` uses about a tenth of a CPU and starts no programs, so that other tests can run beside it.
    let work = "perl -e 'while (1) { $x++ for 1..1000000; select(undef, undef, undef, 0.3) }'";
    let busy = [
        ("one process", format!("exec {work}")),
        ("a child", format!("{work} & wait")),
        ("programs", "while :; do /bin/true; sleep 0.4; done".to_string()),
        ("a daemon", format!("(setsid {work} &); sleep 60")),
        (
            "short-lived ones",
            "while :; do bash -c 'for ((i = 0; i < 20000; i++)); do :; done'; sleep 0.4; done".to_string(),
        ),
    ];
    let idle = [
        ("nothing", "sleep 60"),
        ("a sleeping tree", "(setsid sleep 60 &); bash -c 'sleep 60' & wait"),
        ("a timer", "exec perl -e 'select(undef, undef, undef, 0.05) while 1'"),
        ("an end after work", "for ((i = 0; i < 30000; i++)); do :; done; exec sleep 60"),
    ];
    // The limit is long enough for a run that gets only a small share of a busy machine's CPU.
    let options = |most| ["--no-toolchains", "--timeout", "4", "--max-duration", most];
    in_every_environment_at_once(|environment| {
        for (name, script) in idle {
            let outcome = environment.run(&options("60"), &["bash", "-c", script]);
            assert_eq!((outcome.code, outcome.kind()), (124, "idle_timeout"), "{name}: {outcome}");
            let error = outcome.result["error"].as_str().unwrap();
            assert_eq!(
                error,
                "the run was idle (no output, no new program, no CPU work) for 4 s, which is the idle limit; `--timeout TIME` sets another limit, and `--timeout 0` sets none",
                "{name}"
            );
        }
    });
    in_two_environments(|environment| {
        for (name, script) in &busy {
            let outcome = environment.run(&options("7"), &["bash", "-c", script]);
            assert_eq!((outcome.code, outcome.kind()), (124, "timeout"), "{name}: {outcome}");
        }
    });
}
