//! Property tests that must hold for any command and any policy.

use guard::judge::decide::load_text;
use guard::judge::policy::{Action, Policy, PolicyDirs, TOOLCHAINS};
use proptest::prelude::*;

use crate::support::{argv, shell, source, strict};

/// Generates words that mean something to the analysis of commands, and a few that do not.
fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "git", "checkout", "commit", "-m", "--amend", "status", "branch", "-D", "main", "-C", "..", "-c", "alias.x=reset", "x", "push",
            "--no-verify", "stash", "pop", "config", "a.b", "sudo", "ssh", "docker", "ls", "-l", "env", "A=1", "nohup", "timeout", "5", "xargs",
            "find", ".", "-exec", "{}", ";", "bash", "-c", "sh", "python3", "-e", "rm", "-rf", ".git", "/etc/passwd", "~/.ssh/id", "cargo", "publish",
            "npm", "run", "--", "-", "-n", "--git-dir=/x", "restore", "--staged", "tag", "log", "--output=/etc/x", "GIT_DIR=/x", "git-reset",
        ])
        .prop_map(str::to_string),
        1 => "[a-zA-Z0-9 =:/.'\"$`\\\\(){}<>|&;*?~#!%+-]{0,12}",
    ]
}

fn words() -> impl Strategy<Value = Vec<String>> {
    (word().prop_filter("a program", |word| !word.is_empty()), prop::collection::vec(word(), 0..7))
        .prop_map(|(first, rest)| std::iter::once(first).chain(rest).collect())
}

/// Generates text that looks like shell code, with every kind of bracket and quote.
fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop_oneof![
            word(),
            prop::sample::select(vec![
                ";",
                "&&",
                "||",
                "|",
                "&",
                "\n",
                "(",
                ")",
                "{",
                "}",
                "$(",
                ")",
                "`",
                "'",
                "\"",
                "<<E\n",
                "\nE\n",
                "<<<",
                ">",
                "2>&1",
                "<(",
                "if",
                "then",
                "fi",
                "for",
                "in",
                "do",
                "done",
                "case",
                "esac",
                ";;",
                "while",
                "[[",
                "]]",
                "((",
                "))",
                "${",
                "$x",
                "\\",
                "#",
                "!",
                "function",
                "f()",
                "time",
                "eval",
                "trap",
                "alias g=git",
                "g",
                "x=git",
                "$x",
            ])
            .prop_map(str::to_string),
        ],
        0..24,
    )
    .prop_map(|parts| parts.join(" "))
}

/// Returns true if both verdicts have the same action and, unless the action is `allow`, the same rule.
fn same(a: &guard::judge::decide::Verdict, b: &guard::judge::decide::Verdict) -> bool {
    a.action() == b.action() && (a.action() == Action::Allow || a.cause.rule == b.cause.rule)
}

