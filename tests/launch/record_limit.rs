// slow
//! The transcript has a size limit. guard must end a run that fills its transcript, and must still record what
//! happens after that.

use crate::support::in_every_environment_at_once;

/// A program that starts programs whose arguments become six times as long in the transcript, and then tries something
/// forbidden.
const FLOOD: &str = r#"
import os, subprocess
argument = "\x01" * 60000
def start(*argv):
    try:
        return subprocess.run(argv, stderr=subprocess.DEVNULL).returncode
    except PermissionError:
        return 126
start("/usr/bin/git", "checkout", "-q", "-b", "before")
for number in range(120):
    start("/bin/true", argument)
open("reached", "w").close()
for number in range(50):
    start("/usr/bin/git", "checkout", "-q", "-b", f"after{number}")
"#;

#[test]
fn full_transcript_ends_the_run_and_keeps_every_refusal() {
    in_every_environment_at_once(|environment| {
        let name = environment.name();
        let policy = environment.temporary_directory().join("small.toml");
        let text = "version = 1\nname = \"small\"\ndescription = \"A small record.\"\nextends = \"strict\"\n\n[limits]\noutput_mib = 1\n";
        std::fs::write(&policy, text).unwrap();
        std::fs::write(environment.directory.join("flood.py"), FLOOD).unwrap();
        environment.give_to_user(&environment.directory);
        let outcome = environment.run(&["--policy", policy.to_str().unwrap()], &["python3", "flood.py"]);
        let result = &outcome.result;
        assert_eq!((outcome.code, outcome.kind()), (124, "record_full"), "{name}: {result:#}");
        let words = result["error"].as_str().unwrap();
        assert!(words.contains("18 MiB") && words.contains("output_mib"), "{name}: {words}");
        let denials = result["denials"].as_array().unwrap();
        let has = |branch: &str| denials.iter().any(|denial| denial["message"].to_string().contains(branch));
        assert!(has("-b before "), "{name}: {denials:#?}");
        let is_told = denials.iter().any(|denial| denial["rule"] == "sandbox.record");
        assert!(!environment.directory.join("reached").exists() || is_told, "{name}: {denials:#?}");
        // The transcript must say that it is full, and must contain every program that ran.
        let record = std::fs::read(outcome.transcript()).unwrap();
        assert!(record.len() < 90 << 20, "{name}: {} bytes", record.len());
        let count = |kind: &str| {
            let needle = format!("{{\"event_type\":\"{kind}\"");
            record.split(|&byte| byte == b'\n').filter(|line| line.starts_with(needle.as_bytes())).count()
        };
        assert_eq!((count("transcript.full"), count("transcript.dropped")), (1, 0), "{name}");
        assert_eq!(count("exec") as u64, result["usage"]["programs"].as_u64().unwrap(), "{name}");
        assert_eq!(
            (count("deny.exec") + count("deny.record")) as u64,
            result["usage"]["refusals"].as_u64().unwrap(),
            "{name}"
        );
    });
}
