//! Non-blocking reads and writes of one direction, by copying or by `splice`, and the bytes that cannot be sent yet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::meters::lock;
use crate::tls::session::{PIECE_BYTES, Session};

/// The most bytes of one read.
pub const READ_BYTES: usize = 64 * 1024;

/// The most bytes of a stream that are kept because they cannot be forwarded yet: an incomplete head, or requests that
/// wait for an earlier one.
pub const TAIL_BYTES: usize = READ_BYTES;

/// The rest of a frame is spliced if it is at least this large. Copying less is cheaper than two more system calls.
pub const SPLICE_FROM_BYTES: usize = 32 * 1024;

/// The size of the read after a frame that was large enough to be spliced: enough for the head of the next frame, which
/// is probably as large.
pub const HEAD_BYTES: usize = 4096;

/// Capacity of a pipe: the default of `/proc/sys/fs/pipe-max-size`.
const PIPE_BYTES: usize = 1024 * 1024;

/// The most idle pipes that a thread keeps.
const IDLE_PIPES: usize = 16;

/// A socket of a connection, and what the system has reported of it.
pub struct Socket {
    fd: BorrowedFd<'static>,
    /// The state of TLS; the control plane does not use it while the connection is relayed natively.
    tls: Option<Arc<Mutex<Session>>>,
    pub may_read: bool,
    pub may_write: bool,
    /// Whether the peer has closed its side; bytes before the end may still have to be read.
    pub hung_up: bool,
    pub received: u64,
    pub sent: u64,
}

/// The result of a read.
pub enum Read {
    Bytes(usize),
    /// Nothing has arrived.
    Nothing,
    End,
}

