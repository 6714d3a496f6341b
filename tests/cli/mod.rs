mod check;
mod log;
mod policy_commands;
