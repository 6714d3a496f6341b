//! The structured result of a run: which actions guard denied, which files changed, and how the run ended.
//!
//! Other programs depend on the result, so new versions of guard only add fields. The result is also the last event
//! of the transcript, so that readers need not recompute it.

mod changed_files;
mod denial_counter;
mod error_kind;
mod result;

pub use changed_files::{Change, ChangeKind, MOST_CHANGES, changes};
pub use denial_counter::DenialCounter;
pub use error_kind::ErrorKind;
pub use result::{
    Commit, Denial, Enforcement, ErrorDetail, Finding, HostTraffic, KeptFiles, LimitNotInForce, ModelUsage,
    OtherRef, RunResult, SnapshotReport, TranscriptPlace, Usage, Worktree, duration,
};
