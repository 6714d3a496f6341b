//! The structured result of a run: what was denied, which files changed, how it ended.
//!
//! Callers depend on the result, so fields are only ever added. The result is also the last event of the
//! transcript, so that readers need not recompute it.

mod changed_files;
mod denial_counter;
mod error_kind;
mod result;

pub use changed_files::{Change, ChangeKind, MOST_CHANGES, changes};
pub use denial_counter::DenialCounter;
pub use error_kind::ErrorKind;
pub use result::{
    Commit, Denial, Enforcement, ErrorDetail, Finding, HostTraffic, LimitNotInForce, ModelUsage, OtherRef,
    RunResult, TranscriptPlace, Usage, Worktree, duration,
};
