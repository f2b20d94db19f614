//! Searching the payload of a block, wherever it lies.

use std::cmp::Ordering;
use std::ops::Range;

use terrace_base::codec::Reader;
use terrace_base::prefetch;

use super::head::{Head, kind_of, varint};
use crate::entry::{Kind, MAX_KEY_BYTES, shared_prefix};
use crate::frame::Malformed;

/// All entries from one restart to the next are loaded if they are of so many bytes, as small records are. Of larger ones a
/// search passes few lines.
const MOST_PREFETCHED_BYTES: usize = 2048;

/// One entry, decoded but for its key's shared prefix.
#[derive(Debug, Clone)]
pub(crate) struct RawEntry {
    /// Where it begins.
    pub at: usize,
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

/// The part of an entry that a search which passes it needs.
struct Passed {
    shared: usize,
    /// The rest of the key, as a range of the payload.
    suffix: Range<usize>,
    /// Where the next entry starts.
    next: usize,
}

/// A found version; the value as a range of the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub seq: u64,
    pub kind: Kind,
    pub value: Range<usize>,
}

/// The answer of a block about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup {
    Found(Found),
    /// Not in this block, and nothing of it can be in a later one.
    Absent,
    /// All entries of this block sort before it; a later block may hold it.
    PastEnd {
        /// Whether the block's last entry is a (too new) version of the key.
        same_key: bool,
    },
}

/// A payload wherever it lies, to be searched; its count of restarts fits into it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(super) data: &'a [u8],
    /// End of the entries, start of the restart array.
    pub(super) limit: usize,
    pub(super) restarts: usize,
}

