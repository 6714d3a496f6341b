//! The exit codes of all `guard` commands.

use crate::judge::policy::Action;

/// The exit codes of one or more commands: the names of the commands, and each code with its meaning.
pub type ExitCodes = (&'static str, &'static [(&'static str, &'static str)]);

/// The exit codes of every command, for the documentation.
pub const EXIT_CODES: &[ExitCodes] = &[
    (
        "guard run",
        &[
            (
                "the command's exit code",
                "The command ended by itself, or a signal ended it (128 plus the signal's number).",
            ),
            ("124", "The run reached a time limit, its budget, or the size limit of its transcript."),
            (
                "125",
                "guard itself failed, refused to start the run, or could not build the sandbox or receive the commits.",
            ),
            ("126", "The policy refuses the command, or the kernel cannot execute it."),
            ("127", "The command does not exist."),
        ],
    ),
    (
        "guard exec",
        &[
            ("0", "The agent succeeded."),
            ("1", "The agent failed, or the request was cancelled."),
            ("2", "Bad usage, a request that cannot be run, or a session that is lost or busy."),
            ("124", "The run reached a time limit, its budget, or the size limit of its transcript."),
            (
                "125",
                "guard itself failed, could not build the sandbox, or the agent is too old or wrongly configured.",
            ),
            ("127", "The agent is not installed."),
        ],
    ),
    (
        "guard chat",
        &[
            ("0", "The user left the conversation, even if some of its turns failed."),
            ("2", "Bad usage, no terminal, or a conversation that does not exist or is in use."),
            ("128 + N", "The signal N, other than Ctrl-C, ended the conversation."),
        ],
    ),
    (
        "guard chat --once",
        &[
            ("0", "The agent answered."),
            ("1", "The agent failed, or the turn was cancelled."),
            (
                "2",
                "Bad usage, an empty or too long message, or a conversation that does not exist or is in use.",
            ),
            ("124", "The turn reached a time limit, its budget, or the size limit of its transcript."),
            (
                "125",
                "guard itself failed, could not build the sandbox, or the agent is too old or wrongly configured.",
            ),
            ("127", "The agent is not installed."),
        ],
    ),
    (
        "guard history",
        &[
            ("0", "Done."),
            ("1", "`search` found nothing."),
            ("2", "Bad usage, or a conversation that does not exist, is in use or cannot be read."),
        ],
    ),
    (
        "guard task",
        &[
            ("0", "The branch is ready."),
            ("1", "A step failed."),
            ("2", "Bad usage."),
            ("3", "The task waits for your decision."),
            ("124", "A budget is used up."),
            ("125", "guard itself failed."),
            ("130", "The task was interrupted, and `guard task resume` continues it; or it was cancelled."),
        ],
    ),
    (
        "guard research",
        &[
            ("0", "There is an answer, even if some of the sub-queries failed."),
            (
                "1",
                "All sub-queries failed, or the model returned no usable list of sub-queries, or no usable answer.",
            ),
            ("2", "Bad usage, or no such research run to resume."),
            ("124", "A time limit was reached, or the budget is used up."),
            ("125", "guard itself failed, could not build the sandbox, or the agent is wrongly configured."),
            ("127", "The agent is not installed."),
            ("130", "The research was interrupted. `guard research --resume ID` continues it."),
        ],
    ),
    (
        "guard batch, worker, serve",
        &[
            ("0", "Done. For `poll` and `results`: whatever the status of the tasks is."),
            ("1", "`watch`: at least one task failed."),
            ("2", "Bad usage, a submission with mistakes, no such batch, or a queue that cannot be used."),
            ("130", "`worker` and `serve`: a second signal ended it at once."),
        ],
    ),
    (
        "guard control",
        &[
            ("0", "The work carried out the command, or is still acting on it."),
            ("1", "The work rejected the command; guard prints the reason."),
            ("2", "Bad usage, an unknown id, or no answer in time."),
        ],
    ),
    (
        "guard check",
        &[
            ("0", "Allowed."),
            ("1", "Denied. With `--stdin`: at least one command is denied."),
            ("2", "Bad usage, or the policy cannot be used."),
            (
                "3",
                "The policy would ask the user. With `--stdin`: for at least one command, and no command is denied.",
            ),
        ],
    ),
    (
        "guard policy",
        &[
            ("0", "Success, and no problem was found."),
            (
                "1",
                "`lint` found problems, `diff` found a difference, or `audit` found a changed decision or a wrong label.",
            ),
            ("2", "Bad usage, or the policy cannot be used."),
        ],
    ),
    (
        "guard workflow",
        &[
            ("0", "Done."),
            ("1", "The workflow has errors."),
            ("2", "Bad usage, or there is no such workflow."),
        ],
    ),
    (
        "guard worktree",
        &[
            ("0", "Done."),
            (
                "1",
                "`merge-preview` found conflicts, `receive` refused commits, or `clean` could not remove something.",
            ),
            ("2", "Bad usage, or there is no such run."),
        ],
    ),
    (
        "guard diff, apply, restore",
        &[
            ("0", "Done, or there was nothing to do."),
            (
                "1",
                "`apply`: a conflict, your own changes to the same files, findings that nobody confirmed, or a worktree that guard could not remove. Except in the last case, guard changed nothing.",
            ),
            ("2", "Bad usage, no such run, or the work cannot be used in this state."),
        ],
    ),
    (
        "guard verify",
        &[
            ("0", "The transcript is intact and its run finished."),
            ("1", "The transcript was changed, or its last hash is not the one given with `--head`."),
            ("2", "Bad usage, no such run, or the transcript cannot be read."),
            ("3", "The transcript is intact up to its last line, but the end of the run is missing."),
        ],
    ),
    (
        "guard stop",
        &[
            ("0", "The runs have ended."),
            ("1", "A run is still running, or guard cannot reach its process."),
            ("2", "Bad usage, or there is no such run."),
        ],
    ),
    (
        "guard attach",
        &[
            ("the run's exit code", "As from `guard run`."),
            ("125", "guard itself failed, or the guard process of the run was killed."),
            ("130", "You detached with Ctrl-C. The run continues."),
            ("2", "Bad usage, or there is no such run."),
        ],
    ),
    (
        "guard log, replay, runs, ps, doctor, demo, mcp, completions, man, help",
        &[
            ("0", "Done."),
            (
                "1",
                "`demo`: a boundary did not hold. `doctor`: this machine cannot enforce every policy, or something else keeps runs from working.",
            ),
            ("2", "Bad usage, no such run, or a file cannot be read."),
        ],
    ),
    ("every command", &[("141", "The reader of standard output went away.")]),
];

