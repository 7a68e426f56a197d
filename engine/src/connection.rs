//! One client's connection while it is relayed natively: from a moment between two frames to another one.
//!
//! It reads the head of each request and reply, charges the meters, and forwards the bytes. Whatever it does not
//! process itself ends the native relay: nothing more is begun, what has begun is completed, and the connection returns
//! to the control plane with the bytes that were read and not processed (`Outcome::Return`). So the control plane gets
//! every error and every request that needs a decision as if it had read it itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::io::Errno;

use crate::completions::{Collected, Completions, Counting, Reply};
use crate::costs::Costs;
use crate::fields::Stop;
use crate::heads::{LENGTH_BYTES, ReplyHead, cap_fetch, read_reply, read_request};
use crate::meters::{Answer, Meter, SeenIds};
use crate::sockets::{HEAD_BYTES, Pipes, READ_BYTES, Read, SPLICE_FROM_BYTES, Socket, TAIL_BYTES, Unsent};
use crate::table::{Kind, PRODUCE, Row, Table};
use crate::walks::fetch::FetchSteps;
use crate::walks::produce::ProduceSteps;
use crate::walks::produce_reply;
use crate::walks::{Steps, Walk};

/// Requests in flight whose memory is not counted, as in `InFlight` of `headrace.proxy.connection.state`.
const UNCOUNTED_REQUESTS: usize = 16;

/// Number of reads of one connection before other connections have their turn.
const READS_A_TURN: usize = 8;

/// What the control plane reads of a connection that is relayed natively, without asking the thread.
#[derive(Default)]
pub struct Progress {
    pub received_from_client: AtomicU64,
    pub sent_to_client: AtomicU64,
    pub received_from_broker: AtomicU64,
    pub sent_to_broker: AtomicU64,
    pub spliced: AtomicU64,
    /// Time of the last byte (ns).
    pub active_ns: AtomicI64,
    pub in_flight: AtomicU64,
    /// Number of requests that have begun to arrive natively.
    pub requests: AtomicU64,
    /// 1 while a request has arrived in part.
    pub arriving: AtomicU64,
    /// Bytes in memory.
    pub held: AtomicU64,
    /// Number of replies in which hints to other leaders were hidden.
    pub hints: AtomicU64,
    /// 1 while the broker has not accepted bytes of a request, and no reply waits for the client.
    pub blocked: AtomicU64,
}

/// A request in flight.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub api_key: i16,
    pub version: i16,
    pub correlation_id: i32,
    /// The field `acks` of Produce; 0 for other APIs.
    pub acks: i16,
    pub request_bytes: u32,
    pub received_ns: i64,
    pub forwarded_ns: i64,
    /// Whether the last byte was read, and charged.
    pub arrived: bool,
    /// Whether no further request is forwarded before the reply.
    pub alone: bool,
}

/// The meters and limits of a connection. A charge within the credit of a meter needs no decision of the control plane.
/// A quota that does not apply has no meter.
pub struct Terms {
    pub client_id: Box<[u8]>,
    pub produced: Option<Arc<Meter>>,
    pub fetched: Option<Arc<Meter>>,
    pub request_time: Option<Arc<Meter>>,
    pub producer_ids: Option<Arc<SeenIds>>,
    /// Whether thread time is measured although it is not charged.
    pub measures_time: bool,
    /// The most bytes of a Fetch; `i32::MAX` does not limit it.
    pub fetch_bytes: i32,
    /// Whether a Fetch is `Exchange::alone`.
    pub fetches_alone: bool,
    pub most_in_flight: usize,
    pub longest_frame: u32,
    pub most_rows: usize,
    /// From this time on, a request is left to the control plane, since a login has to be repeated before it.
    pub until_ns: i64,
}

/// Why a connection returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A request that the control plane has to process.
    Request,
    /// A reply that the control plane has to process.
    Reply,
    /// A charge that is beyond the credit.
    Credit,
    /// The client or the broker has closed.
    End,
    /// The control plane has asked for it.
    Recalled,
}

