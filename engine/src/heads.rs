//! The heads of requests and replies: their header, and the few fields of the body that the data plane needs.
//!
//! Only what clients usually send is read: any other request makes its connection return to the control plane, which
//! reads it in full (`headrace.proxy.wire.heads`). Source: `RequestHeader.json`, `ResponseHeader.json`,
//! `ProduceRequest.json`, `FetchRequest.json`.

use crate::fields::{Cursor, Stop};
use crate::table::{Kind, Row, Table};

/// Bytes of the length field before each frame.
pub const LENGTH_BYTES: usize = 4;

/// The least size of a request in bytes: API key, version and correlation id.
const SHORTEST_REQUEST: u32 = 8;
/// The least size of a reply in bytes: the correlation id.
const SHORTEST_REPLY: u32 = 4;

/// The head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Number of bytes of header and body, without the length field.
    pub size: u32,
    pub api_key: i16,
    pub version: i16,
    pub correlation_id: i32,
    /// Offset of the body in the frame, including the length field.
    pub body_at: usize,
    /// The field `acks`, for Produce; 0 for others.
    pub acks: i16,
    /// Offset in the frame of `min_bytes`, which `max_bytes` follows, for Fetch.
    pub fetch_limits_at: Option<usize>,
}

/// Reads the head of the request at the beginning of `bytes`.
///
/// Fails with `Malformed` if the control plane has to process the request: `table` has no row for it, its client id is
/// not `client_id`, it has tagged fields in its head, it expects no reply, or it is longer than `longest`.
pub fn read_request<'t>(
    bytes: &[u8],
    table: &'t Table,
    client_id: &[u8],
    longest: u32,
) -> Result<(RequestHead, &'t Row), Stop> {
    let (size, bytes, short) = frame(bytes, SHORTEST_REQUEST, longest)?;
    read_request_fields(size, bytes, table, client_id).map_err(|stop| if stop == Stop::Short { short } else { stop })
}

/// Returns the size of the frame at the beginning of `bytes`, the part of the frame that is in `bytes`, and the error
/// for a field that ends beyond this part: `Malformed` if the part is the whole frame, else `Short`.
fn frame(bytes: &[u8], shortest: u32, longest: u32) -> Result<(u32, &[u8], Stop), Stop> {
    let size = u32::try_from(Cursor::new(bytes, 0).i32()?).map_err(|_| Stop::Malformed)?;
    if size < shortest || size > longest {
        return Err(Stop::Malformed);
    }
    match bytes.get(..LENGTH_BYTES + size as usize) {
        Some(whole) => Ok((size, whole, Stop::Malformed)),
        None => Ok((size, bytes, Stop::Short)),
    }
}

fn read_request_fields<'t>(
    size: u32,
    bytes: &[u8],
    table: &'t Table,
    client_id: &[u8],
) -> Result<(RequestHead, &'t Row), Stop> {
    let mut cursor = Cursor::new(bytes, LENGTH_BYTES);
    let (api_key, version) = (cursor.i16()?, cursor.i16()?);
    let row = table.get(api_key, version).ok_or(Stop::Malformed)?;
    let correlation_id = cursor.i32()?;
    let name_bytes = match cursor.i16()? {
        -1 => 0, // null is the same client id as an empty one
        bytes => usize::try_from(bytes).map_err(|_| Stop::Malformed)?,
    };
    if cursor.take(name_bytes)? != client_id {
        return Err(Stop::Malformed);
    }
    if row.header_version >= 2 && cursor.u8()? != 0 {
        return Err(Stop::Malformed);
    }
    let body_at = cursor.at;
    let mut fetch_limits_at = None;
    let mut acks = 0;
    match row.kind {
        Kind::Produce => {
            let name_bytes = match version {
                9.. => cursor.uvarint()?.saturating_sub(1),
                3.. => usize::try_from(cursor.i16()?).unwrap_or(0),
                _ => 0,
            };
            cursor.take(name_bytes)?;
            acks = cursor.i16()?;
            if acks == 0 {
                return Err(Stop::Malformed);
            }
        }
        Kind::Fetch | Kind::FetchWithHints if version >= 3 => {
            cursor.take(if version >= 15 { 4 } else { 8 })?;
            fetch_limits_at = Some(cursor.at);
            cursor.take(8)?;
        }
        _ => {}
    }
    Ok((RequestHead { size, api_key, version, correlation_id, body_at, acks, fetch_limits_at }, row))
}

