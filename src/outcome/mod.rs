//! What a run did → one structured result.
//!
//! The result is what callers build on: its fields are only ever added to. It is also the last event of the transcript,
//! so nothing has to be worked out a second time.

mod changed_files;
mod denial_counter;
mod error_kind;
mod result;

pub use changed_files::{Change, ChangeKind, MOST_CHANGES, changes};
pub use denial_counter::Tally;
pub use error_kind::ErrorKind;
pub use result::{
    Commit, Denial, Enforcement, ErrorDetail, Finding, HostTraffic, LimitNotInForce, ModelUsage, OtherRef,
    RunResult, TranscriptPlace, Usage, Worktree, duration,
};