/// A side of a connection that has failed, and how.
#[derive(Clone, Debug)]
pub enum Fault {
    Client(Errno),
    Broker(Errno),
    /// The fields of a Produce request violate its schema; part of it was forwarded.
    Request,
    /// A Produce request has more rows than a request may have; part of it was forwarded.
    Rows,
    /// The fields of a Fetch reply violate its schema; part of it was forwarded.
    Reply,
    /// The data plane itself has failed, by a panic.
    Internal,
}

/// What is left of a native relay.
pub struct Rest {
    pub reason: Reason,
    pub fault: Option<Fault>,
    pub request_tail: Vec<u8>,
    pub reply_tail: Vec<u8>,
    /// Bytes of a request that were not read, after which the next frame begins. Above 0 only if the request was cut
    /// off: by `Command::TakeBack`, by a failure, or because a side has closed.
    pub request_left: usize,
    /// Bytes of a reply that were not read, after which the next frame begins; as `request_left`.
    pub reply_left: usize,
    /// Whether bytes of replies were read that the client has not accepted. They are lost. It is true only after
    /// `Command::TakeBack`, after a failure, or if the client has closed.
    pub reply_lost: bool,
    pub in_flight: Vec<Exchange>,
    /// The head of the reply that has begun, whose request is the first one in flight.
    pub begun_reply: Option<Reply>,
    /// Completed requests that were not handed over before.
    pub completed: Collected,
    /// Whether the last request in flight has arrived and still has to be charged.
    pub asks_arrival: bool,
    /// New producer ids of the last request in flight, which still have to be charged.
    pub producer_ids: Vec<i64>,
    /// Thread time that still has to be charged (ns).
    pub thread_ns: i64,
}

impl Rest {
    /// What is left of a connection whose thread has ended: nothing.
    #[must_use]
    pub fn lost() -> Self {
        Rest {
            reason: Reason::End,
            fault: Some(Fault::Internal),
            request_tail: Vec::new(),
            reply_tail: Vec::new(),
            request_left: 0,
            reply_left: 0,
            reply_lost: true,
            in_flight: Vec::new(),
            begun_reply: None,
            completed: Collected::default(),
            asks_arrival: false,
            producer_ids: Vec::new(),
            thread_ns: 0,
        }
    }
}

/// What follows a turn of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Wait for the sockets.
    Wait,
    /// There is more to do, after the turns of other connections.
    Again,
    /// A credit is withdrawn for a moment, so that there is no event to wait for.
    Later,
    /// The connection returns to the control plane.
    Return,
}

/// The resources of a thread that a connection uses during its turn.
pub struct ThreadResources {
    pub table: Arc<Table>,
    pub buffer: Vec<u8>,
    pub pipes: Pipes,
    pub requests: Arc<Vec<AtomicU64>>,
    pub counting: Counting,
    pub costs: Costs,
    /// Number of bytes that all connections hold.
    pub held: Arc<AtomicU64>,
    pub now_ns: i64,
}

impl ThreadResources {
    fn now_ms(&self) -> i64 {
        self.now_ns / 1_000_000
    }
}

enum Frame<S> {
    /// The next byte begins a frame.
    Between,
    /// This number of bytes is forwarded without being parsed.
    Skip(usize),
    Walk(Box<Walk<S>>),
}

impl<S: Steps> Frame<S> {
    fn left(&self) -> usize {
        match self {
            Frame::Between => 0,
            Frame::Skip(left) => *left,
            Frame::Walk(walk) => walk.progress.left,
        }
    }

    fn is_between(&self) -> bool {
        matches!(self, Frame::Between)
    }

    /// Bytes that follow and need not be read.
    fn unread(&self) -> usize {
        match self {
            Frame::Between => 0,
            Frame::Skip(left) => *left,
            Frame::Walk(walk) => walk.progress.skip_left,
        }
    }

    fn passed_outside(&mut self, count: usize) {
        match self {
            Frame::Between => {}
            Frame::Skip(left) => *left -= count,
            Frame::Walk(walk) => walk.passed_outside(count),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Frame::Between => false,
            Frame::Skip(left) => *left == 0,
            Frame::Walk(walk) => walk.is_over(),
        }
    }