/// Returns true if the input was denied only for its depth, size or number of commands.
fn is_limit(verdict: &guard::judge::decide::Verdict) -> bool {
    matches!(verdict.cause.rule.as_str(), "input.depth" | "input.size" | "input.count")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_get_a_verdict(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let strict = strict();
        prop_assert!(!shell(strict, &bytes).cause.reason.is_empty());
        prop_assert!(!argv(strict, &[bytes]).cause.reason.is_empty());
    }

    #[test]
    fn any_shell_like_text_gets_a_verdict(text in text()) {
        prop_assert!(!shell(strict(), &text).cause.reason.is_empty());
    }

    #[test]
    fn wrapper_programs_get_the_verdict_of_their_command(words in words()) {
        let strict = strict();
        let plain = argv(strict, &words);
        for wrapper in [&["env", "NOT_USED_BY_ANY_INPUT=1"][..], &["nohup"], &["nice", "-n", "5"], &["timeout", "-k", "1", "5"], &["setsid"], &["stdbuf", "-oL"]] {
            // `env A=1` followed by another assignment or an option is a longer `env`, not the same command.
            if wrapper[0] == "env" && (words[0].contains('=') || words[0].starts_with('-')) || words[0].starts_with('-') {
                continue;
            }
            let wrapped: Vec<String> = wrapper.iter().map(|word| (*word).to_string()).chain(words.iter().cloned()).collect();
            let verdict = argv(strict, &wrapped);
            prop_assert!(same(&verdict, &plain) || is_limit(&verdict), "{wrapped:?}: {verdict:?} against {plain:?}");
        }
    }

    #[test]
    fn bash_c_gets_the_verdict_of_its_text(text in text()) {
        let strict = strict();
        let plain = shell(strict, &text);
        let wrapped = argv(strict, &["bash", "-c", &text]);
        // guard denies an empty text, but `bash -c ''` is a valid command. bash reads a text that begins with a dash or
        // a plus as an option.
        if plain.cause.rule != "input.empty" && !text.starts_with(['-', '+']) {
            prop_assert!(same(&wrapped, &plain) || is_limit(&wrapped), "{text:?}: {wrapped:?} against {plain:?}");
        }
    }

    #[test]
    fn quoted_words_get_the_verdict_of_the_argv(words in words()) {
        let strict = strict();
        // Skip builtins, which do more in a shell than a program of the same name. Assignments and reserved words need
        // no exception, because a quoted word is neither.
        let builtin = ["cd", "eval", "alias", "export", "trap", "source", ".", "builtin", "command", "exec"];
        prop_assume!(!builtin.contains(&words[0].as_str()));
        let quote = |word: &String| format!("'{}'", word.replace('\'', "'\\''"));
        let text = words.iter().map(quote).collect::<Vec<_>>().join(" ");
        let (a, b) = (argv(strict, &words), shell(strict, &text));
        prop_assert!(same(&a, &b) || is_limit(&b), "{text}: {a:?} against {b:?}");
    }

    #[test]
    fn appended_command_never_loosens_a_verdict(first in text(), second in words()) {
        let strict = strict();
        let denied = shell(strict, &first);
        if denied.action() == Action::Deny && denied.cause.rule != "input.syntax" && denied.cause.rule != "input.empty" {
            let joined = format!("{first}\n{}", shell_words::join(&second));
            prop_assert_eq!(shell(strict, joined).action(), Action::Deny);
        }
    }
}

fn action() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["allow", "ask", "deny"])
}

/// Generates a rule with random conditions.
fn rule() -> impl Strategy<Value = String> {
    let condition = prop::sample::select(vec![
        "program = \"git\"",
        "program = \"*\"",
        "program = [\"ls\", \"sudo\"]",
        "verb = \"checkout\"",
        "verb = [\"stash pop\", \"commit\"]",
        "effects = \"git.reads\"",
        "effects = [\"fs.writes\", \"git.refs\"]",
        "args = \"-*\"",
        "flags = \"--amend\"\nverb = \"commit\"",
        "paths = \"/etc/**\"",
        "only_effects = \"git.reads\"\nprogram = \"git\"",
        "verb = \"fetch\"",
    ]);
    (condition, action()).prop_map(|(condition, action)| format!("{condition}\naction = \"{action}\"\n"))
}

