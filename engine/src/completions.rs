//! Requests that were completed natively: their sums by API and second, and a sample of them, one by one.
//!
//! Each connection has its own, which only its thread changes, so that nothing is locked for a request. The thread
//! hands them over when the control plane asks for it, and with a connection that returns: they are moved, never
//! copied.

use crate::connection::Exchange;

const SECOND_NS: i64 = 1_000_000_000;

/// Which reports of completed requests the control plane has requested.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Whether sums are requested.
    pub sums: bool,
    /// The upper bounds of `Sums::latencies`, in nanoseconds.
    pub latency_bounds_ns: Vec<i64>,
    /// The part of the requests that are reported one by one, from 0 to 1.
    pub sample_ratio: f64,
}

impl Wanted {
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.sums || self.sample_ratio > 0.0
    }
}

/// The head of a reply, and what the request has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Time at which the head was read (ns).
    pub reply_ns: i64,
    /// Number of bytes of header and body.
    pub size: u32,
    pub header_bytes: u32,
    /// Thread time of the request, the broker's and the proxy's own (ns).
    pub thread_ns: i64,
}

/// The sums of one API in one second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    pub api_key: i16,
    /// Seconds since 1970.
    pub second: i64,
    pub requests: u64,
    pub request_bytes: u64,
    pub reply_bytes: u64,
    pub thread_ns: i64,
    /// Time between the forwarding of each request and its reply (ns).
    pub broker_ns: i64,
    /// Number of requests by the time between forwarding and reply: up to each of the bounds, and above the last one.
    pub latencies: Vec<u64>,
}

/// A request of the sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The random number, from 0 up to 1, that has decided about it: it is below the ratio.
    pub draw: f64,
    pub exchange: Exchange,
    pub reply: Reply,
    /// Time at which the client had accepted the last byte of the reply (ns).
    pub completed_ns: i64,
}

/// What a connection hands over.
#[derive(Debug, Default)]
pub struct Collected {
    pub sums: Vec<Sums>,
    pub samples: Vec<Sample>,
}

impl Collected {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty() && self.samples.is_empty()
    }

    /// Adds what was collected later.
    pub fn append(&mut self, mut later: Collected) {
        self.sums.append(&mut later.sums);
        self.samples.append(&mut later.samples);
    }
}

/// What a thread needs to count.
pub struct Counting {
    pub wanted: Wanted,
    /// The time since 1970 minus the time of the monotonic clock (ns).
    pub wall_offset_ns: i64,
    random: fastrand::Rng,
}

impl Counting {
    #[must_use]
    pub fn new(wanted: Wanted) -> Self {
        Counting { wanted, wall_offset_ns: 0, random: fastrand::Rng::new() }
    }
}

/// The completed requests of one connection.
#[derive(Default)]
pub struct Completions {
    /// Whether completed requests are counted or sampled.
    pub is_wanted: bool,
    /// The reply that is being forwarded.
    pub reply: Option<Reply>,
    /// Requests whose replies were read completely, and were not accepted completely by the client yet.
    unsent: Vec<(Exchange, Reply)>,
    collected: Collected,
}

impl Completions {
    /// Notes that the last byte of the reply to `exchange` was read.
    pub fn reply_read(&mut self, exchange: Exchange) {
        if let Some(reply) = self.reply.take().filter(|_| self.is_wanted) {
            self.unsent.push((exchange, reply));
        }
    }

    /// Counts the requests whose reply was read, since the client has accepted all that was read.
    pub fn count(&mut self, counting: &mut Counting, now_ns: i64) {
        for (exchange, reply) in self.unsent.drain(..) {
            if counting.wanted.sums {
                add(&mut self.collected.sums, counting, &exchange, reply, now_ns);
            }
            if counting.wanted.sample_ratio > 0.0 {
                let draw = counting.random.f64();
                if draw < counting.wanted.sample_ratio {
                    self.collected.samples.push(Sample { draw, exchange, reply, completed_ns: now_ns });
                }
            }
        }
    }

    /// Whether there is anything to hand over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.collected.is_empty()
    }

    /// Hands over what was counted.
    pub fn take(&mut self) -> Collected {
        std::mem::take(&mut self.collected)
    }
}

