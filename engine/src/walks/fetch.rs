//! A walk through a Fetch response that skips the records, and hides the addresses of new leaders.
//!
//! From v16 on, a response can end with `NodeEndpoints` (KIP-951): the addresses of new leaders, after all records. The
//! walk replaces the tag of that field by one that no client knows, so that clients skip it and the length of the
//! response stays the same. Source: `FetchResponse.json`, v16 to v18; `headrace.proxy.wire.walks.fetch` does the same.

use super::{Progress, Steps};
use crate::fields::{Cursor, Stop};

const NODE_ENDPOINTS_TAG: usize = 0;
/// The highest tag that is encoded in one byte, like the tag that it replaces, so that tags remain in order.
const HIDDEN_TAG: u8 = 0x7f;
/// Bytes of `throttle_time_ms`, `error_code` and `session_id`.
const BEFORE_TOPICS: usize = 10;
const TOPIC_ID: usize = 16;
/// Bytes of `partition_index`, `error_code`, `high_watermark`, `last_stable_offset` and `log_start_offset`.
const BEFORE_ABORTED: usize = 30;
/// Bytes of `producer_id` and `first_offset`.
const ABORTED: usize = 16;
const PREFERRED_READ_REPLICA: usize = 4;

#[derive(Clone, Copy)]
enum Group {
    Reply,
    Topic,
    Partition,
    Aborted,
    Records,
    PartitionTags,
    TopicTags,
    LastTagCount,
    LastTag,
}

/// The fields of a Fetch response, v16 or later.
pub struct FetchSteps {
    group: Group,
    topics: usize,
    partitions: usize,
    aborted: usize,
    /// Number of tagged fields to skip before `group`; in `Group::LastTag`, of those at the end of the response.
    tags: usize,
    /// Number of `NodeEndpoints` fields that were hidden: 0 or 1.
    pub hints: u32,
}

impl Default for FetchSteps {
    fn default() -> Self {
        FetchSteps { group: Group::Reply, topics: 0, partitions: 0, aborted: 0, tags: 0, hints: 0 }
    }
}

/// Returns the number of elements of a compact array from its encoded length, in which 0 stands for null.
fn elements(count: usize) -> usize {
    count.saturating_sub(1)
}

impl FetchSteps {
    fn next_topic(&mut self) {
        if self.topics == 0 {
            self.group = Group::LastTagCount;
        } else {
            self.topics -= 1;
            self.group = Group::Topic;
        }
    }

    fn next_partition(&mut self) {
        self.group = if self.partitions == 0 { Group::TopicTags } else { Group::Partition };
    }

    fn next_aborted(&mut self) {
        self.group = if self.aborted == 0 { Group::Records } else { Group::Aborted };
    }
}

impl Steps for FetchSteps {
    fn step(&mut self, progress: &mut Progress, bytes: &mut [u8], at: usize) -> Result<usize, Stop> {
        let mut cursor = Cursor::new(bytes, at);
        if self.tags > 0 && !matches!(self.group, Group::LastTag) {
            cursor.uvarint()?;
            let length = cursor.uvarint()?;
            progress.skip(length, cursor.at - at)?;
            self.tags -= 1;
            return Ok(cursor.at);
        }
        match self.group {
            Group::Reply => {
                cursor.take(BEFORE_TOPICS)?;
                self.topics = elements(cursor.uvarint()?);
                self.next_topic();
            }
            Group::Topic => {
                cursor.take(TOPIC_ID)?;
                self.partitions = elements(cursor.uvarint()?);
                self.next_partition();
            }
            Group::Partition => {
                cursor.take(BEFORE_ABORTED)?;
                self.aborted = elements(cursor.uvarint()?);
                self.partitions -= 1;
                self.next_aborted();
            }
            Group::Aborted => {
                cursor.take(ABORTED)?;
                self.tags = cursor.uvarint()?;
                self.aborted -= 1;
                self.next_aborted();
            }
            Group::Records => {
                cursor.take(PREFERRED_READ_REPLICA)?;
                let length = elements(cursor.uvarint()?);
                progress.skip(length, cursor.at - at)?;
                self.group = Group::PartitionTags;
            }
            Group::PartitionTags => {
                self.tags = cursor.uvarint()?;
                self.next_partition();
            }
            Group::TopicTags => {
                self.tags = cursor.uvarint()?;
                self.next_topic();
            }
            Group::LastTagCount => {
                self.tags = cursor.uvarint()?;
                self.group = Group::LastTag;
                progress.done = self.tags == 0;
            }
            Group::LastTag => {
                let tag = cursor.uvarint()?;
                let length = cursor.uvarint()?;
                let after = cursor.at;
                progress.skip(length, after - at)?;
                if tag == NODE_ENDPOINTS_TAG {
                    bytes[at] |= HIDDEN_TAG; // keeps the bit that says that further bytes of the tag follow
                    self.hints += 1;
                }
                self.tags -= 1;
                progress.done = self.tags == 0;
                return Ok(after);
            }
        }
        Ok(cursor.at)
    }
}
