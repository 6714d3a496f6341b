//! What can be typed after `guard task` and `guard workflow`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(super) const TASK_EXAMPLES: &str = "\
Examples:
  guard task \"Add a simple Dark Mode toggle to the main settings page. Use a checkbox.\"
  guard task --mode bugfix \"the parser hangs on empty input\" --tests \"cargo test\"
  guard task --gate plan=human \"…\"          # a person approves the plan: guard task approve ID
  guard task list
  guard task resume                            # the newest one that is not finished, after a crash too
  guard task retry ID --from develop
  guard task clean ID                          # a finished one: its worktree, its record, and its branch where that is merged

Every step is a fresh agent in a sandbox of its own and a commit on the task's branch; the documents are below docs/dev_docs. A task that
was killed goes on where it was; an agent that was interrupted is asked again, from where it began.

Exit codes: 0 the branch is ready, 1 a step failed, 2 bad usage, 3 a person must decide, 124 a budget is used up, 125 guard itself failed,
130 interrupted.";

#[derive(Debug, Args)]
pub(crate) struct Task {
    #[command(subcommand)]
    pub(crate) command: Option<TaskCommand>,
    /// What is to be done
    #[arg(value_name = "REQUEST")]
    pub(crate) request: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "REQUEST", conflicts_with = "request")]
    pub(crate) task: Option<String>,
    /// Where to begin: a mode of the workflow (direct, bugfix, research)
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// The workflow: a name (`guard workflow list`) or a file
    #[arg(long, default_value = "default")]
    pub(crate) workflow: String,
    /// What branch and documents are called [default: made from the request]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// What the branch begins with, instead of the workflow's: feature/
    #[arg(long, value_name = "PREFIX", value_parser = branch_prefix)]
    pub(crate) branch_prefix: Option<String>,
    /// The branch to begin at and to merge with, instead of the workflow's
    #[arg(long)]
    pub(crate) base: Option<String>,
    /// The repository [default: the one of the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// A gate at which a person decides: plan=human
    #[arg(long, value_name = "GATE=human")]
    pub(crate) gate: Vec<String>,
    /// The agent, instead of the workflow's
    #[arg(long)]
    pub(crate) agent: Option<String>,
    /// The agent's program, where it is not on the path
    #[arg(long, value_name = "FILE")]
    pub(crate) agent_command: Option<String>,
    /// The model, for every role
    #[arg(long)]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) tests: TaskTests,
    #[command(flatten)]
    pub(crate) bounds: TaskBounds,
    /// The remote: is its base protected, and where the branch is pushed and a pull request opened, if it is on GitHub
    #[arg(long, default_value = "origin")]
    pub(crate) remote: String,
    /// Ask no remote anything: the branch stays in this repository
    #[arg(long, conflicts_with_all = ["remote", "require_protection"])]
    pub(crate) local: bool,
    /// Do not begin unless the base is known to be protected: pull requests required, force pushes blocked
    #[arg(long)]
    pub(crate) require_protection: bool,
    /// The repository's configuration and what it leads to are yours
    #[arg(long)]
    pub(crate) trust_repository: bool,
    #[command(flatten)]
    pub(crate) shown: TaskOutput,
}

/// A bound of the task, or of one step: `N` or `STEP=N`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bound<T> {
    pub(crate) step: Option<String>,
    pub(crate) most: T,
}

impl<T: std::str::FromStr> std::str::FromStr for Bound<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (step, number) = match text.split_once('=') {
            Some((step, number)) => (Some(step.to_string()), number),
            None => (None, text),
        };
        let most = number.parse().map_err(|_| "a number, or STEP=NUMBER, is wanted".to_string())?;
        Ok(Self { step, most })
    }
}

fn branch_prefix(text: &str) -> Result<String, String> {
    let is_one = crate::policy::is_branch_prefix(text);
    if is_one {
        Ok(text.to_string())
    } else {
        Err("words that end in `/` are wanted, such as feature/".to_string())
    }
}

/// An amount that is none or more.
fn amount(text: &str) -> Result<Bound<f64>, String> {
    let bound: Bound<f64> = text.parse()?;
    let is_one = bound.most.is_finite() && bound.most >= 0.0;
    if is_one { Ok(bound) } else { Err("an amount from 0 is wanted".to_string()) }
}

