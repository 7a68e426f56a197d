//! Reading fields of Kafka's protocol from a window of bytes that may end before the field.

/// Why a field could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The window ends before the field does.
    Short,
    /// The bytes are not a valid field. The control plane reads them again, and reports the error.
    Malformed,
    /// The fields have more rows than a request may have.
    TooManyRows,
}

/// A reader of consecutive fields in `bytes[at..]`.
#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    #[must_use]
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Cursor { bytes, at }
    }

    /// Skips `count` bytes, and returns them.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(count).ok_or(Stop::Malformed)?;
        let taken = self.bytes.get(self.at..end).ok_or(Stop::Short)?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        self.take(N)?.try_into().map_err(|_| Stop::Short)
    }

    pub fn u8(&mut self) -> Result<u8, Stop> {
        Ok(self.array::<1>()?[0])
    }

    pub fn i16(&mut self) -> Result<i16, Stop> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub fn i32(&mut self) -> Result<i32, Stop> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> Result<i64, Stop> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// Reads an `UNSIGNED_VARINT` of at most five bytes.
    pub fn uvarint(&mut self) -> Result<usize, Stop> {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return usize::try_from(value).map_err(|_| Stop::Malformed);
            }
            shift += 7;
            if shift > 28 {
                return Err(Stop::Malformed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cursor, Stop};

    #[test]
    fn a_varint_has_five_bytes_at_most() {
        assert_eq!(Cursor::new(&[0xac, 0x02], 0).uvarint(), Ok(300));
        assert_eq!(Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0x0f], 0).uvarint(), Ok(0xffff_ffff));
        assert_eq!(Cursor::new(&[0x80, 0x80], 0).uvarint(), Err(Stop::Short));
        assert_eq!(Cursor::new(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x01], 0).uvarint(), Err(Stop::Malformed));
    }

    #[test]
    fn a_field_beyond_the_window_is_short() {
        let mut cursor = Cursor::new(&[0, 1, 2], 1);
        assert_eq!(cursor.i32(), Err(Stop::Short));
        assert_eq!(cursor.i16(), Ok(0x0102));
        assert_eq!(cursor.take(usize::MAX), Err(Stop::Malformed));
        assert_eq!(cursor.u8(), Err(Stop::Short));
    }
}