    /// Processes the part of the frame that is in `bytes`; returns its length.
    fn pass(&mut self, bytes: &mut [u8]) -> Result<usize, Stop> {
        match self {
            Frame::Between => Ok(0),
            Frame::Skip(left) => {
                let passed = bytes.len().min(*left);
                *left -= passed;
                Ok(passed)
            }
            Frame::Walk(walk) => walk.walk(bytes),
        }
    }
}

/// One direction: what has been read of it, and what is left to send.
struct Direction<S> {
    frame: Frame<S>,
    tail: Vec<u8>,
    /// Whether the tail may contain a frame that can be begun, so that it is scanned before the socket is read again.
    rescan: bool,
    unsent: Unsent,
    /// Whether the last frame, or the longest records in it, were large enough to be spliced. The next ones are
    /// probably as large, so that only their heads have to be read.
    is_large: bool,
    /// Whether neither side has TLS.
    splices: bool,
}

impl<S: Steps> Direction<S> {
    fn new(tail: Vec<u8>, splices: bool) -> Self {
        let rescan = !tail.is_empty();
        Direction { frame: Frame::Between, tail, rescan, unsent: Unsent::default(), is_large: false, splices }
    }

    /// Begins a frame of `size` bytes that passes unread.
    fn skip(&mut self, size: usize) {
        self.is_large = self.splices && size >= SPLICE_FROM_BYTES;
        self.frame = Frame::Skip(size);
    }

    /// Begins a frame whose body, of `body_bytes` after `head_bytes`, is walked.
    fn walk(&mut self, steps: S, head_bytes: usize, body_bytes: usize) {
        let mut walk = Walk::new(steps, body_bytes);
        walk.skip_head(head_bytes);
        self.frame = Frame::Walk(Box::new(walk));
    }

    /// Ends the frame; returns what was read of it.
    fn end_frame(&mut self) -> Option<S> {
        match std::mem::replace(&mut self.frame, Frame::Between) {
            Frame::Walk(walk) => {
                self.is_large = self.splices && walk.progress.longest >= SPLICE_FROM_BYTES;
                Some(walk.steps)
            }
            Frame::Between | Frame::Skip(_) => None,
        }
    }

    fn to_splice(&self) -> usize {
        let unread = self.frame.unread();
        if self.splices && unread >= SPLICE_FROM_BYTES && self.tail.is_empty() { unread } else { 0 }
    }

    fn is_quiet(&self) -> bool {
        self.frame.is_between() && self.unsent.is_empty()
    }

    /// Copies the tail into `buffer`, and reads once behind it, unless the tail may contain a frame. Returns the end of
    /// the bytes, or the result of a read without bytes.
    fn fill(&mut self, from: &mut Socket, buffer: &mut [u8]) -> Result<Result<usize, Read>, Errno> {
        let kept = self.tail.len();
        buffer[..kept].copy_from_slice(&self.tail);
        if self.rescan {
            self.rescan = false;
            return Ok(Ok(kept));
        }
        let most = if self.is_large { self.frame.unread().min(READ_BYTES) + HEAD_BYTES } else { READ_BYTES };
        // The tail has less than a read: an incomplete head or group of fields, or a part of a small reply.
        let most = most.min(buffer.len() - kept);
        match from.receive(&mut buffer[kept..kept + most])? {
            Read::Bytes(count) => Ok(Ok(kept + count)),
            other => Ok(Err(other)),
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            if self.tail.capacity() > 0 {
                self.tail = Vec::new();
            }
        } else {
            self.tail.clear();
            self.tail.extend_from_slice(bytes);
        }
    }
}

/// A connection.
#[allow(clippy::struct_excessive_bools, reason = "facts that are independent of each other")]
pub struct Connection {
    pub client: Socket,
    pub broker: Socket,
    pub progress: Arc<Progress>,
    terms: Terms,
    requests: Direction<ProduceSteps>,
    replies: Direction<FetchSteps>,
    in_flight: VecDeque<Exchange>,
    leaves: Option<Reason>,
    fault: Option<Fault>,
    /// Whether a side has closed, so that frames that have begun cannot be completed.
    is_cut: bool,
    /// Whether a credit is withdrawn for a moment, so that there is no event to wait for.
    asks_again: bool,
    asks_arrival: bool,
    producer_ids: Vec<i64>,
    /// Thread time that was not charged yet (ns).
    pub thread_ns: i64,
    pub completions: Completions,
}

