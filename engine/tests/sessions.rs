//! Two sessions that exchange data: however the encrypted bytes are cut, the data are the same.

use std::convert::Infallible;
use std::sync::Arc;

use headrace_engine::tls::config::{Allowed, client, for_broker, new_sessions, server};
use headrace_engine::tls::failure::Failure;
use headrace_engine::tls::limits::Excess;
use headrace_engine::tls::session::Session;

const CERTIFICATE: &[u8] = include_bytes!("data/localhost.crt.der");
const KEY: &[u8] = include_bytes!("data/localhost.key.der");

/// Numbers that only have to differ: a xorshift generator.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}

fn sessions(suite: &str, host: &str) -> (Session, Session) {
    let suites = [suite.to_owned()];
    let allowed = Allowed { suites: &suites, tls12: true };
    let identity = (vec![CERTIFICATE.to_vec()], KEY.to_vec());
    let trusted = vec![(CERTIFICATE.to_vec(), 0, i64::MAX, None, (true, true))];
    let of_server = server(identity, &allowed, None, Box::new(|name| name != "refused")).unwrap();
    let of_client = client(None, &allowed, trusted, host == "localhost").unwrap();
    let (of_client, name) = for_broker(&of_client, host.to_owned(), &new_sessions()).unwrap();
    (Session::connect(of_client, name).unwrap(), Session::accept(Arc::clone(&of_server)).unwrap())
}

/// Moves the bytes that both sides have to send, until there are none.
fn exchange(pair: &mut (Session, Session)) {
    pair.0.feed(&[], &mut []);
    loop {
        let to_server = pair.0.take_outgoing();
        pair.1.feed(&to_server, &mut []);
        let to_client = pair.1.take_outgoing();
        pair.0.feed(&to_client, &mut []);
        if to_server.is_empty() && to_client.is_empty() {
            return;
        }
    }
}

fn connected(suite: &str) -> (Session, Session) {
    let mut pair = sessions(suite, "localhost");
    exchange(&mut pair);
    assert_eq!((pair.0.failure(), pair.1.failure()), (None, None));
    assert!(!pair.0.is_handshaking() && !pair.1.is_handshaking());
    pair
}

/// Reads `records` in pieces, as a socket would give them.
fn receive(session: &mut Session, records: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let (mut at, mut data) = (0, Vec::new());
    loop {
        let mut out = vec![0; 1 + numbers.below(70_000)];
        let found = session.receive(&mut out, |room| {
            let count = room.len().min(records.len() - at).min(1 + numbers.below(40_000));
            room[..count].copy_from_slice(&records[at..at + count]);
            at += count;
            Ok::<_, Infallible>((count > 0).then_some(count))
        });
        match found {
            Ok(Some(count)) if count > 0 => data.extend_from_slice(&out[..count]),
            _ => return data,
        }
    }
}

#[test]
fn data_are_the_same_however_they_are_cut() {
    for (seed, suite) in [(1, "TLS_AES_128_GCM_SHA256"), (2, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384")] {
        let mut numbers = Numbers(seed);
        let (mut from, mut to) = connected(suite);
        for _ in 0..100 {
            let data: Vec<u8> = (0..numbers.below(300_000)).map(|at| (at * 7 % 251) as u8).collect();
            let (mut records, mut at) = (Vec::new(), 0);
            while at < data.len() || from.unsent() > 0 {
                let size = (1 + numbers.below(100_000)).min(data.len() - at);
                at += from
                    .send(&data[at..at + size], |bytes| {
                        let count = 1 + numbers.below(bytes.len());
                        records.extend_from_slice(&bytes[..count]);
                        Ok::<_, Infallible>(count)
                    })
                    .unwrap();
            }
            assert!(receive(&mut to, &records, &mut numbers) == data);
            assert_eq!((to.held(), to.failure()), (0, None));
            std::mem::swap(&mut from, &mut to);
        }
    }
}

#[test]
fn an_end_of_one_direction_leaves_the_other_open() {
    let (mut from, mut to) = connected("TLS_AES_128_GCM_SHA256");
    let mut numbers = Numbers(3);
    assert!(from.encrypt(b"last"));
    from.end();
    let records = from.take_outgoing();
    assert_eq!(receive(&mut to, &records, &mut numbers), b"last");
    assert!(to.has_ended());
    assert!(to.encrypt(b"still open"));
    let records = to.take_outgoing();
    assert_eq!(receive(&mut from, &records, &mut numbers), b"still open");
}

#[test]
fn records_with_hardly_any_data_are_limited() {
    let (mut from, mut to) = connected("TLS_AES_128_GCM_SHA256");
    for _ in 0..2000 {
        assert!(from.encrypt(b"x"));
    }
    let records = from.take_outgoing();
    receive(&mut to, &records, &mut Numbers(4));
    assert_eq!(to.failure(), Some(&Failure::Excess(Excess::Empty)));
}

#[test]
fn a_host_name_that_is_not_accepted_is_named_by_the_alert() {
    let mut pair = sessions("TLS_AES_128_GCM_SHA256", "refused");
    exchange(&mut pair);
    assert_eq!(pair.0.failure(), Some(&Failure::Reason(String::from("TLSV1_ALERT_UNRECOGNIZED_NAME"))));
    assert_eq!(pair.1.failure(), Some(&Failure::Reason(String::from("CALLBACK_FAILED"))));
}

#[test]
fn a_handshake_without_an_end_is_limited() {
    let (_, mut server) = sessions("TLS_AES_128_GCM_SHA256", "localhost");
    let hello_of_60_000_bytes = [1, 0, 0xea, 0x60].into_iter().chain(std::iter::repeat(0)).take(60_000);
    let records: Vec<u8> = hello_of_60_000_bytes.flat_map(|byte| [22, 3, 1, 0, 1, byte]).collect();
    for (at, piece) in records.chunks(16 * 1024).enumerate() {
        assert_eq!(server.failure(), None);
        server.feed(piece, &mut []);
        if (at + 1) * 16 * 1024 > 100 * 1024 {
            break;
        }
    }
    assert_eq!(server.failure(), Some(&Failure::Reason(String::from("EXCESSIVE_HANDSHAKE_SIZE"))));
}
