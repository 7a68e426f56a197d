//! The costs of recent requests by API, and the number of requests that may therefore be in flight before their replies
//! are charged.

use crate::engine::COUNTED_APIS;
use crate::table::Row;

/// The number of requests that a connection may have in flight in any case
/// (`headrace.quota_callbacks.builtin.request_percentage`).
const FREE_IN_FLIGHT: usize = 10;

/// Length of an interval. A ratio counts in its own interval and in the next one.
const REMEMBERED_NS: i64 = 60_000_000_000;

#[derive(Clone, Copy)]
struct Highest {
    /// The number of the interval of `REMEMBERED_NS`.
    interval: i64,
    ratio: f64,
    /// The highest ratio in the interval before.
    before: f64,
}

impl Highest {
    fn at(self, now_ns: i64) -> Self {
        let interval = now_ns / REMEMBERED_NS;
        if interval == self.interval {
            return self;
        }
        let before = if interval == self.interval + 1 { self.ratio } else { 1.0 };
        Highest { interval, ratio: 1.0, before }
    }
}

/// By API, the highest ratio of the cost of a request to the cost that the model predicts without its reply. Each thread
/// has its own.
pub struct Costs {
    highest: Vec<Highest>,
}

impl Default for Costs {
    fn default() -> Self {
        Costs { highest: vec![Highest { interval: 0, ratio: 1.0, before: 1.0 }; COUNTED_APIS] }
    }
}

impl Costs {
    /// Notes that a request of `request_bytes` has cost `nanos` of thread time.
    pub fn note(&mut self, api_key: i16, row: &Row, request_bytes: u32, nanos: i64, now_ns: i64) {
        let least = least_ns(row, request_bytes);
        if nanos <= least {
            return;
        }
        if let Some(highest) = usize::try_from(api_key).ok().and_then(|key| self.highest.get_mut(key)) {
            *highest = highest.at(now_ns);
            highest.ratio = highest.ratio.max(nanos as f64 / least as f64);
        }
    }

    /// Returns what the next request and the `in_flight` earlier ones may cost together; 1 if these are few.
    #[must_use]
    pub fn of_all(&self, api_key: i16, row: &Row, request_bytes: u32, in_flight: usize, now_ns: i64) -> i64 {
        if in_flight < FREE_IN_FLIGHT {
            return 1;
        }
        let highest = usize::try_from(api_key).ok().and_then(|key| self.highest.get(key));
        let ratio = highest.map_or(1.0, |highest| {
            let highest = highest.at(now_ns);
            highest.ratio.max(highest.before)
        });
        (least_ns(row, request_bytes) as f64 * ratio) as i64 * (in_flight as i64 + 1)
    }
}

fn least_ns(row: &Row, request_bytes: u32) -> i64 {
    row.handler_ns(request_bytes, 0, f64::INFINITY).max(1)
}

#[cfg(test)]
mod tests {
    use super::{Costs, REMEMBERED_NS};
    use crate::table::tests::ROW;

    #[test]
    fn a_few_requests_cost_next_to_nothing() {
        assert_eq!(Costs::default().of_all(3, &ROW, 4096, 9, 0), 1);
    }

    #[test]
    fn the_first_ones_of_an_api_cost_what_the_model_has_for_the_request() {
        assert_eq!(Costs::default().of_all(3, &ROW, 2048, 19, 0), 20_000_000);
        assert_eq!(Costs::default().of_all(i16::MAX, &ROW, 0, 19, 0), 10_000_000);
        assert_eq!(Costs::default().of_all(-1, &ROW, 0, 19, 0), 10_000_000);
    }

    #[test]
    fn the_highest_ratio_counts_for_its_api_for_a_minute_or_two() {
        let mut costs = Costs::default();
        costs.note(3, &ROW, 2048, 8_000_000, 0); // eight times as much as the model has for the request
        for _ in 0..1000 {
            costs.note(3, &ROW, 0, 1, 1);
        }
        assert_eq!(costs.of_all(3, &ROW, 0, 19, 1), 80_000_000);
        assert_eq!(costs.of_all(3, &ROW, 0, 19, REMEMBERED_NS), 80_000_000);
        assert_eq!(costs.of_all(3, &ROW, 0, 19, 2 * REMEMBERED_NS), 10_000_000);
        assert_eq!(costs.of_all(12, &ROW, 0, 19, 1), 10_000_000);
        costs.note(-1, &ROW, 0, i64::MAX, 0);
        costs.note(i16::MAX, &ROW, 0, i64::MAX, 0);
    }
}
