//! Tasks: by a scripted agent that speaks as the Gemini CLI does, and by the real one.

mod attacks;
mod bad_input;
mod budgets;
mod crashes;
mod delivery;
mod disk;
mod documentation;
mod gemini;
mod large;
mod others;
mod people;
mod roles;
mod whole_tasks;
mod workflows;
