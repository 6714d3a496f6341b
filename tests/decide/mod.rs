mod properties;
mod verdicts;
