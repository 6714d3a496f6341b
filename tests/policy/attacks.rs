//! Attacks on policies: files that make a policy looser than it looks, or that could crash guard.

use guard::judge::decide::load_text;
use guard::judge::policy::{PolicyDirs, PolicyError};

use crate::support::{Scratch, guard, shell, source, text};

fn rule(body: &str) -> String {
    format!("version = 1\nname = \"t\"\n[[command]]\nid = \"r\"\naction = \"deny\"\nreason = \"r\"\n{body}\n")
}

fn child(body: &str) -> String {
    format!("version = 1\nname = \"t\"\nextends = \"strict\"\n{body}\n")
}

fn is_refused(policy: &str) -> bool {
    matches!(load_text(source(policy), &PolicyDirs::default()), Err(PolicyError::Invalid(_)))
}

#[test]
fn invalid_patterns_are_errors_at_load() {
    for pattern in [
        "{".repeat(300) + "a" + &"}".repeat(300),
        "?".repeat(500_000),
        "{".repeat(100_000),
        "[".repeat(5000),
        "[a".to_string(),
    ] {
        assert!(is_refused(&rule(&format!("args = \"{pattern}\""))), "{}", &pattern[..20.min(pattern.len())]);
        assert!(
            is_refused(&rule(&format!("paths = \"/{pattern}\""))),
            "{}",
            &pattern[..20.min(pattern.len())]
        );
    }
    // The largest accepted pattern must still match.
    let fits =
        load_text(source(&rule(&format!("args = \"{}\"", "?".repeat(256)))), &PolicyDirs::default()).unwrap();
    assert_eq!(shell(&fits, format!("x {}", "a".repeat(256))).action().name(), "deny");
}

#[test]
fn empty_rule_conditions_are_errors() {
    for body in [
        "program = []",
        "program = \"\"",
        "args = []",
        "verb = []",
        "effects = []",
        "only_effects = []",
        "paths = \"\"",
        "flags = []",
        "program = \"x\"\nflags = \"--f*\"",
        "verb = \"stash popp\"",
        "verb = \"git checkout\"",
        "verb = \"commit\"\nflags = \"-m\"",
        "program = \"x\"\naccess = \"read\"",
        "program = \"ls\"\nverb = \"status\"",
        "paths = \"/etc/../x\"",
        "paths = \"/etc//x\"",
    ] {
        assert!(is_refused(&rule(body)), "{body}");
    }
}

#[test]
fn extending_policy_cannot_loosen_any_section() {
    for body in [
        "[limits]\ntotal_seconds = 99999",
        "[limits]\ncommand_bytes = 67108864",
        "[git]\ndefault_action = \"allow\"",
        "[git]\nbranch_prefix = \"x/\"",
        "[git]\nhooks = false",
        "[git]\nreceive_mib = 513",
        "[git]\nidentity = \"nobody\"",
        "[git]\nidentity = \"a <b> <c>\"",
        "[worktree]\ncopy = [\".env\"]",
        "[worktree]\nlink_readonly = [\"node_modules\"]",
        "[worktree]\noverride = true\ncopy = [\"../secrets\"]",
        "[worktree]\noverride = true\ncopy = [\"/etc/passwd\"]",
        "[worktree]\noverride = true\nlink_readonly = [\"x/.git/config\"]",
        "[network]\nallow = [\"example.org\"]",
        "[network]\nloopback = true",
        "[network]\nlisten = [3000]",
        "[environment]\npass = [\"SECRET\"]",
        "[environment.set]\nLD_PRELOAD = \"x\"",
        "[filesystem]\nwrite = [\"{worktree}/../..\"]",
        "[filesystem]\nread = [\"/\"]",
        "[filesystem]\nexecute = [\"/\"]",
        "[filesystem]\nexecute = [\"{artifact}\"]",
        "[sandbox]\nnamespaces = \"off\"",
        "[sandbox]\nverify_exec = false",
        "[home]\nimport = [\"~/.ssh/id_ed25519\"]",
    ] {
        assert!(is_refused(&child(body)), "{body}");
    }
    for body in [
        "[filesystem]\nwrite = [\"{worktree}/src\"]",
        "[limits]\ntotal_seconds = 5",
        "[environment]\npass = [\"LC_ALL\"]",
        "[filesystem]\nexecute = [\"{system}\", \"{worktree}/bin\"]",
        "[filesystem]\nexecute = []",
        "[sandbox]\nnamespaces = \"require\"\nverify_exec = true",
        "[home]\nimport = []",
        "[toolchains]\ndetect = [\"go\"]\ncaches = \"private\"",
    ] {
        assert!(!is_refused(&child(body)), "{body}");
    }
}

