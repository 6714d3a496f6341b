mod shim;
mod shim_protocol;
