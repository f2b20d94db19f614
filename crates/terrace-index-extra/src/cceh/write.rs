//! Changing a key: one locked segment, one visible step a change.

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_index::kinds;
use terrace_index::parts::{NewPair, Pair, word_of};
use terrace_pmem::POff;

use super::layout::{BUCKET_SLOTS, SLOT_BYTES};
use super::lock::Held;
use super::probe::{SlotAt, Value, Wanted, key_word, value_word};
use super::{Cceh, Garbage, Wish};

/// A record slot that was found: where, the record's place, and the record.
#[derive(Debug, Clone, Copy)]
struct PairSlot<'p> {
    at: SlotAt,
    record: u64,
    pair: Pair<'p>,
}

/// The state of a key in a window, under the segment's lock.
struct Survey<'p> {
    /// The slot with the key itself, and its word.
    inline: Option<(SlotAt, u64)>,
    pair: Option<PairSlot<'p>>,
    /// The first slot that may be used.
    free: Option<SlotAt>,
    /// Its pair in the overflow, if it is nowhere else.
    overflowed: Option<Pair<'p>>,
    /// The segment cannot be split: a key without room goes to the overflow.
    is_crowded: bool,
}

impl<'p> Survey<'p> {
    fn value(&self) -> Option<Value<'p>> {
        let inline = self.inline.map(|(_, word)| Value::Word(word));
        inline.or(self.pair.map(|found| found.pair).or(self.overflowed).map(Value::Pair))
    }
}

/// The outcome of an attempt to change a key.
enum Try<R> {
    Done(R),
    /// There is no room in the window.
    Full,
}

/// Attempts to change a key in a locked segment, given its state there.
type Attempt<'a, R> = dyn FnMut(&Locked<'_>, &Wanted<'_>, &Survey<'_>) -> Result<Try<R>> + 'a;

/// A segment that the caller has locked.
struct Locked<'a> {
    offset: u64,
    held: &'a Held<'a>,
}

impl<const BUCKETS: usize, const PROBE: usize> Cceh<BUCKETS, PROBE> {
    pub(super) fn apply(&self, key: &[u8], wish: &mut dyn FnMut(Option<u64>) -> Wish) -> Result<Option<u64>> {
        self.change(key, &mut |locked, wanted, survey| {
            let before = survey.value().map(|v| v.word()).transpose()?;
            Ok(match wish(before) {
                None => Try::Done(before),
                Some(None) => {
                    self.clear(locked, wanted, survey)?;
                    Try::Done(before)
                }
                Some(Some(word)) => match self.store(locked, wanted, survey, &word.get().to_le_bytes())? {
                    true => Try::Done(before),
                    false => Try::Full,
                },
            })
        })
    }

    /// Sets the value of `key`; whether it had one.
    pub(super) fn put_bytes(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.change(key, &mut |locked, wanted, survey| {
            let there = survey.value().is_some();
            Ok(if self.store(locked, wanted, survey, value)? { Try::Done(there) } else { Try::Full })
        })
    }

    /// Removes `key` with any value; `None` if it was not there.
    pub(super) fn remove_any(&self, key: &[u8]) -> Result<Option<()>> {
        self.change(key, &mut |locked, wanted, survey| {
            let there = survey.value().map(|_| ());
            self.clear(locked, wanted, survey)?;
            Ok(Try::Done(there))
        })
    }

    /// Calls `attempt` with the locked segment of `key` and the key's state in it; again after a split, and if there
    /// was no room.
    fn change<R>(&self, key: &[u8], attempt: &mut Attempt<'_, R>) -> Result<R> {
        match self.try_change(key, attempt) {
            Err(e) if e.is_out_of_space() => {
                // Memory that waits for readers may be enough.
                self.limbo.drain();
                self.try_change(key, attempt)
            }
            other => other,
        }
    }

    fn try_change<R>(&self, key: &[u8], attempt: &mut Attempt<'_, R>) -> Result<R> {
        let hash = self.hash.of(key);
        let wanted = Wanted::new(key, hash);
        let _counted = self.totals.writing();
        let _here = self.limbo.enter();
        let mut is_crowded = false;
        loop {
            let route = self.route(hash)?;
            self.prefetch(route.entry.offset, hash);
            let held = self.locks.lock(route.entry.offset);
            if !self.still(&route) {
                continue;
            }
            let mut survey = self.survey(route.entry.offset, route.entry.depth, &wanted)?;
            survey.is_crowded = is_crowded;
            let locked = Locked { offset: route.entry.offset, held: &held };
            match attempt(&locked, &wanted, &survey)? {
                Try::Done(result) => return Ok(result),
                // If there was no place for keys of this very hash, there is none for one more.
                Try::Full => is_crowded = self.overflow.holds(hash) || !self.split(hash, route.entry)?,
            }
        }
    }

