//! Runs tasks with a scripted agent that prints what the Gemini CLI would.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{RunOutcome, TestEnvironment, guard_program, make_program, one_environment};

/// A test environment with a new repository and the scripted agent, which prints what the Gemini CLI would print.
pub(crate) struct TaskFixture {
    pub(crate) environment: TestEnvironment,
    pub(crate) repository: PathBuf,
    agent: PathBuf,
}

impl TaskFixture {
    pub(crate) fn new() -> Self {
        Self::of(one_environment())
    }

    pub(crate) fn of(environment: TestEnvironment) -> Self {
        let repository = environment.directory.with_file_name("repository");
        let agent = environment.directory.with_file_name("agent.sh");
        make_program(&agent, include_bytes!("../../fixtures/agents/scripted.sh"));
        environment.run_outside(
            "git -C repository worktree remove ../project && git -C repository branch -q -D task/work \
             && git -C repository config user.name Person && git -C repository config user.email person@example.org",
        );
        Self { environment, repository, agent }
    }

    /// Returns a `guard task` command in the repository.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.environment.command(guard_program());
        command.arg("task").args(arguments).current_dir(&self.repository);
        command
    }

    /// Runs a task with the scripted agent to its end.
    pub(crate) fn task(&self, arguments: &[&str]) -> RunOutcome {
        let mut command = self.command(&["--stream-json", "--agent-command"]);
        command.arg(&self.agent).args(arguments);
        self.environment.run_to_end(command, b"")
    }

    /// Runs a `guard task` command other than the start of a task, such as `list` or `resume`, until it ends.
    pub(crate) fn about(&self, arguments: &[&str]) -> RunOutcome {
        self.environment.run_to_end(self.command(arguments), b"")
    }

    pub(crate) fn git(&self, arguments: &str) -> String {
        self.environment.run_outside(&format!("git -C repository {arguments}")).trim_end().to_string()
    }

    /// Returns the subjects of the commits on a branch, the oldest first.
    pub(crate) fn subjects(&self, branch: &str) -> Vec<String> {
        self.git(&format!("log --reverse --format=%s main..{branch}")).lines().map(str::to_string).collect()
    }

    /// Starts a task in the background whose steps take about a second each.
    pub(crate) fn start_slow_task(&self) -> Child {
        let mut command = self.command(&["--json", "--name", "x", "Do it. @wait=1", "--agent-command"]);
        command.arg(&self.agent).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Waits until the journal has a task. Returns the id of the newest one.
    pub(crate) fn newest_task_id(&self) -> String {
        let began = Instant::now();
        loop {
            let list = self.about(&["list", "--json"]);
            if let Some(task) = list.result.as_array().and_then(|all| all.first()) {
                return task["task_id"].as_str().unwrap().to_string();
            }
            assert!(began.elapsed() < Duration::from_secs(120), "{}", list.error);
        }
    }

    /// Returns the file of the scripted agent.
    pub(crate) fn agent(&self) -> &Path {
        &self.agent
    }
}

/// Returns the messages of a task, as a user at the terminal sees them.
pub(crate) fn task_messages(outcome: &RunOutcome) -> Vec<String> {
    let lines = outcome
        .output
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    lines
        .filter(|event| event["event_type"] == "task.said")
        .map(|event| {
            format!("{}: {}", event["data"]["who"].as_str().unwrap(), event["message"].as_str().unwrap())
        })
        .collect()
}

/// Describes how a task ended, for assertion messages.
pub(crate) fn describe_task(outcome: &RunOutcome) -> String {
    format!("{:#}\n{}\n{}", outcome.result, task_messages(outcome).join("\n"), outcome.error)
}
