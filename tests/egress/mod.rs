mod api;
mod gemini;
mod guarded;
mod hello;
mod infrastructure;
mod registries;
mod server;
mod usage;
