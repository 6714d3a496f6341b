mod check;
mod demo;
mod front_door;
mod log;
mod network;
mod policy_commands;
mod repository;
mod run;
