//! Tasks: by a scripted agent that speaks as the Gemini CLI does, and by the real one.

mod attacks;
mod bad_input;
mod budgets;
mod commands;
mod concurrent_changes;
mod crashes;
mod delivery;
mod disk;
mod documentation;
mod gemini;
mod human_gates;
mod large_inputs;
mod roles;
mod whole_tasks;
mod workflows;
