//! The threads that relay connections, and the commands that the control plane sends to them.
//!
//! Each thread has its own epoll and its own connections. Commands come through a list and wake the thread; connections
//! that return are put into a list that all threads share, and wake the control plane.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, read, write};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::completions::{Collected, Counting, Wanted};
use crate::connection::{Connection, Rest, ThreadResources, Turn};
use crate::costs::Costs;
use crate::meters::lock;
use crate::sockets::{PipeLimit, Pipes, READ_BYTES, TAIL_BYTES};
use crate::table::Table;

/// The number of API keys that are counted.
pub const COUNTED_APIS: usize = 128;

/// The most events that one wait returns.
const EVENTS: usize = 128;

/// One turn in this many is measured on average, and its thread time is multiplied by this number: reading a thread's
/// time is a system call. Which ones is random, so that no client can send its expensive requests between them.
const MEASURED_ONE_OF: u64 = 7;

/// Least and greatest time in nanoseconds until a charge is tried again after its credit was withdrawn. The least time
/// is about as long as the control plane takes for a request. The time doubles each time that the credit is still
/// withdrawn, so that a waiting thread does not use the processor that the control plane needs.
const LATER_NS: [i64; 2] = [100_000, 3_200_000];

/// The event data of the descriptor that wakes a thread.
const WAKE: u64 = u64::MAX;

/// The longest time in seconds that a thread needs for a turn, on a machine that is short of processors. A thread that
/// does not answer for so long hangs. The event loop cannot go on without its answer: the sockets of the connection must
/// not be closed while the thread may use them.
const LONGEST_TURN_S: usize = 30;

/// Returns the time of a clock in nanoseconds.
#[must_use]
pub fn clock_ns(clock: ClockId) -> i64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    tv_sec * 1_000_000_000 + tv_nsec
}

/// A connection that returns to the control plane.
pub type Returned = (u64, Rest);

enum Command {
    Relay(u64, Box<Connection>),
    Recall(u64),
    TakeBack(u64, Arc<Answer>),
    Collect,
    Stop,
}

#[derive(Default)]
enum Taken {
    #[default]
    NotYet,
    /// The `Rest` of the connection; `None` if the connection had returned by itself.
    Done(Option<Box<Rest>>),
}

/// The answer of a thread to `Command::TakeBack`.
#[derive(Default)]
struct Answer {
    taken: Mutex<Taken>,
    is_there: Condvar,
}

impl Answer {
    fn put(&self, rest: Option<Rest>) {
        *lock(&self.taken) = Taken::Done(rest.map(Box::new));
        self.is_there.notify_one();
    }

    /// Waits for the answer for at most `seconds`, each of which is waited for by itself: the time in which the whole
    /// process was stopped counts as one of them.
    fn wait(&self, seconds: usize) -> Taken {
        let mut taken = lock(&self.taken);
        for _ in 0..seconds {
            let is_missing = |taken: &mut Taken| matches!(taken, Taken::NotYet);
            let waited = self.is_there.wait_timeout_while(taken, Duration::from_secs(1), is_missing);
            let (found, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            taken = found;
            if !timeout.timed_out() {
                break;
            }
        }
        std::mem::take(&mut *taken)
    }
}

struct Mailbox {
    commands: Mutex<Vec<Command>>,
    wake: OwnedFd,
    /// Whether there are completed requests that the thread has not handed over.
    has_completed: AtomicBool,
    /// Whether the control plane waits for a connection, which is given back before others have their turn.
    is_waited_for: AtomicBool,
    /// How often the thread has executed its commands.
    beats: AtomicU64,
}

impl Mailbox {
    fn send(&self, command: Command) {
        let is_waited_for = matches!(command, Command::TakeBack(..));
        lock(&self.commands).push(command);
        if is_waited_for {
            self.is_waited_for.store(true, Ordering::Release);
        }
        wake(&self.wake);
    }
}

/// What all threads share with the control plane.
struct Shared {
    returned: Mutex<Vec<Returned>>,
    /// Completed requests that were handed over for connections that have not returned, by id of the connection.
    completed: Mutex<HashMap<u64, Collected>>,
    /// Number of executed `Command::Collect`.
    collections: AtomicU64,
    /// Whether the control plane has been woken, and has not looked since.
    is_woken: AtomicBool,
    wake: OwnedFd,
}

impl Shared {
    fn put(&self, returned: Returned) {
        lock(&self.returned).push(returned);
        self.notify();
    }

