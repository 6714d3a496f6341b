//! The kinds of failure that a result can have.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use crate::string_enum::string_enum;

string_enum! {
    /// What went wrong, as a word that programs can match. Variants are only ever added.
    pub enum ErrorKind {
        /// Neither output nor work for longer than the idle limit.
        IdleTimeout = "idle_timeout",
        /// The run reached the limit for its whole duration.
        Timeout = "timeout",
        /// The program does not exist.
        CommandNotFound = "command_not_found",
        /// The program or the agent's service failed.
        UpstreamError = "upstream_error",
        /// The request is wrong.
        InvalidInput = "invalid_input",
        /// The configuration, or the installed version of an agent, is wrong.
        ConfigError = "config_error",
        /// The agent's credentials are missing or refused.
        AuthError = "auth_error",
        /// The agent's service allows no more requests now.
        RateLimited = "rate_limited",
        /// The agent reached its own limit of turns.
        TurnLimit = "turn_limit",
        /// This machine cannot enforce the sandbox.
        SandboxUnavailable = "sandbox_unavailable",
        /// The policy does not allow the program.
        PolicyDenied = "policy_denied",
        /// The caller or a signal ended it.
        Cancelled = "cancelled",
        /// The repository did not accept the run's commits.
        ReceiveRefused = "receive_refused",
        /// Something outside of the sandbox changed that the run must not change.
        BoundaryBroken = "boundary_broken",
        /// The budget for a model is used up.
        BudgetExhausted = "budget_exhausted",
        /// The run reached its memory limit.
        MemoryExhausted = "memory_exhausted",
        /// The transcript reached its size limit.
        RecordFull = "record_full",
        /// The session to continue does not exist, or is not what it was.
        SessionLost = "session_lost",
        /// Another request uses the session.
        SessionBusy = "session_busy",
        /// The worktree to continue in does not exist, or is not what it was.
        WorktreeLost = "worktree_lost",
        /// Another run uses the worktree.
        WorktreeBusy = "worktree_busy",
        /// The server already makes as many calls as it may.
        Busy = "busy",
        /// guard itself failed.
        Internal = "internal",
        /// A newer guard wrote a kind that this one does not know.
        Unrecognized = "unrecognized",
    }
}

/// Results of other versions of guard stay readable: a kind that this version does not know is
/// [`ErrorKind::Unrecognized`].
impl<'de> Deserialize<'de> for ErrorKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Ok(text.parse().unwrap_or(Self::Unrecognized))
    }
}

/// A plain string: with an `enum` in the schema, a kind that is added later would break validators.
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