impl Connection {
    #[must_use]
    pub fn new(client: Socket, broker: Socket, terms: Terms, in_flight: Vec<Exchange>, request_tail: Vec<u8>) -> Self {
        let splices = !client.has_tls() && !broker.has_tls();
        Connection {
            client,
            broker,
            progress: Arc::default(),
            terms,
            requests: Direction::new(request_tail, splices),
            replies: Direction::new(Vec::new(), splices),
            in_flight: in_flight.into(),
            leaves: None,
            fault: None,
            is_cut: false,
            asks_again: false,
            asks_arrival: false,
            producer_ids: Vec::new(),
            thread_ns: 0,
            completions: Completions::default(),
        }
    }

    /// Whether the thread time of this connection is measured.
    #[must_use]
    pub fn measures_time(&self) -> bool {
        self.terms.request_time.is_some() || self.terms.measures_time
    }

    /// Ends the native relay between the next two frames.
    pub fn recall(&mut self) {
        self.leave(Reason::Recalled);
    }

    fn leave(&mut self, reason: Reason) {
        self.leaves.get_or_insert(reason);
    }

    /// Returns what is left for the control plane. Frames that have begun are cut off.
    #[must_use]
    pub fn into_rest(mut self) -> Rest {
        Rest {
            reason: self.leaves.unwrap_or(Reason::Recalled),
            fault: self.fault,
            request_tail: self.requests.tail,
            reply_tail: self.replies.tail,
            request_left: self.requests.frame.left(),
            reply_left: self.replies.frame.left(),
            reply_lost: !self.replies.unsent.is_empty(),
            in_flight: self.in_flight.into(),
            begun_reply: self.completions.reply,
            completed: self.completions.take(),
            asks_arrival: self.asks_arrival,
            producer_ids: self.producer_ids,
            thread_ns: self.thread_ns,
        }
    }

    /// Moves what can be moved now.
    pub fn turn(&mut self, place: &mut ThreadResources) -> Turn {
        self.asks_again = false;
        let mut turn = Turn::Again;
        for _ in 0..READS_A_TURN {
            let moved = self.move_requests(place) | self.move_replies(place);
            if self.replies.unsent.is_empty() {
                self.completions.count(&mut place.counting, place.now_ns);
            }
            if self.client.hung_up && self.requests.is_quiet() && (self.leaves.is_some() || self.stops_reading()) {
                self.cut(); // nothing is read from the client now, so no read finds the end
            }
            if self.fault.is_some() || self.is_cut || self.returns() {
                turn = Turn::Return;
                break;
            }
            if self.asks_again {
                turn = Turn::Later;
                break;
            }
            if !moved {
                turn = Turn::Wait;
                break;
            }
        }
        self.report(place);
        turn
    }

    fn returns(&self) -> bool {
        self.leaves.is_some() && self.requests.is_quiet() && self.replies.is_quiet()
    }

    fn report(&self, place: &ThreadResources) {
        let progress = &self.progress;
        let received = self.client.received + self.broker.received;
        let before = progress.received_from_client.load(Ordering::Relaxed)
            + progress.received_from_broker.load(Ordering::Relaxed);
        if received != before {
            progress.active_ns.store(place.now_ns, Ordering::Relaxed);
        }
        progress.received_from_client.store(self.client.received, Ordering::Relaxed);
        progress.sent_to_client.store(self.client.sent, Ordering::Relaxed);
        progress.received_from_broker.store(self.broker.received, Ordering::Relaxed);
        progress.sent_to_broker.store(self.broker.sent, Ordering::Relaxed);
        progress.in_flight.store(self.in_flight.len() as u64, Ordering::Relaxed);
        let has_begun = if self.requests.frame.is_between() {
            let has_part = !self.requests.tail.is_empty() || self.client.undecrypted() > 0;
            has_part && self.leaves.is_none() && !self.stops_reading()
        } else {
            true
        };
        let arrives = has_begun && self.requests.unsent.is_empty();
        progress.arriving.store(u64::from(arrives), Ordering::Relaxed);
        let held = self.in_flight.len().saturating_sub(UNCOUNTED_REQUESTS) * size_of::<Exchange>()
            + self.requests.tail.len()
            + self.replies.tail.len()
            + self.requests.unsent.held()
            + self.replies.unsent.held()
            + self.client.undecrypted()
            + self.broker.undecrypted();
        let held_before = progress.held.swap(held as u64, Ordering::Relaxed);
        place.held.fetch_add((held as u64).wrapping_sub(held_before), Ordering::Relaxed);
        let is_blocked = !self.requests.unsent.is_empty() && self.replies.unsent.is_empty();
        progress.blocked.store(u64::from(is_blocked), Ordering::Relaxed);
    }

