//! Point reads: the index, then one record.
//!
//! A reader is present in the store's limbo from before it asks the index until it has copied what it found. It takes
//! no lock. Without a snapshot it sees the newest version, unless that belongs to a group that is still being
//! applied.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use terrace_base::Result;
use terrace_base::trail::{self, Touch};
use terrace_index::PointIndex;

use super::elsewhere::{Elsewhere, PlaceOf, VersionRefOf};
use super::index::PmEngine;
use super::versions::Named;
use super::{NO_GROUP, PmStore};
use crate::core::lent::{Lent, to_keep};
use crate::versions::Record;

/// The version of a key that a reader without a snapshot sees.
enum Newest<'p, P> {
    Version(Named<'p, P>),
    Nothing,
    /// The group has happened in between.
    Again,
}

/// The outcome of looking for a value, and what was made of it.
pub(super) enum Outcome<T> {
    /// The value, or none.
    Value(Option<T>),
    /// It has moved, or the key has another version by now.
    Moved,
}

impl<E: PmEngine> PmStore<E> {
    /// What `take` makes of the value of `key`, at snapshot `at` or now; it is called once at most.
    pub(super) fn with_value<T>(
        &self,
        key: &[u8],
        at: Option<u64>,
        take: impl FnMut(Lent<'_>) -> T,
    ) -> Result<Option<T>> {
        match at {
            None => self.get_newest(key, take),
            // Nothing is written any more.
            Some(at) if self.is_behind_half_a_group(at) => self.get_newest(key, take),
            Some(at) => self.get_at(key, at, take),
        }
    }

    /// The same, now.
    fn get_newest<T>(&self, key: &[u8], mut take: impl FnMut(Lent<'_>) -> T) -> Result<Option<T>> {
        let mut before = None;
        loop {
            let _here = self.limbo.enter();
            let since = self.taken_back();
            let Some(bits) = self.word(key)? else {
                return if self.is_doubtful(since) { self.get_replaced(key, take) } else { Ok(None) };
            };
            let version = self.named(self.decode(bits)?, key)?;
            // Asked after loading the word: if the word is a group's, the group has announced itself before.
            let is_doubtful = match version {
                Named::Record(record) => {
                    record.number >= self.pending.load(Ordering::Acquire) || self.taken_back() != since
                }
                Named::Place(_) => self.is_doubtful(since),
            };
            if is_doubtful {
                return self.get_replaced(key, take);
            }
            match self.value(key, version, u64::MAX, &mut take)? {
                Outcome::Value(value) => return Ok(value),
                Outcome::Moved => before = Some(self.moved_from(version, bits, before)?),
            }
        }
    }

    /// What the index says of `key`.
    fn word(&self, key: &[u8]) -> Result<Option<u64>> {
        let word = self.index.get(key)?;
        trail::note(|| Touch::Index { found: word.is_some() });
        Ok(word)
    }

    /// The value of the newest version of `key`, which is `word`, unless a range tombstone hides it. If it has moved,
    /// that is noted in `missing`. The caller is present, and holds the gate: no group is being applied.
    pub(super) fn value_of(
        &self,
        key: &[u8],
        word: Option<VersionRefOf<E>>,
        missing: &mut Option<u64>,
    ) -> Result<Outcome<Bytes>> {
        let Some(word) = word else { return Ok(Outcome::Value(None)) };
        let version = self.named(word, key)?;
        let mut take = |value: Lent<'_>| {
            let is_hidden = self.core.range_tombstones.hides(key, value.number);
            (!is_hidden).then(|| to_keep(value))
        };
        match self.value(key, version, u64::MAX, &mut take)? {
            Outcome::Value(value) => Ok(Outcome::Value(value.flatten())),
            Outcome::Moved => {
                *missing = Some(self.moved_from(version, word.bits(), *missing)?);
                Ok(Outcome::Moved)
            }
        }
    }

    /// Notes that the version named by `bits` is missing, which may happen once.
    fn moved_from(&self, version: Named<'_, PlaceOf<E>>, bits: u64, before: Option<u64>) -> Result<u64> {
        match version {
            Named::Place(place) if before == Some(bits) => Err(self.home.lost(place)),
            Named::Record(record) if before == Some(bits) => {
                let at = record.word.offset();
                Err(self.place_in(&record)?.map_or_else(
                    || self.pool.corruption(at, "the record of a version", "one whose value is lost"),
                    |place| self.home.lost(place),
                ))
            }
            _ => Ok(bits),
        }
    }

    /// What `take` makes of the value of a version of `key`, if a reader at `at` sees it. The caller is present.
    fn value<T>(
        &self,
        key: &[u8],
        version: Named<'_, PlaceOf<E>>,
        at: u64,
        take: &mut impl FnMut(Lent<'_>) -> T,
    ) -> Result<Outcome<T>> {
        let (place, at, number) = match version {
            Named::Record(record) => match self.place_in(&record)? {
                // Its number counts.
                Some(place) => (place, u64::MAX, Some(record.number)),
                None => {
                    let bytes = (key.len() + record.value.len()) as u64;
                    trail::note(|| Touch::Record { bytes });
                    self.home.was_read(record.word);
                    return Ok(Outcome::Value(value(&record).map(take)));
                }
            },
            Named::Place(place) => (place, at, None),
        };
        Ok(match self.home.load(key, place)? {
            Some(loaded) if loaded.number <= at => {
                Outcome::Value(Some(take(Lent::own(number.unwrap_or(loaded.number), loaded.value))))
            }
            Some(_) => Outcome::Value(None),
            None => Outcome::Moved,
        })
    }

    /// Whether a group is being applied.
    fn is_applying(&self) -> bool {
        self.pending.load(Ordering::Acquire) != NO_GROUP
    }

    /// Groups taken back so far.
    fn taken_back(&self) -> u64 {
        self.taken_back.load(Ordering::Acquire)
    }

    /// Whether a word that the index returned since `since` groups had been taken back may belong to a group
    /// that has not happened.
    fn is_doubtful(&self, since: u64) -> bool {
        // In this order: a group taken back is counted before it stops being announced.
        self.is_applying() || self.taken_back() != since
    }

    #[cold]
    fn get_replaced<T>(&self, key: &[u8], mut take: impl FnMut(Lent<'_>) -> T) -> Result<Option<T>> {
        loop {
            match self.newest(key)? {
                Newest::Version(version) => match self.value(key, version, u64::MAX, &mut take)? {
                    Outcome::Value(value) => return Ok(value),
                    Outcome::Moved => {}
                },
                Newest::Nothing => return Ok(None),
                Newest::Again => {}
            }
        }
    }

    /// The newest version of `key`, possibly beside a group. The caller is present.
    fn newest(&self, key: &[u8]) -> Result<Newest<'_, PlaceOf<E>>> {
        let since = self.taken_back();
        let word = self.decode_some(self.word(key)?)?;
        let group = match self.is_applying() {
            true => self.group.load_full(),
            false => None,
        };
        let (word, is_of_overlay) = match group.as_ref().and_then(|group| group.words.get(key)) {
            Some(before) => (*before, true),
            None => (word, false),
        };
        let Some(word) = word else {
            return Ok(if self.taken_back() == since { Newest::Nothing } else { Newest::Again });
        };
        // The versions that a group replaces are retired after the overlay has gone.
        let version = self.named(word, key)?;
        let is_of_group = match version {
            Named::Record(record) => record.number >= self.pending.load(Ordering::Acquire),
            // A group that was running when the word was loaded either names the key in its overlay, or is
            // over.
            Named::Place(_) => !is_of_overlay && group.is_none() && self.is_applying(),
        };
        Ok(match is_of_group || self.taken_back() != since {
            true => Newest::Again,
            false => Newest::Version(version),
        })
    }

    pub(super) fn contains_key(&self, key: &[u8]) -> Result<bool> {
        let _here = self.limbo.enter();
        let since = self.taken_back();
        let word = self.decode_some(self.index.get(key)?)?;
        if self.is_doubtful(since) {
            return Ok(self.get_replaced(key, |_| ())?.is_some());
        }
        Ok(word.is_some_and(|word| !word.is_tombstone()))
    }

    /// The same, as a snapshot of number `at` sees it.
    pub(super) fn get_at<T>(
        &self,
        key: &[u8],
        at: u64,
        mut take: impl FnMut(Lent<'_>) -> T,
    ) -> Result<Option<T>> {
        let mut before = None;
        loop {
            let _here = self.limbo.enter();
            let Some(bits) = self.word(key)? else { return Ok(None) };
            let newest = self.named(self.decode(bits)?, key)?;
            let Some(version) = self.version_from(newest, at)? else { return Ok(None) };
            match self.value(key, version, at, &mut take)? {
                Outcome::Value(value) => return Ok(value),
                Outcome::Moved => before = Some(self.moved_from(version, version.word().bits(), before)?),
            }
        }
    }
}

/// The value of a version; `None`: the key is deleted.
pub(super) fn value<'v>(record: &Record<'v>) -> Option<Lent<'v>> {
    (!record.word.is_tombstone()).then_some(Lent::in_place(record.number, record.value))
}
