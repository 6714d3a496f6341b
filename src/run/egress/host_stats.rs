//! Traffic statistics of a run: one row per host and port.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::run::outcome::HostTraffic;

/// Limit on rows; all further hosts are counted together in one row, `(others)`.
const MOST_ROWS: usize = 1000;

/// Traffic per host and port, shared by all connections of a run.
#[derive(Debug, Default)]
pub(super) struct HostStats {
    rows: RefCell<HashMap<(String, u16), HostTraffic>>,
}

impl HostStats {
    /// Applies `change` to the row of a host and port. Creates the row if it is missing.
    pub(super) fn update(&self, host: &str, port: u16, change: impl FnOnce(&mut HostTraffic)) {
        let mut rows = self.rows.borrow_mut();
        let key = (host.to_string(), port);
        let key =
            if rows.len() < MOST_ROWS || rows.contains_key(&key) { key } else { ("(others)".to_string(), 0) };
        let row = rows.entry(key).or_insert_with_key(|(host, port)| HostTraffic {
            host: host.clone(),
            port: *port,
            ..HostTraffic::default()
        });
        change(row);
    }

    /// Returns all rows of the statistics, sorted by host and port.
    pub(super) fn rows(&self) -> Vec<HostTraffic> {
        let mut rows: Vec<HostTraffic> = self.rows.borrow().values().cloned().collect();
        rows.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
        rows
    }
}
