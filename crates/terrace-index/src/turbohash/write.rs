//! Single-key writes, under the shard's lock.
//!
//! A write has two persists. First the slot's words, in a slot that no reader looks at, with the record if there is
//! one; then the bucket's header: tag, kind and check of the slot, and behind them, ordered within the
//! same cache line, the meta word that makes the slot live and, in an update, the old one empty. Slots that share
//! the header's line are written with it, in one persist. A delete publishes the meta word alone.

use std::sync::atomic::{Ordering, fence};

use terrace_base::Result;
use terrace_pmem::{Claim, POff};

use super::checks::{leads_on, led_on, slot_check, with_check};
use super::directory::{Content as ShardContent, Held, View};
use super::layout::{
    BUCKET_HEADER_BYTES, Bucket, SLOT_BYTES, SLOTS_BESIDE_HEADER, USABLE_SLOTS, home_of, shard_of, tag_of,
};
use super::meta::{Meta, with_tag};
use super::probe::{Content, Header, Sought, Value};
use super::rehash::Why;
use super::simd::{Isa, by_isa};
use super::{Garbage, TurboHash};
use crate::pair::{NewPair, Pair};

/// The new content of a key.
pub(super) enum New<'p> {
    /// Absent.
    Nothing,
    /// Present, with this word in its slot.
    Word(u64),
    /// Present, with this record.
    Record(NewPair<'p>),
}

/// When a write happens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// In any case. The caller does not need the former word.
    Always,
    /// In any case. The caller needs the former word.
    Known,
    /// If the word before is this.
    If(Option<u64>),
    /// If its pair is in the record at this offset, which is then moved.
    At(u64),
}

/// The outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Whether the key was there.
    pub existed: bool,
    /// The word before, if it was asked for.
    pub before: Option<u64>,
}

/// The place of a key.
struct Found<'t> {
    at: Spot<'t>,
    value: Value<'t>,
    record: Option<u64>,
}

/// A slot of a bucket.
struct Spot<'t> {
    bucket: &'t Bucket,
    header: Header,
    slot: usize,
    /// Buckets from the key's home to it, where that is to be known.
    distance: usize,
}

