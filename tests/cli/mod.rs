mod check;
mod demo;
mod log;
mod policy_commands;
mod repository;
mod run;
