//! Why a worker does not carry out a command.

/// Why a worker rejects a command. The acknowledgement contains this reason as text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    #[error("unknown command type `{0}`; expected cancel, pause, resume or adjust_config")]
    UnknownType(String),
    /// The data of `adjust_config` names no setting that the worker can change.
    #[error("the data of `adjust_config` must be {0}")]
    NoSetting(&'static str),
    /// The data of `adjust_config` has another form than the worker expects.
    #[error("the data of `adjust_config` must be {expected}: {problem}")]
    InvalidData { expected: &'static str, problem: serde_json::Error },
    #[error("the workflow has no step `{0}`")]
    UnknownStep(String),
    /// There is nothing to cancel, because no turn of the conversation is in progress.
    #[error("no turn is in progress, so there is nothing to cancel")]
    NoTurn,
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}
