//! Tasks: by a scripted agent that speaks as the Gemini CLI does, and by the real one.

mod attacks;
mod bad_input;
mod budgets;
mod crashes;
mod delivery;
mod disk;
mod documentation;
mod gemini;
mod large;
mod others;
mod people;
mod roles;
mod whole_tasks;
mod workflows;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::launch::world::{Ran, World, one_world, program};
use crate::support::make_program;

/// A world with a repository in which nothing has happened, and the scripted agent.
pub(crate) struct Yard {
    pub(crate) world: World,
    pub(crate) repository: PathBuf,
    agent: PathBuf,
}

impl Yard {
    pub(crate) fn new() -> Self {
        Self::of(one_world())
    }

    pub(crate) fn of(world: World) -> Self {
        let repository = world.folder.with_file_name("repository");
        let agent = world.folder.with_file_name("agent.sh");
        make_program(&agent, include_bytes!("../../fixtures/agents/scripted.sh"));
        world.outside(
            "git -C repository worktree remove ../project && git -C repository branch -q -D task/work \
             && git -C repository config user.name Person && git -C repository config user.email person@example.org",
        );
        Self { world, repository, agent }
    }

    /// `guard task` in the repository.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.command(program());
        command.arg("task").args(arguments).current_dir(&self.repository);
        command
    }

    /// A task with the scripted agent, to its end; the result is how it ended.
    pub(crate) fn task(&self, arguments: &[&str]) -> Ran {
        let mut command = self.command(&["--stream-json", "--agent-command"]);
        command.arg(&self.agent).args(arguments);
        self.world.finish(command, b"")
    }

    /// Another command about tasks.
    pub(crate) fn about(&self, arguments: &[&str]) -> Ran {
        self.world.finish(self.command(arguments), b"")
    }

    pub(crate) fn git(&self, arguments: &str) -> String {
        self.world.outside(&format!("git -C repository {arguments}")).trim_end().to_string()
    }

    /// The first lines of the commits on a branch, the oldest first.
    pub(crate) fn subjects(&self, branch: &str) -> Vec<String> {
        self.git(&format!("log --reverse --format=%s main..{branch}")).lines().map(str::to_string).collect()
    }

    /// The scripted agent's file.
    pub(crate) fn agent(&self) -> &Path {
        &self.agent
    }
}

/// The lines people would see.
pub(crate) fn said(ran: &Ran) -> Vec<String> {
    let lines =
        ran.output.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    lines
        .filter(|event| event["event_type"] == "task.said")
        .map(|event| {
            format!("{}: {}", event["data"]["who"].as_str().unwrap(), event["message"].as_str().unwrap())
        })
        .collect()
}

/// How a task ended, for messages.
pub(crate) fn shown(ran: &Ran) -> String {
    format!("{:#}\n{}\n{}", ran.result, said(ran).join("\n"), ran.error)
}
