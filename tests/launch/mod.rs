mod ask;
mod installation;
mod toolchain;
