//! Workflows: files that define the steps of a task, who performs each one, and which step follows.
pub(crate) mod lint;
pub(crate) mod load;
pub(crate) mod model;
pub(crate) mod parse;
pub(crate) mod parse_step;
pub(crate) mod render;
pub(crate) mod yaml;
