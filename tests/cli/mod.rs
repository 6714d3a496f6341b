mod check;
mod policy_commands;
