mod installation;
mod toolchain;
