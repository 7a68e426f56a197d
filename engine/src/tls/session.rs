//! The state of TLS of one connection. It does no system calls: the caller passes received bytes, and sends the
//! returned ones.
//!
//! Records are decrypted in the buffer into which they were read, and the session keeps no buffer while nothing is
//! incomplete. Used by the control plane during the handshake, and afterwards by the data plane that relays the
//! connection.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, Error, HandshakeKind, ServerConfig};

use crate::tls::config::{Asked, take_asked};
use crate::tls::failure::Failure;
use crate::tls::limits::{Excess, Limits, MAX_HANDSHAKE_BYTES, complete_records, first_records};

/// The most bytes of a read, and of one call of `encrypt`.
pub const PIECE_BYTES: usize = 64 * 1024;

/// Enough for the headers and tags of the records of a read.
const OVERHEAD_BYTES: usize = 4 * 1024;

/// The longest record.
const RECORD_BYTES: usize = 16 * 1024 + 2048 + 5;

/// The most bytes that TLS itself has to send while the peer does not read them.
const MAX_OWN_BYTES: usize = 16 * 1024;

/// The most records with data that are decrypted before the limits on records without data are checked, and the most
/// records that are decrypted before data is encrypted.
const MOST_RECORDS: usize = 64;

/// A record with the fatal alert `unrecognized_name`.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

