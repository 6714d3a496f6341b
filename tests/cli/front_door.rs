// slow
//! Runs the command lines that the documents give for agents. The user has installed guard and an agent and nothing
//! else: the home is empty, the repository is the user's, and PATH has the installed programs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::agent_exec::agents::{Cli, KEY as KEY_OF_CLIS};
use crate::agent_exec::claude::CLAUDE;
use crate::agent_exec::codex::CODEX;
use crate::docs::{blocks, readme_and_pages};
use crate::egress::gemini::Gemini;
use crate::support::scripted_api::{Api, Turn};
use crate::support::{RunOutcome, TestEnvironment, guard_program, in_two_environments, one_environment};

/// Returns each command line of the README and the book that contains all of these words, without its trailing comment.
fn documented_lines(words: &[&str]) -> Vec<String> {
    let mut lines = BTreeSet::new();
    for page in readme_and_pages() {
        for block in
            blocks(&std::fs::read_to_string(&page).unwrap()).iter().filter(|block| block.language == "sh")
        {
            let wanted = block.text.lines().filter(|line| words.iter().all(|word| line.contains(word)));
            lines.extend(wanted.map(|line| line.split("   #").next().unwrap_or(line).trim_end().to_string()));
        }
    }
    assert!(!lines.is_empty(), "no document has a line with {words:?} any more");
    lines.into_iter().collect()
}

/// The API key of the new user.
const KEY: &str = "the newcomer's key";

/// A home directory without settings and a repository with one commit, as a user has them who has just installed
/// guard.
struct Newcomer<'w> {
    environment: &'w TestEnvironment,
    home: PathBuf,
    app: PathBuf,
}

impl<'w> Newcomer<'w> {
    fn new(environment: &'w TestEnvironment) -> Self {
        let root = environment.directory.parent().unwrap();
        let (home, app) = (root.join("newcomer"), root.join("app"));
        environment.run_outside(
            "mkdir newcomer && git init -q -b main app && cd app && git config user.name n && git config user.email e \
             && echo first > README && git add README && git commit -qm first",
        );
        Self { environment, home, app }
    }

    /// Runs a command line in a shell in the repository. If `api` is given, the environment contains this address of
    /// the API and a key for it.
    fn types(&self, line: &str, api: Option<&str>) -> RunOutcome {
        let variables = api.map(|api| [("GEMINI_API_KEY", KEY), ("GOOGLE_GEMINI_BASE_URL", api)]);
        self.types_with(line, &Gemini::folder(), variables.iter().flatten().copied())
    }

