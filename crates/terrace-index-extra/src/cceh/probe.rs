//! Looking for a key: the window of buckets from its home on, and reads without locks.

use std::sync::atomic::{Ordering, fence};

use crossbeam_utils::Backoff;
use terrace_base::{Error, Result, prefetch};
use terrace_index::parts::Pair;

use super::Cceh;
use super::layout::{
    BUCKET_BYTES, BUCKET_SHIFT, BUCKET_SLOTS, Bucket, SLOT_BYTES, inline_word, names_record, prefix,
    record_word,
};
use super::lock::is_busy;

/// A slot of a segment: bucket and number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotAt {
    pub bucket: usize,
    pub slot: usize,
}

impl SlotAt {
    /// The slot's number in its segment.
    pub fn number(self) -> usize {
        self.bucket * BUCKET_SLOTS + self.slot
    }

    /// Bytes from the segment's start to the slot's key word; its value word follows.
    pub fn key_at(self) -> u64 {
        self.bucket as u64 * BUCKET_BYTES + self.slot as u64 * SLOT_BYTES
    }

    /// Bytes from the segment's start to the slot's value word.
    pub fn value_at(self) -> u64 {
        self.key_at() + 8
    }
}

/// The value that was found.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'p> {
    /// A word, in the slot.
    Word(u64),
    /// A record's.
    Pair(Pair<'p>),
}

impl Value<'_> {
    pub fn word(&self) -> Result<u64> {
        match self {
            Value::Word(word) => Ok(*word),
            Value::Pair(pair) => pair.word(),
        }
    }

    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Value::Word(word) => out.extend(word.to_le_bytes()),
            Value::Pair(pair) => out.extend_from_slice(pair.value),
        }
    }
}

/// Is called with a living slot: its place, key, hash and value.
pub(super) type Visit<'v> = dyn FnMut(SlotAt, &[u8], u64, Value<'_>) -> Result<()> + 'v;

/// A key prepared for a search.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'k> {
    pub key: &'k [u8],
    pub hash: u64,
    /// Its key word if it may lie in the slot itself.
    pub inline: Option<u64>,
    /// Its key word if it lies in a record.
    pub record: u64,
}

impl<'k> Wanted<'k> {
    #[inline]
    pub fn new(key: &'k [u8], hash: u64) -> Self {
        let inline = if key.len() == 8 { inline_word(hash) } else { None };
        Wanted { key, hash, inline, record: record_word(hash) }
    }
}

#[inline]
pub(super) fn key_word(bucket: &Bucket, slot: usize) -> u64 {
    bucket[2 * slot].load(Ordering::Acquire)
}