impl Socket {
    #[must_use]
    pub fn new(fd: BorrowedFd<'static>, tls: Option<Arc<Mutex<Session>>>) -> Self {
        Socket { fd, tls, may_read: true, may_write: true, hung_up: false, received: 0, sent: 0 }
    }

    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'static> {
        self.fd
    }

    /// Whether the bytes are encrypted, so that they cannot be spliced.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads what has arrived. A failure of TLS is the error `PROTO`; `Session::failure` has it.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Read, Errno> {
        match self.tls.clone() {
            None => self.receive_plain(buffer),
            Some(tls) => self.receive_records(&mut lock(&tls), buffer),
        }
    }

    fn receive_records(&mut self, tls: &mut Session, buffer: &mut [u8]) -> Result<Read, Errno> {
        let found = tls.receive(buffer, |room| match self.receive_plain(room)? {
            Read::Bytes(count) => Ok(Some(count)),
            Read::Nothing => Ok(None),
            Read::End => Ok(Some(0)),
        })?;
        let _ = self.flush_records(tls); // what fails is found by the next write
        if tls.has_unread() {
            self.may_read = true;
        }
        match found {
            Some(0) => Ok(Read::End),
            Some(count) => Ok(Read::Bytes(count)),
            None if tls.failure().is_some() => Err(Errno::PROTO),
            None => Ok(Read::Nothing),
        }
    }

    /// Sends what TLS has to send, such as answers to requests for new keys, and what was encrypted before.
    pub fn flush_tls(&mut self) -> Result<(), Errno> {
        match self.tls.clone() {
            None => Ok(()),
            Some(tls) => self.flush_records(&mut lock(&tls)),
        }
    }

    fn flush_records(&mut self, tls: &mut Session) -> Result<(), Errno> {
        tls.flush(|bytes| self.send_plain(bytes, false))
    }

    /// Number of received bytes that TLS keeps: a part of a record, or bytes that did not fit into the buffer of the
    /// reader.
    #[must_use]
    pub fn undecrypted(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| lock(tls).held())
    }

    /// Number of encrypted bytes that the peer has not accepted.
    fn sealed(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| lock(tls).unsent())
    }

    fn receive_plain(&mut self, buffer: &mut [u8]) -> Result<Read, Errno> {
        let most = buffer.len();
        match recv(self.fd, buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Ok(Read::End),
            Ok((_, count)) => {
                self.received += count as u64;
                self.may_read = count == most || self.hung_up;
                Ok(Read::Bytes(count))
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.may_read = false;
                Ok(Read::Nothing)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the bytes that the socket accepts now; returns their number. `more`: the rest of the frame follows at
    /// once. With TLS, the number is that of the bytes that were encrypted; the session keeps those that were not
    /// accepted.
    pub fn send(&mut self, bytes: &[u8], more: bool) -> Result<usize, Errno> {
        let Some(tls) = self.tls.clone() else { return self.send_plain(bytes, more) };
        let mut tls = lock(&tls);
        let mut at = 0;
        while at < bytes.len() {
            let more = more || bytes.len() - at > PIECE_BYTES;
            let count = tls.send(&bytes[at..], |records| self.send_plain(records, more))?;
            at += count;
            if tls.failure().is_some() {
                return Err(Errno::PROTO);
            }
            if count == 0 || tls.unsent() > 0 {
                break;
            }
        }
        Ok(at)
    }

    fn send_plain(&mut self, bytes: &[u8], more: bool) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | if more { SendFlags::MORE } else { SendFlags::empty() };
        match send(self.fd, bytes, flags) {
            Ok(count) => {
                self.sent += count as u64;
                self.may_write = count == bytes.len();
                Ok(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                self.may_write = false;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }
}

/// The number of open pipes of all threads, and the most that may be open, so that they leave descriptors for sockets.
#[derive(Debug)]
pub struct PipeLimit {
    pub most: AtomicUsize,
    open: AtomicUsize,
}

impl Default for PipeLimit {
    fn default() -> Self {
        PipeLimit { most: AtomicUsize::new(usize::MAX), open: AtomicUsize::new(0) }
    }
}

/// A pipe's place among those that may be open.
struct Place(Arc<PipeLimit>);

impl Place {
    /// Fails if as many are open as may be.
    fn take(limit: &Arc<PipeLimit>) -> Result<Self, Errno> {
        let place = Place(Arc::clone(limit)); // its drop undoes the count
        let open = limit.open.fetch_add(1, Ordering::Relaxed);
        if open < limit.most.load(Ordering::Relaxed) { Ok(place) } else { Err(Errno::MFILE) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A pipe, and the number of bytes in it.
pub struct Pipe {
    reading: OwnedFd,
    writing: OwnedFd,
    capacity: usize,
    held: usize,
    _place: Place,
}

/// The idle pipes of one thread.
pub struct Pipes {
    idle: Vec<Pipe>,
    limit: Arc<PipeLimit>,
}

impl Pipes {
    #[must_use]
    pub fn new(limit: Arc<PipeLimit>) -> Self {
        Pipes { idle: Vec::new(), limit }
    }

    fn take(&mut self) -> Result<Pipe, Errno> {
        if let Some(pipe) = self.idle.pop() {
            return Ok(pipe);
        }
        let place = Place::take(&self.limit)?;
        let (reading, writing) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let mut capacity = PIPE_BYTES;
        while capacity > READ_BYTES && fcntl_setpipe_size(&writing, capacity).is_err() {
            capacity /= 2; // above pipe-max-size, or above the user's limit of pages
        }
        Ok(Pipe { reading, writing, capacity, held: 0, _place: place })
    }

    fn give_back(&mut self, pipe: Pipe) {
        if pipe.held == 0 && self.idle.len() < IDLE_PIPES {
            self.idle.push(pipe);
        }
    }
}

/// Bytes of one direction that were read and that the other socket has not accepted.
#[derive(Default)]
pub struct Unsent {
    bytes: Vec<u8>,
    at: usize,
    pipe: Option<Pipe>,
    /// Encrypted bytes that the session of the other socket keeps; they come before `bytes`.
    sealed: usize,
}

const SPLICE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

impl Unsent {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.pipe.is_none() && self.sealed == 0
    }

    /// Number of bytes in memory.
    #[must_use]
    pub fn held(&self) -> usize {
        self.bytes.len() - self.at + self.sealed
    }

    /// Sends `bytes`, and keeps what `to` does not accept.
    pub fn send(&mut self, bytes: &[u8], to: &mut Socket, more: bool) -> Result<(), Errno> {
        let sent = if self.is_empty() { to.send(bytes, more)? } else { 0 };
        self.sealed = to.sealed();
        self.bytes.extend_from_slice(&bytes[sent..]);
        Ok(())
    }

    /// Sends what is kept, as far as `to` accepts it.
    pub fn flush(&mut self, to: &mut Socket, pipes: &mut Pipes) -> Result<(), Errno> {
        if self.sealed > 0 {
            to.flush_tls()?;
            self.sealed = to.sealed();
        }
        while !self.bytes.is_empty() && self.sealed == 0 && to.may_write {
            self.at += to.send(&self.bytes[self.at..], self.pipe.is_some())?;
            self.sealed = to.sealed();
            if self.at == self.bytes.len() {
                *self = Unsent { pipe: self.pipe.take(), sealed: self.sealed, ..Unsent::default() };
            }
        }
        if self.bytes.is_empty() {
            if let Some(pipe) = &mut self.pipe {
                empty(pipe, to)?;
                if pipe.held == 0 {
                    self.pipe.take().into_iter().for_each(|pipe| pipes.give_back(pipe));
                }
            }
        }
        Ok(())
    }

    /// Reads up to `most` bytes of a frame into a pipe, which `flush` empties; returns their number, or `None` if they
    /// have to be copied, since there is no pipe. Call it only while nothing is kept.
    pub fn splice(&mut self, from: &mut Socket, most: usize, pipes: &mut Pipes) -> Result<Option<Read>, Errno> {
        let Ok(mut pipe) = pipes.take() else { return Ok(None) };
        let read = match splice(from.fd, None, &pipe.writing, None, most.min(pipe.capacity), SPLICE) {
            Ok(0) => Read::End,
            Ok(count) => {
                from.received += count as u64;
                pipe.held = count;
                Read::Bytes(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                from.may_read = false;
                Read::Nothing
            }
            Err(Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error),
        };
        if pipe.held == 0 {
            pipes.give_back(pipe);
        } else {
            self.pipe = Some(pipe);
        }
        Ok(Some(read))
    }
}

fn empty(pipe: &mut Pipe, to: &mut Socket) -> Result<(), Errno> {
    while pipe.held > 0 && to.may_write {
        match splice(&pipe.reading, None, to.fd, None, pipe.held, SPLICE) {
            Ok(count) => {
                to.sent += count as u64;
                pipe.held -= count;
            }
            Err(Errno::AGAIN | Errno::INTR) => to.may_write = false,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
