mod exec_arguments;
mod shim;
mod shim_protocol;
