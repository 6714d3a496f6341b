// slow
//! Tests `guard demo`. Its output must match the recordings in the documents.

use crate::docs::{blocks, output_fits};
use crate::support::{Scratch, guard, skip_unsupported, text};

fn demo(extra: &[&str]) -> (bool, String) {
    let scratch = Scratch::new("demo");
    let output = guard()
        .arg("demo")
        .args(extra)
        .env("HOME", &scratch.0)
        .env("XDG_STATE_HOME", scratch.0.join("state"))
        .output()
        .unwrap();
    let printed = text(&output) + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), without_ports(&printed))
}

/// Replaces the ports of loopback addresses, which differ each time.
fn without_ports(printed: &str) -> String {
    let mut parts = printed.split("127.0.0.1:");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| {
        text + "127.0.0.1:PORT" + part.trim_start_matches(|character: char| character.is_ascii_digit())
    })
}

/// Returns the code block of a document that begins with the first line of the demo.
fn recording(file: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let blocks = blocks(&std::fs::read_to_string(path).unwrap());
    let recording = blocks.into_iter().find(|block| block.text.starts_with("guard demo: a scripted agent"));
    recording.unwrap_or_else(|| panic!("{file} has no recording of the demo")).text.trim_end().to_string()
}

/// Splits the demo's output into the agent's lines, guard's lines about the agent, and the rest. On a busy machine
/// these three can be interleaved differently, so the tests compare each by itself.
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
fn demo_prints_the_recording_in_the_guide() {
    let (success, printed) = demo(&["--namespaces", "require"]);
    if !success && printed.contains("cannot enforce the policy") {
        skip_unsupported("the demo with namespaces", &printed);
        return;
    }
    if std::env::var_os("GUARD_REGENERATE").is_some() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/demo.md");
        let text = std::fs::read_to_string(&page).unwrap();
        std::fs::write(&page, text.replace(&recording("docs/guide/demo.md"), printed.trim_end())).unwrap();
    }
    assert_eq!(
        in_parts(printed.trim_end()),
        in_parts(&recording("docs/guide/demo.md")),
        "docs/guide/demo.md is out of date; run scripts/regenerate"
    );
    assert!(success);
}

#[test]
fn readme_excerpt_is_part_of_the_demo_recording() {
    let (excerpt, whole) = (recording("README.md"), recording("docs/guide/demo.md"));
    let (excerpt, whole): (Vec<&str>, Vec<&str>) = (excerpt.lines().collect(), whole.lines().collect());
    assert!(
        output_fits(&excerpt, &whole),
        "the README shows lines that are not in docs/guide/demo.md, or in another order"
    );
}

#[test]
fn demo_refuses_everything_without_namespaces_too() {
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
