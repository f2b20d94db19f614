//! Scanning without an order of keys: in the order of hashes, which rehashing does not change. A shard is a range
//! of hashes.

use std::ops::RangeInclusive;

use terrace_base::Result;

use super::TurboHash;
use super::directory::View;
use super::layout::{Bucket, SLOTS, home_of, shard_of, tag_of};
use super::probe::{Content, Header};
use super::read::Here;
use super::simd::Portable;
use crate::hashed::ScanPosition;
use crate::pair::Pair;

/// Is called with each key and value.
pub type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// A pair that a scan has found.
struct Seen<'t> {
    hash: u64,
    /// The eight bytes of a key in its slot, and of its value.
    words: [[u8; 8]; 2],
    record: Option<Pair<'t>>,
}

impl Seen<'_> {
    fn key(&self) -> &[u8] {
        self.record.map_or(&self.words[0], |pair| pair.key)
    }

    fn value(&self) -> &[u8] {
        self.record.map_or(&self.words[1], |pair| pair.value)
    }
}

impl TurboHash {
    /// Visits keys and values from `cursor` on and moves it, as [`scan_unordered`] does with words.
    ///
    /// [`scan_unordered`]: crate::HashIndex::scan_unordered
    pub fn scan_pairs(&self, cursor: &mut ScanPosition, limit: usize, visit: Visit<'_>) -> Result<()> {
        let mut left = limit.max(1);
        while let Some(from) = cursor.hash() {
            let here = self.limbo.enter();
            let shard = shard_of(from, self.header.shard_bits);
            let seen = self.shard_from(&here, shard, from)?;
            let mut last = None;
            for pair in seen {
                // Keys of one hash come together: the cursor cannot stop between them.
                if left == 0 && last != Some(pair.hash) {
                    return Ok(());
                }
                visit(pair.key(), pair.value())?;
                left = left.saturating_sub(1);
                last = Some(pair.hash);
                *cursor = ScanPosition::after(pair.hash);
            }
            *cursor = ScanPosition::after(*self.hashes_of(shard).end());
            if left == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The hashes of a shard.
    pub(super) fn hashes_of(&self, shard: usize) -> RangeInclusive<u64> {
        let first = super::layout::first_hash(shard, self.header.shard_bits);
        first..=first | u64::MAX >> self.header.shard_bits
    }

    /// The pairs of a shard with hashes of at least `from`, in their order, durable.
    fn shard_from<'t>(&'t self, _here: &'t Here<'t>, shard: usize, from: u64) -> Result<Vec<Seen<'t>>> {
        let view = self.view(shard);
        let mut seen = Vec::new();
        for i in 0..view.len() {
            // SAFETY: present in limbo since before the view was loaded.
            for (hash, content) in unsafe { self.pairs_in(shard, view, i)? } {
                if hash < from {
                    continue;
                }
                let words = [content.key.to_le_bytes(), content.value.to_le_bytes()];
                let record = match content.is_record {
                    // SAFETY: present in limbo since before the slot was loaded, which named the record then.
                    true => Some(unsafe { self.record_of(hash, content.value)? }),
                    false => None,
                };
                seen.push(Seen { hash, words, record });
            }
        }
        self.charge_all(view);
        if self.view(shard).is_writing() {
            self.persist_headers(view, 0, view.len());
        }
        for (hash, record) in self.overflow.records(from..=*self.hashes_of(shard).end()) {
            // SAFETY: present in limbo since before the overflow was asked, which named the record then.
            let pair = unsafe { Pair::read(&self.pool, record)? };
            seen.push(Seen { hash, words: [[0; 8]; 2], record: Some(pair) });
        }
        // A key that was deleted and inserted again may have been seen twice: the later one is newer. The sort is
        // stable.
        seen.sort_by(|a, b| (a.hash, a.key()).cmp(&(b.hash, b.key())));
        seen.reverse();
        seen.dedup_by(|a, b| a.hash == b.hash && a.key() == b.key());
        seen.reverse();
        Ok(seen)
    }

    /// The hashes and contents of the live slots of bucket `i` of a shard, as they were at one moment, all of which may
    /// be there: keys of the shard, with their tags, within their scopes.
    ///
    /// # Safety
    ///
    /// As for [`View::bucket`].
    pub(super) unsafe fn pairs_in(&self, shard: usize, view: View, i: usize) -> Result<Vec<(u64, Content)>> {
        // SAFETY: the caller's.
        let bucket = unsafe { view.bucket(i) };
        let (header, contents) = self.stable_contents(bucket)?;
        let belongs = |slot: usize, hash: u64| {
            header.tag(slot) == tag_of(hash)
                && shard_of(hash, self.header.shard_bits) == shard
                && self.distance(view, home_of(hash, view.bits()), i) < self.scope(view)
        };
        let hashed = contents.into_iter().map(|(slot, content)| {
            let hash = self.hash_of(&content);
            if belongs(slot, hash) {
                Ok((hash, content))
            } else {
                Err(self.damaged(bucket, "a key of its own"))
            }
        });
        hashed.collect()
    }

    /// The record at `at`, which a slot names for a key of this hash.
    ///
    /// # Safety
    ///
    /// As for [`Pair::read`].
    unsafe fn record_of(&self, hash: u64, at: u64) -> Result<Pair<'_>> {
        // SAFETY: the caller's.
        let pair = unsafe { Pair::read(&self.pool, at)? };
        match self.hash.of(pair.key) == hash {
            true => Ok(pair),
            false => Err(self.pool.corruption(at, "the record of a key", "another's")),
        }
    }

    /// Buckets from `home` to `at`, going round.
    pub(super) fn distance(&self, view: View, home: usize, at: usize) -> usize {
        at.wrapping_sub(home) & (view.len() - 1)
    }

    /// The live slots of a bucket as they were at one moment.
    pub(super) fn stable_contents(&self, bucket: &Bucket) -> Result<(Header, Vec<(usize, Content)>)> {
        let place = self.place(bucket);
        loop {
            // SAFETY: the portable set asks for no features.
            let header = unsafe { bucket.header::<Portable>(0) };
            let live = header.meta.live();
            // SAFETY: as above.
            let is_sound = unsafe { header.is_sound::<Portable>(place) };
            let slots = (0..SLOTS).filter(|slot| live >> slot & 1 == 1);
            let contents: Vec<_> = slots.map(|slot| (slot, bucket.content(&header, slot))).collect();
            if !bucket.is_still(header.meta) {
                continue;
            }
            if !is_sound || contents.iter().any(|(slot, c)| !c.is_sound(&header, *slot, place)) {
                return Err(self.damaged(bucket, "a bucket with its checks"));
            }
            return Ok((header, contents));
        }
    }

    /// The hash of the key in a slot.
    pub(super) fn hash_of(&self, content: &Content) -> u64 {
        if content.is_record { content.key } else { self.hash.of_word(content.key) }
    }

    fn charge_all(&self, view: View) {
        if !view.is_empty() {
            self.charge(view, 0, view.len());
        }
    }
}