/// Limits `min_bytes` and `max_bytes` of a Fetch, which begin at `at`, to `most` (`KafkaApis.handleFetchRequest`).
pub fn cap_fetch(frame: &mut [u8], at: usize, most: i32) {
    let Some(fields) = frame.get_mut(at..at + 8) else { return };
    let read = |bytes: &[u8]| bytes.try_into().map_or(0, i32::from_be_bytes);
    let (min_bytes, max_bytes) = (read(&fields[..4]), read(&fields[4..]));
    let allowed = max_bytes.min(most);
    fields[4..].copy_from_slice(&allowed.to_be_bytes());
    fields[..4].copy_from_slice(&min_bytes.min(allowed).to_be_bytes());
}

/// The head of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// Number of bytes of header and body, without the length field.
    pub size: u32,
    /// Offset of the body in the frame, including the length field.
    pub body_at: usize,
}

/// Reads the head of the reply at the beginning of `bytes`, which has to answer `correlation_id`.
///
/// Fails with `Malformed` if the control plane has to process the reply: it answers another request, its header has
/// tagged fields, the broker throttles the client, or it is longer than `longest`.
pub fn read_reply(bytes: &[u8], row: &Row, correlation_id: i32, longest: u32) -> Result<ReplyHead, Stop> {
    let (size, bytes, short) = frame(bytes, SHORTEST_REPLY, longest)?;
    read_reply_fields(size, bytes, row, correlation_id).map_err(|stop| if stop == Stop::Short { short } else { stop })
}

fn read_reply_fields(size: u32, bytes: &[u8], row: &Row, correlation_id: i32) -> Result<ReplyHead, Stop> {
    let mut cursor = Cursor::new(bytes, LENGTH_BYTES);
    if cursor.i32()? != correlation_id {
        return Err(Stop::Malformed);
    }
    if row.flexible_reply && cursor.u8()? != 0 {
        return Err(Stop::Malformed);
    }
    let body_at = cursor.at;
    if let Some(offset) = row.throttle_at {
        cursor.take(offset)?;
        if cursor.i32()? != 0 {
            return Err(Stop::Malformed);
        }
    }
    Ok(ReplyHead { size, body_at })
}

#[cfg(test)]
mod tests {
    use super::{ReplyHead, RequestHead, cap_fetch, read_reply, read_request};
    use crate::fields::Stop;
    use crate::table::{Kind, PRODUCE, Row, Table};

    const FETCH: i16 = 1;

    fn row(kind: Kind, header_version: u8) -> Row {
        Row {
            kind,
            header_version,
            flexible_reply: header_version >= 2,
            throttle_at: Some(0),
            base_ms: 0.0,
            per_kib_ms: 0.0,
        }
    }

    fn table() -> Table {
        let mut table = Table::default();
        table.insert(PRODUCE as u16, 8, row(Kind::Produce, 1));
        table.insert(PRODUCE as u16, 11, row(Kind::Produce, 2));
        table.insert(FETCH as u16, 11, row(Kind::Fetch, 1));
        table.insert(FETCH as u16, 17, row(Kind::FetchWithHints, 2));
        table
    }

