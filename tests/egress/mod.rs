mod api;
mod gemini;
mod hello;
mod infrastructure;
mod registries;
mod server;
mod usage;