thread_local! {
    /// The buffers in which the sessions of this thread decrypt and encrypt.
    static WORK: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// What to do when data may be sent.
#[derive(Clone, Copy)]
enum Write<'a> {
    Nothing,
    Data(&'a [u8]),
    End,
}

/// The result of one step of rustls.
enum Step {
    Again,
    Done,
    Ended,
}

/// What a call of `run` has done.
#[derive(Default)]
struct Run {
    /// Number of encrypted bytes that are no longer needed.
    consumed: usize,
    /// Number of bytes in the buffer of the caller.
    written: usize,
    /// Number of records with data, and the bytes in them.
    records: usize,
    data: usize,
}

/// The state of TLS of one connection.
pub struct Session {
    side: Side,
    /// Encrypted bytes that have arrived and are not decrypted: a part of a record, or what the reader had no room for.
    incoming: Vec<u8>,
    /// Decrypted bytes that were not read, from `plain_at` on: the rest of a record.
    plain: Vec<u8>,
    plain_at: usize,
    /// Encrypted bytes to send, from `sent_at` on.
    outgoing: Vec<u8>,
    sent_at: usize,
    /// Whether `incoming` may have a complete record.
    has_more: bool,
    /// Whether the peer has ended the stream.
    has_ended: bool,
    has_sent_end: bool,
    failure: Option<Failure>,
    limits: Limits,
    received: u64,
    /// Bytes of TLS itself in `outgoing`.
    own_bytes: usize,
    asked: Asked,
}

impl Session {
    /// Begins the side of a server.
    pub fn accept(config: Arc<ServerConfig>) -> Result<Self, Error> {
        Ok(Session::new(Side::Server(Box::new(UnbufferedServerConnection::new(config)?))))
    }

    /// Begins the side of a client.
    pub fn connect(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        Ok(Session::new(Side::Client(Box::new(UnbufferedClientConnection::new(config, name)?))))
    }

    fn new(side: Side) -> Self {
        Session {
            side,
            incoming: Vec::new(),
            plain: Vec::new(),
            plain_at: 0,
            outgoing: Vec::new(),
            sent_at: 0,
            has_more: false,
            has_ended: false,
            has_sent_end: false,
            failure: None,
            limits: Limits::default(),
            received: 0,
            own_bytes: 0,
            asked: Asked::default(),
        }
    }

    fn state(&self) -> &CommonState {
        match &self.side {
            Side::Client(of) => of,
            Side::Server(of) => of,
        }
    }

    // --- facts ---

    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.state().is_handshaking()
    }

    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.state().handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The certificate of the peer, which was verified.
    #[must_use]
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.state().peer_certificates().and_then(|chain| chain.first()).map(AsRef::as_ref)
    }

    /// The version and the cipher suite, after the handshake.
    #[must_use]
    pub fn protocol(&self) -> Option<(String, String)> {
        let (version, suite) = (self.state().protocol_version()?, self.state().negotiated_cipher_suite()?);
        Some((format!("{version:?}").replace('_', "."), format!("{:?}", suite.suite())))
    }

    /// The host name that the client asks for.
    #[must_use]
    pub fn asked_name(&self) -> Option<&str> {
        self.asked.name.as_deref()
    }

    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether the peer has ended the stream, and all before was read.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended && !self.has_unread_data()
    }

    /// Whether a read may return something without bytes of the peer.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        self.has_more || self.has_ended || self.failure.is_some() || self.has_unread_data()
    }

    fn has_unread_data(&self) -> bool {
        self.plain_at < self.plain.len()
    }

    /// Number of bytes that were received and not read.
    #[must_use]
    pub fn held(&self) -> usize {
        self.incoming.len() + self.plain.len() - self.plain_at
    }

    // --- receiving ---

    /// Decrypts the bytes that `read` reads, until there are bytes for `out`, or until `read` has no bytes. `read`
    /// returns the number of bytes, 0 at the end of the stream, or `None` if nothing has arrived.
    ///
    /// Returns the number of bytes in `out`, which is 0 at the end of the stream, or `None` if nothing has arrived. A
    /// failure of TLS is `Ok(None)`: see `failure`.
    pub fn receive<E>(
        &mut self,
        out: &mut [u8],
        mut read: impl FnMut(&mut [u8]) -> Result<Option<usize>, E>,
    ) -> Result<Option<usize>, E> {
        let count = self.take_plain(out);
        if count > 0 {
            return Ok(Some(count));
        }
        WORK.with_borrow_mut(|(work, _)| {
            loop {
                if self.failure.is_some() {
                    return Ok(None);
                }
                if self.has_ended {
                    return Ok(Some(0));
                }
                let kept = self.incoming.len();
                let most = kept + PIECE_BYTES + OVERHEAD_BYTES;
                if work.len() < most {
                    work.resize(most + RECORD_BYTES, 0);
                }
                work[..kept].copy_from_slice(&self.incoming);
                let mut end = kept;
                if !self.has_more {
                    let room = (out.len() + OVERHEAD_BYTES).min(PIECE_BYTES + OVERHEAD_BYTES);
                    match read(&mut work[kept..kept + room])? {
                        Some(0) => {
                            self.has_ended = true;
                            return Ok(Some(0));
                        }
                        Some(count) => end += count,
                        None => return Ok(None),
                    }
                }
                let count = self.decrypt(&mut work[..end], end - kept, out);
                if count > 0 {
                    return Ok(Some(count));
                }
            }
        })
    }

    /// Decrypts the records in `bytes`, of which the last `added` were just received; returns the number of bytes in
    /// `out`, as far as it has room. What is not decrypted is kept.
    pub fn decrypt(&mut self, bytes: &mut [u8], added: usize, out: &mut [u8]) -> usize {
        self.received += added as u64;
        let is_of_handshake = self.is_handshaking();
        let begun = if is_of_handshake { 0 } else { complete_records(bytes) };
        let run = self.run(bytes, out, Write::Nothing, true);
        let rest = bytes.get(run.consumed..).unwrap_or_default();
        self.incoming.clear();
        if rest.is_empty() || self.has_ended {
            self.incoming = Vec::new();
        } else {
            self.incoming.extend_from_slice(rest);
        }
        if is_of_handshake {
            let after_it = if self.is_handshaking() { 0 } else { run.data + self.incoming.len() };
            if self.received.saturating_sub(after_it as u64) > MAX_HANDSHAKE_BYTES {
                self.failure.get_or_insert(Failure::Reason(String::from("EXCESSIVE_HANDSHAKE_SIZE")));
            }
            return run.written;
        }
        let begun = begun - complete_records(&self.incoming).min(begun);
        if let Some(excess) = self.limits.count(begun, run.records, run.consumed, run.data, self.received) {
            self.failure.get_or_insert(Failure::Excess(excess));
        }
        run.written
    }

    /// Processes `bytes`, which were just received: continues the handshake, or decrypts data up to the size of `out`.
    /// Returns the number of bytes in `out`.
    pub fn feed(&mut self, bytes: &[u8], out: &mut [u8]) -> usize {
        let count = self.take_plain(out);
        let mut all = std::mem::take(&mut self.incoming);
        all.extend_from_slice(bytes);
        count + self.decrypt(&mut all, bytes.len(), &mut out[count..])
    }

    fn take_plain(&mut self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.plain.len() - self.plain_at);
        out[..count].copy_from_slice(&self.plain[self.plain_at..self.plain_at + count]);
        self.plain_at += count;
        if self.plain_at == self.plain.len() && self.plain.capacity() > 0 {
            (self.plain, self.plain_at) = (Vec::new(), 0);
        }
        count
    }

    /// Lets rustls process `bytes` until it needs more. `stops`: whether to stop when `out` is full; otherwise
    /// decrypted bytes that do not fit into `out` are added to `plain`.
    fn run(&mut self, bytes: &mut [u8], out: &mut [u8], write: Write<'_>, stops: bool) -> Run {
        let mut run = Run::default();
        let own_before = self.outgoing.len();
        let is_silent = !self.is_handshaking();
        self.has_more = false;
        while self.failure.is_none() {
            if stops && run.records == MOST_RECORDS {
                self.has_more = run.consumed < bytes.len();
                break;
            }
            if stops && run.written == out.len() && !self.state().is_handshaking() && !matches!(write, Write::End) {
                self.has_more = run.consumed < bytes.len();
                if self.has_more || run.written > 0 {
                    break;
                }
            }
            let rest = &mut bytes[run.consumed..];
            let mut sink = Sink { out, plain: &mut self.plain, outgoing: &mut self.outgoing, run: &mut run, write };
            let step = match &mut self.side {
                Side::Client(of) => step(of.process_tls_records(rest), &mut sink),
                Side::Server(of) => step(of.process_tls_records(rest), &mut sink),
            };
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Done) => break,
                Ok(Step::Ended) => self.has_ended = true,
                Err(error) => self.fail(error),
            }
            if !is_silent {
                let asked = take_asked();
                if asked != Asked::default() {
                    self.asked = asked;
                }
            }
        }
        let answered = if is_silent && matches!(write, Write::Nothing) { self.outgoing.len() - own_before } else { 0 };
        if answered > 0 {
            self.own_bytes += answered;
            if let Some(excess) = self.limits.count_answer(answered, self.received) {
                self.failure.get_or_insert(Failure::Excess(excess));
            } else if self.own_bytes > MAX_OWN_BYTES {
                self.failure.get_or_insert(Failure::Excess(Excess::Unread));
            }
        }
        run
    }

    /// Stores a failure, and adds the alert for it to the bytes to send.
    fn fail(&mut self, error: Error) {
        let asked = take_asked();
        if asked != Asked::default() {
            self.asked = asked;
        }
        if self.asked.is_refused && self.is_handshaking() {
            self.outgoing.extend_from_slice(&UNRECOGNIZED_NAME);
            self.failure = Some(Failure::Reason(String::from("CALLBACK_FAILED")));
            return;
        }
        self.failure = Some(Failure::from(error));
        let mut run = Run::default();
        while self.state().wants_write() {
            let mut sink = Sink {
                out: &mut [],
                plain: &mut self.plain,
                outgoing: &mut self.outgoing,
                run: &mut run,
                write: Write::Nothing,
            };
            let step = match &mut self.side {
                Side::Client(of) => step(of.process_tls_records(&mut []), &mut sink),
                Side::Server(of) => step(of.process_tls_records(&mut []), &mut sink),
            };
            if !matches!(step, Ok(Step::Again)) {
                return;
            }
        }
    }

    // --- sending ---

    /// Encrypts at most `PIECE_BYTES`, passes all encrypted bytes to `write`, which returns the number of bytes that
    /// the socket has accepted, and keeps the rest. Returns the number of bytes that were encrypted, which is 0 while
    /// earlier ones are kept, and after a failure.
    pub fn send<E>(&mut self, data: &[u8], mut write: impl FnMut(&[u8]) -> Result<usize, E>) -> Result<usize, E> {
        if self.unsent() > 0 {
            self.flush(&mut write)?;
            if self.unsent() > 0 {
                return Ok(0);
            }
        }
        let piece = &data[..data.len().min(PIECE_BYTES)];
        WORK.with_borrow_mut(|(_, sealed)| {
            sealed.clear();
            std::mem::swap(&mut self.outgoing, sealed);
            let is_sealed = self.seal(Write::Data(piece));
            std::mem::swap(&mut self.outgoing, sealed);
            if sealed.is_empty() {
                return Ok(0);
            }
            let sent = write(sealed)?;
            self.outgoing.extend_from_slice(&sealed[sent..]);
            Ok(if is_sealed { piece.len() } else { 0 })
        })
    }

    /// Encrypts data; the result is in `take_outgoing`.
    pub fn encrypt(&mut self, data: &[u8]) -> bool {
        data.chunks(PIECE_BYTES).all(|piece| self.seal(Write::Data(piece)))
    }

    /// Ends the stream of this side, unless that was done; the result is in `take_outgoing`.
    pub fn end(&mut self) {
        if !self.has_sent_end && !self.is_handshaking() && self.failure.is_none() {
            self.has_sent_end = true;
            self.seal(Write::End);
        }
    }

    fn seal(&mut self, write: Write<'_>) -> bool {
        if self.failure.is_some() {
            return false;
        }
        let mut bytes = std::mem::take(&mut self.incoming);
        // rustls encrypts only once it has decrypted all that it is given: so it is given few records at a time.
        let (complete, most) = first_records(&bytes, MOST_RECORDS);
        let end = if complete == MOST_RECORDS { most } else { bytes.len() };
        let run = self.run(&mut bytes[..end], &mut [], write, false);
        bytes.drain(..run.consumed);
        if run.consumed > 0 && !self.is_handshaking() {
            let begun = complete - first_records(&bytes[..end - run.consumed], complete).0;
            if let Some(excess) = self.limits.count(begun, run.records, run.consumed, run.data, self.received) {
                self.failure.get_or_insert(Failure::Excess(excess));
            }
        }
        self.has_more = first_records(&bytes, 1).0 > 0;
        self.incoming = bytes;
        self.failure.is_none()
    }

    /// Number of encrypted bytes to send.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.outgoing.len() - self.sent_at
    }

    /// Passes what is kept to `write`.
    pub fn flush<E>(&mut self, mut write: impl FnMut(&[u8]) -> Result<usize, E>) -> Result<(), E> {
        while self.unsent() > 0 {
            let sent = write(&self.outgoing[self.sent_at..])?;
            if sent == 0 {
                return Ok(());
            }
            self.sent_at += sent;
        }
        self.take_outgoing();
        Ok(())
    }

    /// Returns the encrypted bytes to send, and forgets them.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        if self.sent_at > 0 {
            outgoing.drain(..self.sent_at);
        }
        (self.sent_at, self.own_bytes) = (0, 0);
        outgoing
    }
}