    /// Whether the next request has to wait for a reply.
    fn stops_reading(&self) -> bool {
        self.in_flight.len() >= self.terms.most_in_flight || self.in_flight.back().is_some_and(|last| last.alone)
    }

    /// Ends the connection after a failure of this program.
    pub fn fail(&mut self) {
        self.fault = Some(Fault::Internal);
    }

    fn fail_client(&mut self, error: Errno) -> bool {
        self.fault.get_or_insert(Fault::Client(error));
        false
    }

    fn fail_broker(&mut self, error: Errno) -> bool {
        self.fault.get_or_insert(Fault::Broker(error));
        false
    }

    fn cut(&mut self) -> bool {
        self.is_cut = true;
        self.leave(Reason::End);
        false
    }

    // --- client to broker ---

    /// Returns whether something was moved.
    fn move_requests(&mut self, place: &mut ThreadResources) -> bool {
        let requests = &mut self.requests;
        if !requests.unsent.is_empty() {
            if !self.broker.may_write {
                return false;
            }
            if let Err(error) = requests.unsent.flush(&mut self.broker, &mut place.pipes) {
                return self.fail_broker(error);
            }
            return requests.unsent.is_empty();
        }
        if requests.frame.is_between() {
            if self.leaves.is_some() {
                return false;
            }
            if self.stops_reading() {
                return false;
            }
        }
        if !self.requests.rescan && !self.client.may_read {
            return false;
        }
        let most = self.requests.to_splice();
        if most > 0 {
            return self.splice_requests(most, place);
        }
        self.copy_request(place)
    }

    fn splice_requests(&mut self, most: usize, place: &mut ThreadResources) -> bool {
        let requests = &mut self.requests;
        match requests.unsent.splice(&mut self.client, most, &mut place.pipes) {
            Ok(Some(Read::Bytes(count))) => {
                if let Err(error) = requests.unsent.flush(&mut self.broker, &mut place.pipes) {
                    return self.fail_broker(error);
                }
                let requests = &mut self.requests;
                requests.frame.passed_outside(count);
                self.progress.spliced.fetch_add(count as u64, Ordering::Relaxed);
                if self.requests.frame.is_over() {
                    self.request_arrived(place);
                }
                true
            }
            Ok(Some(Read::End)) => self.cut(),
            Ok(Some(Read::Nothing)) => false,
            Ok(None) => {
                requests.is_large = false;
                self.copy_request(place)
            }
            Err(error) => self.fail_client(error),
        }
    }

    fn copy_request(&mut self, place: &mut ThreadResources) -> bool {
        match self.requests.fill(&mut self.client, &mut place.buffer) {
            Ok(Ok(end)) => self.scan_requests(end, place),
            Ok(Err(Read::End)) => self.cut(), // as in the control plane, this ends the whole connection
            Ok(Err(_)) => false,
            Err(error) => self.fail_client(error),
        }
    }

