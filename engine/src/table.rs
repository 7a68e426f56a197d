//! What the data plane knows of Kafka's APIs: one row for each API and version that it may relay by itself.
//!
//! The control plane creates the table, from its own tables of APIs, plugins and costs. A request without a row is not
//! relayed natively: its connection returns to the control plane.

/// The API key of Produce. The time at which its whole request has arrived matters, since its bytes are charged then.
pub const PRODUCE: i16 = 0;

/// How the bodies of a request and its reply are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Request and reply are forwarded unread, except for the throttle time of the reply.
    Plain,
    /// Produce: `acks` is read, and the batches if producer ids are charged. The reply is read.
    Produce,
    /// Fetch: the most bytes of the request are limited. The reply passes unread.
    Fetch,
    /// Fetch from version 16 on, in whose replies leader hints are hidden.
    FetchWithHints,
}

/// One API in one version.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub kind: Kind,
    /// Version of the request's header: 2 with tagged fields, 1 with a client id.
    pub header_version: u8,
    /// Whether the header of the reply has tagged fields.
    pub flexible_reply: bool,
    /// Offset of the throttle time in the body of the reply, in bytes.
    pub throttle_at: Option<usize>,
    /// Estimated time of one of the broker's threads for a request, in milliseconds.
    pub base_ms: f64,
    /// Estimated time of one of the broker's threads for each KiB of request and reply, in milliseconds.
    pub per_kib_ms: f64,
}

impl Row {
    /// Returns the estimated time of the broker's threads in nanoseconds, at most `observed_ms`, rounded half to even
    /// as Python's `round` does (`estimate_ms` in `headrace.quota_callbacks.builtin.request_costs`).
    #[must_use]
    pub fn handler_ns(&self, request_bytes: u32, response_bytes: u32, observed_ms: f64) -> i64 {
        let bytes = f64::from(request_bytes) + f64::from(response_bytes);
        let ms = self.base_ms + self.per_kib_ms * bytes / 1024.0;
        let ms = if ms < observed_ms { ms } else { observed_ms };
        (ms * 1e6).round_ties_even() as i64
    }
}

/// The rows, by API key and version.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<Option<Row>>>,
}

impl Table {
    pub fn insert(&mut self, api_key: u16, version: u16, row: Row) {
        let (key, version) = (usize::from(api_key), usize::from(version));
        if self.rows.len() <= key {
            self.rows.resize_with(key + 1, Vec::new);
        }
        let versions = &mut self.rows[key];
        if versions.len() <= version {
            versions.resize(version + 1, None);
        }
        versions[version] = Some(row);
    }

    #[must_use]
    pub fn get(&self, api_key: i16, version: i16) -> Option<&Row> {
        let (key, version) = (usize::try_from(api_key).ok()?, usize::try_from(version).ok()?);
        self.rows.get(key)?.get(version)?.as_ref()
    }
}

#[cfg(test)]
pub mod tests {
    use super::{Kind, Row, Table};

    /// A row with costs, for tests of other modules, too.
    pub const ROW: Row = Row {
        kind: Kind::Plain,
        header_version: 2,
        flexible_reply: true,
        throttle_at: Some(0),
        base_ms: 0.5,
        per_kib_ms: 0.25,
    };

    #[test]
    fn unknown_apis_and_versions_have_no_row() {
        let mut table = Table::default();
        table.insert(3, 2, ROW);
        assert!(table.get(3, 2).is_some());
        for (api_key, version) in [(3, 1), (3, 3), (2, 2), (4, 2), (-1, 2), (3, -1), (i16::MAX, i16::MAX)] {
            assert!(table.get(api_key, version).is_none());
        }
    }

    #[test]
    fn the_estimate_does_not_exceed_what_was_observed() {
        assert_eq!(ROW.handler_ns(1024, 1024, 10.0), 1_000_000);
        assert_eq!(ROW.handler_ns(1024, 1024, 0.25), 250_000);
        assert_eq!(ROW.handler_ns(0, 0, 10.0), 500_000);
    }
}