    fn notify(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            wake(&self.wake);
        }
    }

    /// Puts the completed requests that were handed over for a connection before those in its `Rest`, and removes them
    /// from `completed`.
    fn complete(&self, id: u64, rest: &mut Rest) {
        if let Some(mut earlier) = lock(&self.completed).remove(&id) {
            earlier.append(std::mem::take(&mut rest.completed));
            rest.completed = earlier;
        }
    }
}

fn new_buffer() -> Vec<u8> {
    vec![0; TAIL_BYTES + READ_BYTES]
}

fn wake(fd: &OwnedFd) {
    let _ = write(fd, &1_u64.to_ne_bytes()); // it fails only if the counter is full, so that the reader is awake
}

/// The threads.
pub struct Engine {
    shared: Arc<Shared>,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
    connections: HashMap<u64, usize>,
    next_id: u64,
    /// Number of connections of each thread.
    loads: Vec<usize>,
    /// Number of `Command::Collect` that were sent.
    collections: u64,
    /// Number of requests that the threads have begun to forward, by API key.
    pub requests: Arc<Vec<AtomicU64>>,
    /// Number of bytes that all connections hold (`Progress::held`).
    pub held: Arc<AtomicU64>,
    pub pipes: Arc<PipeLimit>,
}

impl Engine {
    /// Starts `count` threads. Fails if the system has no descriptors or threads left.
    pub fn start(count: usize, table: Table, wanted: &Wanted) -> std::io::Result<Self> {
        let requests: Arc<Vec<AtomicU64>> = Arc::new((0..COUNTED_APIS).map(|_| AtomicU64::new(0)).collect());
        let shared = Arc::new(Shared {
            returned: Mutex::default(),
            completed: Mutex::default(),
            collections: AtomicU64::new(0),
            is_woken: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        });
        let table = Arc::new(table);
        let mut engine = Engine {
            shared,
            mailboxes: Vec::new(),
            threads: Vec::new(),
            connections: HashMap::new(),
            next_id: 0,
            loads: vec![0; count],
            collections: 0,
            requests,
            held: Arc::default(),
            pipes: Arc::default(),
        };
        for number in 0..count {
            if let Err(error) = engine.start_thread(number, &table, wanted) {
                engine.stop();
                return Err(error);
            }
        }
        Ok(engine)
    }

    fn start_thread(&mut self, number: usize, table: &Arc<Table>, wanted: &Wanted) -> std::io::Result<()> {
        let mailbox = Arc::new(Mailbox {
            commands: Mutex::default(),
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            has_completed: AtomicBool::new(false),
            is_waited_for: AtomicBool::new(false),
            beats: AtomicU64::new(0),
        });
        let place = ThreadResources {
            table: Arc::clone(table),
            buffer: new_buffer(),
            pipes: Pipes::new(Arc::clone(&self.pipes)),
            requests: Arc::clone(&self.requests),
            counting: Counting::new(wanted.clone()),
            costs: Costs::default(),
            held: Arc::clone(&self.held),
            now_ns: 0,
        };
        let mut worker = Worker::new(Arc::clone(&mailbox), Arc::clone(&self.shared), place)?;
        let name = format!("headrace-data-{number}");
        self.threads.push(std::thread::Builder::new().name(name).spawn(move || worker.run())?);
        self.mailboxes.push(mailbox);
        Ok(())
    }

    /// The descriptor that is readable while connections have returned.
    #[must_use]
    pub fn wake(&self) -> &OwnedFd {
        &self.shared.wake
    }

