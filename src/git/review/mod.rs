//! Reviewing what runs made, and bringing it to the user's branch: findings, the difference, apply, saved work.

pub(crate) mod apply;
pub mod findings;
pub(crate) mod hidden_files;
pub(crate) mod inspect;
pub(crate) mod review_base;
pub(crate) mod saved_work;
pub(crate) mod whole_work;
