//! What a command would do, and whether a policy allows it. Starts no process and opens no connection.

pub mod audit;
pub mod command;
pub mod decide;
pub mod policy;
