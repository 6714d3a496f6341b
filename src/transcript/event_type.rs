//! The types of events.

use crate::string_enum::{UnknownName, string_enum};

string_enum! {
    /// What an event is about: in transcripts, in the streams of agents and in those of tasks.
    ///
    /// Variants are only ever added. What is read keeps its type as text ([`Event`](super::Event)), so that events of a
    /// newer guard stay readable.
    pub enum EventType {
        /// The first event of a run.
        RunStarted = "run.started",
        /// The last event of a run; its data is the run's result.
        RunFinished = "run.finished",
        /// A piece of what the agent printed: `data` is `{"stream", "text"}` or `{"stream", "base64"}`.
        Output = "output",
        /// From here on something is left out because the transcript reached its limit.
        TranscriptCut = "transcript.cut",
        /// The transcript reached its limit: the run is ended.
        TranscriptFull = "transcript.full",
        /// How much was left out, just before the end.
        TranscriptDropped = "transcript.dropped",
        /// Something that a reader should know.
        Note = "note",
        /// What was tried before the start was refused, as it must be.
        Canary = "canary",
        /// The sandbox is in force.
        SandboxApplied = "sandbox.applied",
        /// guard passed a signal on to the agent.
        Signal = "signal",
        /// The run reached a time limit.
        Timeout = "timeout",
        /// A program started.
        Exec = "exec",
        /// A program may start.
        ExecAllowed = "exec.allowed",
        /// A program that was allowed did not start.
        ExecFailed = "exec.failed",
        /// A program was another one when it started than when it was judged.
        ExecChanged = "exec.changed",
        /// A person answered a question.
        Answer = "answer",
        /// A shim sent something that is no question.
        ControlGarbage = "control.garbage",
        /// A program connected to a socket of the run.
        Connect = "connect",
        /// A program listens on an address.
        Bind = "bind",
        /// A program was refused.
        DenyExec = "deny.exec",
        /// A connection was refused.
        DenyConnect = "deny.connect",
        /// A listening socket was refused.
        DenyBind = "deny.bind",
        /// A host, or a request to one, was refused.
        DenyNetwork = "deny.network",
        /// An operation on another process was refused.
        DenyProcess = "deny.process",
        /// A change of a file's metadata was refused.
        DenyMetadata = "deny.metadata",
        /// A watch on a file was refused.
        DenyWatch = "deny.watch",
        /// A program was refused because it could not be recorded.
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
        /// A gateway could not serve.
        GatewayError = "gateway.error",
        /// The repository accepted the run's commits.
        GitReceived = "git.received",
        /// The repository refused the run's commits.
        GitRefused = "git.refused",
        /// Something that a reviewer should look at.
        Finding = "finding",
        /// Something that the caller of an agent should know.
        ExecNote = "exec.note",
        /// An attempt failed and is made again.
        ExecRetry = "exec.retry",
        /// An attempt failed and is not made again, though its kind of failure may pass.
        ExecNotRetried = "exec.not_retried",
        /// How many events the reader missed.
        ExecDropped = "exec.dropped",
        /// The result of a request to an agent.
        ExecResult = "exec.result",
        /// The agent began a session.
        AgentInit = "agent.init",
        /// The agent began a turn.
        AgentTurn = "agent.turn",
        /// The agent began or ended a step.
        AgentStep = "agent.step",
        /// The agent said something.
        AgentMessage = "agent.message",
        /// The agent uses a tool.
        AgentToolUse = "agent.tool_use",
        /// What a tool answered.
        AgentToolResult = "agent.tool_result",
        /// What the agent is doing.
        AgentStatus = "agent.status",
        /// The agent reports an error.
        AgentError = "agent.error",
        /// The agent is done.
        AgentResult = "agent.result",
        /// A line of the agent's that is no JSON.
        AgentText = "agent.text",
        /// An event of the agent's of a kind that its adapter does not know.
        AgentOther = "agent.other",
        /// Somebody in a task said something.
        TaskSaid = "task.said",
        /// A step began.
        TaskStep = "task.step",
        /// A step ended.
        TaskStepEnded = "task.step_ended",
        /// An event of the step's agent.
        TaskAgent = "task.agent",
        /// A commit was made.
        TaskCommit = "task.commit",
        /// The project's tests were run, or not.
        TaskTests = "task.tests",
        /// Work that stood in the way is saved under another name.
        TaskKept = "task.kept",
        /// The branch was delivered.
        TaskDelivered = "task.delivered",
        /// A pull request was made.
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