    /// Begins and forwards the requests in `place.buffer[..end]`.
    fn scan_requests(&mut self, end: usize, place: &mut ThreadResources) -> bool {
        let mut buffer = std::mem::take(&mut place.buffer);
        let mut at = 0;
        let mut is_one_frame = true;
        while at < end {
            if self.requests.frame.is_between()
                && (self.leaves.is_some() || self.stops_reading() || !self.begin_request(&mut buffer[at..end], place))
            {
                break;
            }
            match self.requests.frame.pass(&mut buffer[at..end]) {
                Ok(passed) => at += passed,
                Err(stop) => {
                    self.fault = Some(if stop == Stop::TooManyRows { Fault::Rows } else { Fault::Request });
                    break;
                }
            }
            if self.requests.frame.is_over() {
                self.request_arrived(place);
                is_one_frame = false;
            } else {
                break; // the window ends before the frame, or within a group of its fields
            }
        }
        self.requests.keep(&buffer[at..end]);
        // The broker cannot use a part of one frame, so the system may wait for the rest before it sends the part.
        let more = is_one_frame && self.requests.frame.left() > 0;
        let sent = if at > 0 { self.requests.unsent.send(&buffer[..at], &mut self.broker, more) } else { Ok(()) };
        place.buffer = buffer;
        match sent {
            Ok(()) => true,
            Err(error) => self.fail_broker(error),
        }
    }