    /// Relays a connection from now on; returns its id, or `None` if no thread runs, as after `stop`.
    pub fn relay(&mut self, connection: Connection) -> Option<u64> {
        let thread = self.least_loaded()?;
        self.next_id += 1;
        let id = self.next_id;
        self.loads[thread] += 1;
        self.connections.insert(id, thread);
        self.mailboxes[thread].send(Command::Relay(id, Box::new(connection)));
        Some(id)
    }

    /// Returns the thread with the fewest connections, without threads that have ended by a panic.
    fn least_loaded(&self) -> Option<usize> {
        let runs = |thread: &usize| !self.threads[*thread].is_finished();
        (0..self.mailboxes.len()).filter(runs).min_by_key(|thread| self.loads[*thread])
    }

    /// Asks for a connection, which returns between the next two frames of each direction.
    pub fn recall(&self, id: u64) {
        if let Some(thread) = self.connections.get(&id) {
            self.mailboxes[*thread].send(Command::Recall(id));
        }
    }

    /// Begins to take a connection back at once, in the middle of frames; `None` if it has returned. Nothing is left of
    /// one whose thread has ended.
    #[must_use]
    pub fn take_back(&mut self, id: u64) -> Option<TakeBack> {
        let thread = self.forget(id)?;
        let answer = Arc::new(Answer::default());
        if self.threads[thread].is_finished() {
            answer.put(Some(Rest::lost()));
        } else {
            self.mailboxes[thread].send(Command::TakeBack(id, Arc::clone(&answer)));
        }
        Some(TakeBack { answer, shared: Arc::clone(&self.shared), id })
    }

    /// Returns the connections that have returned since the last call.
    pub fn returned(&mut self) -> Vec<Returned> {
        let _ = read(&self.shared.wake, &mut [0_u8; 8]); // it is empty if nothing has returned
        // The flag is cleared after the read: if it were cleared before, the read could consume the wake-up of a thread
        // that sets it in between, and no other would follow. It is cleared before the list is taken, so that the list
        // has everything that was added while the flag was set.
        self.shared.is_woken.swap(false, Ordering::AcqRel);
        let mut returned = std::mem::take(&mut *lock(&self.shared.returned));
        returned.retain(|(id, _)| self.forget(*id).is_some());
        for (id, rest) in &mut returned {
            self.shared.complete(*id, rest);
        }
        returned
    }

    /// Asks the threads for the completed requests. All threads have answered as soon as `collections` has reached the
    /// returned number.
    pub fn collect(&mut self) -> u64 {
        for mailbox in &self.mailboxes {
            if mailbox.has_completed.swap(false, Ordering::AcqRel) {
                self.collections += 1;
                mailbox.send(Command::Collect);
            }
        }
        self.collections
    }

    /// Returns how often threads have answered `collect`.
    #[must_use]
    pub fn collections(&self) -> u64 {
        self.shared.collections.load(Ordering::Acquire)
    }

    /// Returns the completed requests that threads have handed over since the last call, by id of the connection. None
    /// of these connections has been in the result of `returned` or of `TakeBack::wait`.
    #[must_use]
    pub fn completed(&self) -> HashMap<u64, Collected> {
        std::mem::take(&mut *lock(&self.shared.completed))
    }

    /// Wakes the threads that have connections, and returns how often each has executed its commands until now; `None`
    /// for a thread without connections. Unless a thread hangs, a later call returns a larger number for it.
    #[must_use]
    pub fn beats(&self) -> Vec<Option<u64>> {
        let ask = |mailbox: &Mailbox| {
            let beats = mailbox.beats.load(Ordering::Acquire);
            wake(&mailbox.wake);
            beats
        };
        self.mailboxes.iter().zip(&self.loads).map(|(mailbox, load)| (*load > 0).then(|| ask(mailbox))).collect()
    }

    fn forget(&mut self, id: u64) -> Option<usize> {
        let thread = self.connections.remove(&id)?;
        self.loads[thread] -= 1;
        Some(thread)
    }

