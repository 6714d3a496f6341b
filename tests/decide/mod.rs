mod allow_with;
mod properties;
mod verdicts;
