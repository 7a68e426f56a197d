//! Incremental parsers of large bodies, which read the fields around the records and skip the records.
//!
//! A walk is called with windows of the body, and reads groups of fields. If a window ends within a group, the walk
//! stops before the group, and the next window has to begin there.

pub mod fetch;
pub mod produce;
pub mod produce_reply;

use crate::fields::Stop;

/// How far a walk has come in its body.
pub struct Progress {
    /// Number of bytes of the body that have not been processed.
    pub left: usize,
    /// Number of bytes that follow and are skipped: records, or fields that are not read.
    pub skip_left: usize,
    /// Length of the longest field that was skipped.
    pub longest: usize,
    /// Whether all fields have been read.
    pub done: bool,
}

impl Progress {
    /// Skips `length` bytes after a group of fields of `read` bytes, which have not been subtracted from `left` yet.
    fn skip(&mut self, length: usize, read: usize) -> Result<(), Stop> {
        if length > self.left - read {
            return Err(Stop::Malformed);
        }
        self.skip_left = length;
        self.longest = self.longest.max(length);
        Ok(())
    }
}

/// The fields of one kind of message.
pub trait Steps {
    /// Reads the group of fields at `bytes[at..]`; returns the offset after it.
    fn step(&mut self, progress: &mut Progress, bytes: &mut [u8], at: usize) -> Result<usize, Stop>;
}

/// A walk through one body.
pub struct Walk<S> {
    pub progress: Progress,
    pub steps: S,
}

impl<S: Steps> Walk<S> {
    /// Begins a walk through a body of `body_bytes` bytes.
    pub fn new(steps: S, body_bytes: usize) -> Self {
        Walk { progress: Progress { left: body_bytes, skip_left: 0, longest: 0, done: false }, steps }
    }

    /// Lets `count` bytes pass before the body: the head of its frame. Call it first.
    pub fn skip_head(&mut self, count: usize) {
        self.progress.left += count;
        self.progress.skip_left = count;
    }

    /// Whether the whole body has been processed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.progress.done && self.progress.left == 0
    }

    /// Continues in `bytes`, which may contain more than the body; returns how many of them can be forwarded. Bytes
    /// after the last field are skipped, as brokers and clients ignore them.
    ///
    /// `Err` if the fields extend beyond the body, cannot be read, or have too many rows.
    pub fn walk(&mut self, bytes: &mut [u8]) -> Result<usize, Stop> {
        let Walk { progress, steps } = self;
        let end = bytes.len().min(progress.left);
        let whole = end == progress.left;
        let bytes = &mut bytes[..end];
        let mut at = 0;
        loop {
            let skipped = progress.skip_left.min(end - at);
            progress.skip_left -= skipped;
            progress.left -= skipped;
            at += skipped;
            if progress.skip_left > 0 {
                break;
            }
            if progress.done {
                if progress.left == 0 {
                    break;
                }
                progress.skip_left = progress.left;
                continue;
            }
            match steps.step(progress, bytes, at) {
                Ok(after) => {
                    progress.left -= after - at;
                    at = after;
                }
                Err(Stop::Short) => break,
                Err(stop) => return Err(stop),
            }
        }
        if whole && !self.is_over() {
            return Err(Stop::Malformed);
        }
        Ok(at)
    }

    /// Accounts for `count` bytes of `skip_left` that were forwarded outside of a window.
    pub fn passed_outside(&mut self, count: usize) {
        self.progress.skip_left -= count;
        self.progress.left -= count;
        if self.progress.done && self.progress.skip_left == 0 {
            self.progress.skip_left = self.progress.left;
        }
    }
}