    /// Ends the threads. Connections that have not returned are left as they are.
    pub fn stop(&mut self) {
        for mailbox in self.mailboxes.drain(..) {
            mailbox.send(Command::Stop);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.connections.clear();
    }
}

/// A connection that is being taken back.
pub struct TakeBack {
    answer: Arc<Answer>,
    shared: Arc<Shared>,
    id: u64,
}

impl TakeBack {
    /// Waits for the connection, for at most one turn of its thread. The process ends if there is no answer after
    /// `LONGEST_TURN_S`.
    #[must_use]
    pub fn wait(self) -> Option<Rest> {
        let taken = match self.answer.wait(LONGEST_TURN_S) {
            Taken::Done(rest) => rest.map(|rest| *rest),
            Taken::NotYet => {
                let text = "headrace: a thread of the native data plane does not answer, so the process ends";
                let _ = writeln!(std::io::stderr(), "{text}"); // it fails if standard error is closed
                std::process::abort()
            }
        };
        let mut rest = taken.or_else(|| {
            let mut returned = lock(&self.shared.returned); // it returned by itself in between
            let at = returned.iter().position(|(id, _)| *id == self.id)?;
            Some(returned.swap_remove(at).1)
        })?;
        self.shared.complete(self.id, &mut rest);
        Some(rest)
    }
}

struct Slot {
    id: u64,
    connection: Box<Connection>,
    /// Whether it is in `Worker::again` or `Worker::later`.
    is_queued: bool,
    /// Whether it is in `Worker::completed`.
    is_listed: bool,
}

struct Worker {
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
    place: ThreadResources,
    epoll: OwnedFd,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    slot_of: HashMap<u64, usize>,
    again: VecDeque<u64>,
    /// Connections that wait for a credit that is withdrawn.
    later: Vec<u64>,
    /// The pause in nanoseconds before they are tried again.
    later_ns: i64,
    /// The monotonic time in nanoseconds from which they are tried again; of no use without any.
    later_due_ns: i64,
    /// Connections with completed requests to hand over.
    completed: Vec<u64>,
    /// The number of turns until one is measured.
    unmeasured: u64,
    random: fastrand::Rng,
}

impl Worker {
    fn new(mailbox: Arc<Mailbox>, shared: Arc<Shared>, place: ThreadResources) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &mailbox.wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Worker {
            mailbox,
            shared,
            place,
            epoll,
            slots: Vec::new(),
            free: Vec::new(),
            slot_of: HashMap::new(),
            again: VecDeque::new(),
            later: Vec::new(),
            later_ns: LATER_NS[0],
            later_due_ns: 0,
            completed: Vec::new(),
            unmeasured: 1,
            random: fastrand::Rng::new(),
        })
    }

    fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            let timeout = match (self.again.is_empty(), self.later.is_empty()) {
                (false, _) => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
                (true, false) => {
                    let wait_ns = self.later_due_ns - clock_ns(ClockId::Monotonic);
                    Some(Timespec { tv_sec: 0, tv_nsec: wait_ns.clamp(0, LATER_NS[1]) })
                }
                (true, true) => None,
            };
            if let Err(error) = epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                if error == Errno::INTR {
                    continue;
                }
                return; // the epoll itself is broken
            }
            if self.place.counting.wanted.sums {
                self.place.counting.wall_offset_ns = clock_ns(ClockId::Realtime) - clock_ns(ClockId::Monotonic);
            }
            let mut is_woken = false;
            for event in &events {
                let data = event.data.u64();
                if data == WAKE {
                    is_woken = true;
                } else {
                    self.handle(data, event.flags);
                }
            }
            for _ in 0..self.again.len() {
                let Some(id) = self.again.pop_front() else { break };
                self.turn_again(id);
            }
            if !self.later.is_empty() && clock_ns(ClockId::Monotonic) >= self.later_due_ns {
                for id in std::mem::take(&mut self.later) {
                    self.turn_again(id);
                }
                self.later_ns = if self.later.is_empty() { LATER_NS[0] } else { LATER_NS[1].min(2 * self.later_ns) };
                self.later_due_ns = clock_ns(ClockId::Monotonic) + self.later_ns;
            }
            if is_woken && !self.obey() {
                return;
            }
        }
    }

    fn handle(&mut self, data: u64, flags: EventFlags) {
        let slot = (data >> 1) as usize;
        let Some(Some(Slot { connection, .. })) = self.slots.get_mut(slot) else { return };
        let socket = if data & 1 == 0 { &mut connection.client } else { &mut connection.broker };
        let has_ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        if has_ended || flags.contains(EventFlags::IN) {
            socket.may_read = true;
        }
        if has_ended || flags.contains(EventFlags::OUT) {
            socket.may_write = true;
            let _ = socket.flush_tls(); // the next read or write returns the error
        }
        socket.hung_up |= has_ended;
        self.turn(slot);
        self.give_back();
    }

    fn turn_again(&mut self, id: u64) {
        let Some(slot) = self.slot_of.get(&id).copied() else { return };
        if let Some(Some(found)) = self.slots.get_mut(slot) {
            found.is_queued = false;
        }
        self.turn(slot);
        self.give_back();
    }

    fn turn(&mut self, slot: usize) {
        let Some(Some(Slot { id, connection, is_queued, is_listed })) = self.slots.get_mut(slot) else { return };
        self.unmeasured -= 1;
        let is_measured = self.unmeasured == 0 && connection.measures_time();
        if self.unmeasured == 0 {
            self.unmeasured = self.random.u64(1..2 * MEASURED_ONE_OF);
        }
        let began_ns = if is_measured { clock_ns(ClockId::ThreadCPUTime) } else { 0 };
        self.place.now_ns = clock_ns(ClockId::Monotonic);
        let place = &mut self.place;
        let turn = catch_unwind(AssertUnwindSafe(|| connection.turn(place))).unwrap_or_else(|_| {
            self.place.buffer = new_buffer(); // the panic may have dropped the buffer
            connection.fail();
            Turn::Return
        });
        if is_measured {
            connection.thread_ns += (clock_ns(ClockId::ThreadCPUTime) - began_ns) * MEASURED_ONE_OF as i64;
        }
        if !*is_listed && !connection.completions.is_empty() {
            *is_listed = true;
            self.completed.push(*id);
            self.mailbox.has_completed.store(true, Ordering::Release);
        }
        match turn {
            Turn::Wait => {}
            Turn::Again | Turn::Later if *is_queued => {}
            Turn::Again => {
                *is_queued = true;
                self.again.push_back(*id);
            }
            Turn::Later => {
                *is_queued = true;
                if self.later.is_empty() {
                    self.later_due_ns = self.place.now_ns + self.later_ns;
                }
                self.later.push(*id);
            }
            Turn::Return => {
                if let Some(returned) = self.remove(slot) {
                    self.shared.put(returned);
                }
            }
        }
    }

    fn remove(&mut self, slot: usize) -> Option<Returned> {
        let Slot { id, mut connection, .. } = self.slots.get_mut(slot)?.take()?;
        // This includes requests of whose replies the client has not accepted all bytes.
        connection.completions.count(&mut self.place.counting, self.place.now_ns);
        for socket in [&connection.client, &connection.broker] {
            let _ = epoll::delete(&self.epoll, socket.fd()); // fails if adding the descriptor has failed
        }
        self.slot_of.remove(&id);
        self.free.push(slot);
        let held = connection.progress.held.swap(0, Ordering::Relaxed);
        self.place.held.fetch_sub(held, Ordering::Relaxed);
        Some((id, connection.into_rest()))
    }

    /// Executes the commands `TakeBack`. Other commands wait until all events are handled: a new connection could take
    /// the slot of another one for which there is still an event.
    fn give_back(&mut self) {
        if !self.mailbox.is_waited_for.swap(false, Ordering::AcqRel) {
            return;
        }
        let mailbox = Arc::clone(&self.mailbox);
        lock(&mailbox.commands).retain(|command| match command {
            Command::TakeBack(id, answer) => match self.slot_of.get(id).copied() {
                Some(slot) => {
                    answer.put(self.remove(slot).map(|(_, rest)| rest));
                    false
                }
                None => true, // it has returned, or is not added yet
            },
            _ => true,
        });
    }

    /// Executes the commands; returns `false` if the thread has to end.
    fn obey(&mut self) -> bool {
        let _ = read(self.mailbox.wake.as_fd(), &mut [0_u8; 8]);
        // This follows the read, which may consume the event that `Engine::beats` has written.
        self.mailbox.beats.fetch_add(1, Ordering::Release);
        let commands = std::mem::take(&mut *lock(&self.mailbox.commands));
        for command in commands {
            match command {
                Command::Relay(id, connection) => self.add(id, connection),
                Command::Recall(id) => {
                    if let Some(slot) = self.slot_of.get(&id).copied() {
                        if let Some(Some(found)) = self.slots.get_mut(slot) {
                            found.connection.recall();
                        }
                        self.turn(slot);
                    }
                }
                Command::TakeBack(id, answer) => {
                    let slot = self.slot_of.get(&id).copied();
                    answer.put(slot.and_then(|slot| self.remove(slot)).map(|(_, rest)| rest));
                }
                Command::Collect => self.hand_over(),
                Command::Stop => return false,
            }
        }
        true
    }

    /// Hands over what was completed.
    fn hand_over(&mut self) {
        let mut all = lock(&self.shared.completed);
        for id in self.completed.drain(..) {
            let Some(slot) = self.slot_of.get(&id) else { continue };
            if let Some(Some(Slot { connection, is_listed, .. })) = self.slots.get_mut(*slot) {
                *is_listed = false;
                all.entry(id).or_default().append(connection.completions.take());
            }
        }
        drop(all);
        self.shared.collections.fetch_add(1, Ordering::Release);
        self.shared.notify();
    }

    fn add(&mut self, id: u64, mut connection: Box<Connection>) {
        connection.completions.is_wanted = self.place.counting.wanted.is_any();
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = (slot as u64) << 1;
        let added = epoll::add(&self.epoll, connection.client.fd(), EventData::new_u64(data), flags)
            .and_then(|()| epoll::add(&self.epoll, connection.broker.fd(), EventData::new_u64(data | 1), flags));
        self.slots[slot] = Some(Slot { id, connection, is_queued: false, is_listed: false });
        self.slot_of.insert(id, slot);
        if added.is_err() {
            if let Some(returned) = self.remove(slot) {
                self.shared.put(returned);
            }
        } else {
            self.turn(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::sleep;
    use std::time::Duration;

    use super::{Answer, Command, Engine, Taken, lock};
    use crate::completions::Wanted;
    use crate::table::Table;

    #[test]
    fn a_thread_that_hangs_has_no_beats_until_it_goes_on() {
        let mut engine = Engine::start(2, Table::default(), &Wanted::default()).unwrap();
        assert_eq!(engine.beats(), [None, None]);
        engine.loads[0] = 1;
        let first = engine.beats();
        while engine.beats() == first {}
        let mailbox = Arc::clone(&engine.mailboxes[0]);
        let hangs = lock(&mailbox.commands);
        let mut before = engine.beats();
        for _ in 0..10 {
            sleep(Duration::from_millis(5)); // for what comes of the call before
            before = engine.beats();
        }
        assert_eq!(engine.beats(), before);
        drop(hangs);
        while engine.beats() == before {}
        engine.stop();
    }

    #[test]
    fn a_thread_that_has_ended_gets_no_connections() {
        let mut engine = Engine::start(2, Table::default(), &Wanted::default()).unwrap();
        assert_eq!(engine.least_loaded(), Some(0));
        engine.mailboxes[0].send(Command::Stop);
        while engine.least_loaded() == Some(0) {}
        assert_eq!(engine.least_loaded(), Some(1));
        engine.stop();
        assert_eq!(engine.least_loaded(), None);
    }

    #[test]
    fn an_answer_is_waited_for_until_it_comes_or_the_time_is_over() {
        let answer = Arc::new(Answer::default());
        assert!(matches!(answer.wait(1), Taken::NotYet));
        let thread = std::thread::spawn({
            let answer = Arc::clone(&answer);
            move || {
                sleep(Duration::from_millis(1100));
                answer.put(None);
            }
        });
        assert!(matches!(answer.wait(60), Taken::Done(None)));
        thread.join().unwrap();
    }
}