/// How a command of `guard` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// guard did what the user asked for. Also: the policy allows the command, or guard found no problem.
    Success,
    /// The policy denies the command, guard found problems, or the work of an agent failed.
    Problem,
    /// The usage is wrong, or guard cannot use something that the user named, such as a policy, a run or a file.
    Usage,
    /// The policy would ask the user about the command, or a task waits for the user's decision.
    Ask,
    /// The transcript is intact, but its run never finished.
    Unfinished,
    /// The reader of standard output has closed it.
    ClosedPipe,
    /// A run reached a time limit, its budget, or the size limit of its transcript.
    TimedOut,
    /// guard itself failed during a run or a request to an agent, or the sandbox is unavailable.
    OwnFailure,
    /// The policy denies the command of a run, or the kernel cannot execute it.
    CannotExecute,
    CommandNotFound,
    /// Another exit code, such as that of the command that the run started, or 128 plus the number of a signal.
    Code(u8),
}

impl From<Action> for Exit {
    fn from(action: Action) -> Self {
        match action {
            Action::Allow => Self::Success,
            Action::Ask => Self::Ask,
            Action::Deny => Self::Problem,
        }
    }
}

impl From<Exit> for u8 {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Success => 0,
            Exit::Problem => 1,
            Exit::Usage => 2,
            Exit::Ask | Exit::Unfinished => 3,
            Exit::TimedOut => 124,
            Exit::OwnFailure => 125,
            Exit::CannotExecute => 126,
            Exit::CommandNotFound => 127,
            Exit::ClosedPipe => 141,
            Exit::Code(code) => code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented() {
        use Exit::{
            Ask, CannotExecute, ClosedPipe, CommandNotFound, OwnFailure, Problem, Success, TimedOut,
            Unfinished, Usage,
        };
        let all = [
            Success,
            Problem,
            Usage,
            Ask,
            Unfinished,
            ClosedPipe,
            TimedOut,
            OwnFailure,
            CannotExecute,
            CommandNotFound,
        ];
        for exit in all {
            let code = u8::from(exit).to_string();
            let rows = EXIT_CODES.iter().flat_map(|(_, codes)| *codes);
            assert!(rows.clone().any(|(documented, _)| *documented == code), "{exit:?}: {code}");
        }
    }
}
