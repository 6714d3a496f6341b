//! Code that the tests of Claude Code and Codex share: the installed CLI, a request for it, and what both agents must
//! do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Answered, exec_with, scripted};
use crate::support::http_server::Request;
use crate::support::scripted_api::{Part, Turn};
use crate::support::{TestEnvironment, in_two_environments, one_environment, skip};

/// The user's API key, which guard must send to the API and to nothing else.
pub(crate) const KEY: &str = "sk-real-4711";

/// Returns true for a denial that the CLI itself causes and that does not disturb it. Codex watches `/etc`, which
/// root may not list in a run.
fn is_known_refusal(denial: &Value) -> bool {
    denial["message"].as_str().is_some_and(|message| message.starts_with("watch /etc: "))
}

/// A scripted API that records the requests it receives.
pub(crate) trait Api {
    fn url(&self) -> String;
    fn questions(&self) -> Vec<Request>;
    fn tool_results(&self) -> Vec<String>;
}

/// An agent's CLI as `scripts/setup` installs it, and the API it talks to.
pub(crate) struct Cli {
    pub(crate) agent: &'static str,
    /// The names of the two variables in which the user sets the API key and the address of the API.
    pub(crate) variables: [&'static str; 2],
    pub(crate) api: fn(Vec<Turn>) -> Box<dyn Api>,
    pub(crate) shell: fn(&str) -> Turn,
    pub(crate) write: fn(&str, &str) -> Turn,
    /// The header that carries the key to the API: its name and its value.
    pub(crate) key_header: (&'static str, &'static str),
}

impl Cli {
    /// Returns the program if it is installed; otherwise skips the test.
    pub(crate) fn program(&self) -> Option<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools").join(self.agent);
        let program = folder.join("node_modules/.bin").join(self.agent);
        if folder.join("installed").exists() && program.exists() {
            return Some(program);
        }
        skip(self.agent, "it is not installed; scripts/setup installs it");
        None
    }

