//! `guard demo`: the README's first command, and the recording of it there.

use crate::support::{Scratch, guard, text};

fn demo(extra: &[&str]) -> (bool, String) {
    let scratch = Scratch::new("demo");
    let output = guard()
        .arg("demo")
        .args(extra)
        .env("HOME", &scratch.0)
        .env("XDG_STATE_HOME", scratch.0.join("state"))
        .output()
        .unwrap();
    (output.status.success(), text(&output) + &String::from_utf8_lossy(&output.stderr))
}

/// The block of the README that begins with the demo's first line.
fn recording() -> String {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let lines = readme.lines().skip_while(|line| !line.contains("guard demo: a scripted agent"));
    let block = lines.take_while(|line| line.starts_with("    ") || line.is_empty());
    let block: Vec<&str> = block.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    block.join("\n").trim_end().to_string()
}

/// What the agent says, what is told of it, and the rest: each in its order. On a busy machine the two tellers may be heard
/// in another order than they spoke.
fn in_parts(text: &str) -> [Vec<&str>; 3] {
    let starts = |line: &&str, with: &[&str]| with.iter().any(|start| line.starts_with(start));
    let (agent, told) = (["  |  "].as_slice(), ["  +  ", "  x  ", "  <  "].as_slice());
    [
        text.lines().filter(|line| starts(line, agent)).collect(),
        text.lines().filter(|line| starts(line, told)).collect(),
        text.lines().filter(|line| !starts(line, agent) && !starts(line, told)).collect(),
    ]
}

#[test]
fn the_recording_in_the_readme_is_what_it_prints() {
    let (success, printed) = demo(&["--namespaces", "require"]);
    if !success && printed.contains("cannot be enforced here") {
        eprintln!("SKIP: namespaces cannot be had here: {printed}");
        return;
    }
    assert_eq!(
        in_parts(printed.trim_end()),
        in_parts(&recording()),
        "put the output of `guard demo` into README.md"
    );
    assert!(success);
}

#[test]
fn without_namespaces_it_holds_as_well() {
    let (success, printed) = demo(&["--namespaces", "off"]);
    assert!(success, "{printed}");
    assert!(!printed.contains("  NO "), "{printed}");
    for refused in [
        "(rule git.switch)",
        "(rule git.refs)",
        "(rule mount)",
        "(rule sandbox.network)",
        "[Landlock]",
        "[seccomp]",
    ] {
        assert!(printed.contains(refused), "{refused} is missing in\n{printed}");
    }
}
