mod shim;
mod wire;