    /// Runs a command line in a shell in the repository. PATH contains guard and the npm programs of `tools`;
    /// `variables` are added to the environment.
    fn types_with<'v>(
        &self,
        line: &str,
        tools: &Path,
        variables: impl Iterator<Item = (&'v str, &'v str)>,
    ) -> RunOutcome {
        let mut shell: Command = self.environment.command("bash");
        let path = [guard_program().parent().unwrap(), &tools.join("node_modules/.bin")];
        let path = std::env::join_paths(
            path.iter()
                .map(|at| at.to_path_buf())
                .chain(["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from)),
        );
        shell
            .args(["-c", line])
            .current_dir(&self.app)
            .env("PATH", path.unwrap())
            .env("HOME", &self.home)
            .env_remove("GEMINI_API_KEY")
            .env_remove("XDG_STATE_HOME")
            .env_remove("TMPDIR");
        shell.envs(variables);
        self.environment.run_to_end(shell, b"")
    }

    /// Returns the output of git in the repository.
    fn git(&self, arguments: &str) -> String {
        self.environment.run_outside(&format!("git -C app {arguments}"))
    }
}

/// Adds the option that switches namespaces off if the environment has none; otherwise returns the line unchanged.
fn for_environment(environment: &TestEnvironment, line: &str) -> String {
    if environment.namespaces {
        line.to_string()
    } else {
        line.replace("guard run", "guard run --namespaces off")
    }
}

#[test]
fn readme_command_for_gemini_edits_tests_and_commits() {
    if Gemini::installed().is_none() {
        return;
    }
    let lines = documented_lines(&["guard run", "-- gemini -p"]);
    in_two_environments(|environment| {
        for line in &lines {
            let newcomer = Newcomer::new(environment);
            let api = Api::plain(vec![
                Turn::write("toggle.txt", "dark\n"),
                Turn::shell("grep -q dark toggle.txt && echo tests pass"),
                Turn::shell("git add toggle.txt && git commit -qm 'add a toggle'"),
                Turn::shell("git checkout -b other"),
                Turn::text("The toggle is there."),
            ]);
            let outcome = newcomer.types(&for_environment(environment, line), Some(&api.server.url("")));
            let shown = String::from_utf8_lossy(&outcome.output);
            assert_eq!(outcome.code, 0, "{line} {shown}: {outcome}");
            assert!(shown.contains("The toggle is there."), "{} {line}: {shown}", environment.name());
            // In the user's repository there must be a commit on the branch of the run, and nothing else may have
            // changed.
            let branches = newcomer.git("for-each-ref --format='%(refname:short) %(subject)' refs/heads");
            let branches: Vec<&str> = branches.lines().collect();
            assert_eq!(branches.len(), 2, "{line} {branches:?}: {outcome}");
            assert!(branches.contains(&"main first"), "{branches:?}");
            assert!(
                branches
                    .iter()
                    .any(|branch| branch.starts_with("task/") && branch.ends_with(" add a toggle"))
            );
            let results = api.tool_results();
            let said = |at: usize| results[at].1.to_string();
            assert!(said(1).contains("tests pass"), "{} {line}: {results:?}", environment.name());
            assert!(said(3).contains("Permission denied: git checkout -b other"), "{line}: {results:?}");
            // guard must have added the user's key to every request outside the sandbox.
            let keys: Vec<_> = api
                .questions()
                .iter()
                .map(|question| question.header("x-goog-api-key").map(str::to_string))
                .collect();
            assert!(keys.iter().all(|key| key.as_deref() == Some(KEY)), "{keys:?}");
            assert!(outcome.error.contains("refused: git checkout -b other"), "{outcome}");
            environment.run_outside("rm -rf newcomer app .worktrees");
        }
    });
}

#[test]
fn run_returns_the_answer_of_a_known_agent() {
    if Gemini::installed().is_none() {
        return;
    }
    let environment = one_environment();
    let newcomer = Newcomer::new(&environment);
    let api = Api::plain(vec![Turn::text("An answer.")]);
    let url = api.server.url("");
    let outcome = newcomer.types("guard run --json -- gemini -p 'a question' -o stream-json", Some(&url));
    assert_eq!((outcome.code, &outcome.result["success"]), (0, &json!(true)), "{outcome}");
    assert_eq!(
        (&outcome.result["tool"], &outcome.result["result"]),
        (&json!("gemini"), &json!("An answer."))
    );
    let session = outcome.result["SESSION_ID"].as_str().unwrap().to_string();
    assert_ne!(session, outcome.result["run_id"].as_str().unwrap());
    // The conversation must continue in the next run, although that run has another worktree.
    let api = Api::plain(vec![Turn::text("More of it.")]);
    let line = format!("guard run --json -- gemini --resume {session} -p 'and then?' -o stream-json");
    let outcome = newcomer.types(&line, Some(&api.server.url("")));
    assert_eq!(
        (&outcome.result["SESSION_ID"], &outcome.result["result"]),
        (&json!(session), &json!("More of it.")),
        "{outcome}"
    );
    let asked = api.questions()[0].json().to_string();
    assert!(asked.contains("a question") && asked.contains("An answer."), "{asked}");
    // If the agent fails, the result must have the agent's error kind and its exit code.
    let api = Api::plain(vec![Turn::Fails(
        401,
        json!({"error": {"code": 401, "message": "API key not valid.", "status": "UNAUTHENTICATED"}}),
    )]);
    let outcome = newcomer.types("guard run --json -- gemini -p x -o stream-json", Some(&api.server.url("")));
    assert_eq!((outcome.kind(), &outcome.result["exit_code"]), ("auth_error", &json!(145)), "{outcome}");
    outcome.expect_code(145);
}

#[test]
fn run_shows_what_it_added_for_a_known_agent() {
    if Gemini::installed().is_none() {
        return;
    }
    let environment = one_environment();
    let newcomer = Newcomer::new(&environment);
    let shown = |line: &str| {
        let outcome = newcomer.types(line, Some("http://127.0.0.1:9"));
        assert_eq!(outcome.code, 0, "{line}: {outcome}");
        let text = String::from_utf8_lossy(&outcome.output).into_owned();
        text.lines().find_map(|line| line.strip_prefix("command ")).unwrap_or_default().trim().to_string()
    };
    assert_eq!(shown("guard run --dry-run -- gemini -p x"), "gemini --skip-trust --approval-mode yolo -p x");
    assert_eq!(shown("guard run --dry-run -- gemini --yolo -p x"), "gemini --skip-trust --yolo -p x");
    assert_eq!(shown("guard run --dry-run --agent none -- gemini -p x"), "gemini -p x");
    assert_eq!(
        shown("guard run --dry-run --agent gemini -- env gemini -p x"),
        "env --skip-trust --approval-mode yolo gemini -p x"
    );
}

#[test]
fn missing_api_key_is_reported_before_anything_starts() {
    if Gemini::installed().is_none() {
        return;
    }
    let environment = one_environment();
    let newcomer = Newcomer::new(&environment);
    for line in ["guard run --json -- gemini -p x", "guard exec x"] {
        let outcome = newcomer.types(line, None);
        assert_eq!(
            (outcome.kind(), outcome.result["success"].as_bool()),
            ("auth_error", Some(false)),
            "{line}: {outcome}"
        );
        let error = outcome.result["error"].as_str().unwrap();
        assert!(error.contains("GEMINI_API_KEY") && error.contains("[gateway.gemini]"), "{line}: {error}");
        assert!(outcome.took.as_millis() < 2000, "{line}: {:?}", outcome.took);
        assert_eq!(newcomer.git("for-each-ref --format='%(refname)'"), "refs/heads/main\n", "{line}");
    }
    // A command that calls no API must work without a key.
    let outcome = newcomer.types("guard run -q -- gemini --version", None);
    outcome.expect_code(0);
    let outcome = newcomer.types("guard run --agent gemin -- true", None);
    assert!(
        outcome.code == 2 && outcome.error.contains("unknown agent") && outcome.error.contains("gemini"),
        "{outcome}"
    );
}

/// Runs the documented line for an agent, as root and as an ordinary user. The agent must edit, run the tests and
/// commit, and must be told why guard refused a command.
fn works_first_time(cli: &Cli, words: &[&str]) {
    let Some(program) = cli.program() else { return };
    let tools = program.ancestors().nth(3).unwrap();
    let [line] = documented_lines(words).try_into().unwrap();
    // The tests of `guard exec` run the same agents, so two environments are enough here.
    in_two_environments(|environment| {
        let newcomer = Newcomer::new(environment);
        let api = (cli.api)(vec![
            (cli.write)("toggle.txt", "dark\n"),
            (cli.shell)("grep -q dark toggle.txt && echo tests pass"),
            (cli.shell)("git checkout -b other"),
            (cli.shell)("git add toggle.txt && git commit -qm 'add a toggle'"),
            Turn::text("The toggle is there."),
        ]);
        let (url, [key, address]) = (api.url(), cli.variables);
        let variables = [(key, KEY_OF_CLIS), (address, url.as_str())];
        let outcome = newcomer.types_with(&for_environment(environment, &line), tools, variables.into_iter());
        let shown = format!(
            "{} {line}: {}{}",
            environment.name(),
            String::from_utf8_lossy(&outcome.output),
            outcome.error
        );
        assert_eq!(outcome.code, 0, "{shown}");
        assert!(shown.contains("The toggle is there."), "{shown}");
        let branches = newcomer.git("for-each-ref --format='%(refname:short) %(subject)' refs/heads");
        let branches: Vec<&str> = branches.lines().collect();
        assert_eq!(branches.len(), 2, "{branches:?} {shown}");
        assert!(branches.contains(&"main first"), "{branches:?}");
        assert!(
            branches.iter().any(|branch| branch.starts_with("task/") && branch.ends_with(" add a toggle"))
        );
        let results = api.tool_results();
        assert!(results[1].contains("tests pass"), "{results:?} {shown}");
        assert!(results[2].contains("git.switch"), "{results:?} {shown}");
        let (name, value) = cli.key_header;
        assert!(api.questions().iter().all(|question| question.header(name) == Some(value)), "{shown}");
    });
}

#[test]
fn readme_command_for_claude_works() {
    works_first_time(&CLAUDE, &["guard run", "-- claude -p"]);
}

#[test]
fn readme_command_for_codex_works() {
    works_first_time(&CODEX, &["guard run", "-- codex exec"]);
}

/// Returns the credentials of a Claude subscription, in the format of Claude Code, with two tokens made of this word.
fn claude_login(token: &str) -> String {
    let oauth = json!({
        "accessToken": format!("sk-ant-oat01-{token}"), "refreshToken": format!("sk-ant-ort01-{token}"),
        "expiresAt": 4_102_444_800_000_u64, "scopes": ["user:inference", "user:profile"], "subscriptionType": "max",
    });
    json!({ "claudeAiOauth": oauth }).to_string()
}

#[test]
fn agent_login_is_copied_only_after_consent() {
    let Some(program) = CLAUDE.program() else { return };
    let tools = program.ancestors().nth(3).unwrap();
    in_two_environments(|environment| {
        let newcomer = Newcomer::new(environment);
        environment.run_outside(&format!(
            "mkdir -p newcomer/.claude newcomer/.config/guard && cat > newcomer/.claude/.credentials.json <<'EOF'\n{}\nEOF",
            claude_login("old")
        ));
        let file = newcomer.home.join(".claude/.credentials.json");
        let config = newcomer.home.join(".config/guard/config.toml");
        let types =
            |line: &str| newcomer.types_with(&for_environment(environment, line), tools, std::iter::empty());
        // By default guard does not copy the login, so the agent must not be able to log in.
        let outcome = types("guard run --json -- claude -p x");
        assert_eq!(outcome.kind(), "auth_error", "{outcome}");
        let outcome = types("guard run --json -- bash -c 'cat ~/.claude/.credentials.json'");
        assert_ne!(outcome.result["exit_code"], json!(0), "{outcome}");

        environment
            .run_outside(&format!("printf '[agent.claude]\\nlogin = \"copy\"\\n' > '{}'", config.display()));
        let api = (CLAUDE.api)(vec![
            // The agent refreshes its tokens, as the CLI does, and also changes a field that a refresh never changes.
            (CLAUDE.shell)(
                "sed -i -e 's/01-old/01-new/g' -e 's/\"max\"/\"evil\"/' ~/.claude/.credentials.json; cat ~/.claude/.credentials.json",
            ),
            Turn::text("Logged in."),
        ]);
        let url = api.url();
        let host = url.trim_start_matches("http://");
        let line =
            format!("guard run --env ANTHROPIC_BASE_URL={url} --allow-host {host} --json -- claude -p x");
        let outcome = types(&line);
        let shown = format!("{}: {:#} {}", environment.name(), outcome.result, outcome.error);
        assert!(outcome.result["result"].as_str().is_some_and(|text| text.contains("Logged in.")), "{shown}");
        let keys: Vec<_> =
            api.questions().iter().map(|asked| asked.header("authorization").map(str::to_string)).collect();
        // The CLI reads the credentials file again before every request, so the second one must have the new token.
        let keys: Vec<&str> = keys.iter().flatten().map(String::as_str).collect();
        assert_eq!(keys, ["Bearer sk-ant-oat01-old", "Bearer sk-ant-oat01-new"], "{shown}");
        // guard must copy back the new tokens, and nothing else that the agent wrote.
        let own = std::fs::read_to_string(&file).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&claude_login("new")).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&own).unwrap(), expected, "{shown}");
        // The transcript must contain none of the tokens, although the agent printed them.
        let transcript =
            std::fs::read_to_string(outcome.result["transcript"]["path"].as_str().unwrap()).unwrap();
        assert!(!transcript.contains("oat01-old") && !transcript.contains("oat01-new"), "{shown}");

        // A program named `claude` in the repository must not get the login.
        environment.run_outside(
            "cd app && printf '#!/bin/sh\\ncat ~/.claude/.credentials.json\\n' > claude && chmod +x claude",
        );
        environment.run_outside("ln -s app linked && ln -s ../app/claude newcomer/claude");
        for line in [
            "guard run --json --in-place -- ./claude -p x",
            "PATH=$PWD:$PATH guard run --json --in-place -- claude -p x",
            "guard run --json --in-place -- ../linked/claude -p x",
            "guard run --json --in-place -- ../newcomer/claude -p x",
        ] {
            let outcome = types(line);
            let error = outcome.result["error"].as_str().unwrap_or_default();
            assert!(outcome.kind() == "auth_error" && error.contains("working tree"), "{line}: {outcome}");
            assert!(!String::from_utf8_lossy(&outcome.output).contains("01-new"), "{line}");
        }
        std::fs::remove_file(&file).unwrap();
        let outcome = types("guard run --json -- claude -p x");
        let error = outcome.result["error"].as_str().unwrap_or_default();
        assert!(
            outcome.kind() == "auth_error" && error.contains(".claude/.credentials.json does not exist"),
            "{error}"
        );
        environment
            .run_outside(&format!("printf '[agent.cluade]\\nlogin = \"copy\"\\n' > '{}'", config.display()));
        let outcome = types("guard run --json -- claude -p x");
        assert!(outcome.code == 2 && outcome.error.contains("[agent.cluade]"), "{outcome}");
        environment.run_outside("rm -rf newcomer app .worktrees");
    });
}

