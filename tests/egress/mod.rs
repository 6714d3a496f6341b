mod hello;
mod usage;
