//! What snapshots and iterators keep of an open database, and what they read through it.
//!
//! Invariant: what a reader uses outlives it, up to the lock of the directory: nobody opens the database beside it.

use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};

use crate::core::Core;
use crate::core::deadlines::Deadlines;
use crate::core::empty_ranges::EmptyRanges;
use crate::core::engine::Engine;
use crate::core::snapshots::Held;
use crate::db::iter::StoredIter;
use crate::db::keyspace::catalog::Catalog;
use crate::db::shown::shown;
use crate::db::{DirectoryLock, Store};
use crate::keyspaces::{Places, Space, is_high};

/// Keys that are looked up together: they need memory and a moment without changes, and may be millions.
const TOGETHER: usize = 1024;

/// What a reader keeps of an open database: one count keeps all of it.
#[derive(Debug)]
pub(super) struct Reading {
    core: Arc<Core>,
    engine: Arc<dyn Engine>,
    /// The opening of the database: see [`OpenKeyspace`](crate::keyspaces::OpenKeyspace).
    owner: u64,
    /// Last, as everything else may use what it guards.
    _lock: DirectoryLock,
}

impl Reading {
    /// What readers of `store` keep, which `lock` keeps from others.
    pub fn new(store: &Store, lock: DirectoryLock) -> Reading {
        let (core, engine, owner) = (store.core.clone(), store.engine.clone(), store.catalog.owner);
        Reading { core, engine, owner, _lock: lock }
    }
}

/// The registered sequence number, released before the engine is told.
#[derive(Debug)]
pub(crate) struct Hold {
    held: Option<Held>,
    seq: u64,
    of: Arc<Reading>,
    /// Where the default keyspace lies.
    pub default: Space,
    /// Why it is not known whose the places behind byte 255 are, if it is not.
    unreadable: Option<Error>,
}

impl Hold {
    /// The present of the database of which `reading` and `catalog` are.
    pub fn new(reading: &Arc<Reading>, catalog: &Catalog) -> Hold {
        let held = reading.engine.hold(&reading.core.snapshots);
        let (seq, unreadable) = (held.seq(), catalog.check_readable().err());
        Hold { held: Some(held), seq, of: reading.clone(), default: Space::Alone, unreadable }
    }

    pub fn seq(&self) -> u64 {
        self.seq
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.of.engine
    }

    pub fn owner(&self) -> u64 {
        self.of.owner
    }

    /// Refuses a key of the default keyspace that may be another's.
    #[inline]
    pub fn check_owner_of(&self, key: &[u8]) -> Result<()> {
        match &self.unreadable {
            Some(unreadable) if is_high(key) => Err(unreadable.clone()),
            _ => Ok(()),
        }
    }

    /// See [`Core::look_at_clock`].
    pub fn look_at_clock(&self) {
        self.of.core.look_at_clock();
    }

    /// Which entries are dated.
    pub fn deadlines(&self) -> &Deadlines {
        &self.of.core.deadlines
    }

    /// Ranges that walks have found empty.
    pub fn empty_ranges(&self) -> &EmptyRanges {
        &self.of.core.empty_ranges
    }

    /// The number of failed mappings of tables so far.
    #[inline]
    pub fn failed_maps(&self) -> u64 {
        self.of.core.table_reader.maps().failures()
    }

    /// See [`Core::shown_as_zeros`].
    pub fn shown_as_zeros(&self) -> Error {
        self.of.core.shown_as_zeros()
    }

    /// See [`TableReader::soundly`](crate::core::table_reads::TableReader::soundly).
    pub fn soundly<T>(&self, read: impl FnMut() -> T) -> T {
        self.of.core.table_reader.soundly(read)
    }

    /// The value of the key at `place`.
    pub fn get(&self, place: &[u8]) -> Result<Option<Bytes>> {
        let _timing = self.of.core.begin_get();
        let found = self.of.engine.get(place, Some(self.seq))?;
        self.of.engine.intact()?;
        Ok(found)
    }

    /// What `f` makes of that value.
    pub fn get_with<T>(&self, place: &[u8], f: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let _timing = self.of.core.begin_get();
        shown(&self.of.core, &*self.of.engine, place, Some(self.seq), f)
    }

    /// Whether there is a key at `place`, whatever its value is.
    pub fn contains(&self, place: &[u8]) -> Result<bool> {
        let _timing = self.of.core.begin_get();
        let found = self.soundly(|| match self.of.core.deadlines.is_dated(place, Some(self.seq)) {
            true => self.of.engine.get_with(place, Some(self.seq), &mut |_| ()),
            false => self.of.engine.version(place, Some(self.seq)).map(|version| version.is_some()),
        })?;
        self.of.engine.intact()?;
        Ok(found)
    }

    /// The values of the keys at `places`.
    pub fn get_many(&self, places: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.of.core.counters.gets.add(places.len() as u64);
        let found = self.soundly(|| {
            let found = places.chunks(TOGETHER).map(|places| self.of.engine.get_many(places, self.seq));
            found.collect::<Result<Vec<_>>>().map(|parts| parts.into_iter().flatten().collect())
        });
        self.of.engine.intact()?;
        found
    }

    /// Counts an iterator.
    pub fn count_iterator(&self) {
        self.of.core.counters.iterators.add(1);
    }

    /// The entries between two places.
    pub fn range(self: &Arc<Self>, range: Places) -> Result<StoredIter> {
        self.of.engine.ordered()?;
        self.count_iterator();
        Ok(StoredIter::new(self.clone(), range))
    }

    /// Refuses what was read since `failed_maps` mappings had failed, if it may depend on data that differs
    /// from what was written.
    #[inline]
    pub fn intact_since(&self, failed_maps: u64) -> Result<()> {
        self.of.engine.intact()?;
        self.of.core.table_reader.intact_since(failed_maps, &self.of.core.dir)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.held = None;
        self.of.engine.released();
    }
}
