mod ask;
mod everyday;
mod faults;
mod installation;
mod killed;
mod links;
mod registries;
mod toolchain;
pub(crate) mod world;
