//! One line for each event type and error kind, for the reference pages. A test checks that none is missing.

use std::collections::BTreeSet;

use guard::run::outcome::ErrorKind;
use guard::run::transcript::EventType;

/// The event types in the order of the page, grouped by the part of guard that records them.
pub(super) const EVENTS: &[(&str, &[(&str, &str)])] = &[
    (
        "The run",
        &[
            (
                "run.started",
                "The first event. `data` holds the command, the program, the policy and the policies that it extends, the working directory, and in a repository the branch and its base.",
            ),
            ("sandbox.applied", "The sandbox is in force. `data` is the result's `enforcement`."),
            (
                "canary",
                "Before the command started, guard tried forbidden actions inside the sandbox, and all of them failed.",
            ),
            (
                "output",
                "Output of the command. `data` is `{\"stream\", \"text\"}`, or `{\"stream\", \"base64\"}` for bytes that are not UTF-8.",
            ),
            ("note", "Something the user should know, such as a limit that could not be enforced."),
            ("signal", "guard passed a signal on to the command."),
            ("timeout", "The run reached a time limit."),
            ("answer", "A person answered an `ask` rule: `once`, `always` or `no`."),
            (
                "finding",
                "Something a reviewer should look at. `data` is an entry of the result's `findings`.",
            ),
            ("git.received", "guard received the run's commits into the repository."),
            ("git.refused", "guard did not receive the run's commits. The message says why."),
            ("run.finished", "The last event. `data` is the result."),
        ],
    ),
    (
        "Programs",
        &[
            (
                "exec",
                "A program started. `data` holds its file, arguments, working directory and process id.",
            ),
            (
                "exec.allowed",
                "A program start was allowed; whether it succeeded is unknown, because `verify_exec` is off.",
            ),
            ("exec.failed", "A program start was allowed, and the kernel could not execute the file."),
            (
                "exec.changed",
                "A process became another program than it had asked for. The new program was judged and allowed.",
            ),
            ("deny.exec", "A program start was refused."),
            (
                "control.garbage",
                "Something on the shims' socket was not a valid question. The connection was closed.",
            ),
        ],
    ),
    (
        "Files and processes",
        &[
            ("deny.metadata", "A change of mode, owner, times or attributes was refused."),
            ("deny.watch", "An `inotify` watch on something the run may not read was refused."),
            ("deny.process", "A system call that affects a process outside the run was refused."),
            ("deny.record", "The record of the run is full, so the call was refused and the run ends."),
        ],
    ),
    (
        "Network",
        &[
            ("connect", "The supervisor made a connection for the run."),
            ("bind", "The supervisor bound a socket of the run to a loopback port."),
            ("network.open", "The proxy opened a connection to a host."),
            (
                "network.close",
                "A connection through the proxy ended. `data` holds the bytes sent and received.",
            ),
            ("network.request", "A plain HTTP request went through the proxy."),
            ("network.error", "An allowed host could not be reached."),
            (
                "network.outsider",
                "A program outside the run connected to one of guard's ports and was turned away. At most 10 are recorded.",
            ),
            (
                "gateway.request",
                "A request went through an API gateway. `data` holds the request, the model, the status, the bytes, the tokens, and the pages that the API searched (`sources`).",
            ),
            ("gateway.error", "A gateway could not reach its API, or could not understand the answer."),
            ("deny.network", "A host, request or lookup was refused."),
            ("deny.connect", "A connection was refused."),
            ("deny.bind", "A `bind` or `listen` was refused."),
        ],
    ),
    (
        "The record itself",
        &[
            ("transcript.cut", "From here on, events are left out because the record reached its limit."),
            ("transcript.full", "The record reached its hard limit. guard ends the run."),
            ("transcript.dropped", "How many events were left out. Written just before the end."),
        ],
    ),
];

/// Events that only `guard exec --stream-json` prints.
pub(super) const EXEC_EVENTS: &[(&str, &str)] = &[
    ("agent.init", "The agent reports its session and model."),
    ("agent.message", "Text of the agent."),
    ("agent.status", "The agent reports what it is doing."),
    ("agent.step", "The agent began or ended a step."),
    ("agent.turn", "The agent began a turn."),
    ("agent.tool_use", "The agent calls one of its tools."),
    ("agent.tool_result", "A tool returned."),
    ("agent.error", "The agent reports an error."),
    ("agent.result", "The agent's own last line: how it ended, and what it used."),
    ("agent.text", "A line of the agent's stream that is not a JSON object."),
    ("agent.other", "An event of the agent's stream that guard does not know."),
    ("exec.note", "Something the caller should know; also in the result's `notes`."),
    (
        "exec.retry",
        "The attempt failed and guard tries again. `data` holds the attempt, the error kind and the wait.",
    ),
    (
        "exec.not_retried",
        "The attempt failed with an error that may be temporary, and guard does not try again. The message says why.",
    ),
    (
        "exec.dropped",
        "The caller read too slowly, and events were dropped. `data` holds how many. (Only the Rust API drops events.)",
    ),
    ("exec.result", "The result."),
];

