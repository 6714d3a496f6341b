//! guard must show every mistake in a policy file, at its position, with the next step.

use guard::judge::decide::load_text;
use guard::judge::policy::{PolicyDirs, PolicyError};

use crate::support::{Scratch, guard, source, text};

fn problems(text: &str) -> String {
    match load_text(source(text), &PolicyDirs::default()) {
        Ok(policy) => {
            policy.remarks.iter().map(|remark| remark.render(false)).collect::<Vec<_>>().join("\n\n")
        }
        Err(PolicyError::Invalid(problems)) => {
            problems.iter().map(|problem| problem.render(false)).collect::<Vec<_>>().join("\n\n")
        }
        Err(other) => other.to_string(),
    }
}

const FIVE: &str = r#"version = 1
name = "five"
defalt_action = "allow"

[limits]
idle_seconds = "long"

[[command]]
id = "a"
verb = "chekout"
action = "deny"
reason = "r"

[[command]]
id = "b"
program = "tool"
action = "refuse"
reason = "r"

[[command]]
id = "c"
program = "x[y"
action = "deny"
reason = "r"
"#;

#[test]
fn five_mistakes_are_shown_with_five_carets() {
    let scratch = Scratch::new("five");
    let path = scratch.write("five.toml", FIVE);
    let output = guard().args(["policy", "lint"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output).replace(&path.display().to_string(), "five.toml");
    assert_eq!(shown.matches("error: ").count(), 5, "{shown}");
    assert_eq!(shown.lines().filter(|line| line.contains('^')).count(), 5, "{shown}");
    insta::assert_snapshot!("five_mistakes", shown);
}

#[test]
fn error_messages_of_invalid_policies() {
    let rule = |body: &str| {
        format!(
            "version = 1\nname = \"t\"\n[[command]]\nid = \"a\"\nreason = \"r\"\naction = \"deny\"\n{body}"
        )
    };
    let cases: Vec<(&str, String)> = vec![
        ("syntax", "version = 1\nname = \"t\"\n[[command]\nid = 3 4\n".into()),
        ("nothing at all", String::new()),
        ("a wrong version", "version = 2\nname = \"t\"\n".into()),
        ("a bad name", "version = 1\nname = \"Two Words\"\n".into()),
        ("an unknown section", "version = 1\nname = \"t\"\n[file_system]\nread = []\n".into()),
        ("an unknown effect", rule("effects = \"git.swiches\"")),
        ("an option without dash", rule("program = \"x\"\nflags = \"force\"")),
        ("a bad path pattern", rule("paths = \"etc/**\"")),
        ("no condition", rule("")),
        ("a wrong type", rule("program = 3")),
        ("a failing example", rule("program = \"x\"\nexamples.deny = [\"y\"]\nexamples.allow = [\"x\"]")),
        ("an example of the wrong kind", rule("program = \"x\"\nexamples.deny = [3]")),
        ("an id used twice", rule("program = \"x\"\n[[command]]\nid = \"a\"\nreason = \"r\"\naction = \"deny\"\nprogram = \"y\"")),
        ("a missing parent", "version = 1\nname = \"t\"\nextends = \"strikt\"\n".into()),
        ("a loosened limit", "version = 1\nname = \"t\"\nextends = \"strict\"\n[limits]\ntotal_seconds = 9999\n".into()),
        ("a loosened default", "version = 1\nname = \"t\"\nextends = \"strict\"\n[git]\ndefault_action = \"allow\"\n".into()),
        ("a loosened grant", "version = 1\nname = \"t\"\nextends = \"strict\"\n[filesystem]\nwrite = [\"{worktree}/src\", \"/srv\"]\n".into()),
        ("an unknown toolchain", "version = 1\nname = \"t\"\n[toolchains]\ndetect = [\"rust\", \"pyhton\", \"cobol\"]\ncaches = \"privat\"\n".into()),
        ("words of the sandbox", "version = 1\nname = \"t\"\n[sandbox]\nnamespaces = \"required\"\nverify_exec = \"yes\"\nverify_exex = true\n".into()),
        ("imports that are no files of the home", "version = 1\nname = \"t\"\n[home]\nimport = [\"/etc/passwd\", \"~/../x\", \"~/.config/*\", \"~/\", \"~x/y\"]\n".into()),
        ("a loosened sandbox", "version = 1\nname = \"t\"\nextends = \"strict\"\n[sandbox]\nnamespaces = \"off\"\nverify_exec = false\n".into()),
        ("a sandbox loosened by override", "version = 1\nname = \"t\"\nextends = \"strict\"\n[sandbox]\noverride = true\nnamespaces = \"off\"\nverify_exec = false\n[home]\noverride = true\nimport = [\"~/.gitconfig\"]\n".into()),
        ("programs from elsewhere", "version = 1\nname = \"t\"\nextends = \"strict\"\n[filesystem]\nexecute = [\"{system}\", \"/srv/bin\"]\n".into()),
        ("a parent's id", "version = 1\nname = \"t\"\nextends = \"strict\"\n[[command]]\nid = \"git.switch\"\nverb = \"switch\"\naction = \"allow\"\nreason = \"r\"\n".into()),
        ("an allow without effect", "version = 1\nname = \"t\"\nextends = \"strict\"\n[[command]]\nid = \"mine\"\nverb = \"fetch\"\naction = \"allow\"\nreason = \"r\"\n".into()),
        ("an override", "version = 1\nname = \"t\"\nextends = \"strict\"\n[[command]]\nid = \"git.switch\"\nverb = \"switch\"\naction = \"allow\"\nreason = \"r\"\noverride = true\n".into()),
    ];
    let shown: Vec<String> =
        cases.iter().map(|(name, text)| format!("── {name}\n{}", problems(text))).collect();
    insta::assert_snapshot!("messages", shown.join("\n\n"));
}

#[test]
fn unreadable_policy_files_are_refused_by_name() {
    let scratch = Scratch::new("odd");
    let latin = scratch.write("latin.toml", b"version = 1\nname = \"\xff\"\n");
    let huge = scratch.write("huge.toml", "#".repeat(2 << 20));
    let missing = scratch.0.join("missing.toml");
    let deep = scratch.write(
        "deep.toml",
        format!("version = 1\nname = \"t\"\na = {}{}\n", "[".repeat(50_000), "]".repeat(50_000)),
    );
    for (path, words) in [
        (&latin, "not UTF-8"),
        (&huge, "larger than"),
        (&missing, "No such file"),
        (&scratch.0, "not a regular file"),
        (&deep, "error"),
    ] {
        let path = if path.is_dir() { format!("{}/", path.display()) } else { path.display().to_string() };
        let output = guard().args(["check", "--policy", &path, "--", "ls"]).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{path}: {shown}");
        assert!(shown.contains(words), "{path}: {shown}");
    }
}

#[test]
fn cycle_of_extended_policies_is_refused() {
    let scratch = Scratch::new("ring");
    scratch.write("b.toml", "version = 1\nname = \"b\"\nextends = \"./a.toml\"\n");
    let path = scratch.write("a.toml", "version = 1\nname = \"a\"\nextends = \"./b.toml\"\n");
    let output = guard().args(["policy", "lint"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("extends itself") || text(&output).contains("longer than 8 policies"),
        "{}",
        text(&output)
    );
}

/// A policy that denies everything but `make` is extended by a rule that asks before `make`. That rule tightens the
/// policy, so guard must not warn that it has no effect.
#[test]
fn rule_that_asks_before_an_allowed_command_gives_no_warning() {
    let scratch = Scratch::new("ask-tightens");
    let rule = |action: &str| {
        format!("[[command]]\nid = \"{action}\"\nprogram = \"make\"\naction = \"{action}\"\nreason = \"r\"\n")
    };
    let denies = "default_action = \"deny\"\n[git]\ndefault_action = \"deny\"\n";
    for (allowed, warnings) in [(rule("allow"), 0), (String::new(), 1)] {
        scratch.write("p.toml", format!("version = 1\nname = \"p\"\n{denies}{allowed}"));
        let path = scratch
            .write("c.toml", format!("version = 1\nname = \"c\"\nextends = \"./p.toml\"\n{}", rule("ask")));
        let shown = text(&guard().args(["policy", "lint"]).arg(&path).output().unwrap());
        assert_eq!(shown.matches("the rule `ask` has no effect").count(), warnings, "{shown}");
        assert!(!shown.contains("error: "), "{shown}");
    }
}
