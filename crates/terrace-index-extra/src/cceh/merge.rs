//! Merging many changes into a segment out of place: the segment is copied to DRAM, changed there, written to a
//! new place in one piece, and the directory is switched to it.

use std::num::NonZeroU64;

use terrace_base::Result;
use terrace_index::parts::{NewPair, record_bytes};
use terrace_index::{Change, kinds};

use super::layout::{BUCKET_SLOTS, Entry, prefix};
use super::probe::{SlotAt, Wanted, key_word, value_word};
use super::{Cceh, Garbage};

/// Changes are written in place where there are fewer of them than this share of a segment's buckets: a new
/// segment would cost more than they do.
const WORTH_SHARE: usize = 8;

/// A segment in DRAM, and the effects of replacing the old one by it.
struct Image<'p> {
    /// Key and value words of every slot.
    slots: Vec<[u64; 2]>,
    pairs: Vec<NewPair<'p>>,
    garbage: Vec<u64>,
    keys: i64,
    pair_bytes: i64,
}

/// Where a window of an image holds a key.
#[derive(Default)]
struct Spots {
    inline: Option<usize>,
    record: Option<usize>,
    free: Option<usize>,
}

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    /// Makes all `changes`, in the order of their hashes, durably, those of a segment at once. `edge` is called with
    /// the ends of the changed segments' hashes.
    pub(crate) fn merge_out_of_place(
        &self,
        mut changes: &[Change<'_>],
        edge: &mut dyn FnMut(Option<u64>),
    ) -> Result<()> {
        while let Some(&Change { head: hash, .. }) = changes.first() {
            let depth = {
                let _counted = self.totals.writing();
                let _here = self.limbo.enter();
                let route = self.route(hash)?;
                let entry = route.entry;
                let own =
                    |change: &&Change<'_>| prefix(change.head, entry.depth) == prefix(hash, entry.depth);
                let run = &changes[..changes.iter().take_while(own).count()];
                if run.len() * WORTH_SHARE < BUCKETS {
                    None
                } else {
                    let held = self.locks.lock(entry.offset);
                    if !self.still(&route) {
                        continue;
                    }
                    // Keys that are in the overflow, or have to go there, are changed one by one.
                    let depth = if run.iter().any(|change| self.overflow.holds(change.head)) {
                        None
                    } else if self.replace_segment(entry, run)? {
                        Some(entry.depth)
                    } else if self.replace_by_two(entry, run)? {
                        Some(entry.depth + 1)
                    } else if self.split(hash, entry)? {
                        continue;
                    } else {
                        None
                    };
                    drop(held);
                    // Both halves' ends are reported: that of the lower one here, that of the other below.
                    if depth.is_some_and(|depth| depth > entry.depth) {
                        edge(Some((prefix(hash, entry.depth) << 1 | 1) << (63 - entry.depth)));
                    }
                    if depth.is_some() {
                        changes = &changes[run.len()..];
                    }
                    depth.map(|_| entry.depth)
                }
            };
            match depth {
                Some(depth) => edge(end_of(hash, depth)),
                None => changes = self.merge_in_place(changes, edge)?,
            }
        }
        Ok(())
    }

    /// Makes the changes of the first segment one by one; what is left.
    pub(crate) fn merge_in_place<'a, 'c>(
        &self,
        changes: &'a [Change<'c>],
        edge: &mut dyn FnMut(Option<u64>),
    ) -> Result<&'a [Change<'c>]> {
        let Some(&Change { head: first, .. }) = changes.first() else { return Ok(changes) };
        let depth = {
            let _here = self.limbo.enter();
            self.route(first)?.entry.depth
        };
        let count = changes.iter().take_while(|c| prefix(c.head, depth) == prefix(first, depth)).count();
        // Bucket after bucket, so that writes to one block of the media are combined.
        let mut own = changes[..count].to_vec();
        own.sort_by_key(|change| Self::home(change.head));
        for Change { key, word, .. } in own {
            let word = word.and_then(NonZeroU64::new);
            self.apply(key, &mut |now| if now.is_none() && word.is_none() { None } else { Some(word) })?;
        }
        edge(end_of(first, depth));
        Ok(&changes[count..])
    }

    /// Puts a changed copy in the place of the locked segment; false if a change finds no room.
    fn replace_segment(&self, old: Entry, run: &[Change<'_>]) -> Result<bool> {
        let hash = run[0].head;
        let Some(image) = self.changed_image(old, hash, run)? else { return Ok(false) };
        let new = self.space.take()?;
        self.write_image(new, &image);
        self.pool.drain();
        // As soon as the directory names it, writers must wait until that is durable.
        let held = self.locks.lock(new);
        if let Err(e) = self.publish_moved(hash, old, new) {
            self.space.give(new);
            return Err(e);
        }
        drop(held);
        self.finish_image(image);
        self.limbo.retire(Garbage::Segment(old.offset));
        Ok(true)
    }

    /// Puts two changed segments, of half the hashes each, in the place of the locked one; false if a change finds
    /// no room in them either.
    fn replace_by_two(&self, old: Entry, run: &[Change<'_>]) -> Result<bool> {
        if !self.may_split(old)? {
            return Ok(false);
        }
        let depth = old.depth + 1;
        let lower = prefix(run[0].head, old.depth) << 1;
        let half = Entry { offset: old.offset, depth };
        let begin = |prefix: u64| prefix << (64 - depth);
        let middle = run.partition_point(|change| prefix(change.head, depth) == lower);
        let Some(low) = self.changed_image(half, begin(lower), &run[..middle])? else { return Ok(false) };
        let Some(up) = self.changed_image(half, begin(lower | 1), &run[middle..])? else { return Ok(false) };
        let new = self.take_two()?;
        self.write_image(new[0], &low);
        self.write_image(new[1], &up);
        self.pool.drain();
        let held = new.map(|segment| self.locks.lock(segment));
        if let Err(e) = self.publish_halves(run[0].head, old, new) {
            new.into_iter().for_each(|segment| self.space.give(segment));
            return Err(e);
        }
        drop(held);
        self.finish_image(low);
        self.finish_image(up);
        self.limbo.retire(Garbage::Segment(old.offset));
        Ok(true)
    }

    fn take_two(&self) -> Result<[u64; 2]> {
        let first = self.space.take()?;
        match self.space.take() {
            Ok(second) => Ok([first, second]),
            Err(e) => {
                self.space.give(first);
                Err(e)
            }
        }
    }

    /// The slots in `entry` that begin like `hash`, after the changes; `None` if there is no room for one.
    fn changed_image(&self, entry: Entry, hash: u64, run: &[Change<'_>]) -> Result<Option<Image<'_>>> {
        let mut image = self.image_of(entry, hash)?;
        for change in run {
            if !self.change_image(&mut image, &Wanted::new(change.key, change.head), change.word)? {
                return Ok(None);
            }
        }
        Ok(Some(image))
    }

    /// Writes and flushes an image to a segment that no other thread knows.
    fn write_image(&self, segment: u64, image: &Image<'_>) {
        let bytes: Vec<u8> = image.slots.as_flattened().iter().flat_map(|w| w.to_le_bytes()).collect();
        self.pool.copy_flush(segment, &bytes);
    }

    /// The effects after an image has taken its place.
    fn finish_image(&self, image: Image<'_>) {
        image.pairs.into_iter().for_each(NewPair::keep);
        self.totals.add(image.keys, image.pair_bytes);
        image.garbage.into_iter().for_each(|at| self.limbo.retire(Garbage::Pair(at)));
    }

    /// The living slots of a locked segment.
    fn image_of(&self, entry: Entry, hash: u64) -> Result<Image<'_>> {
        self.pool.charge_read(entry.offset, Self::SEGMENT_BYTES);
        let mut slots = Vec::with_capacity(BUCKETS * BUCKET_SLOTS);
        for bucket in self.segment(entry.offset)? {
            for slot in 0..BUCKET_SLOTS {
                let word = key_word(bucket, slot);
                let living = Self::is_living(word, hash, entry.depth);
                slots.push(if living { [word, value_word(bucket, slot)] } else { [0, 0] });
            }
        }
        Ok(Image { slots, pairs: Vec::new(), garbage: Vec::new(), keys: 0, pair_bytes: 0 })
    }

    fn spots(&self, image: &Image<'_>, wanted: &Wanted<'_>) -> Result<Spots> {
        let mut spots = Spots::default();
        for bucket in Self::window(wanted.hash) {
            for slot in 0..BUCKET_SLOTS {
                let at = SlotAt { bucket, slot }.number();
                let [word, value] = image.slots[at];
                if word == 0 {
                    spots.free = spots.free.or(Some(at));
                } else if Some(word) == wanted.inline {
                    spots.inline = Some(at);
                } else if word == wanted.record && self.pair_of(value, wanted)?.is_some() {
                    spots.record = Some(at);
                }
            }
        }
        Ok(spots)
    }

    /// Makes one change in an image; false if there is no room for it.
    fn change_image<'p>(
        &'p self,
        image: &mut Image<'p>,
        wanted: &Wanted<'_>,
        word: Option<u64>,
    ) -> Result<bool> {
        let spots = self.spots(image, wanted)?;
        if let (Some(_), Some(hidden)) = (spots.inline, spots.record) {
            // It was left by a crash, and was never counted.
            image.garbage.push(image.slots[hidden][1]);
            image.slots[hidden] = [0, 0];
        }
        match (word, spots.inline, spots.record) {
            (None, None, None) => {}
            (None, Some(at), _) => {
                image.slots[at] = [0, 0];
                image.keys -= 1;
            }
            (None, None, Some(at)) => {
                image.drop_pair(at, wanted.key.len());
                image.slots[at] = [0, 0];
                image.keys -= 1;
            }
            (Some(word), Some(at), _) => image.slots[at][1] = word,
            (Some(word), None, Some(at)) => {
                image.drop_pair(at, wanted.key.len());
                image.slots[at][1] = self.new_pair(image, wanted.key, word)?;
            }
            (Some(word), None, None) => {
                let make_room = || Self::make_room(&mut image.slots, wanted.hash, &mut vec![false; BUCKETS]);
                let Some(at) = spots.free.or_else(make_room) else { return Ok(false) };
                image.slots[at] = match wanted.inline {
                    Some(key_word) => [key_word, word],
                    None => [wanted.record, self.new_pair(image, wanted.key, word)?],
                };
                image.keys += 1;
            }
        }
        Ok(true)
    }

    /// Frees a slot in the full window of `hash`, by moving others within theirs; `None` if there is no way to. Looks
    /// at the buckets not `seen` yet.
    fn make_room(slots: &mut [[u64; 2]], hash: u64, seen: &mut [bool]) -> Option<usize> {
        for bucket in Self::window(hash) {
            if std::mem::replace(&mut seen[bucket], true) {
                continue;
            }
            for at in (0..BUCKET_SLOTS).map(|slot| SlotAt { bucket, slot }.number()) {
                let held = slots[at];
                let free = Self::window(held[0])
                    .flat_map(|bucket| (0..BUCKET_SLOTS).map(move |slot| SlotAt { bucket, slot }.number()))
                    .find(|at| slots[*at][0] == 0);
                if let Some(to) = free.or_else(|| Self::make_room(slots, held[0], seen)) {
                    slots[to] = held;
                    slots[at] = [0, 0];
                    return Some(at);
                }
            }
        }
        None
    }

    fn new_pair<'p>(&'p self, image: &mut Image<'p>, key: &[u8], word: u64) -> Result<u64> {
        let pair = NewPair::write(&self.pool, kinds::CCEH_PAIR, key, &word.to_le_bytes())?;
        let at = pair.offset();
        image.pair_bytes += pair.bytes() as i64;
        image.pairs.push(pair);
        Ok(at)
    }
}

impl Image<'_> {
    /// Notes that the record in slot `at`, of a key of `key_len` bytes and a word, is not named any more.
    fn drop_pair(&mut self, at: usize, key_len: usize) {
        self.garbage.push(self.slots[at][1]);
        self.pair_bytes -= record_bytes(key_len, 8) as i64;
    }
}

/// The least hash after those that share `depth` bits with `hash`.
fn end_of(hash: u64, depth: u32) -> Option<u64> {
    match depth {
        0 => None,
        _ => (prefix(hash, depth) << (64 - depth) | u64::MAX >> depth).checked_add(1),
    }
}
