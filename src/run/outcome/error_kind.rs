//! The kinds of failure that a result can have.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use crate::text::string_enum::string_enum;

string_enum! {
    /// The kind of a failure, as an identifier that programs can match. New kinds may be added; existing ones keep
    /// their names.
    pub enum ErrorKind {
        /// The run printed nothing, started no program and used no CPU for longer than the idle limit.
        IdleTimeout = "idle_timeout",
        /// The run reached the limit on its total duration.
        Timeout = "timeout",
        CommandNotFound = "command_not_found",
        /// The program failed, or the agent's model API failed.
        UpstreamError = "upstream_error",
        InvalidInput = "invalid_input",
        /// The configuration is invalid, or the installed version of the agent is not supported.
        ConfigError = "config_error",
        /// The agent's credentials are missing, or the model API rejected them.
        AuthError = "auth_error",
        /// The model API accepts no more requests for now.
        RateLimited = "rate_limited",
        /// The agent CLI reached its own limit on turns.
        TurnLimit = "turn_limit",
        /// This machine cannot enforce the sandbox.
        SandboxUnavailable = "sandbox_unavailable",
        /// The policy does not allow the program to run.
        PolicyDenied = "policy_denied",
        /// The caller cancelled the run, or a signal ended it.
        Cancelled = "cancelled",
        /// guard could not transfer the run's commits into the repository.
        ReceiveRefused = "receive_refused",
        /// During the run, something outside of the sandbox changed that the run must not be able to change.
        BoundaryBroken = "boundary_broken",
        /// The run's budget of model tokens, requests or cost is used up.
        BudgetExhausted = "budget_exhausted",
        MemoryExhausted = "memory_exhausted",
        /// The transcript reached its size limit.
        RecordFull = "record_full",
        /// The session to continue does not exist, or its record or worktree was replaced.
        SessionLost = "session_lost",
        SessionBusy = "session_busy",
        /// The worktree to continue in does not exist, or was replaced.
        WorktreeLost = "worktree_lost",
        WorktreeBusy = "worktree_busy",
        /// The MCP server already runs its maximum number of calls.
        Busy = "busy",
        /// guard itself failed.
        Internal = "internal",
        /// A kind written by a newer version of guard, unknown to this one.
        Unrecognized = "unrecognized",
    }
}

/// Results of other versions of guard stay readable: a kind that this version does not know becomes
/// [`ErrorKind::Unrecognized`].
impl<'de> Deserialize<'de> for ErrorKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Ok(text.parse().unwrap_or(Self::Unrecognized))
    }
}

/// The schema is a plain string. With an `enum`, validators would reject a kind that is added later.
impl JsonSchema for ErrorKind {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ErrorKind".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_as_it_is_written() {
        for kind in ErrorKind::ALL {
            let text = serde_json::to_string(kind).unwrap_or_default();
            assert_eq!(text, format!("\"{kind}\""));
            assert_eq!(serde_json::from_str::<ErrorKind>(&text).ok(), Some(*kind));
            assert_eq!(kind.as_str().parse(), Ok(*kind));
        }
    }

    #[test]
    fn a_kind_of_a_newer_version_is_no_error() {
        let read: Result<ErrorKind, _> = serde_json::from_str("\"brand_new\"");
        assert_eq!(read.ok(), Some(ErrorKind::Unrecognized));
        assert!("brand_new".parse::<ErrorKind>().is_err());
    }
}