/// Events that `guard task --stream-json` prints.
pub(super) const TASK_EVENTS: &[(&str, &str)] = &[
    ("task.said", "A line of the progress report. `data.who` is the role, or the orchestrator."),
    ("task.step", "A step begins."),
    ("task.step_ended", "A step ended."),
    ("task.agent", "An event of the step's agent."),
    ("task.commit", "guard made a commit on the task's branch."),
    ("task.tests", "guard ran the project's tests: `passed`, `failed` or `not run`."),
    (
        "task.kept",
        "Work that a step left behind was saved under `refs/guard/` before guard reset the worktree.",
    ),
    ("task.delivered", "The branch is finished. The message is the path of the summary."),
    ("task.pull_request", "guard opened a pull request, or found an open one."),
    ("task.ended", "The task ended or stopped. The message is its status."),
];

/// The error kinds: name, meaning, and whether `guard exec` retries.
pub(super) const ERROR_KINDS: &[(&str, &str, &str)] = &[
    ("idle_timeout", "No output, no new program and no CPU work for `timeout` seconds.", "yes"),
    ("timeout", "Not finished after `max_duration` seconds.", "yes"),
    (
        "upstream_error",
        "The command failed, was killed, or printed a result that cannot be right; or the API failed (HTTP 5xx) or broke off.",
        "yes",
    ),
    ("rate_limited", "The API's quota is used up (HTTP 429).", "if the wait is at most two seconds"),
    ("auth_error", "The API refuses the key (HTTP 401, 403), or there is no key.", "no"),
    ("invalid_input", "The request is wrong: guard refused it, or the API did (HTTP 400, 404).", "no"),
    ("command_not_found", "The program does not exist.", "no"),
    ("config_error", "The agent is too old, or guard or the agent is not configured correctly.", "no"),
    ("turn_limit", "The agent reached its own limit of turns.", "no"),
    ("budget_exhausted", "The run used up its tokens, requests or money.", "no"),
    ("memory_exhausted", "The kernel killed the run because it reached the policy's `memory_mib`.", "no"),
    ("record_full", "The transcript of the run reached its size limit (`output_mib`).", "no"),
    (
        "session_lost",
        "The session does not exist, or belongs to another directory or agent, or its worktree changed place or branch.",
        "no",
    ),
    ("session_busy", "Another request works in this session.", "no"),
    (
        "worktree_lost",
        "`guard run --branch`: the worktree is not where it should be, or is on another branch.",
        "no",
    ),
    ("worktree_busy", "Another run works in this worktree.", "no"),
    ("policy_denied", "The policy refuses the command itself.", "no"),
    (
        "sandbox_unavailable",
        "The kernel cannot enforce the policy. `guard doctor` says what is missing.",
        "no",
    ),
    (
        "receive_refused",
        "The run's commits failed a check and were not received. They stay in the run's private repository.",
        "no",
    ),
    (
        "boundary_broken",
        "The repository changed in a way that no run should be able to cause. Please report it.",
        "no",
    ),
    ("cancelled", "A signal, a client or the caller ended the run.", "no"),
    ("busy", "`guard mcp`: too many calls at once.", "no"),
    ("internal", "guard itself failed.", "no"),
];

#[test]
fn every_event_type_is_documented() {
    let sections = EVENTS.iter().flat_map(|(_, events)| *events).chain(EXEC_EVENTS).chain(TASK_EVENTS);
    let documented: BTreeSet<&str> = sections.map(|(name, _)| *name).collect();
    let known: BTreeSet<&str> = EventType::ALL.iter().map(|event| event.as_str()).collect();
    assert_eq!(documented, known, "left: tests/docs/meanings.rs, right: src/run/transcript");
}

#[test]
fn every_error_kind_is_documented() {
    let documented: BTreeSet<&str> = ERROR_KINDS.iter().map(|(name, ..)| *name).collect();
    // `Unrecognized` stands for error kinds in results of a newer guard, so the documents do not list it.
    let known = ErrorKind::ALL.iter().filter(|kind| **kind != ErrorKind::Unrecognized);
    let known: BTreeSet<&str> = known.map(|kind| kind.as_str()).collect();
    assert_eq!(documented, known, "left: tests/docs/meanings.rs, right: src/run/outcome");
}
