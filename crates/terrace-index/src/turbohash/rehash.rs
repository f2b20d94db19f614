//! Replaces a shard's buckets: by more of them if there is no place for a key, by as many or fewer to remove the slots
//! of deleted keys.
//!
//! The pairs are read, the new buckets are built in DRAM and written to PM as a whole, past the caches. When they are
//! durable, the shard's descriptor is switched to them, durably, and then the mirror. Readers go on in the old buckets,
//! which do not change meanwhile and wait in limbo afterwards. A crash loses no memory: buckets that no descriptor
//! names are reclaimed by the pool's marks.

use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};

use super::checks::{bound, led_on, slot_check, with_check};
use super::directory::{Content, Held, View};
use super::layout::{
    BUCKET_BITS_MAX, BUCKET_BYTES, BUCKET_WORDS, HEADER_WORDS, SLOTS, USABLE_SLOTS, home_of, tag_of,
};
use super::meta::{Meta, Place, TAGS_MASK, with_tag};
use super::simd::Portable;
use super::{Garbage, TurboHash};
use crate::pair::Pair;

/// A shard does not grow for one key if fewer than one in so many slots would then be used: with random hashes that
/// does not happen.
const SPARSE: usize = 8;

/// Why a shard is rehashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// A key of this hash has no place on its path; it is to have one.
    Full(u64),
    /// Too many slots hold deleted keys.
    Deleted,
}

/// A pair on its way from old buckets to new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    pub hash: u64,
    pub key: u64,
    pub value: u64,
    pub is_record: bool,
}

/// The words of a bucket.
type Words = [u64; BUCKET_WORDS];

/// How many buckets, as a power of two, to try first for `live` pairs.
fn choose_bits(now: View, why: Why, live: usize, initial_bits: u32) -> u32 {
    let half_full = |bits: u32| live * 2 <= USABLE_SLOTS << bits;
    match why {
        _ if now.is_empty() => initial_bits,
        Why::Full(_) if half_full(now.bits()) => now.bits(),
        Why::Full(_) => now.bits() + 1,
        Why::Deleted => {
            (initial_bits.min(now.bits())..now.bits()).find(|&b| half_full(b)).unwrap_or(now.bits())
        }
    }
}

/// The buckets of these pairs, unless one finds no place within `scope` buckets, or a key that is to come would
/// find none. Where they will lie is not known yet: they are to be sealed.
fn pack(pairs: &[Moved], why: Why, bits: u32, scope: usize) -> Option<Vec<Words>> {
    let mut buckets = vec![[0; BUCKET_WORDS]; 1 << bits];
    for pair in pairs {
        let (at, slot) = place_of(&buckets, pair.hash, bits, scope)?;
        let mut passed = home_of(pair.hash, bits);
        while passed != at {
            buckets[passed][3] = led_on(buckets[passed][3], tag_of(pair.hash));
            passed = (passed + 1) & (buckets.len() - 1);
        }
        let words = &mut buckets[at];
        // Slots taken, until the bucket is sealed.
        words[0] += 1;
        (words[1], words[2]) = with_tag(words[1], words[2], slot, tag_of(pair.hash), pair.is_record);
        words[3] = with_check(words[3], slot, slot_check(pair.key, pair.value, pair.is_record, Place::NONE));
        words[HEADER_WORDS + 2 * slot] = pair.key;
        words[HEADER_WORDS + 2 * slot + 1] = pair.value;
    }
    if let Why::Full(hash) = why {
        place_of(&buckets, hash, bits, scope)?;
    }
    Some(buckets)
}

/// Makes packed words the bucket at a place.
fn seal(words: &mut Words, place: Place) {
    words[3] = bound(words[3], place);
    words[0] = Meta::of_valid((1 << words[0]) - 1).seal((words[1], words[2] & TAGS_MASK), place).0;
}

/// Bucket and slot for a key of this hash among buckets that are not sealed yet.
fn place_of(buckets: &[Words], hash: u64, bits: u32, scope: usize) -> Option<(usize, usize)> {
    let home = home_of(hash, bits);
    let path = (0..scope.min(buckets.len())).map(|i| (home + i) & (buckets.len() - 1));
    path.map(|at| (at, buckets[at][0] as usize)).find(|&(_, taken)| taken < USABLE_SLOTS)
}

