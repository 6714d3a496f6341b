//! How results, notes and progress are printed.

pub(in crate::cli) mod colour;
pub(in crate::cli) mod exec_progress;
pub(in crate::cli) mod exit_code;
pub(in crate::cli) mod failure;
pub(in crate::cli) mod json;
pub(in crate::cli) mod line_width;
pub(in crate::cli) mod logging;
pub(in crate::cli) mod output_schemas;
pub(in crate::cli) mod quantities;
pub(in crate::cli) mod research_display;
pub(in crate::cli) mod run_plan;
pub(in crate::cli) mod run_report;
pub(in crate::cli) mod table;
pub(in crate::cli) mod task_progress;
pub(in crate::cli) mod terminal_filter;
pub(in crate::cli) mod terminal_summary;
