//! A walk through a Produce request that reads the producer id of each record batch (KIP-936), and changes nothing.
//!
//! Source: `ProduceRequest.json`, v0 to v13; `DefaultRecordBatch` for the header of a batch, `ByteBufferLogInputStream`
//! for the sequence of batches; `headrace.proxy.wire.walks.produce` reads the same fields.

use super::{Progress, Steps};
use crate::fields::{Cursor, Stop};

/// The most batches whose ids are read. A request has one batch for each partition.
const MAX_BATCHES: usize = 4096;
const NO_PRODUCER_ID: i64 = -1;
const FIRST_FLEXIBLE: i16 = 9;
const FIRST_WITH_TRANSACTIONS: i16 = 3;
const FIRST_WITH_TOPIC_IDS: i16 = 13;
const ACKS_AND_TIMEOUT: usize = 6;
const TOPIC_ID: usize = 16;
const MAX_STRING: usize = 0x7fff;
/// Bytes of the header of a batch up to the end of its producer id.
const BATCH_BYTES: usize = 51;
/// Bytes of base offset and batch length, which the batch length does not include.
const LOG_OVERHEAD: usize = 12;
/// `LegacyRecord.RECORD_OVERHEAD_V0`: a shorter batch is corrupt.
const SHORTEST_BATCH: usize = 14;
const MAGIC_WITH_PRODUCER_ID: u8 = 2;
const MAGIC_AT: usize = 16;
const PRODUCER_ID_AT: usize = 43;

#[derive(Clone, Copy)]
enum Group {
    Request,
    Topic,
    Partition,
    Batch,
    PartitionTags,
    TopicTags,
    RequestTags,
    End,
}

/// The fields of a Produce request.
pub struct ProduceSteps {
    version: i16,
    group: Group,
    topics: usize,
    partitions: usize,
    records_left: usize,
    tags: usize,
    rows_left: usize,
    batches: usize,
    begins_partition: bool,
    /// The producer ids of the first `MAX_BATCHES` batches, and of the first batch of each later partition: a broker
    /// accepts no more than one of a partition.
    pub producer_ids: Vec<i64>,
}

impl ProduceSteps {
    /// Begins a walk. A body may have `most_rows` topics, partitions and tagged fields in all.
    #[must_use]
    pub fn new(version: i16, most_rows: usize) -> Self {
        ProduceSteps {
            version,
            group: Group::Request,
            topics: 0,
            partitions: 0,
            records_left: 0,
            tags: 0,
            rows_left: most_rows,
            batches: 0,
            begins_partition: false,
            producer_ids: Vec::new(),
        }
    }

    fn is_flexible(&self) -> bool {
        self.version >= FIRST_FLEXIBLE
    }

    /// Reads a length of four bytes, or a compact one; `None` is null.
    fn length(&self, cursor: &mut Cursor) -> Result<Option<usize>, Stop> {
        if self.is_flexible() {
            return Ok(cursor.uvarint()?.checked_sub(1));
        }
        Ok(usize::try_from(cursor.i32()?).ok())
    }

    /// Reads the length of a string: two bytes, or a compact one; `None` is null.
    fn string_length(&self, cursor: &mut Cursor) -> Result<Option<usize>, Stop> {
        let length =
            if self.is_flexible() { cursor.uvarint()?.checked_sub(1) } else { usize::try_from(cursor.i16()?).ok() };
        if length.is_some_and(|bytes| bytes > MAX_STRING) {
            return Err(Stop::Malformed);
        }
        Ok(length)
    }

    fn count_rows(&mut self, rows: usize) -> Result<(), Stop> {
        self.rows_left = self.rows_left.checked_sub(rows).ok_or(Stop::TooManyRows)?;
        Ok(())
    }

    fn read_tag_count(&mut self, cursor: &mut Cursor) -> Result<(), Stop> {
        let tags = cursor.uvarint()?;
        self.count_rows(tags)?;
        self.tags = tags;
        Ok(())
    }

    fn next_topic(&mut self, progress: &mut Progress) {
        if self.topics > 0 {
            self.topics -= 1;
            self.group = Group::Topic;
        } else if self.is_flexible() {
            self.group = Group::RequestTags;
        } else {
            self.group = Group::End;
            progress.done = true;
        }
    }

