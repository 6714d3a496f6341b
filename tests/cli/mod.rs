mod check;
mod demo;
mod log;
mod network;
mod policy_commands;
mod repository;
mod run;