/// The result of a writer's search: the key, or else a slot for it, or else that the shard must be rehashed.
enum Search<'t> {
    Found(Found<'t>),
    Room(Spot<'t>),
    Full,
}

impl TurboHash {
    by_isa! {
        /// Gives the key its new content.
        pub(super) fn write(&self, sought: &Sought<'_>, when: When, new: New<'_>) -> Result<Outcome> = write_in on level
    }

    #[inline(always)]
    fn write_in<I: Isa>(&self, sought: &Sought<'_>, when: When, new: New<'_>) -> Result<Outcome> {
        let shard = shard_of(sought.hash, self.header.shard_bits);
        let seen = self.view(shard);
        if seen.is_quiet() {
            // SAFETY: the levels that operations are compiled for are those of this processor.
            self.prefetch(unsafe { seen.home::<I>(sought.hash) });
        }
        let mut held = self.hold(shard);
        loop {
            let search = self.search::<I>(&held, sought)?;
            if !matches!(search, Search::Found(_)) && self.overflow.may_hold(sought.hash) {
                // SAFETY: the shard is held, without which no record of its keys is retired.
                if let Some(pair) = unsafe { self.overflow.get(sought.hash, sought.key)? } {
                    return self.change_overflowed(sought, pair, when, new);
                }
            }
            if let When::At(at) = when {
                let found = match search {
                    Search::Found(found) if found.record == Some(at) => found,
                    _ => return Ok(Outcome { existed: false, before: None }),
                };
                self.replace::<I>(&held, found, sought, new)?;
                return Ok(Outcome { existed: true, before: None });
            }
            let (existed, before) = match &search {
                Search::Found(_) if when == When::Always => (true, None),
                Search::Found(found) => (true, Some(found.value.word()?)),
                Search::Room(_) | Search::Full => (false, None),
            };
            let outcome = Outcome { existed, before };
            if matches!(when, When::If(expected) if expected != before) {
                return Ok(outcome);
            }
            match (search, &new) {
                (Search::Found(found), New::Nothing) => self.remove_found::<I>(&mut held, found)?,
                (Search::Found(found), _) => self.replace::<I>(&held, found, sought, new)?,
                (Search::Room(_) | Search::Full, New::Nothing) => {}
                (Search::Room(spot), _) => self.fill_room::<I>(&held, spot, sought, new)?,
                (Search::Full, _) => {
                    if self.makes_place(&mut held, sought.hash)? {
                        continue;
                    }
                    self.put_overflowed(sought, new)?;
                }
            }
            return Ok(outcome);
        }
    }

    /// Rehashes the held shard so that there is a place for a key of this hash; false if it goes to the overflow.
    #[cold]
    fn makes_place(&self, held: &mut Held<'_>, hash: u64) -> Result<bool> {
        // If there was no place for keys of this very hash, there is none for one more.
        if self.overflow.holds(hash) {
            return Ok(false);
        }
        match self.rehash(held, Why::Full(hash)) {
            // What frees room has a page of the overflow, where a shard cannot have several extents in a row.
            Err(e) if e.is_out_of_space() && Claim::current() >= Claim::Some => Ok(false),
            made => made,
        }
    }

    /// Gives a key that is in the overflow its new content; its shard is held.
    #[cold]
    fn change_overflowed(
        &self,
        sought: &Sought<'_>,
        pair: Pair<'_>,
        when: When,
        new: New<'_>,
    ) -> Result<Outcome> {
        if let When::At(at) = when {
            let existed = pair.at(&self.pool) == at;
            if existed {
                self.put_overflowed(sought, new)?;
            }
            return Ok(Outcome { existed, before: None });
        }
        let before = if when == When::Always { None } else { Some(pair.word()?) };
        if !matches!(when, When::If(expected) if expected != before) {
            match new {
                New::Nothing => self.retire(self.overflow.remove(sought.hash, sought.key)?),
                new => self.put_overflowed(sought, new)?,
            }
        }
        Ok(Outcome { existed: true, before })
    }

    /// Puts a key into the overflow, or gives it another value there; its shard is held.
    #[cold]
    fn put_overflowed(&self, sought: &Sought<'_>, new: New<'_>) -> Result<()> {
        let pair = match new {
            New::Nothing => return Ok(()),
            New::Record(pair) => pair,
            New::Word(word) => self.new_pair(sought.key, &word.to_le_bytes())?,
        };
        self.retire(self.overflow.put(sought.hash, sought.key, pair)?);
        Ok(())
    }

    by_isa! {
        /// Removes a key of eight bytes in the common case, and returns its word. `None`: a full search is needed, and
        /// nothing was done.
        pub(super) fn fast_remove(&self, key: u64) -> Option<u64> = fast_remove_in on level
    }

    /// The common case of a removal, in so few instructions that the processor already loads the next one's bucket
    /// while this one becomes durable.
    #[inline(always)]
    fn fast_remove_in<I: Isa>(&self, key: u64) -> Option<u64> {
        let hash = self.hash.of_word(key);
        let shard = shard_of(hash, self.header.shard_bits);
        let seen = self.view(shard);
        if !seen.is_quiet() {
            return None;
        }
        // SAFETY: the levels that operations are compiled for are those of this processor.
        let home = unsafe { seen.home::<I>(hash) };
        self.prefetch(home);
        let held = self.try_hold(shard, seen)?;
        // SAFETY: the shard is held, and these are its buckets still.
        let bucket = unsafe { &*home };
        // SAFETY: as above.
        let (header, is_sound) = unsafe {
            let header = bucket.header::<I>(tag_of(hash));
            (header, header.is_sound::<I>(self.place(bucket)))
        };
        if header.matches == 0 || !is_sound {
            return None;
        }
        let slot = header.matches.trailing_zeros() as usize;
        let content = bucket.content(&header, slot);
        if content.key != key || content.is_record || !content.is_sound(&header, slot, self.place(bucket)) {
            return None;
        }
        let mut count =
            self.counts[shard].get().filter(|count| !is_to_be_collected(count.deleted + 1, seen))?;
        self.vacate::<I>(bucket, &header, slot, &mut count);
        self.counts[shard].set(count);
        drop(held);
        Some(content.value)
    }

    /// Looks for the key, and for where it would go: into the first slot of a deleted key on its path, else
    /// into the bucket that ends it.
    #[inline(always)]
    fn search<'t, I: Isa>(&'t self, held: &Held<'t>, sought: &Sought<'_>) -> Result<Search<'t>> {
        let view = held.view;
        if view.is_empty() {
            return Ok(Search::Full);
        }
        let home = home_of(sought.hash, view.bits());
        let mask = view.len() - 1;
        // A key that is not in later buckets may still have to be inserted there.
        let (mut room, mut probed, mut is_sought) = (None, 0, true);
        while probed < self.scope(view) {
            let bucket = held.bucket((home + probed) & mask);
            probed += 1;
            // SAFETY: the levels that operations are compiled for are those of this processor.
            let header = unsafe { bucket.header::<I>(sought.tag()) };
            // SAFETY: as above.
            if !unsafe { header.is_sound::<I>(self.place(bucket)) } {
                return Err(self.damaged(bucket, "a bucket's header with its check"));
            }
            if is_sought && let Some(found) = self.search_bucket(bucket, header, sought)? {
                self.charge(view, home, probed);
                return Ok(Search::Found(found));
            }
            is_sought &= !header.ends_path_of(sought.tag());
            let is_end = header.meta.ends_path();
            let slot = match header.meta.first_deleted() {
                None if is_end => header.meta.first_empty(),
                deleted => deleted,
            };
            if let (Some(slot), None) = (slot, &room) {
                room = Some(Spot { bucket, header, slot, distance: probed - 1 });
            }
            if is_end || !is_sought && room.is_some() {
                break;
            }
        }
        self.charge(view, home, probed);
        Ok(room.map_or(Search::Full, Search::Room))
    }

    #[inline(always)]
    fn search_bucket<'t>(
        &'t self,
        bucket: &'t Bucket,
        header: Header,
        sought: &Sought<'_>,
    ) -> Result<Option<Found<'t>>> {
        let mut matches = header.matches;
        while matches != 0 {
            let slot = matches.trailing_zeros() as usize;
            let content = bucket.content(&header, slot);
            // SAFETY: the shard is held.
            if let Some(value) = unsafe { self.matched(bucket, &header, slot, content, sought)? } {
                let record = content.is_record.then_some(content.value);
                return Ok(Some(Found { at: Spot { bucket, header, slot, distance: 0 }, value, record }));
            }
            matches &= matches - 1;
        }
        Ok(None)
    }

    /// Puts the new version into the bucket's empty slot and empties the old one.
    #[inline(always)]
    fn replace<I: Isa>(
        &self,
        held: &Held<'_>,
        found: Found<'_>,
        sought: &Sought<'_>,
        new: New<'_>,
    ) -> Result<()> {
        let Spot { bucket, header, slot: old, .. } = found.at;
        let Some(slot) = header.meta.first_empty() else {
            return Err(self.damaged(bucket, "a bucket with an empty slot"));
        };
        let mut shard = self.content(held)?;
        let valid = header.meta.valid() & !(1 << old) | 1 << slot;
        let next = header.meta.next(valid, header.meta.deleted());
        self.fill::<I>(Spot { bucket, header, slot, distance: 0 }, false, next, sought, new, &mut shard);
        self.drop_record(found.record, found.value, &mut shard);
        self.counts[held.shard].set(shard);
        Ok(())
    }

    /// Puts a key that was absent into a slot.
    #[inline(always)]
    fn fill_room<I: Isa>(
        &self,
        held: &Held<'_>,
        spot: Spot<'_>,
        sought: &Sought<'_>,
        new: New<'_>,
    ) -> Result<()> {
        let mut shard = self.content(held)?;
        let (meta, bit) = (spot.header.meta, 1 << spot.slot);
        shard.live += 1;
        shard.deleted -= u64::from(meta.deleted() & bit != 0).min(shard.deleted);
        let next = meta.next(meta.valid() | bit, meta.deleted() & !bit);
        let led = spot.distance > 0 && self.lead_on(held, sought, spot.distance);
        self.fill::<I>(spot, led, next, sought, new, &mut shard);
        self.counts[held.shard].set(shard);
        Ok(())
    }

    /// Makes the filters of `distance` buckets from the key's home on lead searches past them, before the key is
    /// inserted behind them. Returns whether something was flushed, which is to be drained. A filter that leads on
    /// needlessly does no harm, so a crash may come at any time.
    #[cold]
    fn lead_on(&self, held: &Held<'_>, sought: &Sought<'_>, distance: usize) -> bool {
        let home = home_of(sought.hash, held.view.bits());
        let mut flushed = false;
        for i in 0..distance {
            let bucket = held.bucket((home + i) & (held.view.len() - 1));
            let checks = bucket.checks.load(Ordering::Relaxed);
            if !leads_on(checks, sought.tag()) {
                bucket.checks.store(led_on(checks, sought.tag()), Ordering::Release);
                self.pool.flush(self.offset_of(bucket), BUCKET_HEADER_BYTES);
                flushed = true;
            }
        }
        flushed
    }

    /// Writes a slot that no reader looks at, and publishes the header with the meta `next`. `led`: other flushes must
    /// be durable before that.
    #[inline(always)]
    fn fill<I: Isa>(
        &self,
        spot: Spot<'_>,
        led: bool,
        next: Meta,
        sought: &Sought<'_>,
        new: New<'_>,
        shard: &mut ShardContent,
    ) {
        let Spot { bucket, header, slot, .. } = spot;
        let (content, record) = match new {
            New::Record(pair) => {
                let content = Content { key: sought.hash, value: pair.offset(), is_record: true };
                (content, Some(pair))
            }
            New::Word(value) => (Content { key: sought.word.unwrap_or(0), value, is_record: false }, None),
            New::Nothing => return,
        };
        let at = self.offset_of(bucket);
        // A reader that sees these stores sees the publish by which the slot became empty.
        fence(Ordering::Release);
        bucket.slots[slot].key.store(content.key, Ordering::Relaxed);
        bucket.slots[slot].value.store(content.value, Ordering::Relaxed);
        if slot >= SLOTS_BESIDE_HEADER {
            self.pool.flush(at + BUCKET_HEADER_BYTES + slot as u64 * SLOT_BYTES, SLOT_BYTES);
            self.pool.drain();
        } else if record.is_some() || led || self.drains_first {
            self.pool.drain();
        }
        let place = self.place(bucket);
        let check = slot_check(content.key, content.value, content.is_record, place);
        let (tags, kinds) = with_tag(header.tags, header.tags_kinds, slot, sought.tag(), content.is_record);
        bucket.tags.store(tags, Ordering::Relaxed);
        bucket.tags_kinds.store(kinds, Ordering::Relaxed);
        bucket.checks.store(with_check(header.checks, slot, check), Ordering::Relaxed);
        // SAFETY: the levels that operations are compiled for are those of this processor.
        let live_tags = unsafe { I::of_live(tags, kinds, next.live()) };
        self.pool.store_ordered(POff::new(at), next.seal(live_tags, place).0);
        self.pool.persist(at, 8);
        if let Some(pair) = record {
            shard.record_bytes += pair.bytes();
            pair.keep();
        }
    }

    /// Deletes a key.
    #[inline(always)]
    fn remove_found<I: Isa>(&self, held: &mut Held<'_>, found: Found<'_>) -> Result<()> {
        let Spot { bucket, header, slot, .. } = found.at;
        let mut shard = self.content(held)?;
        self.vacate::<I>(bucket, &header, slot, &mut shard);
        self.drop_record(found.record, found.value, &mut shard);
        self.counts[held.shard].set(shard);
        if is_to_be_collected(shard.deleted, held.view) {
            self.collect_deleted(held);
        }
        Ok(())
    }

    /// Makes a live slot one of no key, durably: it stays on the path if the path may go on from its bucket, and
    /// becomes empty if every path ends there anyway.
    #[inline(always)]
    fn vacate<I: Isa>(&self, bucket: &Bucket, header: &Header, slot: usize, shard: &mut ShardContent) {
        let (meta, bit) = (header.meta, 1 << slot);
        let next = if meta.ends_path() {
            meta.next(meta.valid() & !bit, meta.deleted())
        } else {
            shard.deleted += 1;
            meta.next(meta.valid(), meta.deleted() | bit)
        };
        // SAFETY: the levels that operations are compiled for are those of this processor.
        let live_tags = unsafe { I::of_live(header.tags, header.tags_kinds, next.live()) };
        self.pool.publish(POff::new(self.offset_of(bucket)), next.seal(live_tags, self.place(bucket)).0);
        shard.live -= 1.min(shard.live);
    }

    /// Lets go of a record that no slot names any more.
    #[inline(always)]
    fn drop_record(&self, record: Option<u64>, value: Value<'_>, shard: &mut ShardContent) {
        if let (Some(at), Value::Record(pair)) = (record, value) {
            shard.record_bytes -= pair.bytes().min(shard.record_bytes);
            self.limbo.retire(Garbage::Record(at));
        }
    }
}

/// Whether so many slots of deleted keys are too many for a shard.
#[inline(always)]
fn is_to_be_collected(deleted: u64, view: View) -> bool {
    deleted as usize > view.len() * USABLE_SLOTS / 2
}
