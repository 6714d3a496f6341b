//! One run: from a plan to a process tree, its supervision, its network, its record and its result.

pub mod egress;
pub mod launch;
pub mod outcome;
pub mod settings;
pub mod supervisor;
pub mod transcript;
