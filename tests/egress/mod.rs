pub(crate) mod api;
pub(crate) mod gemini;
mod guarded;
mod hello;
mod infrastructure;
mod registries;
pub(crate) mod server;
mod usage;
