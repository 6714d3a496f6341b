//! What a run did → one structured result.
//!
//! The result is what callers build on: its fields are only ever added to. It is also the last event of the transcript,
//! so nothing has to be worked out a second time.

mod changes;
mod error_kind;
mod result;
mod tally;

pub use changes::{Change, ChangeKind, MOST_CHANGES, changes};
pub use error_kind::ErrorKind;
pub use result::{
    Commit, Denial, Enforcement, ErrorDetail, Finding, HostTraffic, LimitNotInForce, ModelUsage, OtherRef,
    RunResult, TranscriptPlace, Usage, Worktree, duration,
};
pub use tally::Tally;
