//! Prints the JSON output of commands that the user started with `--json`.

use std::io::Write;

use serde_json::Value;

use super::Failure;

/// Prints a value as indented JSON, which people can also read.
pub(super) fn print_json(value: &Value, out: &mut dyn Write) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