#[inline]
pub(super) fn value_word(bucket: &Bucket, slot: usize) -> u64 {
    bucket[2 * slot + 1].load(Ordering::Acquire)
}

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    /// The home bucket of a hash, or of a key word.
    #[inline]
    pub(super) fn home(hash: u64) -> usize {
        (hash >> BUCKET_SHIFT) as usize % BUCKETS
    }

    /// The buckets of a window in order.
    #[inline]
    pub(super) fn window(hash: u64) -> impl Iterator<Item = usize> {
        let home = Self::home(hash);
        (0..PROBE).map(move |i| (home + i) % BUCKETS)
    }

    /// The value of `wanted` in the segment at `offset`. The caller is present in limbo since before it read the route,
    /// and uses the answer, even an error, only if the segment's lock word did not change.
    #[inline]
    fn find(&self, offset: u64, wanted: &Wanted<'_>) -> Result<Option<Value<'_>>> {
        let segment = self.segment(offset)?;
        let mut pair = None;
        let mut looked = 0;
        let mut found = None;
        'window: for bucket in Self::window(wanted.hash) {
            looked += 1;
            for slot in 0..BUCKET_SLOTS {
                let word = key_word(&segment[bucket], slot);
                if Some(word) == wanted.inline {
                    // This slot counts, even if there is also a record.
                    found = Some(Value::Word(value_word(&segment[bucket], slot)));
                    break 'window;
                }
                if word == wanted.record && pair.is_none() {
                    pair = self.pair_of(value_word(&segment[bucket], slot), wanted)?;
                    if pair.is_some() && wanted.inline.is_none() {
                        break 'window;
                    }
                }
            }
        }
        self.charge_window(offset, wanted.hash, looked);
        Ok(found.or(pair.map(Value::Pair)))
    }

    /// The record at `at`, from a slot with the key word of `wanted`'s record, if it is that; another one must be of a
    /// key with that word. The caller is present in limbo since before it read `at`.
    pub(super) fn pair_of(&self, at: u64, wanted: &Wanted<'_>) -> Result<Option<Pair<'_>>> {
        // SAFETY: the caller is present in the limbo in which records wait; `at` was read after that.
        let pair = unsafe { Pair::read(&self.pool, at)? };
        if pair.key == wanted.key {
            return Ok(Some(pair));
        }
        if record_word(self.hash.of(pair.key)) == wanted.record { Ok(None) } else { Err(self.stranger(at)) }
    }

    fn charge_window(&self, offset: u64, hash: u64, buckets: usize) {
        let home = Self::home(hash);
        let before_end = buckets.min(BUCKETS - home);
        self.pool.charge_read(offset + home as u64 * BUCKET_BYTES, before_end as u64 * BUCKET_BYTES);
        if buckets > before_end {
            self.pool.charge_read(offset, (buckets - before_end) as u64 * BUCKET_BYTES);
        }
    }

    /// Starts loading a home bucket, and the one behind it, while the lock word is on its way.
    #[inline]
    pub(super) fn prefetch(&self, offset: u64, hash: u64) {
        if let Ok(segment) = self.segment(offset) {
            Self::window(hash).take(2).for_each(|bucket| prefetch::line(segment[bucket].as_ptr()));
        }
    }

    /// Flushes a window, since a writer is at work in it; the caller drains.
    fn flush_window(&self, offset: u64, hash: u64) {
        for bucket in Self::window(hash) {
            self.pool.flush(offset + bucket as u64 * BUCKET_BYTES, BUCKET_BYTES);
        }
    }

    /// Looks `key` up and passes its value to `take`, which may be called several times.
    #[inline]
    pub(super) fn read<R>(&self, key: &[u8], take: impl FnMut(Value<'_>) -> Result<R>) -> Result<Option<R>> {
        let hash = self.hash.of(key);
        let _here = self.limbo.enter();
        self.read_hashed(&Wanted::new(key, hash), take)
    }

    #[inline]
    fn read_hashed<R>(
        &self,
        wanted: &Wanted<'_>,
        mut take: impl FnMut(Value<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        let backoff = Backoff::new();
        loop {
            let route = self.route(wanted.hash)?;
            self.prefetch(route.entry.offset, wanted.hash);
            let lock = self.locks.word(route.entry.offset);
            let before = lock.load(Ordering::Acquire);
            if self.still(&route) {
                let taken = self.find(route.entry.offset, wanted).and_then(|v| v.map(&mut take).transpose());
                fence(Ordering::Acquire);
                if lock.load(Ordering::Relaxed) == before {
                    if is_busy(before) {
                        self.flush_window(route.entry.offset, wanted.hash);
                        self.pool.drain();
                    }
                    return match taken? {
                        None => self.overflowed(wanted)?.map(|pair| take(Value::Pair(pair))).transpose(),
                        found => Ok(found),
                    };
                }
            }
            backoff.spin();
        }
    }

    /// Whether a segment has a key. Nobody writes.
    pub(super) fn is_in_segment(&self, wanted: &Wanted<'_>) -> Result<bool> {
        let offset = self.route(wanted.hash)?.entry.offset;
        Ok(self.find(offset, wanted)?.is_some())
    }

    /// Whether a slot's key word belongs to a segment of `depth` that `hash` leads to.
    #[inline]
    pub(super) fn is_living(word: u64, hash: u64, depth: u32) -> bool {
        word != 0 && prefix(word, depth) == prefix(hash, depth)
    }

    /// Whether the record slot with key word `word` and hash `hash` is hidden by an inline slot of its key.
    pub(super) fn is_hidden(segment: &[Bucket; BUCKETS], key: &[u8], hash: u64) -> bool {
        let Some(inline) = Wanted::new(key, hash).inline else { return false };
        Self::window(hash)
            .any(|bucket| (0..BUCKET_SLOTS).any(|slot| key_word(&segment[bucket], slot) == inline))
    }

    /// Every living slot of a segment that the hashes like `hash` lead to, with its key, hash and value; hidden records
    /// are left out. The caller obeys the rules of [`find`](Self::find).
    pub(super) fn for_each_key(
        &self,
        offset: u64,
        hash: u64,
        depth: u32,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let segment = self.segment(offset)?;
        for bucket in 0..BUCKETS {
            for slot in 0..BUCKET_SLOTS {
                let word = key_word(&segment[bucket], slot);
                if !Self::is_living(word, hash, depth) {
                    continue;
                }
                let (at, value) = (SlotAt { bucket, slot }, value_word(&segment[bucket], slot));
                if !names_record(word) {
                    visit(at, &self.hash.word_of(word).to_le_bytes(), word, Value::Word(value))?;
                    continue;
                }
                // SAFETY: the caller is present in the limbo in which records wait, since before `value` was read.
                let pair = unsafe { Pair::read(&self.pool, value)? };
                let own = self.hash.of(pair.key);
                if record_word(own) != word {
                    return Err(self.stranger(value));
                }
                if !Self::is_hidden(segment, pair.key, own) {
                    visit(at, pair.key, own, Value::Pair(pair))?;
                }
            }
        }
        Ok(())
    }

    #[cold]
    fn stranger(&self, at: u64) -> Error {
        self.damaged(at, "the record of a slot", "another's")
    }
}