    fn request(api_key: i16, version: i16, client_id: &[u8], body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 4];
        frame.extend(api_key.to_be_bytes());
        frame.extend(version.to_be_bytes());
        frame.extend(7_i32.to_be_bytes());
        frame.extend((client_id.len() as i16).to_be_bytes());
        frame.extend(client_id);
        if version >= 9 && !(api_key == FETCH && version < 12) {
            frame.push(0);
        }
        frame.extend(body);
        let size = frame.len() as i32 - 4;
        frame[..4].copy_from_slice(&size.to_be_bytes());
        frame
    }

    #[test]
    fn each_prefix_of_a_head_is_short() {
        let table = table();
        let frame = request(PRODUCE, 11, b"client", &[0, 0xff, 0xff, 1, 2, 3]);
        let head_bytes = frame.len() - 3;
        for end in 0..head_bytes {
            assert_eq!(read_request(&frame[..end], &table, b"client", 1000).err(), Some(Stop::Short), "{end}");
        }
        let (head, row) = read_request(&frame[..head_bytes], &table, b"client", 1000).unwrap();
        assert_eq!(row.kind, Kind::Produce);
        let expected = RequestHead {
            size: frame.len() as u32 - 4,
            api_key: PRODUCE,
            version: 11,
            correlation_id: 7,
            body_at: 21,
            acks: -1,
            fetch_limits_at: None,
        };
        assert_eq!(head, expected);
    }

    #[test]
    fn a_null_client_id_is_an_empty_one() {
        let table = table();
        let mut frame = request(PRODUCE, 8, b"", &[0xff, 0xff, 0xff, 0xff]);
        frame[12..14].fill(0xff);
        assert!(read_request(&frame, &table, b"", 1000).is_ok());
        assert_eq!(read_request(&frame, &table, b"client", 1000).err(), Some(Stop::Malformed));
    }

    #[test]
    fn the_control_plane_gets_what_is_unusual() {
        let table = table();
        let unusual = [
            request(PRODUCE, 11, b"client", &[0, 0, 0, 1]),       // acks=0
            request(PRODUCE, 11, b"client", &[2, b'x', 0, 0, 1]), // acks=0, with a transactional id
            request(PRODUCE, 8, b"client", &[0, 1, b'x', 0, 0, 1]),
            request(PRODUCE, 11, b"other!", &[0, 0xff, 0xff, 1]), // another client id
            request(PRODUCE, 12, b"client", &[0, 0xff, 0xff, 1]), // no row
            request(FETCH, 11, b"client", &[0; 15]),              // a frame that ends within its head
        ];
        for frame in unusual {
            let mut followed = frame.clone();
            followed.extend([0; 64]);
            assert_eq!(read_request(&followed, &table, b"client", 1000).err(), Some(Stop::Malformed), "{frame:?}");
        }
        let long = request(PRODUCE, 11, b"client", &[0, 0xff, 0xff, 1]);
        assert_eq!(read_request(&long, &table, b"client", 10).err(), Some(Stop::Malformed));
    }

    #[test]
    fn a_transactional_id_is_skipped() {
        let table = table();
        for (version, body) in [(11, &[2, b'x', 0xff, 0xff][..]), (8, &[0, 1, b'x', 0xff, 0xff])] {
            let frame = request(PRODUCE, version, b"client", body);
            assert_eq!(read_request(&frame, &table, b"client", 1000).unwrap().0.version, version);
            assert_eq!(read_request(&frame[..frame.len() - 1], &table, b"client", 1000).err(), Some(Stop::Short));
        }
    }

    #[test]
    fn the_limits_of_a_fetch_are_lowered_in_place() {
        let table = table();
        for (version, skipped) in [(11, 8), (17, 4)] {
            let mut body = vec![0xff; skipped];
            body.extend(500_i32.to_be_bytes());
            body.extend(1000_i32.to_be_bytes());
            let mut frame = request(FETCH, version, b"", &body);
            let at = read_request(&frame, &table, b"", 1000).unwrap().0.fetch_limits_at.unwrap();
            cap_fetch(&mut frame, at, 2000);
            assert_eq!(frame[at..], [500_i32.to_be_bytes(), 1000_i32.to_be_bytes()].concat());
            cap_fetch(&mut frame, at, 600);
            assert_eq!(frame[at..], [500_i32.to_be_bytes(), 600_i32.to_be_bytes()].concat());
            cap_fetch(&mut frame, at, 100);
            assert_eq!(frame[at..], [100_i32.to_be_bytes(), 100_i32.to_be_bytes()].concat());
        }
    }

    #[test]
    fn a_reply_is_matched_and_must_not_be_throttled() {
        let row = row(Kind::Plain, 2);
        let frame = [&12_i32.to_be_bytes()[..], &7_i32.to_be_bytes(), &[0], &0_i32.to_be_bytes(), &[1, 2, 3]].concat();
        assert_eq!(read_reply(&frame, &row, 7, 100), Ok(ReplyHead { size: 12, body_at: 9 }));
        for end in 0..13 {
            assert_eq!(read_reply(&frame[..end], &row, 7, 100), Err(Stop::Short));
        }
        assert_eq!(read_reply(&frame, &row, 8, 100), Err(Stop::Malformed));
        assert_eq!(read_reply(&frame, &row, 7, 11), Err(Stop::Malformed));
        for (at, byte) in [(8, 1), (12, 1)] {
            let mut changed = frame.clone();
            changed[at] = byte;
            assert_eq!(read_reply(&changed, &row, 7, 100), Err(Stop::Malformed));
        }
    }
}
