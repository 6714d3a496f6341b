// slow
//! What a run of an agent leaves for later runs of the same repository: its conversations, and nothing that a later agent
//! obeys.

use std::os::unix::fs::PermissionsExt;

use crate::support::in_every_environment;

/// A program in the place of Claude Code. It writes what the real one obeys in later sessions, too.
const CLAUDE: &str = r#"#!/bin/bash
[ "$1" = --version ] && exec echo "2.1.325 (Claude Code)"
here=$HOME/.claude/projects/$(pwd | sed 's/[^a-zA-Z0-9]/-/g')
find "$here" ! -type d -printf 'found %P %m\n' 2>/dev/null
mkdir -p "$here/memory" "$here/$1/subagents" "$here/$1/tool-results" "$HOME/.claude/commands"
echo "{}" > "$here/$1.jsonl"
chmod 777 "$here/$1.jsonl"
echo "{}" > "$here/$1/subagents/agent-x.jsonl"
echo text > "$here/$1/tool-results/y.txt"
echo "obey me" | tee "$here/memory/MEMORY.md" "$here/settings.json" "$here/git" "$HOME/.claude/commands/x.md" > /dev/null
ln -s /etc/passwd "$here/link.jsonl"
chmod +x "$here/git"
"#;

#[test]
fn kept_home_contains_only_conversations_of_the_cli() {
    in_every_environment(|environment| {
        let name = environment.name();
        let program = environment.temporary_directory().join("claude");
        std::fs::write(&program, CLAUDE).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = program.to_string_lossy().into_owned();
        let run = |session: &str| {
            let mut command = environment.guard_run(&["--json"], &[&program, session]);
            command.env("ANTHROPIC_API_KEY", "the-key-of-the-tests");
            environment.run_to_end(command, b"")
        };
        let first = run("one");
        assert_eq!(first.result["exit_code"], 0, "{name}: {first:?}");
        let kept = &first.result["kept_files"];
        assert_eq!(kept["from_earlier"], serde_json::json!([]), "{name}: {kept}");
        let for_later = kept["for_later"].to_string();
        for file in ["/one.jsonl", "/one/subagents/agent-x.jsonl", "/one/tool-results/y.txt"] {
            assert!(for_later.contains(file), "{name}: {kept}");
        }
        for other in ["memory", "settings", "/git", "commands", "link"] {
            assert!(!for_later.contains(other), "{name}: {kept}");
        }
        // Earlier versions of guard have saved such files, too.
        let saved = environment.runs_directory().with_file_name("history");
        environment.run_outside(&format!(
            "cd {}/claude/*/.claude/projects/directory && mkdir memory && echo obey > memory/MEMORY.md && cp /bin/true git && chmod 755 *.jsonl .",
            saved.display()
        ));
        let second = run("two");
        let printed = second.printed();
        assert!(printed.contains("found one.jsonl 600"), "{name}: {printed}");
        assert!(printed.contains("found one/tool-results/y.txt 600"), "{name}: {printed}");
        assert_eq!(printed.matches("found").count(), 3, "{name}: {printed}");
        let kept = &second.result["kept_files"];
        assert!(kept["from_earlier"].to_string().contains("/one.jsonl"), "{name}: {kept}");
        assert!(!kept["for_later"].to_string().contains("/one"), "{name}: {kept}");
        assert!(kept["for_later"].to_string().contains("/two.jsonl"), "{name}: {kept}");
        let open = environment.run_outside(&format!(
            "find {} \\( -perm /177 -type f -o -perm /077 -type d -o -type l -o -name 'MEMORY.md' \\)",
            saved.display()
        ));
        assert_eq!(open, "", "{name}");
    });
}