    /// Begins the request at the start of `bytes`; returns whether it may be forwarded.
    fn begin_request(&mut self, bytes: &mut [u8], place: &mut ThreadResources) -> bool {
        let table = Arc::clone(&place.table);
        let (head, row) = match read_request(bytes, &table, &self.terms.client_id, self.terms.longest_frame) {
            Ok(found) => found,
            Err(Stop::Short) => {
                if bytes.len() > TAIL_BYTES / 2 {
                    self.leave(Reason::Request);
                }
                return false;
            }
            Err(_) => {
                self.leave(Reason::Request);
                return false;
            }
        };
        if place.now_ns >= self.terms.until_ns {
            self.leave(Reason::Request);
            return false;
        }
        let of_bytes = match row.kind {
            Kind::Produce => self.terms.produced.as_ref(),
            Kind::Fetch | Kind::FetchWithHints => self.terms.fetched.as_ref(),
            Kind::Plain => None,
        };
        let least = if row.kind == Kind::Produce { i64::from(head.size) } else { 1 };
        let time = place.costs.of_all(head.api_key, row, head.size, self.in_flight.len(), place.now_ns);
        if row.kind == Kind::Produce && self.terms.producer_ids.as_ref().is_some_and(|ids| ids.is_closed()) {
            return self.refuse_request(Answer::Refused);
        }
        let answers = [
            of_bytes.map_or(Answer::Charged, |meter| meter.answer(least)),
            self.terms.request_time.as_ref().map_or(Answer::Charged, |meter| meter.answer(time)),
        ];
        if let Some(answer) = [Answer::Refused, Answer::Later].into_iter().find(|answer| answers.contains(answer)) {
            return self.refuse_request(answer);
        }
        if let Some(limits_at) = head.fetch_limits_at {
            if self.terms.fetch_bytes < i32::MAX {
                cap_fetch(bytes, limits_at, self.terms.fetch_bytes);
            }
        }
        let is_fetch = matches!(row.kind, Kind::Fetch | Kind::FetchWithHints);
        self.in_flight.push_back(Exchange {
            api_key: head.api_key,
            version: head.version,
            correlation_id: head.correlation_id,
            acks: head.acks,
            request_bytes: head.size,
            received_ns: place.now_ns,
            forwarded_ns: place.now_ns,
            arrived: false,
            alone: is_fetch && self.terms.fetches_alone,
        });
        self.progress.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(count) = place.requests.get(head.api_key as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let size = LENGTH_BYTES + head.size as usize;
        if row.kind == Kind::Produce && self.terms.producer_ids.is_some() {
            let steps = ProduceSteps::new(head.version, self.terms.most_rows);
            self.requests.walk(steps, head.body_at, size - head.body_at);
        } else {
            self.requests.skip(size);
        }
        true
    }

    /// Leaves the next request to the control plane, or asks the meters again later. Always returns `false`: the
    /// request must not be forwarded now.
    fn refuse_request(&mut self, answer: Answer) -> bool {
        if answer == Answer::Refused {
            self.leave(Reason::Credit);
        } else {
            self.asks_again = true;
            self.requests.rescan = true;
        }
        false
    }

    /// Charges the request whose last byte was read.
    fn request_arrived(&mut self, place: &ThreadResources) {
        let steps = self.requests.end_frame();
        let Some(exchange) = self.in_flight.back_mut() else { return };
        exchange.arrived = true;
        if let Some(steps) = steps {
            if let Some(seen) = &self.terms.producer_ids {
                let now_ms = place.now_ms();
                self.producer_ids = steps.producer_ids;
                self.producer_ids.retain(|id| !seen.contains(*id, now_ms));
                if !self.producer_ids.is_empty() {
                    self.leaves.get_or_insert(Reason::Credit);
                }
            }
        }
        if exchange.api_key == PRODUCE {
            if let Some(meter) = &self.terms.produced {
                if meter.charge(place.now_ms(), i64::from(exchange.request_bytes)) != Answer::Charged {
                    exchange.arrived = false;
                    self.asks_arrival = true;
                    self.leaves.get_or_insert(Reason::Credit);
                }
            }
        }
    }

    // --- broker to client ---

    /// Returns whether something was moved.
    fn move_replies(&mut self, place: &mut ThreadResources) -> bool {
        let replies = &mut self.replies;
        if !replies.unsent.is_empty() {
            if !self.client.may_write {
                return false;
            }
            if let Err(error) = replies.unsent.flush(&mut self.client, &mut place.pipes) {
                return self.fail_client(error);
            }
            return replies.unsent.is_empty();
        }
        if replies.frame.is_between() && self.leaves.is_some() {
            return false;
        }
        if !replies.rescan && !self.broker.may_read {
            return false;
        }
        let most = replies.to_splice();
        if most > 0 {
            return self.splice_replies(most, place);
        }
        self.copy_reply(place)
    }

    fn copy_reply(&mut self, place: &mut ThreadResources) -> bool {
        match self.replies.fill(&mut self.broker, &mut place.buffer) {
            Ok(Ok(end)) => self.scan_replies(end, place),
            Ok(Err(Read::End)) => {
                self.broker.may_read = false;
                self.is_cut = !self.replies.frame.is_between() || !self.requests.frame.is_between();
                self.leave(Reason::End);
                false
            }
            Ok(Err(_)) => false,
            Err(error) => self.fail_broker(error),
        }
    }

    fn splice_replies(&mut self, most: usize, place: &mut ThreadResources) -> bool {
        let replies = &mut self.replies;
        match replies.unsent.splice(&mut self.broker, most, &mut place.pipes) {
            Ok(Some(Read::Bytes(count))) => {
                if let Err(error) = replies.unsent.flush(&mut self.client, &mut place.pipes) {
                    return self.fail_client(error);
                }
                let replies = &mut self.replies;
                replies.frame.passed_outside(count);
                self.progress.spliced.fetch_add(count as u64, Ordering::Relaxed);
                if self.replies.frame.is_over() {
                    self.reply_passed();
                }
                true
            }
            Ok(Some(Read::End)) => self.cut(),
            Ok(Some(Read::Nothing)) => false,
            Ok(None) => {
                replies.is_large = false;
                self.copy_reply(place)
            }
            Err(error) => self.fail_broker(error),
        }
    }

    /// Begins and forwards the replies in `place.buffer[..end]`.
    fn scan_replies(&mut self, end: usize, place: &mut ThreadResources) -> bool {
        let mut buffer = std::mem::take(&mut place.buffer);
        let mut at = 0;
        while at < end {
            if self.replies.frame.is_between() && (self.leaves.is_some() || !self.begin_reply(&buffer[at..end], place))
            {
                break;
            }
            let Ok(passed) = self.replies.frame.pass(&mut buffer[at..end]) else {
                self.fault = Some(Fault::Reply);
                break;
            };
            at += passed;
            if self.replies.frame.is_over() {
                self.reply_passed();
            } else {
                break;
            }
        }
        self.replies.keep(&buffer[at..end]);
        let more = self.replies.frame.left() >= SPLICE_FROM_BYTES;
        let sent = if at > 0 { self.replies.unsent.send(&buffer[..at], &mut self.client, more) } else { Ok(()) };
        place.buffer = buffer;
        match sent {
            Ok(()) => true,
            Err(error) => self.fail_client(error),
        }
    }

    /// Begins the reply at the start of `bytes`, and charges it; returns whether it may be forwarded.
    fn begin_reply(&mut self, bytes: &[u8], place: &mut ThreadResources) -> bool {
        let table = Arc::clone(&place.table);
        let Some(exchange) = self.in_flight.front() else {
            self.leave(Reason::Reply);
            return false;
        };
        if self.in_flight.len() == 1 && !self.requests.frame.is_between() {
            self.leave(Reason::Reply); // the broker answers before the whole request was forwarded
            return false;
        }
        let Some(row) = table.get(exchange.api_key, exchange.version) else {
            // Its request was forwarded before the native relay, by the control plane, which also processes the reply.
            self.leave(Reason::Reply);
            return false;
        };
        let head = match read_reply(bytes, row, exchange.correlation_id, self.terms.longest_frame) {
            Ok(head) => head,
            Err(Stop::Short) => return false,
            Err(_) => {
                self.leave(Reason::Reply);
                return false;
            }
        };
        let size = LENGTH_BYTES + head.size as usize;
        if row.kind == Kind::Produce {
            if size > READ_BYTES {
                self.leave(Reason::Reply);
                return false;
            }
            let Some(body) = bytes.get(head.body_at..size) else { return false };
            if produce_reply::passes(body, exchange.version) != Ok(true) {
                self.leave(Reason::Reply);
                return false;
            }
        }
        let (answer, thread_ns) = self.charge_reply(row, head, place);
        match answer {
            Answer::Charged => {}
            Answer::Refused => {
                self.leave(Reason::Credit);
                return false;
            }
            Answer::Later => {
                self.asks_again = true;
                self.replies.rescan = true;
                return false;
            }
        }
        let header_bytes = (head.body_at - LENGTH_BYTES) as u32;
        self.completions.reply = Some(Reply { reply_ns: place.now_ns, size: head.size, header_bytes, thread_ns });
        if row.kind == Kind::FetchWithHints {
            self.replies.walk(FetchSteps::default(), head.body_at, size - head.body_at);
        } else {
            self.replies.skip(size);
        }
        true
    }

    /// Charges all meters, or none, for the reply to the first request in flight; returns the answer, and the thread
    /// time of the request.
    fn charge_reply(&mut self, row: &Row, head: ReplyHead, place: &mut ThreadResources) -> (Answer, i64) {
        let Some(exchange) = self.in_flight.front() else { return (Answer::Refused, 0) };
        let fetched = match row.kind {
            Kind::Fetch | Kind::FetchWithHints => self.terms.fetched.as_ref(),
            _ => None,
        };
        let fetched_bytes = i64::from(head.size) + 8 - head.body_at as i64;
        let observed_ms = (place.now_ns - exchange.forwarded_ns) as f64 / 1e6;
        let nanos = row.handler_ns(exchange.request_bytes, head.size, observed_ms) + self.thread_ns;
        let now_ms = place.now_ms();
        let answer = match (fetched, &self.terms.request_time) {
            (Some(bytes), Some(time)) => Meter::charge_both((bytes, fetched_bytes), (time, nanos), now_ms),
            (Some(bytes), None) => bytes.charge(now_ms, fetched_bytes),
            (None, Some(time)) => time.charge(now_ms, nanos),
            (None, None) => Answer::Charged,
        };
        if answer == Answer::Charged && self.measures_time() {
            place.costs.note(exchange.api_key, row, exchange.request_bytes, nanos, place.now_ns);
            self.thread_ns = 0;
        }
        (answer, nanos)
    }

    fn reply_passed(&mut self) {
        if let Some(steps) = self.replies.end_frame() {
            self.progress.hints.fetch_add(u64::from(steps.hints), Ordering::Relaxed);
        }
        if let Some(exchange) = self.in_flight.pop_front() {
            self.completions.reply_read(exchange);
        }
        self.requests.rescan = !self.requests.tail.is_empty();
    }
}
