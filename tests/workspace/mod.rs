//! Real repositories, real git: what changes in them, and what hides in them.

mod dangers;
mod fingerprint;
