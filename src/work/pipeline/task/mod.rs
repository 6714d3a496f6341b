//! Tasks on disk: their state, journal, lock and budget.
pub(crate) mod budget;
mod cancel;
pub(crate) mod clean;
pub mod journal;
pub(crate) mod journal_records;
pub(crate) mod state;
pub(crate) mod task_control;
pub(crate) mod task_journal;
pub(crate) mod task_lock;
