//! The arguments of `guard task` and `guard workflow`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::args::durations::parse_seconds;

pub(in crate::cli) const TASK_EXAMPLES: &str = "\
Examples:
  guard task \"Add a simple Dark Mode toggle to the main settings page. Use a checkbox.\"
  guard task --mode bugfix \"the parser hangs on empty input\" --tests \"cargo test\"
  guard task --gate plan=human \"…\"          # waits for you to approve the plan: guard task approve ID
  guard task list
  guard task resume                            # continues the newest unfinished task, also after a crash
  guard task retry ID --from develop
  guard task clean ID                          # removes a finished task: worktree, record, and the branch if it is merged

Each step runs a new agent in a separate sandbox and makes a commit on the task's branch; the documents are below docs/dev_docs. A task
that was killed continues at the step it had reached. If an agent was interrupted, its step starts again from the beginning.

Exit codes: 0 the branch is ready, 1 a step failed, 2 bad usage, 3 waiting for your decision, 124 a budget is used up, 125 guard itself
failed, 130 interrupted.";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Task {
    #[command(subcommand)]
    pub(crate) command: Option<TaskCommand>,
    /// What the agents are to do
    #[arg(value_name = "REQUEST")]
    pub(crate) request: Option<String>,
    /// The request as an option, instead of the argument REQUEST
    #[arg(long, value_name = "REQUEST", conflicts_with = "request")]
    pub(crate) task: Option<String>,
    /// The mode of the workflow, which selects the first step (direct, bugfix, research) [default: the workflow's]
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// The workflow: a name (see `guard workflow list`) or a file
    #[arg(long, default_value = "default")]
    pub(crate) workflow: String,
    /// The name for the branch and the documents [default: derived from the request]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The prefix of the branch name, such as feature/ [default: the workflow's, or that of the policy `strict`]
    #[arg(long, value_name = "PREFIX", value_parser = parse_branch_prefix)]
    pub(crate) branch_prefix: Option<String>,
    /// The branch to start from and to merge with [default: the workflow's]
    #[arg(long)]
    pub(crate) base: Option<String>,
    /// A directory in the repository to work on [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Wait for your decision at this gate, such as plan=human; repeatable
    #[arg(long, value_name = "GATE=human")]
    pub(crate) gate: Vec<String>,
    /// The agent to use [default: the workflow's]
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// The path of the agent's program, if it is not on PATH
    #[arg(long, value_name = "FILE")]
    pub(crate) agent_command: Option<String>,
    /// The model to use for every role [default: the workflow's]
    #[arg(long)]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) tests: TaskTests,
    #[command(flatten)]
    pub(crate) bounds: TaskBounds,
    /// The git remote. guard asks it whether the base branch is protected; if it is on GitHub, guard also pushes the branch
    /// there and opens a pull request
    #[arg(long, default_value = "origin")]
    pub(crate) remote: String,
    /// Contact no remote; the branch stays in this repository
    #[arg(long, conflicts_with_all = ["remote", "require_protection"])]
    pub(crate) local: bool,
    /// Refuse to start unless the remote confirms that the base branch requires pull requests and blocks force pushes
    #[arg(long)]
    pub(crate) require_protection: bool,
    /// Trust the repository's git configuration, and the programs and files it names
    #[arg(long)]
    pub(crate) trust_repository: bool,
    #[command(flatten)]
    pub(crate) output: TaskOutput,
}

/// A limit for the whole task (`N`) or for one step (`STEP=N`).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LimitArg<T> {
    pub(crate) step: Option<String>,
    pub(crate) value: T,
}

impl<T: std::str::FromStr> std::str::FromStr for LimitArg<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (step, number) = match text.split_once('=') {
            Some((step, number)) => (Some(step.to_string()), number),
            None => (None, text),
        };
        let value = number.parse().map_err(|_| "expected a number or STEP=NUMBER".to_string())?;
        Ok(Self { step, value })
    }
}

fn parse_branch_prefix(text: &str) -> Result<String, String> {
    let is_valid = crate::judge::policy::is_branch_prefix(text);
    if is_valid {
        Ok(text.to_string())
    } else {
        Err("a branch prefix must be part of a valid branch name and end in `/`, such as feature/"
            .to_string())
    }
}

fn parse_step_seconds(text: &str) -> Result<LimitArg<u64>, String> {
    let (step, time) = match text.split_once('=') {
        Some((step, time)) => (Some(step.to_string()), time),
        None => (None, text),
    };
    Ok(LimitArg { step, value: parse_seconds(time)? })
}

fn parse_amount(text: &str) -> Result<LimitArg<f64>, String> {
    let limit: LimitArg<f64> = text.parse()?;
    let is_valid = limit.value.is_finite() && limit.value >= 0.0;
    if is_valid { Ok(limit) } else { Err("expected a number that is not negative".to_string()) }
}

