//! Tests tasks with a scripted agent that prints what the Gemini CLI would, and with the real CLI.

mod attacks;
mod bad_input;
mod budgets;
mod commands;
mod concurrent_changes;
mod crashes;
mod deep_research;
mod delivery;
mod disk;
mod documentation;
mod gemini;
mod human_gates;
mod large_inputs;
mod roles;
mod whole_tasks;
mod workflows;
