mod ask;
mod everyday;
mod faults;
mod idle;
mod installation;
mod killed;
mod registries;
mod toolchain;
pub(crate) mod world;