#[test]
fn policy_learned_from_an_agent_run_lets_the_agent_pass() {
    if Gemini::installed().is_none() {
        return;
    }
    let environment = &one_environment();
    let newcomer = Newcomer::new(environment);
    let turns = || {
        Api::plain(vec![
            Turn::write("toggle.txt", "dark\n"),
            Turn::shell("grep -q dark toggle.txt && git add toggle.txt && git commit -qm toggle"),
            Turn::text("The toggle is there."),
        ])
    };
    for line in [
        "guard learn --out ../learned.toml -- gemini -p 'add a toggle'",
        "guard run -q --policy ../learned.toml -- gemini -p 'add a toggle'",
    ] {
        let api = turns();
        let outcome = newcomer.types(line, Some(&api.server.url("")));
        let shown = String::from_utf8_lossy(&outcome.output);
        assert!(outcome.code == 0 && shown.contains("The toggle is there."), "{line}: {shown} {outcome}");
    }
    let branches = newcomer.git("for-each-ref --format='%(subject)' refs/heads");
    let policy = std::fs::read_to_string(newcomer.app.join("../learned.toml")).unwrap();
    let denied = newcomer.types("guard log --denied", None);
    assert_eq!(
        branches.matches("toggle").count(),
        2,
        "{branches}\n{policy}\n{}",
        String::from_utf8_lossy(&denied.output)
    );
    for refused in ["git push origin main", "rm -rf /", "curl https://example.org", "git reset --hard"] {
        let outcome = newcomer.types(&format!("guard check --policy ../learned.toml -- {refused}"), None);
        assert_eq!(outcome.code, 1, "{refused}: {outcome}\n{policy}");
    }
}
