//! A plan → a running process tree → a result. The only room that spawns processes.

mod bounds;
pub mod installation;
mod managers;
pub mod toolchain;
