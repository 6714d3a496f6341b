//! A repository and what a run may do to it.

pub mod dangers;
pub mod fingerprint;