#[derive(Debug, Args)]
pub(crate) struct TaskBounds {
    /// The maximum number of model tokens for the whole task, or for all calls of one step; repeatable
    #[arg(long, value_name = "[STEP=]N")]
    pub(crate) max_tokens: Vec<LimitArg<u64>>,
    /// The maximum cost of the models, for the whole task or for one step; repeatable
    #[arg(long, value_name = "[STEP=]AMOUNT", value_parser = parse_amount)]
    pub(crate) max_cost: Vec<LimitArg<f64>>,
    /// The maximum time that agents work, for the whole task or for one step: seconds, or 90s, 5m, 2h; repeatable
    #[arg(long, value_name = "[STEP=]TIME", value_parser = parse_step_seconds, conflicts_with = "max_minutes")]
    pub(crate) max_duration: Vec<LimitArg<u64>>,
    /// The maximum time that agents work, in minutes, for the whole task or for one step; repeatable
    #[arg(long, value_name = "[STEP=]N", value_parser = parse_amount)]
    pub(crate) max_minutes: Vec<LimitArg<f64>>,
    /// The maximum number of times that each step, or only the step STEP, may run; repeatable
    #[arg(long, value_name = "[STEP=]N")]
    pub(crate) rounds: Vec<LimitArg<u32>>,
}

#[derive(Debug, Args)]
pub(crate) struct TaskTests {
    /// A test command that guard runs in the sandbox after each change to the code, and that must succeed [default: detected
    /// from Makefile, Cargo.toml, package.json, go.mod, …]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) tests: Option<String>,
    /// Run no tests, even if the project has a test command
    #[arg(long, conflicts_with = "tests")]
    pub(crate) no_tests: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TaskOutput {
    /// Print every event as a line of JSON, with the result of the task as the last line
    #[arg(long)]
    pub(crate) stream_json: bool,
    /// Print only the result of the task, as JSON
    #[arg(long, conflicts_with = "stream_json")]
    pub(crate) json: bool,
    /// Kill this process at its Nth write to the journal (debug builds only, for tests)
    #[cfg(debug_assertions)]
    #[arg(long, hide = true, value_name = "N")]
    pub(crate) die_at: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// List tasks and their state
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a task: its steps, commits, documents and costs
    Show {
        /// The task: its id, or a unique beginning or end of the id [default: the newest task]
        id: Option<String>,
        /// Print JSON, with every prompt and answer
        #[arg(long)]
        json: bool,
    },
    /// Continue a task that was interrupted, failed, or waited for a decision
    Resume {
        /// The task: its id, or a unique beginning or end of the id [default: the newest unfinished task]
        id: Option<String>,
        #[command(flatten)]
        bounds: TaskBounds,
        #[command(flatten)]
        tests: TaskTests,
        #[command(flatten)]
        output: TaskOutput,
    },
    /// Go back to an earlier step of a task, and continue from there
    Retry {
        /// The task: its id, or a unique beginning or end of the id
        id: String,
        /// The step to go back to
        #[arg(long, value_name = "STEP")]
        from: String,
        #[command(flatten)]
        output: TaskOutput,
    },
    /// Approve at a gate where the task waits for your decision
    Approve {
        /// The task: its id, or a unique beginning or end of the id
        id: String,
        /// A comment for the agents
        #[arg(long, default_value = "")]
        feedback: String,
    },
    /// Reject at a gate where the task waits for your decision
    Reject {
        /// The task: its id, or a unique beginning or end of the id
        id: String,
        /// What must change
        #[arg(long)]
        feedback: String,
    },
    /// Remove the worktrees and records of finished tasks, and their branches if they are merged
    Clean {
        /// The tasks: their ids, or unique beginnings or ends of the ids
        #[arg(required_unless_present = "all")]
        ids: Vec<String>,
        /// All tasks that have succeeded or were cancelled
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// Cancel a task; its branch and worktree stay
    Cancel {
        /// The task: its id, or a unique beginning or end of the id
        id: String,
    },
}

pub(in crate::cli) const WORKFLOW_EXAMPLES: &str = "\
Examples:
  guard workflow list
  guard workflow show default > ~/.config/guard/workflows/mine.yaml
  guard workflow lint ./mine.yaml
  guard workflow graph default --mermaid

Exit codes: 0 success, 1 the workflow has errors, 2 bad usage or no such workflow.";

#[derive(Debug, Subcommand)]
pub(crate) enum Workflow {
    /// List your workflows and the built-in ones
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the text of a workflow
    Show {
        /// A name or a file
        workflow: String,
        /// Print the prompts too
        #[arg(long)]
        prompts: bool,
        /// Print the parsed workflow as JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a workflow for errors, and show where they are
    Lint {
        /// A name or a file
        workflow: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Draw the steps of a workflow and the transitions between them
    Graph {
        /// A name or a file
        workflow: String,
        /// Print a Mermaid flow chart instead of text
        #[arg(long)]
        mermaid: bool,
    },
}
