//! Batches: what a program submits, and what it gets when it polls.

mod command_line;
mod killed;
