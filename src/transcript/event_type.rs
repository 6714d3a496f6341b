//! The event types of transcripts, of agents' event streams and of tasks.

use crate::string_enum::{UnknownName, string_enum};

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
        /// From here on, events of one class are dropped because the transcript reached its limit.
        TranscriptCut = "transcript.cut",
        /// The transcript reached its size limit, and guard ends the run.
        TranscriptFull = "transcript.full",
        /// The number of events and bytes that were dropped; recorded just before the last event.
        TranscriptDropped = "transcript.dropped",
        /// A remark of guard about the run.
        Note = "note",
        /// Before the agent started, guard tried forbidden operations in the sandbox, and the kernel denied them.
        Canary = "canary",
        /// The sandbox is in force.
        SandboxApplied = "sandbox.applied",
        /// guard passed a signal on to the agent.
        Signal = "signal",
        /// The run reached a time limit.
        Timeout = "timeout",
        /// A program started.
        Exec = "exec",
        /// The policy allows a program to start.
        ExecAllowed = "exec.allowed",
        /// A program that the policy allowed did not start.
        ExecFailed = "exec.failed",
        /// The program that started is not the one that guard judged.
        ExecChanged = "exec.changed",
        /// The user answered a question of guard.
        Answer = "answer",
        /// A process sent an invalid message to guard's shim socket.
        ControlGarbage = "control.garbage",
        /// A program connected to a socket of the run.
        Connect = "connect",
        /// A program listens on an address.
        Bind = "bind",
        /// guard denied the start of a program.
        DenyExec = "deny.exec",
        /// guard denied a connection of a socket.
        DenyConnect = "deny.connect",
        /// guard denied binding a socket to an address.
        DenyBind = "deny.bind",
        /// guard denied access to a host, or a request to one.
        DenyNetwork = "deny.network",
        /// guard denied an operation on another process.
        DenyProcess = "deny.process",
        /// guard denied a change of a file's metadata.
        DenyMetadata = "deny.metadata",
        /// guard denied an inotify watch on a file.
        DenyWatch = "deny.watch",
        /// guard denied the start of a program because it could not record it.
        DenyRecord = "deny.record",
        /// A connection to a host was opened.
        NetworkOpen = "network.open",
        /// A connection to a host was closed.
        NetworkClose = "network.close",
        /// A request to a host.
        NetworkRequest = "network.request",
        /// A host could not be reached.
        NetworkError = "network.error",
        /// An unknown process connected to a listener of the proxy.
        NetworkOutsider = "network.outsider",
        /// A request to a model's API.
        GatewayRequest = "gateway.request",
        /// A gateway could not serve a request.
        GatewayError = "gateway.error",
        /// The repository accepted the run's commits.
        GitReceived = "git.received",
        /// The repository refused the run's commits.
        GitRefused = "git.refused",
        /// Something in the run's work that a reviewer should check.
        Finding = "finding",
        /// A remark of `guard exec` for the caller.
        ExecNote = "exec.note",
        /// An attempt failed, and guard tries again.
        ExecRetry = "exec.retry",
        /// An attempt failed for a temporary reason, but guard does not try again.
        ExecNotRetried = "exec.not_retried",
        /// The number of events that were dropped because the reader was too slow.
        ExecDropped = "exec.dropped",
        /// The result of a request to an agent.
        ExecResult = "exec.result",
        /// The agent began a session.
        AgentInit = "agent.init",
        /// The agent began a turn.
        AgentTurn = "agent.turn",
        /// The agent began or ended a step.
        AgentStep = "agent.step",
        /// A message of the agent.
        AgentMessage = "agent.message",
        /// The agent uses a tool.
        AgentToolUse = "agent.tool_use",
        /// The result of a tool that the agent used.
        AgentToolResult = "agent.tool_result",
        /// What the agent is doing.
        AgentStatus = "agent.status",
        /// The agent reports an error.
        AgentError = "agent.error",
        /// The agent has finished.
        AgentResult = "agent.result",
        /// A line of the agent's output that is not JSON.
        AgentText = "agent.text",
        /// An event of a kind that the agent's adapter does not know.
        AgentOther = "agent.other",
        /// A message of an agent, of guard or of the user in a task.
        TaskSaid = "task.said",
        /// A step began.
        TaskStep = "task.step",
        /// A step ended.
        TaskStepEnded = "task.step_ended",
        /// An event of the step's agent.
        TaskAgent = "task.agent",
        /// A commit was made.
        TaskCommit = "task.commit",
        /// The result of the project's tests, or why guard did not run them.
        TaskTests = "task.tests",
        /// guard saved work that was in the way under a ref.
        TaskKept = "task.kept",
        /// The branch was delivered.
        TaskDelivered = "task.delivered",
        /// A pull request was opened.
        TaskPullRequest = "task.pull_request",
        /// The task ended.
        TaskEnded = "task.ended",
    }
}

impl EventType {
    /// Whether the event reports a denial.
    pub fn is_denial(self) -> bool {
        is_denial(self.as_str())
    }
}

/// Whether an event type reports a denial, even if this version does not know the type.
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

/// For guard's own data, such as the agent adapters: an unknown type is an error.
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