    fn survey(&self, offset: u64, depth: u32, wanted: &Wanted<'_>) -> Result<Survey<'_>> {
        let segment = self.segment(offset)?;
        self.pool.charge_read(offset, PROBE as u64 * super::BUCKET_BYTES);
        let mut survey = Survey { inline: None, pair: None, free: None, overflowed: None, is_crowded: false };
        for bucket in Self::window(wanted.hash) {
            for slot in 0..BUCKET_SLOTS {
                let at = SlotAt { bucket, slot };
                let word = key_word(&segment[bucket], slot);
                if !Self::is_living(word, wanted.hash, depth) {
                    survey.free = survey.free.or(Some(at));
                } else if Some(word) == wanted.inline {
                    survey.inline = Some((at, value_word(&segment[bucket], slot)));
                } else if word == wanted.record && survey.pair.is_none() {
                    let record = value_word(&segment[bucket], slot);
                    let pair = self.pair_of(record, wanted)?;
                    survey.pair = pair.map(|pair| PairSlot { at, record, pair });
                }
            }
        }
        if survey.value().is_none() {
            survey.overflowed = self.overflowed(wanted)?;
        }
        Ok(survey)
    }

    /// Gives the key this value, durably; false if there is no room.
    fn store(
        &self,
        locked: &Locked<'_>,
        wanted: &Wanted<'_>,
        survey: &Survey<'_>,
        value: &[u8],
    ) -> Result<bool> {
        let has_place = survey.value().is_some() || survey.free.is_some();
        if survey.overflowed.is_some() || survey.is_crowded && !has_place {
            self.put_overflowed(wanted, value)?;
            return Ok(true);
        }
        let word = if value.len() == 8 && wanted.inline.is_some() { Some(word_of(value)?) } else { None };
        match (survey.inline, survey.pair, word) {
            (Some((at, _)), hidden, Some(word)) => {
                self.drop_hidden(locked, hidden);
                self.pool.publish(POff::new(locked.offset + at.value_at()), word);
                Ok(true)
            }
            (None, Some(pair), _) => {
                self.replace_pair(locked, pair, wanted, value)?;
                Ok(true)
            }
            (None, None, Some(word)) => {
                let Some(at) = survey.free else { return Ok(false) };
                self.fill(locked, at, wanted.hash, word);
                self.totals.add(1, 0);
                Ok(true)
            }
            (None, None, None) => {
                let Some(at) = survey.free else { return Ok(false) };
                self.add_pair(locked, at, wanted, value)?;
                self.totals.add(1, 0);
                Ok(true)
            }
            (Some((inline, _)), hidden, None) => {
                self.drop_hidden(locked, hidden);
                let Some(at) = survey.free.or(hidden.map(|h| h.at)) else {
                    if survey.is_crowded {
                        self.turn_to_overflow(locked.offset, inline, wanted, value)?;
                    }
                    return Ok(survey.is_crowded);
                };
                self.add_pair(locked, at, wanted, value)?;
                // Up to here the record is hidden. A reader that has passed its slot must not miss both.
                locked.held.turn();
                self.pool.publish(POff::new(locked.offset + inline.key_at()), 0);
                Ok(true)
            }
        }
    }

    /// Removes the key, durably, if it is there.
    fn clear(&self, locked: &Locked<'_>, wanted: &Wanted<'_>, survey: &Survey<'_>) -> Result<()> {
        if survey.overflowed.is_some() {
            self.retire(self.overflow.remove(wanted.hash, wanted.key)?);
        }
        match (survey.inline, survey.pair) {
            (Some((at, _)), hidden) => {
                self.drop_hidden(locked, hidden);
                self.pool.publish(POff::new(locked.offset + at.key_at()), 0);
                self.totals.add(-1, 0);
            }
            (None, Some(found)) => {
                self.pool.publish(POff::new(locked.offset + found.at.key_at()), 0);
                self.totals.add(-1, -(found.pair.bytes() as i64));
                self.limbo.retire(Garbage::Pair(found.record));
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Makes a free slot one of `word` under the key word `key_word`.
    fn fill(&self, locked: &Locked<'_>, at: SlotAt, key_word: u64, word: u64) {
        let (key_at, value_at) = (locked.offset + at.key_at(), locked.offset + at.value_at());
        self.pool.atomic(POff::new(value_at)).store(word, Ordering::Release);
        // In one line and in this order, also on the media.
        self.pool.store_ordered(POff::new(key_at), key_word);
        self.pool.persist(key_at, SLOT_BYTES);
    }

    fn add_pair(&self, locked: &Locked<'_>, at: SlotAt, wanted: &Wanted<'_>, value: &[u8]) -> Result<()> {
        let record = NewPair::write(&self.pool, kinds::CCEH_PAIR, wanted.key, value)?;
        self.pool.drain();
        self.fill(locked, at, wanted.record, record.offset());
        self.totals.add(0, record.bytes() as i64);
        record.keep();
        Ok(())
    }

    fn replace_pair(
        &self,
        locked: &Locked<'_>,
        old: PairSlot<'_>,
        wanted: &Wanted<'_>,
        value: &[u8],
    ) -> Result<()> {
        let record = NewPair::write(&self.pool, kinds::CCEH_PAIR, wanted.key, value)?;
        self.pool.drain();
        self.pool.publish(POff::new(locked.offset + old.at.value_at()), record.offset());
        self.totals.add(0, record.bytes() as i64 - old.pair.bytes() as i64);
        record.keep();
        self.limbo.retire(Garbage::Pair(old.record));
        Ok(())
    }

    /// Removes a record that an interrupted conversion has left beside the inline slot of its key. It was never
    /// counted.
    fn drop_hidden(&self, locked: &Locked<'_>, hidden: Option<PairSlot<'_>>) {
        if let Some(found) = hidden {
            self.pool.publish(POff::new(locked.offset + found.at.key_at()), 0);
            self.limbo.retire(Garbage::Pair(found.record));
        }
    }
}
