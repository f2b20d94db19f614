//! Walks over the whole table: marking its memory, checking its invariants, its figures.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{Ordering, fence};

use terrace_base::Result;
use terrace_index::parts::Pair;
use terrace_index::{HashFigures, ScanPosition};
use terrace_pmem::Marks;

use super::directory::Route;
use super::layout::{BUCKET_SLOTS, Entry, inline_word, names_record, prefix, record_word};
use super::lock::is_busy;
use super::probe::{SlotAt, Value, key_word, value_word};
use super::{Cceh, Garbage};

/// Attempts to read a segment without its lock.
const OPTIMISTIC_TRIES: usize = 8;

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    /// Calls `look` with the segment that `from` leads to, until the segment was unchanged meanwhile; returns the
    /// answer, and where the next segment's hashes begin. The caller is present in limbo.
    pub(super) fn with_segment<R>(
        &self,
        from: u64,
        mut look: impl FnMut(&Route) -> Result<R>,
    ) -> Result<(R, ScanPosition)> {
        let mut tries = 0;
        loop {
            let route = self.route(from)?;
            let offset = route.entry.offset;
            let lock = self.locks.word(offset);
            let held = (tries >= OPTIMISTIC_TRIES).then(|| self.locks.lock(offset));
            let before = lock.load(Ordering::Acquire);
            if self.still(&route) {
                let seen = look(&route);
                fence(Ordering::Acquire);
                if lock.load(Ordering::Relaxed) == before {
                    if is_busy(before) && held.is_none() {
                        self.pool.persist(offset, Self::SEGMENT_BYTES);
                    }
                    return Ok((seen?, end_of(from, route.entry.depth)));
                }
            }
            tries += 1;
        }
    }

    /// Calls `look` with every segment, each range of hashes once, in order.
    fn with_all_segments<R>(
        &self,
        mut look: impl FnMut(&Route, u64) -> Result<R>,
        mut take: impl FnMut(R) -> Result<()>,
    ) -> Result<()> {
        let mut cursor = ScanPosition::START;
        while let Some(from) = cursor.hash() {
            let (seen, next) = self.with_segment(from, |route| look(route, from))?;
            take(seen)?;
            cursor = next;
        }
        Ok(())
    }

    /// Keys, and bytes of their records, as far as they can be read.
    pub(super) fn count_all(&self) -> (u64, u64) {
        let _here = self.limbo.enter();
        let (mut keys, mut bytes) = (0, 0);
        let count = |route: &Route, from: u64| {
            let (mut keys, mut bytes) = (0, 0);
            self.for_each_key(route.entry.offset, from, route.entry.depth, &mut |_, _, _, value| {
                keys += 1;
                if let Value::Pair(pair) = value {
                    bytes += pair.bytes();
                }
                Ok(())
            })?;
            Ok((keys, bytes))
        };
        // An error ends the walk; the counts until then stand.
        let _ = self.with_all_segments(count, |(k, b): (u64, u64)| {
            (keys, bytes) = (keys + k, bytes + b);
            Ok(())
        });
        (keys, bytes)
    }

    /// Marks everything the table owns.
    pub(super) fn mark_all(&self, marks: &mut Marks) -> Result<()> {
        let _here = self.limbo.enter();
        marks.slot(self.header_off)?;
        marks.slot(self.directory()?.offset)?;
        self.overflow.pages().into_iter().try_for_each(|page| marks.slot(page))?;
        for extent in self.space.extents() {
            marks.extent(extent)?;
        }
        self.with_all_segments(
            |route, from| self.records_of(route.entry, from),
            |records| records.into_iter().try_for_each(|at| marks.slot(at)),
        )
    }

    /// The records that a segment names, hidden ones too.
    fn records_of(&self, entry: Entry, hash: u64) -> Result<Vec<u64>> {
        let segment = self.segment(entry.offset)?;
        let slots = segment.iter().flat_map(|b| (0..BUCKET_SLOTS).map(move |s| (key_word(b, s), b, s)));
        let own = slots.filter(|(word, ..)| Self::is_living(*word, hash, entry.depth) && names_record(*word));
        let mut records: Vec<u64> = own.map(|(_, bucket, slot)| value_word(bucket, slot)).collect();
        records
            .extend(self.overflow.records(Self::hashes_from(entry, hash)).iter().map(|(_, record)| record));
        Ok(records)
    }

    /// The hashes from `hash` on that lead to the segment to which it leads.
    pub(super) fn hashes_from(entry: Entry, hash: u64) -> RangeInclusive<u64> {
        hash..=hash | u64::MAX >> entry.depth
    }

    pub(super) fn figures_of_all(&self) -> Result<HashFigures> {
        let _here = self.limbo.enter();
        let mut figures = HashFigures::default();
        let distances = |route: &Route, from: u64| {
            let mut distances = Vec::new();
            self.for_each_key(route.entry.offset, from, route.entry.depth, &mut |at, _, hash, _| {
                distances.push(Self::distance(at, hash));
                Ok(())
            })?;
            Ok(distances)
        };
        self.with_all_segments(distances, |distances: Vec<usize>| {
            figures.keys += distances.len() as u64;
            figures.buckets += BUCKETS as u64;
            distances.into_iter().for_each(|d| HashFigures::count(&mut figures.hits, d + 1));
            Ok(())
        })?;
        let overflowed = self.overflow.keys();
        figures.keys += overflowed;
        (0..overflowed).for_each(|_| HashFigures::count(&mut figures.hits, PROBE + 1));
        figures.slots = figures.buckets * BUCKET_SLOTS as u64 + self.overflow.places();
        figures.usable_slots = figures.slots;
        // A window has no end before its last bucket.
        figures.misses = vec![0; PROBE];
        figures.misses[PROBE - 1] = figures.buckets;
        Ok(figures)
    }

    /// Buckets from a hash's home to a slot.
    fn distance(at: SlotAt, hash: u64) -> usize {
        (at.bucket + BUCKETS - Self::home(hash)) % BUCKETS
    }

    pub(super) fn check_all(&self) -> Result<Vec<String>> {
        let _here = self.limbo.enter();
        let mut findings = self.check_directory()?;
        let mut keys = 0;
        let mut seen = HashSet::new();
        self.for_each_segment(&mut |index, entry| {
            let hash = match entry.depth {
                0 => 0,
                depth => (index >> (self.directory()?.depth - depth)) << (64 - depth),
            };
            keys += self.check_segment(entry, hash, &mut seen, &mut findings)?;
            Ok(())
        })?;
        let counted = self.counted().0;
        if counted != keys {
            findings.push(format!("{counted} keys are counted and {keys} are there"));
        }
        findings.extend(self.overflow.check(|key| self.hash.of(key))?);
        for (_, record) in self.overflow.records(0..=u64::MAX) {
            // SAFETY: present in limbo. The overflow's own check reports keys that cannot be read.
            if let Ok(pair) = unsafe { Pair::read(&self.pool, record) }
                && seen.contains(pair.key)
            {
                findings.push(format!("record {record:#x}: a key that is in its segment, too"));
            }
        }
        Ok(findings)
    }

    /// Entries of a segment agree, each segment is named by one range of hashes, and no part of the table's extents is
    /// lost.
    fn check_directory(&self) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        let mut places = BTreeMap::new();
        let directory = self.directory()?;
        for index in 0..1u64 << directory.depth {
            let entry = self.entry_at(directory, index)?;
            let Some(unused) = directory.depth.checked_sub(entry.depth) else {
                findings.push(format!("entry {index}: depth {} of {}", entry.depth, directory.depth));
                continue;
            };
            let range = (entry.depth, index >> unused);
            if *places.entry(entry.offset).or_insert(range) != range {
                findings.push(format!("entry {index}: segment {:#x} has other hashes too", entry.offset));
            }
        }
        findings.extend(self.check_space(places.keys().copied().collect()));
        // With the first entry of each range its segment is fixed, so that all of the range must agree.
        let mut owners = BTreeMap::new();
        for (offset, range) in places {
            if let Some(other) = owners.insert(range, offset) {
                findings.push(format!("segments {offset:#x} and {other:#x} have the same hashes"));
            }
        }
        Ok(findings)
    }

    /// Every segment is one of those that are `named`, or in limbo, or free.
    fn check_space(&self, named: Vec<u64>) -> Vec<String> {
        let mut waiting = Vec::new();
        self.limbo.for_each(|garbage| {
            if let Garbage::Segment(at) = garbage {
                waiting.push(*at);
            }
        });
        self.space.check(&named, &waiting)
    }

    /// Every living slot lies in its window, and no key twice. Keys in the segment.
    fn check_segment(
        &self,
        entry: Entry,
        hash: u64,
        seen: &mut HashSet<Vec<u8>>,
        findings: &mut Vec<String>,
    ) -> Result<u64> {
        let segment = self.segment(entry.offset)?;
        if is_busy(self.locks.word(entry.offset).load(Ordering::Acquire)) {
            findings.push(format!("segment {:#x} is locked", entry.offset));
        }
        let mut keys = 0;
        for (bucket, words) in segment.iter().enumerate() {
            for slot in 0..BUCKET_SLOTS {
                let (word, value) = (key_word(words, slot), value_word(words, slot));
                if !Self::is_living(word, hash, entry.depth) {
                    continue;
                }
                let at = SlotAt { bucket, slot };
                let (key, own) = if names_record(word) {
                    // SAFETY: present in the limbo in which records wait, since before the slot was read.
                    let pair = unsafe { Pair::read(&self.pool, value) };
                    match pair {
                        Ok(pair) => (pair.key.to_vec(), self.hash.of(pair.key)),
                        Err(e) => {
                            findings.push(format!("segment {:#x}, {at:?}: {e}", entry.offset));
                            continue;
                        }
                    }
                } else {
                    (self.hash.word_of(word).to_le_bytes().to_vec(), word)
                };
                let fits = if names_record(word) { record_word(own) } else { inline_word(own).unwrap_or(0) };
                if fits != word || Self::distance(at, own) >= PROBE {
                    findings.push(format!("segment {:#x}, {at:?}: {word:#x} does not belong", entry.offset));
                }
                if names_record(word) && Self::is_hidden(segment, &key, own) {
                    continue;
                }
                keys += 1;
                if !seen.insert(key) {
                    findings.push(format!("segment {:#x}, {at:?}: a key that is there twice", entry.offset));
                }
            }
        }
        Ok(keys)
    }
}

/// Where the hashes end that share `depth` bits with `hash`.
fn end_of(hash: u64, depth: u32) -> ScanPosition {
    match depth {
        0 => ScanPosition::END,
        _ => ScanPosition::after(prefix(hash, depth) << (64 - depth) | u64::MAX >> depth),
    }
}
