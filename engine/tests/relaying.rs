//! The threads with real sockets, so that a check for errors of memory (`make engine-memory`) covers them.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use headrace_engine::completions::Wanted;
use headrace_engine::connection::{Connection, Rest, Terms};
use headrace_engine::engine::Engine;
use headrace_engine::meters::SeenIds;
use headrace_engine::sockets::Socket;
use headrace_engine::table::{Kind, PRODUCE, Row, Table};

const HEARTBEAT: i16 = 12;

/// The proxy's sockets, which stay open to the end.
static SOCKETS: Mutex<Vec<&UnixStream>> = Mutex::new(Vec::new());

fn table() -> Table {
    let row = |kind, throttle_at| Row {
        kind,
        header_version: 1,
        flexible_reply: false,
        throttle_at,
        base_ms: 0.0,
        per_kib_ms: 0.0,
    };
    let mut table = Table::default();
    table.insert(PRODUCE as u16, 3, row(Kind::Produce, None));
    table.insert(HEARTBEAT as u16, 1, row(Kind::Plain, Some(0)));
    table
}

fn terms() -> Terms {
    Terms {
        client_id: Box::default(),
        produced: None,
        fetched: None,
        request_time: None,
        producer_ids: Some(Arc::new(SeenIds::default())),
        measures_time: false,
        fetch_bytes: i32::MAX,
        fetches_alone: false,
        most_in_flight: 100,
        longest_frame: 10_000_000,
        most_rows: 100,
        until_ns: i64::MAX,
    }
}

fn framed(content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    [&(content.len() as i32).to_be_bytes(), &content[..]].concat()
}

fn request(api_key: i16, version: i16, number: i32, body: &[u8]) -> Vec<u8> {
    framed(&[&api_key.to_be_bytes(), &version.to_be_bytes(), &number.to_be_bytes(), &[0, 0], body])
}

/// A Produce of one batch without a producer id, with `size` bytes of records.
fn produce(number: i32, size: usize) -> Vec<u8> {
    let mut batch = vec![0; 61 + size];
    batch[8..12].copy_from_slice(&(49 + size as i32).to_be_bytes());
    batch[16] = 2;
    batch[43..51].copy_from_slice(&(-1_i64).to_be_bytes());
    let records = [&[0; 4], &(batch.len() as i32).to_be_bytes(), &batch[..]].concat();
    request(
        PRODUCE,
        3,
        number,
        &[&[0xff, 0xff, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1][..], &records].concat(),
    )
}

fn kept() -> (UnixStream, Socket) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let theirs: &'static UnixStream = Box::leak(Box::new(theirs));
    SOCKETS.lock().unwrap().push(theirs);
    (ours, Socket::new(theirs.as_fd(), None))
}

struct Relayed {
    id: u64,
    client: UnixStream,
    broker: UnixStream,
}

fn relay(engine: &mut Engine) -> Relayed {
    let ((client, to_client), (broker, to_broker)) = (kept(), kept());
    let connection = Connection::new(to_client, to_broker, terms(), Vec::new(), Vec::new());
    Relayed { id: engine.relay(connection).unwrap(), client, broker }
}

fn returned(engine: &mut Engine, id: u64) -> Rest {
    loop {
        if let Some((_, rest)) = engine.returned().into_iter().find(|(found, _)| *found == id) {
            return rest;
        }
        std::thread::yield_now();
    }
}

fn exchange(from: &mut UnixStream, to: &mut UnixStream, bytes: &[u8]) {
    std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(bytes).unwrap());
        let mut came = vec![0; bytes.len()];
        to.read_exact(&mut came).unwrap();
        assert!(came == bytes);
    });
}

#[test]
fn connections_are_relayed_recalled_and_taken_back() {
    let mut engine = Engine::start(2, table(), &Wanted::default()).unwrap();
    let mut relayed: Vec<_> = (0..6).map(|_| relay(&mut engine)).collect();
    let requests: Vec<_> = [0, 100, 32_767, 70_000, 1_000_000]
        .into_iter()
        .enumerate()
        .flat_map(|(at, size)| [produce(at as i32, size), request(HEARTBEAT, 1, at as i32, &vec![0; size])])
        .collect();
    for Relayed { client, broker, .. } in &mut relayed {
        for (at, asked) in requests.iter().enumerate() {
            let number = (at as i32 / 2).to_be_bytes();
            exchange(client, broker, asked);
            let body: Vec<u8> = if at % 2 == 0 { vec![0; 8] } else { vec![0; 6 + asked.len()] };
            exchange(broker, client, &framed(&[&number, &body]));
        }
    }
    for (at, Relayed { id, mut client, mut broker }) in relayed.into_iter().enumerate() {
        let asked = produce(1, 200_000);
        let half = asked.len() / 2;
        exchange(&mut client, &mut broker, &asked[..half]);
        let rest = match at % 3 {
            0 => engine.take_back(id).unwrap().wait().unwrap(),
            1 => {
                client.shutdown(Shutdown::Write).unwrap();
                returned(&mut engine, id)
            }
            _ => {
                engine.recall(id);
                exchange(&mut client, &mut broker, &asked[half..]);
                returned(&mut engine, id)
            }
        };
        assert!(rest.fault.is_none());
        assert_eq!((rest.in_flight.len(), rest.request_left == 0), (1, at % 3 == 2));
    }
    engine.stop();
}