#[derive(Debug, Args)]
pub(crate) struct TaskBounds {
    /// Tokens of models for the whole task, or for all calls of one step; can be given for several
    #[arg(long, value_name = "[STEP=]N")]
    pub(crate) max_tokens: Vec<Bound<u64>>,
    /// Money, for the task or a step
    #[arg(long, value_name = "[STEP=]AMOUNT", value_parser = amount)]
    pub(crate) max_cost: Vec<Bound<f64>>,
    /// Minutes of agents at work, for the task or a step
    #[arg(long, value_name = "[STEP=]N", value_parser = amount)]
    pub(crate) max_minutes: Vec<Bound<f64>>,
    /// How often one step may be asked: every step, or this one
    #[arg(long, value_name = "[STEP=]N")]
    pub(crate) rounds: Vec<Bound<u32>>,
}

#[derive(Debug, Args)]
pub(crate) struct TaskTests {
    /// A command that must succeed after work on the code; run by guard, in the sandbox [default: the project's own, from
    /// its Makefile, Cargo.toml, package.json, go.mod, …]
    #[arg(long, value_name = "COMMAND")]
    pub(crate) tests: Option<String>,
    /// Run no tests, also where the project has some
    #[arg(long, conflicts_with = "tests")]
    pub(crate) no_tests: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TaskOutput {
    /// Print every event as a JSON line, and how the task ended as the last one
    #[arg(long)]
    pub(crate) stream_json: bool,
    /// Print only how the task ended, as JSON
    #[arg(long, conflicts_with = "stream_json")]
    pub(crate) json: bool,
    /// End this process at its Nth write to the journal; in debug builds only, for the tests
    #[cfg(debug_assertions)]
    #[arg(long, hide = true, value_name = "N")]
    pub(crate) die_at: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// List tasks and how they stand
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a task: its steps, commits, documents and costs
    Show {
        /// The task: its id, or a unique beginning or end of it [default: the newest]
        id: Option<String>,
        /// Print JSON, with every prompt and answer
        #[arg(long)]
        json: bool,
    },
    /// Go on with a task that was interrupted, failed, or waited
    Resume {
        /// The task [default: the newest one that is not finished]
        id: Option<String>,
        #[command(flatten)]
        bounds: TaskBounds,
        #[command(flatten)]
        tests: TaskTests,
        #[command(flatten)]
        shown: TaskOutput,
    },
    /// Go back to a step, and on from there
    Retry {
        /// The task
        id: String,
        /// The step
        #[arg(long, value_name = "STEP")]
        from: String,
        #[command(flatten)]
        shown: TaskOutput,
    },
    /// Say yes at a gate where the task waits for a person
    Approve {
        /// The task
        id: String,
        /// What to say with it
        #[arg(long, default_value = "")]
        feedback: String,
    },
    /// Say no at a gate where the task waits for a person
    Reject {
        /// The task
        id: String,
        /// What must change
        #[arg(long)]
        feedback: String,
    },
    /// Remove what finished tasks have left: worktree, record, and the branch where it is merged
    Clean {
        /// The tasks
        #[arg(required_unless_present = "all")]
        ids: Vec<String>,
        /// All that have succeeded or were given up
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// Give a task up; its branch and worktree stay
    Cancel {
        /// The task
        id: String,
    },
}

pub(super) const WORKFLOW_EXAMPLES: &str = "\
Examples:
  guard workflow list
  guard workflow show default > ~/.config/guard/workflows/mine.yaml
  guard workflow lint ./mine.yaml
  guard workflow graph default --mermaid

Exit codes: 0 done, 1 the workflow has errors, 2 bad usage, no such workflow.";

#[derive(Debug, Subcommand)]
pub(crate) enum Workflow {
    /// List the workflows: yours, and those that come with guard
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a workflow as it is written
    Show {
        /// A name or a file
        workflow: String,
        /// Print the prompts too
        #[arg(long)]
        prompts: bool,
        /// Print it as it is understood, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Look for mistakes, and show where they are
    Lint {
        /// A name or a file
        workflow: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Draw its steps and where they lead
    Graph {
        /// A name or a file
        workflow: String,
        /// As a mermaid flow chart
        #[arg(long)]
        mermaid: bool,
    },
}
