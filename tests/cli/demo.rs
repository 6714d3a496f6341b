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

#[test]
fn the_recording_in_the_readme_is_what_it_prints() {
    let (success, printed) = demo(&["--namespaces", "require"]);
    if !success && printed.contains("cannot be enforced here") {
        eprintln!("SKIP: namespaces cannot be had here: {printed}");
        return;
    }
    assert_eq!(printed.trim_end(), recording(), "run `guard demo` and put its output into README.md");
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
