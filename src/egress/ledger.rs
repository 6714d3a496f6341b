//! Who was talked to, how often and how much: one row for each host and port.

use std::cell::RefCell;
use std::collections::HashMap;

use serde::Serialize;

/// Rows that are kept; what comes then is counted in one row of its own.
const MOST_ROWS: usize = 1000;

/// What happened with one host and port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    /// As it was asked for.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Connections that were made.
    pub connections: u64,
    /// Requests that could be seen.
    pub requests: u64,
    /// Refusals.
    pub refused: u64,
    /// Sent.
    pub bytes_up: u64,
    /// Received.
    pub bytes_down: u64,
}

/// The rows of a run.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    rows: RefCell<HashMap<(String, u16), Row>>,
}

impl Ledger {
    /// Changes the row of a host.
    pub(super) fn note(&self, host: &str, port: u16, change: impl FnOnce(&mut Row)) {
        let mut rows = self.rows.borrow_mut();
        let key = (host.to_string(), port);
        let key =
            if rows.len() < MOST_ROWS || rows.contains_key(&key) { key } else { ("(others)".to_string(), 0) };
        let row = rows.entry(key).or_insert_with_key(|(host, port)| Row {
            host: host.clone(),
            port: *port,
            ..Row::default()
        });
        change(row);
    }

    /// All rows, by name.
    pub(super) fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = self.rows.borrow().values().cloned().collect();
        rows.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
        rows
    }
}