fn rules(prefix: &'static str) -> impl Strategy<Value = String> {
    prop::collection::vec(rule(), 0..5).prop_map(move |rules| {
        rules
            .iter()
            .enumerate()
            .map(|(index, rule)| format!("[[command]]\nid = \"{prefix}{index}\"\nreason = \"r\"\n{rule}"))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    /// A policy that extends another one without `override` must not decide any command more loosely.
    #[test]
    fn extending_policy_never_loosens_a_verdict(
        parent_rules in rules("p"), child_rules in rules("c"), defaults in (action(), action()), commands in prop::collection::vec(words(), 8)
    ) {
        let folder = crate::support::Scratch::new("merge");
        let parent_text = format!("version = 1\nname = \"p\"\ndefault_action = \"{}\"\n[git]\ndefault_action = \"{}\"\n{parent_rules}", defaults.0, defaults.1);
        let path = folder.write("p.toml", &parent_text);
        let parent: Policy = load_text(source(&parent_text), &Default::default()).unwrap();
        let child_text = format!("version = 1\nname = \"c\"\nextends = {:?}\n{child_rules}", path.display().to_string());
        let child: Policy = load_text(source(&child_text), &Default::default()).unwrap();
        for words in commands {
            let (loose, tight) = (argv(&parent, &words), argv(&child, &words));
            prop_assert!(tight.action() >= loose.action(), "{words:?}\n{parent_text}\n{child_text}\n{loose:?}\n{tight:?}");
        }
    }
}

/// Generates a TOML list with some of these words.
fn some(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::subsequence(words.to_vec(), 0..=words.len()).prop_map(|words| format!("{words:?}"))
}

fn one(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(words.to_vec()).prop_map(|word| format!("{word:?}"))
}

/// Generates the sections of a policy that describe the sandbox of a run, each key present or absent.
fn sections() -> impl Strategy<Value = String> {
    const FILES: &[&str] =
        &["{system}", "{worktree}", "{worktree}/src", "{home}", "/srv", "/srv/bin", "{toolchains}"];
    const IMPORTS: &[&str] = &["~/.gitconfig", "~/.config", "~/.config/git/ignore"];
    const PASSED: &[&str] = &["PATH", "LC_*", "LC_ALL", "LANG"];
    let said = |key: &'static str, value: BoxedStrategy<String>| {
        prop::option::of(value.prop_map(move |value| format!("{key} = {value}\n")))
            .prop_map(Option::unwrap_or_default)
    };
    let flag = || prop::sample::select(vec!["true", "false"]).prop_map(str::to_string).boxed();
    (
        said("read", some(FILES).boxed()),
        said("write", some(FILES).boxed()),
        said("execute", some(FILES).boxed()),
        said("namespaces", one(&["off", "auto", "require"]).boxed()),
        said("verify_exec", flag()),
        said("import", some(IMPORTS).boxed()),
        said("detect", some(&TOOLCHAINS).boxed()),
        said("caches", one(&["shared", "private"]).boxed()),
        said("pass", some(PASSED).boxed()),
        said("file_mib", (1..4i64).prop_map(|number| number.to_string()).boxed()),
    )
        .prop_map(|(read, write, execute, namespaces, verify, import, detect, caches, pass, limit)| {
            format!(
                "[filesystem]\n{read}{write}{execute}[sandbox]\n{namespaces}{verify}[home]\n{import}[toolchains]\n{detect}{caches}[environment]\n{pass}[limits]\n{limit}"
            )
        })
}

/// Returns true if each name of `narrow` equals a name of `wide`, is below such a name, or matches such a name that
/// ends in a star.
fn is_within(narrow: &[impl AsRef<str>], wide: &[impl AsRef<str>]) -> bool {
    narrow.iter().map(AsRef::as_ref).all(|narrow| {
        wide.iter().map(AsRef::as_ref).any(|wide| {
            let below = narrow.strip_prefix(wide).is_some_and(|rest| rest.starts_with('/'));
            let case = wide.strip_suffix('*').is_some_and(|start| narrow.starts_with(start));
            narrow == wide || (below && !wide.starts_with('~')) || case
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    /// guard must reject the sections of an extending policy exactly if they loosen the policy that it extends.
    #[test]
    fn extending_sections_that_loosen_are_rejected(parent in sections(), child in sections()) {
        let folder = crate::support::Scratch::new("sections");
        let parent_text = format!("version = 1\nname = \"p\"\n{parent}");
        let path = folder.write("p.toml", &parent_text);
        let parent = load_text(source(&parent_text), &PolicyDirs::default()).unwrap();
        let alone = load_text(source(&format!("version = 1\nname = \"c\"\n{child}")), &PolicyDirs::default()).unwrap();
        let child_text = format!("version = 1\nname = \"c\"\nextends = {:?}\n{child}", path.display().to_string());
        let Ok(child) = load_text(source(&child_text), &PolicyDirs::default()) else {
            prop_assert!(!is_tighter(&alone, &parent), "refused:\n{parent_text}\n{child_text}");
            return Ok(());
        };
        prop_assert!(is_tighter(&child, &parent), "{parent_text}\n{child_text}");
    }
}

fn is_tighter(tight: &Policy, loose: &Policy) -> bool {
    let limit = |policy: &Policy| policy.limits.get("file_mib").unwrap_or(i64::MAX);
    is_within(&tight.filesystem.read, &loose.filesystem.read)
        && is_within(&tight.filesystem.write, &loose.filesystem.write)
        && is_within(&tight.filesystem.executable(), &loose.filesystem.executable())
        && tight.sandbox.namespaces >= loose.sandbox.namespaces
        && tight.sandbox.verify_exec >= loose.sandbox.verify_exec
        && is_within(&tight.home.import, &loose.home.import)
        && is_within(&tight.toolchains.detect, &loose.toolchains.detect)
        && tight.toolchains.caches >= loose.toolchains.caches
        && is_within(&tight.environment.pass, &loose.environment.pass)
        && limit(tight) <= limit(loose)
}