#[test]
fn restrictions_of_a_parent_cannot_be_lifted_without_override() {
    let scratch = Scratch::new("given-up");
    scratch.write(
        "p.toml",
        child(
            "[filesystem]\nexecute = [\"{system}\"]\n[sandbox]\nnamespaces = \"require\"\n[toolchains]\ndetect = [\"rust\"]\ncaches = \"private\"",
        ),
    );
    let lint = |body: &str| {
        let path =
            scratch.write("c.toml", format!("version = 1\nname = \"c\"\nextends = \"./p.toml\"\n{body}\n"));
        guard().args(["policy", "lint"]).arg(path).output().unwrap()
    };
    for body in [
        "[filesystem]\nexecute = [\"{worktree}\"]",
        "[sandbox]\nnamespaces = \"auto\"",
        "[toolchains]\ndetect = [\"node\"]",
        "[toolchains]\ncaches = \"shared\"",
    ] {
        assert_eq!(lint(body).status.code(), Some(1), "{body}");
        let (section, rest) = body.split_once('\n').unwrap();
        let shown = lint(&format!("{section}\noverride = true\n{rest}"));
        assert_eq!(shown.status.code(), Some(0), "{body}");
        assert!(
            text(&shown).contains("loosens the policy that this one extends"),
            "{body}: {}",
            text(&shown)
        );
    }
}

#[test]
fn override_of_one_rule_lifts_no_other_rule() {
    let policy = child(
        "[[command]]\nid = \"mine\"\nprogram = \"git\"\naction = \"allow\"\nreason = \"r\"\noverride = true",
    );
    let policy = load_text(source(&policy), &PolicyDirs::default()).unwrap();
    assert_eq!(shell(&policy, "git lfs pull").action().name(), "allow", "the default is lifted");
    assert_eq!(shell(&policy, "git checkout main").action().name(), "deny", "a matching deny is not");
    assert!(policy.remarks.iter().any(|remark| remark.message.contains("`mine` can loosen")));
}

#[test]
fn user_policy_named_strict_does_not_change_built_in_policies() {
    let scratch = Scratch::new("shadow");
    scratch.write(
        "guard/policies/strict.toml",
        "version = 1\nname = \"strict\"\n[git]\ndefault_action = \"allow\"\n",
    );
    let code = |policy: &str| {
        let mut command = guard();
        command
            .env("XDG_CONFIG_HOME", &scratch.0)
            .args(["check", "--policy", policy, "--", "git", "checkout", "main"]);
        command.output().unwrap().status.code()
    };
    assert_eq!(code("strict"), Some(0), "asked for by name, the user's own file counts");
    assert_eq!(code("developer"), Some(1));
    assert_eq!(code("readonly"), Some(1));
}

#[test]
fn unreadable_user_policy_is_an_error_and_not_the_built_in_one() {
    let scratch = Scratch::new("dangling");
    std::fs::create_dir_all(scratch.0.join("guard/policies")).unwrap();
    std::os::unix::fs::symlink("/nonexistent", scratch.0.join("guard/policies/strict.toml")).unwrap();
    let output = guard().env("XDG_CONFIG_HOME", &scratch.0).args(["check", "--", "ls"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn examples_of_an_extended_policy_are_checked() {
    let scratch = Scratch::new("parent");
    scratch.write("p.toml", rule("program = \"x\"\nexamples.deny = [\"y\"]"));
    let path = scratch.write("c.toml", "version = 1\nname = \"c\"\nextends = \"p.toml\"\n");
    let output = guard().args(["policy", "lint"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("must be denied"), "{}", text(&output));
}

#[test]
fn examples_without_a_command_are_errors() {
    for examples in [
        "examples.deny = [\"git 'unclosed\"]",
        "examples.allow = [\"# nothing\"]",
        "examples.allow = [\"A=1\"]",
    ] {
        assert!(is_refused(&rule(&format!("program = \"x\"\n{examples}"))), "{examples}");
    }
}

#[test]
fn number_of_rules_and_reported_mistakes_is_limited() {
    let many: String = (0..2000)
        .map(|n| format!("[[command]]\nid = \"r{n}\"\naction = \"deny\"\nreason = \"r\"\nprogram = \"x\"\n"))
        .collect();
    assert!(is_refused(&format!("version = 1\nname = \"t\"\n{many}")));
    let scratch = Scratch::new("mistakes");
    let mistakes: String = (0..3000).map(|n| format!("key{n} = 1\n")).collect();
    let path = scratch.write("m.toml", format!("version = 1\nname = \"t\"\n{mistakes}"));
    let output = guard().args(["policy", "lint"]).arg(&path).output().unwrap();
    assert!(text(&output).contains("… and 2950 more"), "{}", text(&output).len());
}

#[test]
fn check_escapes_control_characters_of_a_command() {
    let output = guard().args(["check", "--", "git", "checkout", "a\u{1b}[31m\nb\rc"]).output().unwrap();
    let shown = text(&output);
    assert!(!shown.contains('\u{1b}') && !shown.contains('\r'), "{shown:?}");
}

/// guard must reject invalid port numbers. A policy that extends another one may remove ports, and may add none without
/// `override`.
#[test]
fn listen_ports_are_validated_and_cannot_be_added() {
    for ports in ["[0]", "[65536]", "[-1]", "[\"3000\"]", "3000", "[3000.5]"] {
        assert!(is_refused(&child(&format!("[network]\noverride = true\nlisten = {ports}"))), "{ports}");
    }
    let policy = child("[network]\noverride = true\nlisten = [3000, 8080]");
    let policy = load_text(source(&policy), &PolicyDirs::default()).unwrap();
    assert_eq!(policy.network.listen, [3000, 8080]);
}
