//! Reading and searching a block in memory.

use std::cmp::Ordering;
use std::ops::Range;

use bytes::Bytes;
use terrace_base::codec::Reader;

use crate::entry::{Entry, Kind, MAX_KEY_BYTES, order, shared_prefix};
use crate::frame::Malformed;

/// Bytes that a cached block costs beside its data: itself, its counts and the cache's slot.
const BLOCK_OVERHEAD_BYTES: usize = 160;

/// A checked block in memory. Immutable; values are shares of its bytes.
#[derive(Debug)]
pub(crate) struct Block {
    /// The payload.
    data: Bytes,
    /// Where the block lies in its file, for messages.
    pub offset: u64,
    /// End of the entries, start of the restart array.
    limit: usize,
    restarts: usize,
    held_bytes: usize,
}

/// One entry, decoded but for its key's shared prefix.
#[derive(Debug, Clone)]
pub(crate) struct RawEntry {
    pub shared: usize,
    /// The rest of the key, as a range of the payload.
    pub suffix: Range<usize>,
    pub value: Range<usize>,
    pub seq: u64,
    pub kind: Kind,
}

impl RawEntry {
    /// Where the next entry starts.
    pub fn next(&self) -> usize {
        self.value.end
    }
}

/// A found version; the value as a range of the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub seq: u64,
    pub kind: Kind,
    pub value: Range<usize>,
}

/// What a block knows of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup {
    Found(Found),
    /// Not in this block, and nothing of it can be in a later one.
    Absent,
    /// Everything in this block sorts before; a later block may hold it.
    PastEnd {
        /// Whether the block's last entry is a (too new) version of the key.
        same_key: bool,
    },
}

fn entry_malformed() -> Malformed {
    Malformed::new("an entry within its block", "lengths that do not fit")
}

/// A varint at `*at`, one byte being the usual case.
#[inline]
fn varint(data: &[u8], at: &mut usize) -> Option<u64> {
    let first = *data.get(*at)?;
    if first < 0x80 {
        *at += 1;
        return Some(u64::from(first));
    }
    let mut r = Reader::new(data.get(*at..)?);
    let value = r.varint()?;
    *at += r.position();
    Some(value)
}

impl Block {
    /// The block whose payload is `data`. `held_bytes` is what keeping it costs.
    pub fn new(data: Bytes, offset: u64, held_bytes: usize) -> Result<Block, Malformed> {
        let bad = || Malformed::new("a restart array within the block", "a count that does not fit");
        let count_at = data.len().checked_sub(4).ok_or_else(bad)?;
        let restarts = Reader::new(&data[count_at..]).u32().ok_or_else(bad)? as usize;
        let array = 4 * restarts.saturating_sub(1);
        let limit = count_at.checked_sub(array).ok_or_else(bad)?;
        if (restarts == 0) != (limit == 0) {
            return Err(bad());
        }
        Ok(Block { data, offset, limit, restarts, held_bytes })
    }

    /// What keeping the block in memory costs.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes + BLOCK_OVERHEAD_BYTES
    }

    /// The end of the entries.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Restart entries.
    pub fn restarts(&self) -> usize {
        self.restarts
    }

    /// Bytes `range` of the payload.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.data.get(range).unwrap_or_default()
    }

    /// A share of bytes `range` of the payload.
    pub fn share(&self, range: Range<usize>) -> Bytes {
        if range.is_empty() { Bytes::new() } else { self.data.slice(range) }
    }

    /// The found version with its value.
    pub fn entry_of(&self, found: Found) -> Entry {
        Entry { seq: found.seq, kind: found.kind, value: self.share(found.value) }
    }

    /// The offset of restart `i`.
    pub fn restart(&self, i: usize) -> Result<usize, Malformed> {
        if i == 0 {
            return Ok(0);
        }
        let at = self.limit + 4 * (i - 1);
        let word = self.data.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        match word {
            Some(offset) if (offset as usize) < self.limit => Ok(offset as usize),
            _ => Err(Malformed::new("a restart within the entries", format!("{word:?}"))),
        }
    }

    /// The entry at `at`, which must be below [`limit`](Self::limit).
    #[inline]
    pub fn entry(&self, at: usize) -> Result<RawEntry, Malformed> {
        self.try_entry(at).ok_or_else(entry_malformed)
    }

    #[inline]
    fn try_entry(&self, mut at: usize) -> Option<RawEntry> {
        let data = self.data.get(..self.limit)?;
        let shared = varint(data, &mut at)?;
        let unshared = varint(data, &mut at)?;
        let tag = varint(data, &mut at)?;
        let seq = varint(data, &mut at)?;
        if shared > MAX_KEY_BYTES as u64 || unshared > MAX_KEY_BYTES as u64 - shared {
            return None;
        }
        let value_len = usize::try_from(tag >> 1).ok()?;
        let value_at = at + unshared as usize;
        let end = value_at.checked_add(value_len)?;
        if end > self.limit {
            return None;
        }
        let kind = if tag & 1 == 0 { Kind::Delete } else { Kind::Put };
        Some(RawEntry { shared: shared as usize, suffix: at..value_at, value: value_at..end, seq, kind })
    }

    /// The restart entry at `at`, whose key must be whole.
    fn restart_entry(&self, at: usize) -> Result<RawEntry, Malformed> {
        let entry = self.entry(at)?;
        if entry.shared == 0 {
            Ok(entry)
        } else {
            Err(Malformed::new("a whole key at a restart", "a shared prefix"))
        }
    }

    /// The last restart that sorts before (`key`, `seq`), or the first.
    pub fn restart_before(&self, key: &[u8], seq: u64) -> Result<usize, Malformed> {
        let (mut low, mut high) = (0, self.restarts);
        while low + 1 < high {
            let mid = low + (high - low) / 2;
            let entry = self.restart_entry(self.restart(mid)?)?;
            match order((&self.data[entry.suffix], entry.seq), (key, seq)) {
                Ordering::Less => low = mid,
                _ => high = mid,
            }
        }
        Ok(low)
    }

    /// The newest version of `key` with a sequence number up to `max_seq`.
    ///
    /// Keys are not put together: the entry before shares exactly `matched` bytes with `key` and sorts
    /// before it. One that shares more with that entry differs from `key` where that one does, and sorts
    /// before too; one that shares less is past `key`; only on a tie do bytes need comparing.
    pub fn find(&self, key: &[u8], max_seq: u64) -> Result<Lookup, Malformed> {
        if self.restarts == 0 {
            return Ok(Lookup::PastEnd { same_key: false });
        }
        let mut at = self.restart(self.restart_before(key, max_seq)?)?;
        let mut matched = 0;
        let mut same_key = false;
        while at < self.limit {
            let entry = self.entry(at)?;
            at = entry.next();
            if entry.shared > matched {
                continue;
            }
            if entry.shared < matched && entry.shared > 0 {
                return Ok(Lookup::Absent);
            }
            let suffix = &self.data[entry.suffix];
            let rest = &key[entry.shared..];
            let common = shared_prefix(suffix, rest);
            same_key = common == suffix.len() && common == rest.len();
            if same_key && entry.seq <= max_seq {
                return Ok(Lookup::Found(Found { seq: entry.seq, kind: entry.kind, value: entry.value }));
            }
            if !same_key && suffix.get(common) > rest.get(common) {
                return Ok(Lookup::Absent);
            }
            matched = entry.shared + common;
        }
        Ok(Lookup::PastEnd { same_key })
    }
}