fn as_bytes(buckets: &[Words]) -> &[u8] {
    // SAFETY: integers without padding, seen as the bytes they are; the project runs on little-endian machines
    // only (`terrace_pmem`), so these are the persistent ones.
    unsafe { std::slice::from_raw_parts(buckets.as_ptr().cast(), size_of_val(buckets)) }
}

impl TurboHash {
    /// Gives the held shard new buckets; false if so many keys have similar hashes that no reasonable number of buckets
    /// would do. Then, as after an error, the old ones stay in force.
    #[cold]
    pub(super) fn rehash(&self, held: &mut Held<'_>, why: Why) -> Result<bool> {
        let old = held.view;
        held.freeze();
        let made = self.rebuild(held, why);
        held.thaw(made.as_ref().ok().copied().flatten().unwrap_or(old));
        if made?.is_none() {
            return Ok(false);
        }
        if !old.is_empty() {
            let (offset, bytes) = (self.offset_of(old.address(0)), old.bytes());
            self.limbo.retire(Garbage::Shard { offset, bytes });
        }
        Ok(true)
    }

    /// Rids the held shard of deleted keys, if there is room for the new buckets.
    #[cold]
    pub(super) fn collect_deleted(&self, held: &mut Held<'_>) {
        // The next delete tries a failed attempt again; the shard is unchanged.
        let _ = self.rehash(held, Why::Deleted);
    }

    fn rebuild(&self, held: &Held<'_>, why: Why) -> Result<Option<View>> {
        let content = self.content(held)?;
        let pairs = self.gather(held)?;
        let scope = self.header.scope as usize;
        let mut bits = choose_bits(held.view, why, pairs.len(), self.header.initial_bits);
        let buckets = loop {
            self.admit_buckets(bits)?;
            if let Some(buckets) = pack(&pairs, why, bits, scope) {
                break buckets;
            }
            bits += 1;
            if bits > BUCKET_BITS_MAX || pairs.len() * SPARSE < USABLE_SLOTS << bits {
                return Ok(None);
            }
        };
        let view = self.store_buckets(held, buckets, bits)?;
        self.counts[held.shard].set(Content { live: pairs.len() as u64, deleted: 0, ..content });
        Ok(Some(view))
    }

    /// An error if the pool could not have so many buckets: they are not made in DRAM first.
    fn admit_buckets(&self, bits: u32) -> Result<()> {
        let (requested, size) = (BUCKET_BYTES << bits.min(BUCKET_BITS_MAX), self.pool.max_size());
        if requested <= size {
            return Ok(());
        }
        Err(Error::PoolFull { path: self.pool.path().to_path_buf(), requested, size })
    }

    /// Writes packed buckets to PM and makes them those of the held shard.
    fn store_buckets(&self, held: &Held<'_>, mut buckets: Vec<Words>, bits: u32) -> Result<View> {
        let bytes = size_of_val(&*buckets) as u64;
        let block = match self.blocks.reserve(bytes) {
            Err(e) if e.is_out_of_space() => {
                // Memory that waits for readers may be enough.
                self.limbo.drain();
                self.blocks.reserve(bytes)?
            }
            other => other?,
        };
        for (words, at) in buckets.iter_mut().zip((self.base + block.offset..).step_by(BUCKET_BYTES as usize))
        {
            seal(words, self.places.of(at));
        }
        self.pool.copy_flush(block.offset, as_bytes(&buckets));
        self.blocks.activate(&block);
        self.pool.drain();
        let named = View::of(&self.pool, block.offset, bits)
            .and_then(|view| self.describe(held, block.offset, bits).map(|()| view));
        if named.is_err() {
            self.blocks.cancel(block)?;
        }
        named
    }