/// Where the results of a step go.
struct Sink<'a> {
    out: &'a mut [u8],
    plain: &'a mut Vec<u8>,
    outgoing: &'a mut Vec<u8>,
    run: &'a mut Run,
    write: Write<'a>,
}

impl Sink<'_> {
    fn put(&mut self, data: &[u8]) {
        let room = data.len().min(self.out.len() - self.run.written);
        let at = self.run.written;
        self.out[at..at + room].copy_from_slice(&data[..room]);
        self.plain.extend_from_slice(&data[room..]);
        self.run.written += room;
        self.run.records += 1;
        self.run.data += data.len();
    }

    /// Lets `encode` write behind the outgoing bytes; `size` is a sufficient size, as far as it is known.
    fn encode<E>(
        &mut self,
        size: usize,
        mut encode: impl FnMut(&mut [u8]) -> Result<usize, E>,
        lacks: impl Fn(&E) -> Option<usize>,
    ) -> Option<()> {
        let at = self.outgoing.len();
        let mut size = size;
        loop {
            self.outgoing.resize(at + size, 0);
            match encode(&mut self.outgoing[at..]) {
                Ok(written) => {
                    self.outgoing.truncate(at + written);
                    return Some(());
                }
                Err(error) => match lacks(&error) {
                    Some(required) if required > size => size = required,
                    _ => {
                        self.outgoing.truncate(at);
                        return None;
                    }
                },
            }
        }
    }
}

