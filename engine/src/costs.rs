//! What requests have cost lately, and with it how many may be in flight before their replies are charged.

use crate::engine::COUNTED_APIS;
use crate::table::Row;

/// The part of the difference to the highest cost by which each request of the API reduces it.
const FORGOTTEN: i64 = 64;

/// The highest cost of a request of each API lately, in nanoseconds of thread time. Each thread has its own.
pub struct Costs {
    highest: Vec<i64>,
}

impl Default for Costs {
    fn default() -> Self {
        Costs { highest: vec![0; COUNTED_APIS] }
    }
}

impl Costs {
    /// Notes what a request has cost.
    pub fn note(&mut self, api_key: i16, nanos: i64) {
        if let Some(highest) = usize::try_from(api_key).ok().and_then(|key| self.highest.get_mut(key)) {
            *highest = nanos.max(*highest - (*highest - nanos) / FORGOTTEN);
        }
    }

    /// Returns what the next request and the `in_flight` earlier ones may cost together, each at most as much as the
    /// most expensive one of its API lately; 1 if there are no others, since a broker reads one request in any case.
    #[must_use]
    pub fn of_all(&self, api_key: i16, row: &Row, request_bytes: u32, in_flight: usize) -> i64 {
        if in_flight == 0 {
            return 1;
        }
        let highest = usize::try_from(api_key).ok().and_then(|key| self.highest.get(key)).copied().unwrap_or(0);
        let cost = highest.max(row.handler_ns(request_bytes, 0, f64::INFINITY)).max(1);
        cost.saturating_mul(in_flight as i64 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::Costs;
    use crate::table::{Kind, Row};

    const ROW: Row = Row {
        kind: Kind::Plain,
        header_version: 2,
        flexible_reply: true,
        throttle_at: Some(0),
        base_ms: 0.5,
        per_kib_ms: 0.25,
    };

    #[test]
    fn a_request_without_others_costs_next_to_nothing() {
        assert_eq!(Costs::default().of_all(3, &ROW, 4096, 0), 1);
    }

    #[test]
    fn the_first_ones_of_an_api_cost_what_the_model_has_for_the_request() {
        assert_eq!(Costs::default().of_all(3, &ROW, 2048, 9), 10_000_000);
        assert_eq!(Costs::default().of_all(i16::MAX, &ROW, 0, 1), 1_000_000);
        assert_eq!(Costs::default().of_all(-1, &ROW, 0, 1), 1_000_000);
    }

    #[test]
    fn the_highest_cost_counts_and_is_forgotten_slowly() {
        let mut costs = Costs::default();
        costs.note(3, 64_000_000);
        costs.note(3, 0);
        assert_eq!(costs.of_all(3, &ROW, 0, 1), 126_000_000);
        assert_eq!(costs.of_all(12, &ROW, 0, 1), 1_000_000);
        costs.note(-1, 1);
        costs.note(i16::MAX, 1);
    }
}
