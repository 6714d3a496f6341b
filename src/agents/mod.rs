//! Coding agents: how each one is started and read, one request to it, and conversations with it.

pub mod adapter;
pub mod control;
pub mod conversation;
pub mod exec;
pub mod history;
