//! Decides whether a Produce response, which has arrived completely, can be forwarded without an edit.
//!
//! Source: `ProduceResponse.json`, v0 to v13; `headrace.proxy.wire.walks.produce_reply` finds the same fields.

use crate::fields::{Cursor, Stop};

/// The end of a partition without errors, message and leader, from version 9 on: no elements, null, no tagged fields.
const NO_ERRORS: [u8; 3] = [1, 0, 0];

/// Returns whether the body has neither a throttle time nor fields that the control plane has to edit. It is
/// `Malformed`, or `Short`, if it violates the schema.
pub fn passes(body: &[u8], version: i16) -> Result<bool, Stop> {
    let flexible = version >= 9;
    // index, error code, base offset (0+), log append time (2+), log start offset (5+)
    let width = match version {
        5.. => 30,
        2.. => 22,
        _ => 14,
    };
    let mut cursor = Cursor::new(body, 0);
    for _ in 0..count(&mut cursor, flexible)? {
        let name_bytes = match version {
            13.. => 16,
            9.. => compact(&mut cursor)?,
            _ => usize::try_from(cursor.i16()?).map_err(|_| Stop::Malformed)?,
        };
        cursor.take(name_bytes)?;
        for _ in 0..count(&mut cursor, flexible)? {
            cursor.take(width)?;
            if flexible {
                if body.get(cursor.at..).is_some_and(|rest| rest.starts_with(&NO_ERRORS)) {
                    cursor.take(NO_ERRORS.len())?;
                } else {
                    skip_errors(&mut cursor)?;
                }
            } else if version == 8 {
                skip_plain_errors(&mut cursor)?;
            }
        }
        if flexible {
            skip_tags(&mut cursor)?;
        }
    }
    let throttled = version >= 1 && cursor.i32()? != 0;
    Ok(!(throttled || flexible && cursor.u8()? != 0))
}

fn count(cursor: &mut Cursor, flexible: bool) -> Result<usize, Stop> {
    if flexible { compact(cursor) } else { usize::try_from(cursor.i32()?).map_err(|_| Stop::Malformed) }
}

/// Reads a compact length that is not nullable.
fn compact(cursor: &mut Cursor) -> Result<usize, Stop> {
    cursor.uvarint()?.checked_sub(1).ok_or(Stop::Malformed)
}

fn skip_compact_string(cursor: &mut Cursor) -> Result<(), Stop> {
    let length = cursor.uvarint()?.saturating_sub(1);
    cursor.take(length).map(drop)
}

fn skip_tags(cursor: &mut Cursor) -> Result<(), Stop> {
    for _ in 0..cursor.uvarint()? {
        cursor.uvarint()?;
        let length = cursor.uvarint()?;
        cursor.take(length)?;
    }
    Ok(())
}

/// Skips `record_errors`, `error_message` and tagged fields of a partition, from version 9 on.
fn skip_errors(cursor: &mut Cursor) -> Result<(), Stop> {
    for _ in 0..compact(cursor)? {
        cursor.take(4)?;
        skip_compact_string(cursor)?;
        skip_tags(cursor)?;
    }
    skip_compact_string(cursor)?;
    skip_tags(cursor)
}

/// Skips `record_errors` and `error_message` of version 8.
fn skip_plain_errors(cursor: &mut Cursor) -> Result<(), Stop> {
    for _ in 0..count(cursor, false)? {
        cursor.take(4)?;
        let length = usize::try_from(cursor.i16()?).unwrap_or(0);
        cursor.take(length)?;
    }
    let length = usize::try_from(cursor.i16()?).unwrap_or(0);
    cursor.take(length).map(drop)
}
