mod exec_arguments;
mod exec_notices;
mod shim;
mod shim_protocol;
