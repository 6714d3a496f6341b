//! Workflows: files that say which steps a task has, who does them, and where each leads.
pub(crate) mod lint;
pub(crate) mod load;
pub(crate) mod model;
pub(crate) mod parse;
pub(crate) mod parse_step;
pub(crate) mod render;
pub(crate) mod template;
pub(crate) mod yaml;