    pub(crate) fn request(
        &self,
        program: &Path,
        environment: &TestEnvironment,
        prompt: &str,
        more: &Value,
    ) -> Value {
        let mut request = json!({
            "agent": self.agent, "command": [program], "prompt": prompt, "cd": environment.directory.with_file_name("repository"),
            "policy": scripted::policy(environment), "max_retries": 0,
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        request
    }

    pub(crate) fn ask(&self, environment: &TestEnvironment, api: &dyn Api, request: &Value) -> Answered {
        let [key, address] = self.variables;
        exec_with(environment, &[(key, KEY), (address, &api.url())], request)
    }

    /// The agent edits a file, runs the project's tests and commits, in its own worktree. guard must refuse one
    /// forbidden command, and the agent must get the reason. guard must refuse nothing that the CLI does by itself.
    /// The CLI must connect only to the API, and must ignore the repository's settings.
    pub(crate) fn edits_tests_commits_and_is_refused(&self) {
        let Some(program) = self.program() else { return };
        in_two_environments(|environment| {
            environment.run_outside(PROJECT);
            let api = (self.api)(vec![
                (self.shell)(
                    "echo second >> tracked && ./test.sh; env; cat /proc/$PPID/environ | tr '\\0' '\\n'",
                ),
                (self.write)("written", "by the tool\n"),
                (self.shell)("git checkout \"main\""),
                (self.shell)("git add -A && git commit -m 'Add a line'"),
                Turn::text("I added a line."),
            ]);
            let refs = "git -C repository for-each-ref refs/heads/main refs/heads/task/work; cat repository/.git/HEAD";
            let before = environment.run_outside(refs);
            let more = json!({ "return_metrics": true });
            let answered =
                self.ask(environment, &*api, &self.request(&program, environment, "add a line", &more));
            let shown = || format!("{}: {}\n{:#?}", environment.name(), answered.shown(), api.tool_results());
            let result = &answered.result;
            assert_eq!((answered.code, &result["success"]), (0, &json!(true)), "{}", shown());
            assert_eq!((&result["tool"], &result["result"]), (&json!(self.agent), &json!("I added a line.")));
            // In the user's repository there must be one new commit, by the user, with both edits, and nothing else
            // may have changed.
            let branch = result["worktree"]["branch"].as_str().unwrap_or_default().to_string();
            let log =
                environment.run_outside(&format!("git -C repository log --format='%s by %an' {branch} -1"));
            assert_eq!(log.trim(), "Add a line by Person", "{}", shown());
            let tracked = environment.run_outside(&format!("git -C repository show {branch}:tracked"));
            assert_eq!(tracked, "first\nsecond\n", "{}", shown());
            let written = environment.run_outside(&format!("git -C repository show {branch}:written"));
            assert_eq!(written, "by the tool\n", "{}", shown());
            assert_eq!(before, environment.run_outside(refs));
            assert_eq!(environment.run_outside("cat repository/tracked"), "first\n");
            let tools = api.tool_results();
            assert!(tools[0].contains("tests pass"), "{}", shown());
            assert!(tools[2].contains("git.switch") && tools[2].contains("git restore"), "{}", shown());
            let denials = result["denials"].as_array().cloned().unwrap_or_default();
            let denials = denials.iter().filter(|denial| !is_known_refusal(denial));
            let rules: Vec<&str> = denials.filter_map(|denial| denial["rule"].as_str()).collect();
            assert_eq!(rules, ["git.switch"], "{}", shown());
            // guard adds the key outside the sandbox: the agent sees only a placeholder, and the API receives the
            // key.
            assert!(!tools[0].contains(KEY) && tools[0].contains("guard-keeps-the-key"), "{}", shown());
            let (name, value) = self.key_header;
            for question in api.questions() {
                assert_eq!(question.header(name), Some(value), "{question:?}");
                assert_ne!(question.json()["model"], "from-repository");
            }
            assert!(
                !environment
                    .run_outside(&format!("git -C repository ls-tree --name-only {branch}"))
                    .contains("hook-ran")
            );
            let kinds: Vec<&str> =
                answered.events.iter().filter_map(|event| event["event_type"].as_str()).collect();
            for kind in ["agent.init", "agent.tool_use", "agent.tool_result", "agent.message", "agent.result"]
            {
                assert!(kinds.contains(&kind), "{kind} is missing: {kinds:?}");
            }
            assert!(result["metrics"]["agent"]["input_tokens"].as_u64() > Some(0), "{}", shown());
        });
    }

    /// A caller continues a session. The agent must know the first turn, and must work in the same worktree.
    pub(crate) fn a_session_goes_on(&self) {
        let Some(program) = self.program() else { return };
        let environment = one_environment();
        environment.run_outside(PROJECT);
        let first = (self.api)(vec![
            (self.shell)("echo second >> tracked && git commit -am 'First turn'"),
            Turn::text("The word is bluebell."),
        ]);
        let one = self.ask(
            &environment,
            &*first,
            &self.request(&program, &environment, "remember a word", &json!({})),
        );
        assert_eq!(one.result["success"], true, "{}", one.shown());
        let next = (self.api)(vec![
            (self.shell)("cat tracked && echo third >> tracked && git commit -am 'Second turn'"),
            Turn::text("It was bluebell."),
        ]);
        let id = &one.result["SESSION_ID"];
        let asked = self.request(&program, &environment, "which word?", &json!({ "SESSION_ID": id }));
        let two = self.ask(&environment, &*next, &asked);
        assert_eq!(
            (&two.result["success"], &two.result["SESSION_ID"]),
            (&json!(true), id),
            "{}",
            two.shown()
        );
        let told = String::from_utf8_lossy(&next.questions()[0].body).into_owned();
        assert!(told.contains("remember a word") && told.contains("The word is bluebell."), "{told}");
        let branch = two.result["worktree"]["branch"].as_str().unwrap_or_default();
        let log = environment.run_outside(&format!("git -C repository log --format=%s {branch} -3"));
        assert_eq!(log, "Second turn\nFirst turn\nproject\n", "{}", two.shown());
        // With an unknown session id, guard must not continue this session.
        let lost = "0197f0a0-0000-7000-8000-000000000000";
        let lost = self.request(&program, &environment, "which word?", &json!({ "SESSION_ID": lost }));
        assert_eq!(self.ask(&environment, &*next, &lost).kind(), "session_lost");
    }

    /// After each failure of the API, the result must have the right error kind and a message that names the agent, and
    /// must arrive within five minutes.
    pub(crate) fn failures_have_their_kind(&self, cases: &[(Turn, &str)]) {
        let Some(program) = self.program() else { return };
        let environment = one_environment();
        // All cases share this request, because `request` writes the policy file, which must not change while guard
        // reads it for another case.
        let asked = self.request(&program, &environment, "hello", &json!({ "in_place": true }));
        let check = |(turn, kind): &(Turn, &str)| {
            let api = (self.api)(vec![turn.clone()]);
            let began = std::time::Instant::now();
            let answered = self.ask(&environment, &*api, &asked);
            assert_eq!(answered.kind(), *kind, "{turn:?}: {}", answered.shown());
            assert_eq!(answered.result["success"], false);
            let words = answered.result["error_detail"]["message"].as_str().unwrap_or_default();
            assert!(words.starts_with(self.agent), "{}", answered.shown());
            assert!(!api.questions().is_empty() && began.elapsed() < Duration::from_secs(300));
        };
        // Two cases run at once, because each waits for the CLI most of the time.
        for pair in cases.chunks(2) {
            std::thread::scope(|scope| pair.iter().for_each(|case| drop(scope.spawn(|| check(case)))));
        }
    }

    /// guard must end an agent whose API stops sending, and an agent that exceeds its token budget.
    pub(crate) fn silence_and_budget_end_it(&self) {
        let Some(program) = self.program() else { return };
        let environment = one_environment();
        let silent = (self.api)(vec![Turn::Silent(vec![Part::Text("Well".to_string())])]);
        let asked = self.request(&program, &environment, "hello", &json!({ "in_place": true, "timeout": 6 }));
        let answered = self.ask(&environment, &*silent, &asked);
        assert_eq!((answered.code, answered.kind()), (124, "idle_timeout"), "{}", answered.shown());
        // The first answer already exceeds the token budget.
        let many = (self.api)(vec![(self.shell)("echo once >> made"); 10]);
        let asked =
            self.request(&program, &environment, "hello", &json!({ "in_place": true, "max_tokens": 100 }));
        let answered = self.ask(&environment, &*many, &asked);
        assert_eq!(answered.kind(), "budget_exhausted", "{}", answered.shown());
        assert_eq!(many.questions().len(), 1, "{}", answered.shown());
    }

    /// Prompts that are too long for a command line, or that look like options or commands, must reach the model
    /// unchanged.
    pub(crate) fn odd_prompts_arrive(&self) {
        let Some(program) = self.program() else { return };
        let environment = one_environment();
        let long = format!("begin {} end of it", "long ".repeat(30_000));
        for prompt in [long, "--version -x".to_string(), "/help me".to_string()] {
            let api = (self.api)(vec![Turn::text("Yes.")]);
            let asked = self.request(
                &program,
                &environment,
                &prompt,
                &json!({ "sandbox": "read-only", "policy": null }),
            );
            let answered = self.ask(&environment, &*api, &asked);
            assert_eq!(answered.result["result"], "Yes.", "{}", answered.shown());
            let told = String::from_utf8_lossy(&api.questions()[0].body).into_owned();
            let end = &prompt[prompt.len().saturating_sub(12)..];
            assert!(told.contains(end), "{}", &told[told.len().saturating_sub(500)..]);
        }
    }
}

/// A script that creates a repository with a test, and with settings for Claude Code and Codex that neither CLI may
/// use.
const PROJECT: &str = r#"cd repository && git config user.name Person && git config user.email person@example.org
    printf '#!/bin/sh\ngrep -q second tracked && echo tests pass\n' > test.sh && chmod +x test.sh
    mkdir .codex .claude
    printf 'model = "from-repository"\n[[hooks.PreToolUse]]\n[[hooks.PreToolUse.hooks]]\ntype = "command"\ncommand = "touch hook-ran"\n' > .codex/config.toml
    echo '{"model":"from-repository","hooks":{"PreToolUse":[{"matcher":"*","hooks":[{"type":"command","command":"touch hook-ran"}]}]}}' > .claude/settings.json
    git add -A && git commit -qm project"#;