    fn next_partition(&mut self, progress: &mut Progress) {
        if self.partitions > 0 {
            self.group = Group::Partition;
        } else if self.is_flexible() {
            self.group = Group::TopicTags;
        } else {
            self.next_topic(progress);
        }
    }

    fn end_partition(&mut self, progress: &mut Progress) {
        self.partitions -= 1;
        if self.is_flexible() {
            self.group = Group::PartitionTags;
        } else {
            self.next_partition(progress);
        }
    }

    fn note(&mut self, producer_id: i64) {
        let is_first = std::mem::take(&mut self.begins_partition);
        self.batches += 1;
        if producer_id > NO_PRODUCER_ID && (is_first || self.batches <= MAX_BATCHES) {
            self.producer_ids.push(producer_id);
        }
    }

    /// Reads the header of a batch without advancing; the following skip covers the whole batch.
    fn read_batch(&mut self, progress: &mut Progress, mut cursor: Cursor) -> Result<(), Stop> {
        let left = self.records_left;
        let (mut size, mut producer_id) = (left, NO_PRODUCER_ID);
        if left >= BATCH_BYTES {
            let header = cursor.take(BATCH_BYTES)?;
            let length = usize::try_from(Cursor::new(header, 8).i32()?).unwrap_or(0);
            if (SHORTEST_BATCH..=left - LOG_OVERHEAD).contains(&length) {
                size = length + LOG_OVERHEAD;
                if header[MAGIC_AT] < 0x80 && header[MAGIC_AT] >= MAGIC_WITH_PRODUCER_ID && size >= BATCH_BYTES {
                    producer_id = Cursor::new(header, PRODUCER_ID_AT).i64()?;
                }
            }
        }
        self.note(producer_id);
        progress.skip(size, 0)?;
        self.records_left = left - size;
        if self.records_left == 0 {
            self.end_partition(progress);
        }
        Ok(())
    }
}

impl Steps for ProduceSteps {
    fn step(&mut self, progress: &mut Progress, bytes: &mut [u8], at: usize) -> Result<usize, Stop> {
        let mut cursor = Cursor::new(bytes, at);
        if self.tags > 0 {
            cursor.uvarint()?;
            let length = cursor.uvarint()?;
            progress.skip(length, cursor.at - at)?;
            self.tags -= 1;
            progress.done = self.tags == 0 && matches!(self.group, Group::End);
            return Ok(cursor.at);
        }
        match self.group {
            Group::Request => {
                if self.version >= FIRST_WITH_TRANSACTIONS {
                    let length = self.string_length(&mut cursor)?;
                    cursor.take(length.unwrap_or(0))?;
                }
                cursor.take(ACKS_AND_TIMEOUT)?;
                let topics = self.length(&mut cursor)?.ok_or(Stop::Malformed)?;
                self.count_rows(topics)?;
                self.topics = topics;
                self.next_topic(progress);
            }
            Group::Topic => {
                let name_bytes = if self.version < FIRST_WITH_TOPIC_IDS {
                    self.string_length(&mut cursor)?.ok_or(Stop::Malformed)?
                } else {
                    TOPIC_ID
                };
                cursor.take(name_bytes)?;
                let partitions = self.length(&mut cursor)?.ok_or(Stop::Malformed)?;
                self.count_rows(partitions)?;
                self.partitions = partitions;
                self.next_partition(progress);
            }
            Group::Partition => {
                cursor.take(4)?;
                let length = self.length(&mut cursor)?.unwrap_or(0);
                if length > progress.left - (cursor.at - at) {
                    return Err(Stop::Malformed);
                }
                self.records_left = length;
                self.begins_partition = true;
                if length > 0 {
                    self.group = Group::Batch;
                } else {
                    self.note(NO_PRODUCER_ID);
                    self.end_partition(progress);
                }
            }
            Group::Batch => {
                self.read_batch(progress, cursor)?;
                return Ok(at);
            }
            Group::PartitionTags => {
                self.read_tag_count(&mut cursor)?;
                self.next_partition(progress);
            }
            Group::TopicTags => {
                self.read_tag_count(&mut cursor)?;
                self.next_topic(progress);
            }
            Group::RequestTags => {
                self.read_tag_count(&mut cursor)?;
                self.group = Group::End;
                progress.done = self.tags == 0;
            }
            Group::End => return Err(Stop::Malformed),
        }
        Ok(cursor.at)
    }
}
