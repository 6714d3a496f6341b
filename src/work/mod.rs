//! Work that consists of many requests to agents: tasks, batches and research.

pub mod batch;
pub mod commands;
pub mod forge;
pub mod pipeline;
pub mod research;
pub mod roots;
