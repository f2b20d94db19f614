//! A buffer: records side by side in one extent, written at once.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::{Kind, Result};
use terrace_pmem::{Extent, POff, Pool};

use super::layout::{BUFFER_HEAD_BYTES, BufferHead, RECORD_HEAD_BYTES, RecordHead, record_crc};
use super::lists::{BUFFER_KIND, Lists, Owned};
use super::open::foreign;
use super::read::PmRecord;
use terrace_base::checksum::crc32c;

/// A buffer.
pub(super) struct Buffer {
    pub extent: Owned,
    pub id: u64,
    /// Where its records end.
    pub end: u64,
    /// Lists that are named and lead into it.
    named: AtomicU64,
    /// Bytes of the records that those lead to.
    live: AtomicU64,
}

impl Buffer {
    pub fn new(extent: Owned, id: u64, end: u64) -> Buffer {
        Buffer { extent, id, end, named: AtomicU64::new(0), live: AtomicU64::new(0) }
    }

    /// The buffer `id` at `offset`. Anything else at that place may have another owner, and is left alone.
    pub fn open(lists: &Lists, offset: u64, id: u64) -> Result<Buffer> {
        let (found, bytes, end) = read_head(lists.pool(), offset)?;
        if found != id {
            return Err(lists.pool().corruption(offset, "the buffer of a list", "another buffer"));
        }
        let extent = lists.adopt(&Extent { offset, bytes, kind: BUFFER_KIND });
        Ok(Buffer::new(extent, id, offset + end))
    }

    /// Whether a record may begin at `offset`.
    pub fn holds(&self, offset: u64) -> bool {
        offset >= self.extent.offset + BUFFER_HEAD_BYTES
            && offset <= self.end.saturating_sub(RECORD_HEAD_BYTES)
            && offset.is_multiple_of(8)
    }

    /// Bytes of all records.
    pub fn filled(&self) -> u64 {
        (self.end - self.extent.offset - BUFFER_HEAD_BYTES).max(1)
    }

    /// Bytes of its extent in proportion to the records that named lists lead to.
    pub fn live_share(&self) -> u64 {
        let live = u128::from(self.live.load(Ordering::Relaxed).min(self.filled()));
        (u128::from(self.extent.bytes) * live / u128::from(self.filled())) as u64
    }

    /// Whether lists lead to so little of it, less than two thirds, that copying those records makes room.
    pub fn is_sparse(&self) -> bool {
        self.live.load(Ordering::Relaxed).saturating_mul(3) < 2 * self.filled()
    }

    pub fn is_named(&self) -> bool {
        self.named.load(Ordering::Acquire) > 0
    }

    pub fn name(&self, live: u64) {
        self.named.fetch_add(1, Ordering::AcqRel);
        self.extent.was_named.store(true, Ordering::Relaxed);
        self.live.fetch_add(live, Ordering::Relaxed);
    }

    pub fn unname(&self, live: u64) {
        self.live.fetch_sub(live, Ordering::Relaxed);
        self.named.fetch_sub(1, Ordering::AcqRel);
    }

    /// The record at `at`, which is not trusted: its head and key are checked, its value is not read. Charged as a read
    /// unless that read `is_started` already.
    pub fn record(&self, at: u64, is_started: bool) -> Result<PmRecord<'_>> {
        let pool = self.extent.pool();
        if !self.holds(at) {
            return Err(pool.corruption(at, "a record of a buffer", "a place outside of it"));
        }
        let record = record_in(pool, self.id, at, self.end)?;
        if !is_started {
            pool.charge_read(at, RECORD_HEAD_BYTES + record.key.len() as u64);
        }
        Ok(record)
    }
}

/// The record at `at` of a buffer `id` that ends at `end`.
pub(super) fn record_in(pool: &Pool, id: u64, at: u64, end: u64) -> Result<PmRecord<'_>> {
    let head = pool.get::<RecordHead>(POff::new(at))?;
    let fields = head.fields();
    let key_at = at + RECORD_HEAD_BYTES;
    let damaged = |found: &str| pool.corruption(at, "a record with its checksum", found);
    if key_at + u64::from(fields.klen) + u64::from(fields.vlen) > end {
        return Err(damaged("a length that is too large"));
    }
    // SAFETY: records do not change once they are written, and the buffer is not freed as long as the caller borrows
    // it.
    let (image, key) =
        unsafe { (pool.bytes(at, RECORD_HEAD_BYTES)?, pool.bytes(key_at, u64::from(fields.klen))?) };
    if record_crc(id, at, image, key) != head.crc {
        return Err(damaged("another checksum"));
    }
    let kind = Kind::parse_any(Kind::byte(fields.kind, fields.fields), pool.path(), at)?;
    Ok(PmRecord { pool, at, key, seq: fields.seq, kind, vlen: fields.vlen, value_crc: fields.value_crc })
}

impl<'a> PmRecord<'a> {
    /// The value in place, checked and charged as a read.
    pub fn value(&self) -> Result<&'a [u8]> {
        let at = self.at + RECORD_HEAD_BYTES + self.key.len() as u64;
        let len = u64::from(self.vlen);
        self.pool.charge_rest(at, len.max(1));
        // SAFETY: as in `record_in`.
        let value = unsafe { self.pool.bytes(at, len)? };
        match crc32c(value) == self.value_crc {
            true => Ok(value),
            false => Err(self.pool.corruption(at, "a value with its checksum", "another checksum")),
        }
    }
}

/// Identity, bytes and filled bytes of the buffer at `offset`.
pub(super) fn read_head(pool: &Pool, offset: u64) -> Result<(u64, u64, u64)> {
    let head = pool.get::<BufferHead>(POff::new(offset))?;
    pool.charge_read(offset, BUFFER_HEAD_BYTES);
    if let Some(version) = head.other_version(pool.place(offset)) {
        return Err(foreign(pool, format!("a buffer of version {version}")));
    }
    let fits = offset.checked_add(head.bytes).is_some_and(|end| end <= pool.size())
        && (BUFFER_HEAD_BYTES..=head.bytes).contains(&head.end);
    match head.is_sound(pool.place(offset)) && fits {
        true => Ok((head.id, head.bytes, head.end)),
        false => Err(pool.corruption(offset, "a buffer of records", "other bytes")),
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if *self.named.get_mut() == 0 {
            self.extent.give_back();
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("offset", &self.extent.offset).field("end", &self.end).finish()
    }
}

/// The part of `parts`, which are by their places, that a record at `at` lies in.
pub(super) fn part_of(parts: &[super::Part], at: u64) -> Option<&Arc<Buffer>> {
    let after = parts.partition_point(|part| part.buffer.extent.offset <= at);
    let part = parts.get(after.checked_sub(1)?)?;
    part.buffer.holds(at).then_some(&part.buffer)
}