    /// The live pairs of the held shard.
    fn gather(&self, held: &Held<'_>) -> Result<Vec<Moved>> {
        let mut pairs = Vec::with_capacity(held.view.len() * USABLE_SLOTS);
        for i in 0..held.view.len() {
            // SAFETY: the shard is held.
            for (hash, content) in unsafe { self.pairs_in(held.shard, held.view, i)? } {
                let (key, value, is_record) = (content.key, content.value, content.is_record);
                pairs.push(Moved { hash, key, value, is_record });
            }
        }
        if !held.view.is_empty() {
            let bytes = held.view.len() as u64 * BUCKET_BYTES;
            self.pool.charge_read(self.offset_of(held.view.address(0)), bytes);
        }
        Ok(pairs)
    }

    /// The totals of the held shard; counted if that was not done since the table was opened.
    #[inline(always)]
    pub(super) fn content(&self, held: &Held<'_>) -> Result<Content> {
        match self.counts[held.shard].get() {
            Some(content) => Ok(content),
            None => self.count(held),
        }
    }

    #[cold]
    fn count(&self, held: &Held<'_>) -> Result<Content> {
        let mut content = Content::default();
        for i in 0..held.view.len() {
            let bucket = held.bucket(i);
            let meta = Meta(bucket.meta.load(Ordering::Acquire));
            content.live += u64::from(meta.live().count_ones());
            content.deleted += u64::from(meta.deleted().count_ones());
            // SAFETY: the portable set asks for no features.
            let header = unsafe { bucket.header::<Portable>(0) };
            for slot in (0..SLOTS).filter(|slot| meta.live() >> slot & 1 == 1) {
                let found = bucket.content(&header, slot);
                if found.is_record {
                    // SAFETY: the shard is held, so its records stay.
                    content.record_bytes += unsafe { Pair::read(&self.pool, found.value)? }.bytes();
                }
            }
        }
        self.counts[held.shard].set(content);
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::leads_on;
    use super::super::meta::{Places, of_live};
    use super::*;

    fn pairs(n: u64) -> Vec<Moved> {
        let pair = |i: u64| {
            let hash = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            Moved { hash: hash ^ hash >> 29, key: i, value: i + 1, is_record: i.is_multiple_of(3) }
        };
        (0..n).map(pair).collect()
    }

    #[test]
    fn packed_buckets_hold_every_pair_on_its_path() {
        for (n, bits) in [(0, 0), (13, 0), (100, 3), (1500, 7)] {
            let pairs = pairs(n);
            let mut buckets = pack(&pairs, Why::Deleted, bits, 16).unwrap();
            let place = Places::new(1, 0).of(0x30000);
            buckets.iter_mut().for_each(|words| seal(words, place));
            let metas: Vec<_> = buckets.iter().map(|w| Meta(w[0])).collect();
            assert!(buckets.iter().zip(&metas).all(|(w, meta)| {
                meta.is_state_sound(place) && meta.are_tags_sound(of_live(w[1], w[2], meta.live()), place)
            }));
            assert_eq!(metas.iter().map(|m| u64::from(m.live().count_ones())).sum::<u64>(), n);
            for pair in pairs {
                let home = home_of(pair.hash, bits);
                let holds =
                    |at: usize| buckets[at][HEADER_WORDS..].chunks(2).any(|s| s == [pair.key, pair.value]);
                let path: Vec<_> = (0..16).map(|i| (home + i) & ((1 << bits) - 1)).collect();
                let at = path.iter().position(|&at| holds(at)).unwrap();
                let leads = |at: usize| !metas[at].ends_path() && leads_on(buckets[at][3], tag_of(pair.hash));
                assert!(path[..at].iter().all(|&before| leads(before)));
            }
        }
    }

    #[test]
    fn too_many_for_a_path_is_no_packing() {
        assert_eq!(pack(&pairs(14), Why::Deleted, 0, 16), None);
        let same: Vec<_> = pairs(27).into_iter().map(|p| Moved { hash: 7, ..p }).collect();
        assert_eq!(pack(&same, Why::Deleted, 5, 2), None);
        assert!(pack(&same, Why::Full(7), 5, 3).is_some());
        assert_eq!(pack(&same[..26], Why::Full(7), 5, 2), None);
    }
}
