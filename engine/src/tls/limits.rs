//! Limits on the work that a peer can cause without sending data. After the handshake they are those of
//! `headrace.proxy.network.tls.records.PeerLimits`, with the same numbers.

/// Length of the header of a record: type, version and length.
pub const HEADER_BYTES: usize = 5;

const COUNTED_BYTES: u64 = 1024 * 1024;
const MAX_ANSWER_BYTES: usize = 4 * 1024;
const MAX_EMPTY_RECORDS: usize = 64;
const MAX_EMPTY_BYTES: usize = 32 * 1024;
const BYTES_PER_DATA_BYTE: usize = 4;

/// The most bytes that a peer may send until the handshake is complete: as many as OpenSSL permits for a chain of
/// certificates, or for the names of the authorities that a broker trusts (`SSL_MAX_CERT_LIST_DEFAULT`).
pub const MAX_HANDSHAKE_BYTES: u64 = 100 * 1024;

/// A limit that a peer has exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// Records without data, such as changes of keys.
    Empty,
    /// Messages that TLS itself has to answer.
    Answers,
    /// Answers of TLS that the peer does not read.
    Unread,
}

/// Counts for one peer.
#[derive(Default)]
pub struct Limits {
    counted_from: u64,
    answer_bytes: usize,
    empty_records: usize,
    empty_bytes: usize,
}

impl Limits {
    /// Counts bytes that TLS itself has to send. `received` is the number of all bytes of the peer.
    pub fn count_answer(&mut self, count: usize, received: u64) -> Option<Excess> {
        self.begin_again(received);
        self.answer_bytes += count;
        (self.answer_bytes > MAX_ANSWER_BYTES).then_some(Excess::Answers)
    }

    /// Counts `begun` records in `consumed` bytes, of which `records` had `count` bytes of data.
    pub fn count(
        &mut self,
        begun: usize,
        records: usize,
        consumed: usize,
        count: usize,
        received: u64,
    ) -> Option<Excess> {
        self.begin_again(received);
        self.empty_records = (self.empty_records + begun).saturating_sub(records);
        self.empty_bytes = (self.empty_bytes + consumed).saturating_sub(BYTES_PER_DATA_BYTE * count);
        let exceeds = self.empty_records > MAX_EMPTY_RECORDS || self.empty_bytes > MAX_EMPTY_BYTES;
        exceeds.then_some(Excess::Empty)
    }

    fn begin_again(&mut self, received: u64) {
        if received - self.counted_from > COUNTED_BYTES {
            self.counted_from = received;
            self.answer_bytes = 0;
            self.empty_records = 0;
        }
    }
}

/// Returns the number of complete records at the start of `bytes`.
#[must_use]
pub fn complete_records(bytes: &[u8]) -> usize {
    first_records(bytes, usize::MAX).0
}

/// Returns the number of complete records at the start of `bytes`, but at most `most`, and their length.
#[must_use]
pub fn first_records(bytes: &[u8], most: usize) -> (usize, usize) {
    let (mut end, mut count) = (0, 0);
    while count < most {
        let Some(header) = bytes.get(end..end + HEADER_BYTES) else { break };
        let next = end + HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]]));
        if next > bytes.len() {
            break;
        }
        end = next;
        count += 1;
    }
    (count, end)
}
