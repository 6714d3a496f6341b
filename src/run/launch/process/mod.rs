//! The processes of a run: init, the agent, their standard streams and their cgroup.
pub(crate) mod agent;
pub(crate) mod agent_input;
pub(crate) mod cgroup;
pub(crate) mod descendants;
pub(crate) mod init;
pub(crate) mod init_handle;
pub(crate) mod protocol;
mod sealed_stream;
pub(crate) mod stdin_feeder;
pub(crate) mod stdin_sharing;
pub(crate) mod stdio;