fn add(all: &mut Vec<Sums>, counting: &Counting, exchange: &Exchange, reply: Reply, now_ns: i64) {
    let second = (now_ns + counting.wall_offset_ns).div_euclid(SECOND_NS);
    let bounds = &counting.wanted.latency_bounds_ns;
    let at = all.iter().rposition(|each| each.api_key == exchange.api_key && each.second == second);
    let at = at.unwrap_or_else(|| {
        all.push(Sums {
            api_key: exchange.api_key,
            second,
            requests: 0,
            request_bytes: 0,
            reply_bytes: 0,
            thread_ns: 0,
            broker_ns: 0,
            latencies: vec![0; bounds.len() + 1],
        });
        all.len() - 1
    });
    let sums = &mut all[at];
    let broker_ns = reply.reply_ns - exchange.forwarded_ns;
    sums.requests += 1;
    sums.request_bytes += u64::from(exchange.request_bytes);
    sums.reply_bytes += u64::from(reply.size);
    sums.thread_ns += reply.thread_ns;
    sums.broker_ns += broker_ns;
    sums.latencies[bounds.partition_point(|bound| *bound < broker_ns)] += 1;
}

#[cfg(test)]
mod tests {
    use super::{Completions, Counting, Reply, Wanted};
    use crate::connection::Exchange;

    const MS: i64 = 1_000_000;

    fn counting(sample_ratio: f64) -> Counting {
        Counting::new(Wanted { sums: true, latency_bounds_ns: vec![MS, 5 * MS], sample_ratio })
    }

    fn exchange(api_key: i16, forwarded_ns: i64) -> Exchange {
        Exchange {
            api_key,
            version: 1,
            correlation_id: 7,
            acks: 0,
            request_bytes: 100,
            received_ns: 0,
            forwarded_ns,
            arrived: true,
            alone: false,
        }
    }

    fn completions() -> Completions {
        Completions { is_wanted: true, ..Completions::default() }
    }

    fn complete(completions: &mut Completions, counting: &mut Counting, api_key: i16, took_ns: i64, now_ns: i64) {
        completions.reply = Some(Reply { reply_ns: now_ns, size: 40, header_bytes: 5, thread_ns: 3 });
        completions.reply_read(exchange(api_key, now_ns - took_ns));
        completions.count(counting, now_ns);
    }

    #[test]
    fn sums_are_kept_by_api_and_second_and_handed_over_once() {
        let (mut completions, mut counting) = (completions(), counting(0.0));
        counting.wall_offset_ns = 500 * MS;
        for (api_key, took_ns, now_ns) in
            [(0, MS, 400 * MS), (0, MS + 1, 499 * MS), (1, 0, 499 * MS), (0, 6 * MS, 500 * MS)]
        {
            complete(&mut completions, &mut counting, api_key, took_ns, now_ns);
        }
        let collected = completions.take();
        let found: Vec<_> = collected
            .sums
            .iter()
            .map(|each| (each.api_key, each.second, each.requests, each.broker_ns, each.latencies.clone()))
            .collect();
        let expected =
            [(0, 0, 2, 2 * MS + 1, vec![1, 1, 0]), (1, 0, 1, 0, vec![1, 0, 0]), (0, 1, 1, 6 * MS, vec![0, 0, 1])];
        assert_eq!(found, expected);
        assert_eq!((collected.sums[0].request_bytes, collected.sums[0].reply_bytes), (200, 80));
        assert_eq!(collected.sums[0].thread_ns, 6);
        assert!(completions.take().is_empty());
    }

    #[test]
    fn a_reply_that_the_client_has_not_accepted_is_not_counted_yet() {
        let (mut completions, mut counting) = (completions(), counting(1.0));
        completions.reply = Some(Reply { reply_ns: 2, size: 40, header_bytes: 5, thread_ns: 3 });
        completions.reply_read(exchange(0, 1));
        assert!(completions.is_empty());
        completions.count(&mut counting, 9);
        let collected = completions.take();
        assert_eq!((collected.sums[0].requests, collected.samples[0].completed_ns), (1, 9));
    }

    #[test]
    fn a_ratio_samples_its_part() {
        for (ratio, least, most) in [(0.0, 0, 0), (0.25, 2200, 2800), (1.0, 10_000, 10_000)] {
            let (mut completions, mut counting) = (completions(), counting(ratio));
            for _ in 0..10_000 {
                complete(&mut completions, &mut counting, 0, 1, 1);
            }
            let samples = completions.take().samples;
            assert!((least..=most).contains(&samples.len()), "{ratio}: {}", samples.len());
            assert!(samples.iter().all(|each| (0.0..ratio).contains(&each.draw)));
        }
    }
}