fn step<Data>(status: UnbufferedStatus<'_, '_, Data>, sink: &mut Sink<'_>) -> Result<Step, Error> {
    let UnbufferedStatus { discard, state } = status;
    sink.run.consumed += discard;
    match state? {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record?;
                sink.run.consumed += record.discard;
                sink.put(record.payload);
            }
            Ok(Step::Again)
        }
        ConnectionState::EncodeTlsData(mut data) => {
            let lacks = |error: &EncodeError| match error {
                EncodeError::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
                EncodeError::AlreadyEncoded => None,
            };
            sink.encode(0, |out| data.encode(out), lacks);
            Ok(Step::Again)
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Step::Again)
        }
        ConnectionState::PeerClosed => Ok(Step::Ended),
        ConnectionState::WriteTraffic(mut traffic) => {
            let lacks = |error: &EncryptError| match error {
                EncryptError::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
                EncryptError::EncryptExhausted => None,
            };
            let done = match sink.write {
                Write::Nothing => Some(()),
                Write::Data(data) => {
                    let size = data.len() + data.len() / 256 + 64;
                    sink.encode(size, |out| traffic.encrypt(data, out), lacks)
                }
                Write::End => sink.encode(64, |out| traffic.queue_close_notify(out), lacks),
            };
            done.map(|()| Step::Done).ok_or(Error::EncryptError)
        }
        ConnectionState::BlockedHandshake | ConnectionState::Closed => match sink.write {
            Write::Data(_) => Err(Error::HandshakeNotComplete),
            Write::Nothing | Write::End => Ok(Step::Done),
        },
        _ => Err(Error::General(String::from("early data"))),
    }
}
