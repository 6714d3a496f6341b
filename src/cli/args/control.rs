//! The arguments of `guard control`.

use clap::Args;

use crate::cli::args::batch::StoreOption;
use crate::cli::args::durations::parse_seconds;

pub(in crate::cli) const CONTROL_EXAMPLES: &str = "\
Examples:
  guard control TASK_ID pause                        # the task stops after its current step, and waits
  guard control TASK_ID resume
  guard control TASK_ID adjust_config --data '{\"task\": {\"tokens\": 500000}}'
  guard control CONVERSATION_ID cancel               # ends the current turn, not the conversation
  guard control RESEARCH_ID adjust_config --data '{\"max_tokens\": 200000}'
  guard control RESPONSE_ID pause                    # workers claim no further task of the batch
  guard control RESPONSE_ID adjust_config --data '{\"priority\": 5}'
  guard control RESPONSE_ID cancel --command-id c-17 # sent twice, it is still carried out once

guard acts once on each command id, and answers with an acknowledgement: `completed`, `rejected` with a reason, or
`accepted` if the work is still acting on it.

Exit codes: 0 completed or accepted, 1 rejected, 2 bad usage, no such work, or no answer in time.";

#[derive(Debug, Args)]
pub(crate) struct Control {
    /// The id of a task, a conversation or a research run, or the `response_id` of a batch
    pub(crate) id: String,
    /// What to do: cancel, pause, resume or adjust_config
    pub(crate) command: String,
    /// The data of the command, as JSON: for adjust_config, an object with the settings to change
    #[arg(long, value_name = "JSON")]
    pub(crate) data: Option<String>,
    /// An id of your choice; of several commands with the same id, guard carries out only the first [default: a new id]
    #[arg(long, value_name = "ID")]
    pub(crate) command_id: Option<String>,
    /// How long to wait for the acknowledgement
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
    pub(crate) wait: u64,
    /// Print the acknowledgement as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreOption,
}