impl<'a> View<'a> {
    /// Of the payload `data`.
    #[inline]
    pub fn new(data: &'a [u8]) -> Result<View<'a>, Malformed> {
        let bad = || Malformed::new("a restart array within the block", "a count that does not fit");
        let count_at = data.len().checked_sub(4).ok_or_else(bad)?;
        let restarts = Reader::new(&data[count_at..]).u32().ok_or_else(bad)? as usize;
        let array = 4 * restarts.saturating_sub(1);
        let limit = count_at.checked_sub(array).ok_or_else(bad)?;
        if (restarts == 0) != (limit == 0) {
            return Err(bad());
        }
        Ok(View { data, limit, restarts })
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

    /// The entry at `at`, which must be below `limit`.
    #[inline]
    pub fn entry(&self, at: usize) -> Result<RawEntry, Malformed> {
        self.try_entry(at).ok_or_else(|| self.malformed(at))
    }

    /// The error about the entry at `at`.
    #[cold]
    fn malformed(&self, mut at: usize) -> Malformed {
        let data = self.data.get(..self.limit).unwrap_or_default();
        let (_shared, _unshared) = (varint(data, &mut at), varint(data, &mut at));
        match varint(data, &mut at).map(kind_of).and_then(Kind::reserved) {
            Some(what) => Malformed::of_later_version(what),
            None => entry_malformed(),
        }
    }

    #[inline]
    fn try_entry(&self, begin: usize) -> Option<RawEntry> {
        let Head { shared, unshared, tag, seq, end: at } =
            Head::short(self.data, begin).or_else(|| Head::long(self.data.get(..self.limit)?, begin))?;
        if shared > MAX_KEY_BYTES as u64 || unshared > MAX_KEY_BYTES as u64 - shared {
            return None;
        }
        let value_len = usize::try_from(tag >> Kind::BITS).ok()?;
        let value_at = at + unshared as usize;
        let end = value_at.checked_add(value_len)?;
        if end > self.limit {
            return None;
        }
        let kind = Kind::from_u8(kind_of(tag))?;
        let (suffix, value) = (at..value_at, value_at..end);
        Some(RawEntry { at: begin, shared: shared as usize, suffix, value, seq, kind })
    }

    /// The entry at `at`, which must be below `limit`, as far as one needs it who passes it.
    #[inline(always)]
    fn passed(&self, at: usize) -> Result<Passed, Malformed> {
        match self.passed_short(at) {
            Some(passed) => Ok(passed),
            None => self.passed_long(at),
        }
    }

    #[inline(always)]
    fn passed_short(&self, at: usize) -> Option<Passed> {
        let Head { shared, unshared, tag, end, .. } = Head::short(self.data, at)?;
        Kind::from_u8(kind_of(tag))?;
        let value_at = end + unshared as usize;
        let next = value_at + (tag >> Kind::BITS) as usize;
        (next <= self.limit).then_some(Passed { shared: shared as usize, suffix: end..value_at, next })
    }

    #[inline(never)]
    fn passed_long(&self, at: usize) -> Result<Passed, Malformed> {
        let entry = self.entry(at)?;
        Ok(Passed { shared: entry.shared, next: entry.next(), suffix: entry.suffix })
    }

    /// The entry at the restart `at`, whose key must be whole.
    #[inline(always)]
    fn passed_restart(&self, at: usize) -> Result<Passed, Malformed> {
        match self.passed(at)? {
            passed @ Passed { shared: 0, .. } => Ok(passed),
            _ => Err(Malformed::new("a whole key at a restart", "a shared prefix")),
        }
    }

    /// Starts loading the restarts that a search asks first. The end of the block tells where they are.
    #[inline]
    pub fn prefetch_restarts(&self) {
        for quarter in 1..4 {
            if let Ok(at) = self.restart(self.restarts * quarter / 4) {
                prefetch::line(self.data.as_ptr().wrapping_add(at));
            }
        }
    }

    /// Starts loading the entries that a search for (`key`, `seq`) passes one by one. Returns the restart before them.
    #[inline]
    pub fn prefetch_entries(&self, key: &[u8], seq: u64) -> Result<usize, Malformed> {
        let restart = self.restart_before(key, seq)?;
        let next = if restart + 1 < self.restarts { self.restart(restart + 1) } else { Ok(self.limit) };
        if let (Ok(from), Ok(to)) = (self.restart(restart), next) {
            let len = to.saturating_sub(from);
            let needed = if len > MOST_PREFETCHED_BYTES { prefetch::LINE_BYTES } else { len };
            prefetch::lines(self.data.as_ptr().wrapping_add(from), needed);
        }
        Ok(restart)
    }

    /// The last restart that sorts before (`key`, `seq`), or the first.
    fn restart_before(&self, key: &[u8], seq: u64) -> Result<usize, Malformed> {
        let (mut low, mut high) = (0, self.restarts);
        while low + 1 < high {
            let mid = low + (high - low) / 2;
            let at = self.restart(mid)?;
            let found = &self.data[self.passed_restart(at)?.suffix];
            let common = shared_prefix(found, key);
            let is_before = match found.get(common).cmp(&key.get(common)) {
                Ordering::Equal => self.entry(at)?.seq > seq,
                order => order.is_lt(),
            };
            (low, high) = if is_before { (mid, high) } else { (low, mid) };
        }
        Ok(low)
    }

    /// The first entry at or after (`key`, `seq`), and whether it, or if there is none the last entry of
    /// the block, is a version of `key`.
    ///
    /// Keys are not put together: the entry before shares exactly `matched` bytes with `key` and sorts
    /// before it. One that shares more with that entry differs from `key` where that one does, and sorts
    /// before too; one that shares less is past `key`; only on a tie do bytes need comparing.
    fn lower_bound(
        &self,
        key: &[u8],
        seq: u64,
        restart: Option<usize>,
    ) -> Result<(Option<RawEntry>, bool), Malformed> {
        if self.restarts == 0 {
            return Ok((None, false));
        }
        let restart = match restart {
            Some(known) => known,
            None => {
                self.prefetch_restarts();
                self.prefetch_entries(key, seq)?
            }
        };
        let start = self.restart(restart)?;
        let mut at = start;
        let mut matched = 0;
        let mut same_key = false;
        while at < self.limit {
            let this = at;
            let Passed { shared, suffix, next } =
                if at == start { self.passed_restart(at)? } else { self.passed(at)? };
            at = next;
            if shared > matched {
                continue;
            }
            if shared < matched && shared > 0 {
                return Ok((Some(self.entry(this)?), false));
            }
            let (suffix, rest) = (&self.data[suffix], &key[shared..]);
            let common = shared_prefix(suffix, rest);
            same_key = common == suffix.len() && common == rest.len();
            let after = match same_key {
                true => self.entry(this)?.seq <= seq,
                false => suffix.get(common) > rest.get(common),
            };
            if after {
                return Ok((Some(self.entry(this)?), same_key));
            }
            matched = shared + common;
        }
        Ok((None, same_key))
    }

    /// The newest version of `key` with a sequence number up to `max_seq`.
    pub fn find(&self, key: &[u8], max_seq: u64) -> Result<Lookup, Malformed> {
        self.find_from(None, key, max_seq)
    }

    /// The same; `restart` is the one before it, if that is known.
    pub fn find_from(&self, restart: Option<usize>, key: &[u8], max_seq: u64) -> Result<Lookup, Malformed> {
        Ok(match self.lower_bound(key, max_seq, restart)? {
            (Some(entry), true) => {
                Lookup::Found(Found { seq: entry.seq, kind: entry.kind, value: entry.value })
            }
            (Some(_), false) => Lookup::Absent,
            (None, same_key) => Lookup::PastEnd { same_key },
        })
    }

    /// The newest version of `key` with a sequence number up to `max_seq`, if the entry at `at` is that. It lies behind one
    /// of `before`, which is another key.
    #[inline]
    pub fn find_behind(&self, at: usize, before: &[u8], key: &[u8], max_seq: u64) -> Option<Found> {
        let entry = self.try_entry(at)?;
        let (head, rest) = (before.get(..entry.shared)?, self.data.get(entry.suffix)?);
        let is_key = key.len() == head.len() + rest.len() && key.starts_with(head) && key.ends_with(rest);
        // The first entry with a key has its newest version.
        let is_found = is_key && entry.seq <= max_seq && before != key;
        is_found.then_some(Found { seq: entry.seq, kind: entry.kind, value: entry.value })
    }

    /// The first entry at or after (`key`, `seq`). What it shares with the entry before it shares with `key`, too.
    pub fn at_or_after(&self, key: &[u8], seq: u64) -> Result<Option<RawEntry>, Malformed> {
        self.lower_bound(key, seq, None).map(|(entry, _)| entry)
    }

    /// The value of the first entry at or after (`key`, `seq`); `restart` is the one before it, if that is known.
    pub fn value_at_or_after(
        &self,
        restart: Option<usize>,
        key: &[u8],
        seq: u64,
    ) -> Result<Option<&'a [u8]>, Malformed> {
        let (entry, _) = self.lower_bound(key, seq, restart)?;
        Ok(entry.map(|entry| &self.data[entry.value]))
    }
}

fn entry_malformed() -> Malformed {
    Malformed::new("an entry within its block", "lengths that do not fit")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use terrace_base::codec::put_varint;

    use super::super::{Block, BlockCursor, Held};
    use super::*;

    #[test]
    fn short_entries_are_read_as_long_ones() {
        let lens = [0, 1, 15, 16, 127, 128, 1 << 11, 1 << 14, 1 << 18, 1 << 21, 1 << 28, 1 << 35, u64::MAX];
        for [shared, unshared] in [[0, 5], [127, 127], [0, 0], [128, 0], [0, 128]] {
            for value_len in lens.iter().copied().filter(|len| *len < 1 << 15) {
                for seq in lens {
                    let mut data = Vec::new();
                    let tag = value_len << Kind::BITS | Kind::Put as u64;
                    [shared, unshared, tag, seq].iter().for_each(|field| put_varint(&mut data, *field));
                    let head = data.len();
                    data.resize(head + (unshared + value_len) as usize, 0xff);
                    let limit = data.len();
                    data.extend([0xff; 8]);
                    let view = |limit| View { data: &data, limit, restarts: 1 };
                    let is_short = shared.max(unshared) < 128 && head <= 8;
                    let heads = [Head::short(&data, 0), Head::long(&data[..limit], 0)];
                    assert_eq!(heads.iter().map(Option::is_some).collect::<Vec<_>>(), [is_short, true]);
                    for found in heads.into_iter().flatten() {
                        let fields = [found.shared, found.unshared, found.tag, found.seq];
                        assert_eq!((fields, found.end), ([shared, unshared, tag, seq], head));
                    }
                    let (entry, passed) = (view(limit).entry(0).unwrap(), view(limit).passed(0).unwrap());
                    assert_eq!((entry.next(), entry.seq, entry.suffix.start), (limit, seq, head));
                    assert_eq!((passed.next, passed.suffix), (limit, entry.suffix));
                    assert_eq!(view(limit).passed_short(0).is_some(), is_short);
                    assert!(view(limit - 1).passed(0).is_err() && view(limit - 1).entry(0).is_err());
                }
            }
        }
    }

    #[test]
    fn payloads_that_cannot_be_are_errors() {
        let open = |data: &[u8]| Block::new(Bytes::copy_from_slice(data), 16, data.len());
        for data in [&b""[..], b"abc", &[0, 0, 0, 1], &[2, 0, 0, 0], &[255; 8], &[7, 0, 0, 0, 0]] {
            assert!(open(data).is_err(), "{data:?}");
        }
        // Entries that leave the block, a shared prefix at the start, a restart outside the entries.
        let entries: [&[u8]; 5] = [&[0, 9, 0, 0], &[0, 1, 9, 0, 1], &[1, 1, 0, 0, 1], &[0, 0x80], &[255; 20]];
        for entry in entries {
            let block = open(&[entry, &[1, 0, 0, 0]].concat()).unwrap();
            let found = block.find(b"a", 9);
            let mut cursor = BlockCursor::default();
            cursor.set(Some(Held::Own(block)));
            assert!(cursor.first().is_err() && cursor.last().is_err(), "{entry:?}");
            assert!(cursor.seek(b"a", 9).is_err() && cursor.seek_back(b"a", 9).is_err(), "{entry:?}");
            assert!(!matches!(found, Ok(Lookup::Found(_))), "{entry:?}");
        }
        let block = open(&[0, 0, 0, 0, 200, 0, 0, 0, 2, 0, 0, 0]).unwrap();
        assert!(block.find(b"a", 9).is_err());
    }
}
