//! The event types of transcripts, of agents' event streams and of tasks.

use crate::text::string_enum::{UnknownName, string_enum};

string_enum! {
    /// The type of an event in a transcript, in the event stream of an agent, or in that of a task.
    ///
    /// Variants are only ever added. Readers keep the type as text ([`Event`](super::Event)), so that they can read
    /// events of a newer guard.
    pub enum EventType {
        /// The first event of a run.
        RunStarted = "run.started",
        /// The last event of a run; its data is the run's result.
        RunFinished = "run.finished",
        /// A piece of what the agent printed: `data` is `{"stream", "text"}` or `{"stream", "base64"}`.
        Output = "output",
        /// The transcript reached a size limit: from here on, it contains no more events of one class.
        TranscriptCut = "transcript.cut",
        /// The transcript reached its final size limit, and guard ends the run.
        TranscriptFull = "transcript.full",
        /// The number of events and bytes that were dropped because of the size limit; recorded just before the
        /// last event.
        TranscriptDropped = "transcript.dropped",
        /// Something about the run that the user should know, such as a limit that could not be enforced.
        Note = "note",
        /// Before the agent started, guard tried forbidden operations in the sandbox, and the kernel denied them.
        Canary = "canary",
        SandboxApplied = "sandbox.applied",
        /// guard passed a signal on to the agent.
        Signal = "signal",
        Timeout = "timeout",
        /// A program started in the run.
        Exec = "exec",
        /// The policy allowed a program to start. Whether it started is unknown, because `verify_exec` is off.
        ExecAllowed = "exec.allowed",
        /// The policy allowed a program to start, but the kernel could not execute it.
        ExecFailed = "exec.failed",
        /// A process became a program other than the one it had asked for. guard judged and allowed that program too.
        ExecChanged = "exec.changed",
        /// The user answered a question that guard asked because of an `ask` rule.
        Answer = "answer",
        /// A process sent an invalid message to guard's shim socket.
        ControlGarbage = "control.garbage",
        /// guard connected a socket of the run to an address.
        Connect = "connect",
        /// guard bound a socket of the run to an address.
        Bind = "bind",
        DenyExec = "deny.exec",
        DenyConnect = "deny.connect",
        DenyBind = "deny.bind",
        /// guard denied access to a host, or a request to one.
        DenyNetwork = "deny.network",
        /// guard denied a system call that affects a process outside the run.
        DenyProcess = "deny.process",
        /// guard denied a change of a file's mode, owner, times or attributes.
        DenyMetadata = "deny.metadata",
        /// guard denied an inotify watch on a file that the run may not read.
        DenyWatch = "deny.watch",
        /// guard denied a system call because the transcript is full: nothing may happen unrecorded.
        DenyRecord = "deny.record",
        /// The proxy opened a connection to a host.
        NetworkOpen = "network.open",
        /// A connection through the proxy ended.
        NetworkClose = "network.close",
        /// A plain HTTP request went through the proxy.
        NetworkRequest = "network.request",
        /// A host that the policy allows could not be reached.
        NetworkError = "network.error",
        /// A process outside the run connected to a listener of the run's proxy or gateways, and guard rejected it.
        NetworkOutsider = "network.outsider",
        /// A request to a model's API went through a gateway of guard.
        GatewayRequest = "gateway.request",
        /// A gateway could not forward a request to its API or return the response, for example because the API could
        /// not be reached.
        GatewayError = "gateway.error",
        /// guard received the run's commits into the user's repository.
        GitReceived = "git.received",
        /// guard did not receive the run's commits; the message says why.
        GitRefused = "git.refused",
        /// Something in the run's work that a reviewer should check.
        Finding = "finding",
        /// Something that the caller of `guard exec` should know.
        ExecNote = "exec.note",
        /// An attempt of `guard exec` failed, and guard tries again.
        ExecRetry = "exec.retry",
        /// An attempt of `guard exec` failed for a reason that may be temporary, but guard does not try again.
        ExecNotRetried = "exec.not_retried",
        /// The number of events that were dropped because the caller of `guard exec` read too slowly.
        ExecDropped = "exec.dropped",
        /// The result of `guard exec`.
        ExecResult = "exec.result",
        /// The agent began a session.
        AgentInit = "agent.init",
        /// The agent began a turn.
        AgentTurn = "agent.turn",
        /// The agent began or ended a step.
        AgentStep = "agent.step",
        /// Text that the agent wrote.
        AgentMessage = "agent.message",
        AgentToolUse = "agent.tool_use",
        AgentToolResult = "agent.tool_result",
        /// The agent reports what it is doing.
        AgentStatus = "agent.status",
        AgentError = "agent.error",
        /// The agent's last event: how it ended.
        AgentResult = "agent.result",
        /// A line of the agent's output that is not JSON.
        AgentText = "agent.text",
        /// An event of a kind that the agent's adapter does not know.
        AgentOther = "agent.other",
        /// A line of a task's progress report, from an agent, guard or the user.
        TaskSaid = "task.said",
        /// A step of a task began.
        TaskStep = "task.step",
        TaskStepEnded = "task.step_ended",
        /// An event of the agent that works on the current step of a task.
        TaskAgent = "task.agent",
        /// guard made a commit on the task's branch.
        TaskCommit = "task.commit",
        /// The result of the project's tests in a task, or why guard did not run them.
        TaskTests = "task.tests",
        /// guard saved work that a step left behind under `refs/guard/`, before it reset the worktree.
        TaskKept = "task.kept",
        /// The task's branch is finished and was delivered.
        TaskDelivered = "task.delivered",
        /// guard opened a pull request for the task, or found an open one.
        TaskPullRequest = "task.pull_request",
        TaskEnded = "task.ended",
    }
}

impl EventType {
    pub fn is_denial(self) -> bool {
        is_denial(self.as_str())
    }
}

/// True if an event type reports a denial. Works from the name alone, so that types of a newer guard count too.
pub(super) fn is_denial(event_type: &str) -> bool {
    event_type.starts_with("deny.")
}

impl PartialEq<EventType> for String {
    fn eq(&self, other: &EventType) -> bool {
        self == other.as_str()
    }
}

impl PartialEq<EventType> for std::borrow::Cow<'_, str> {
    fn eq(&self, other: &EventType) -> bool {
        self == other.as_str()
    }
}

impl From<EventType> for String {
    fn from(event_type: EventType) -> Self {
        event_type.as_str().to_string()
    }
}

/// Parses an event type in guard's own data, such as the agent adapters. There an unknown type is an error.
impl<'de> serde::Deserialize<'de> for EventType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        text.parse().map_err(|error: UnknownName| serde::de::Error::custom(error))
    }
}

#[cfg(test)]
mod tests {
    use super::EventType;

    #[test]
    fn every_type_is_read_as_it_is_written() {
        for event_type in EventType::ALL {
            assert_eq!(event_type.as_str().parse(), Ok(*event_type));
            assert_eq!(event_type.is_denial(), format!("{event_type:?}").starts_with("Deny"));
        }
    }
}
