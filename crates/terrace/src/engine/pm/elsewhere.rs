//! Versions of an engine that lie outside the pool, and the words that name versions in either place.
//!
//! Most engines of this sort keep everything in records, and nothing elsewhere ([`Nowhere`]). An engine that
//! keeps more elsewhere gives each version there a *place*. The word of a place stands where that of a record
//! would: in the index, or under a newer version that a snapshot does not see. If something must hang under a
//! version that lies elsewhere, or its number differs from the one stored there, the word is that of a record
//! that contains the place (*remote*).
//!
//! 1. A place is durable before a word of it is published.
//! 2. Each place has one word; the word of a remote record counts as such. The writer that replaces that word
//!    by another version's, or the job that moves the version, retires the place; it is freed when everyone
//!    who was present then has left.
//! 3. A place's word does not tell the number stored at the place: a writer that keeps a version for a
//!    snapshot without reading it assumes the lowest possible number.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_table::{ReadBuffers, TableMeta};

use super::PmStore;
use super::index::PmEngine;
use crate::compaction::selective::RangeScan;
use crate::core::report::CheckReport;
use crate::core::scrub::LiveTables;
use crate::manifest::{Identity, KnownStamp, State};
use crate::salvage::Salvage;
use crate::stats::Stats;
use crate::versions::RecordRef;

/// The place of a version that is in no record.
pub(crate) trait Place: Copy + Eq + Debug + Send + Sync + 'static {
    /// The place that this word names. No record has such a word.
    fn from_bits(bits: u64) -> Option<Self>;

    /// Its word.
    fn bits(self) -> u64;

    /// The table that holds it, if one does.
    fn table(self) -> Option<u64>;
}

impl Place for Infallible {
    fn from_bits(_: u64) -> Option<Self> {
        None
    }

    fn bits(self) -> u64 {
        match self {}
    }

    fn table(self) -> Option<u64> {
        match self {}
    }
}

/// A version read from its place.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub number: u64,
    pub value: Bytes,
}

/// Receives a version that lies elsewhere: its key, its number and the word of its place.
pub(crate) type Tell<'a> = dyn FnMut(&[u8], u64, u64) -> Result<()> + 'a;

/// A version that is to be written elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub number: u64,
}

/// The part of an engine that holds its other versions. Everything may be called from any thread.
pub(crate) trait Elsewhere: Debug + Send + Sync + Sized + 'static {
    type Place: Place;

    /// Reads that go on in the background. What they find may have been written after they were begun.
    type Coming: Debug + Send + Sync;

    /// Whether each version has a number of its own, which orders those found in different places.
    const NUMBERS_EACH: bool;

    /// Whether a put of this size is to be written here.
    fn takes(&self, key: &[u8], value: &[u8]) -> bool;

    /// Writes `items`, all or none. On return they are durable.
    fn store(&self, items: &[Item<'_>]) -> Result<Vec<Self::Place>>;

    /// The version of `key` at `place`, which some word has named since the caller has been present. `None`
    /// if it has moved since.
    fn load(&self, key: &[u8], place: Self::Place) -> Result<Option<Loaded>>;

    /// Begins to read those of `places` that can be read in the background, for a walk; `None` if none can.
    /// The caller is present, and may leave before it asks for them.
    fn begin(&self, places: &[Self::Place]) -> Option<Self::Coming>;

    /// The versions at `wanted`, of which some are `coming`. `None` stands for what has moved, cannot be read
    /// or is of another key by now: a later `load` says which. `ahead` is there for a walk that has gone on
    /// for a while.
    fn finish(
        &self,
        coming: Option<Self::Coming>,
        wanted: &[(&[u8], Self::Place)],
        ahead: Option<&mut ReadBuffers>,
    ) -> Vec<Option<Loaded>>;

    /// Counts places that were made free to be used again: as long as it stays, what a place held is there.
    fn freed(&self) -> u64;

    /// A watch on a walk, if it matters how far its keys lie scattered over tables.
    fn watch(&self) -> Option<RangeScan>;

    /// A walk with a watch is over, which has found its keys `scattered` over these tables.
    fn range_was_read<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>, scattered: Vec<u64>);

    /// The error that a named `place` does not exist.
    fn lost(&self, place: Self::Place) -> Error;

    /// No word leads to the version of `key` at `place` any more, and none will.
    fn retire(&self, key: &[u8], place: Self::Place) -> Result<()>;

    /// No reader looks at the retired place any more.
    fn free(&self, place: Self::Place);

    /// Called after a write, while the caller holds nothing: gives back what writes have left here, if that
    /// is much.
    fn tidy<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>);

    /// Bytes read to get the version at `place`.
    fn bytes_at(&self, place: Self::Place) -> u64;

    /// A reader has found its version in `record`.
    fn was_read(&self, record: RecordRef);

    /// The version of `before` is the one before the version in `record`; `None` if its key did not exist.
    fn was_written<P: Place>(&self, record: RecordRef, before: Option<VersionRef<P>>);

    /// A version of this many bytes is about to be written to the pool, and nothing is held yet: the moment
    /// to throttle writers.
    fn pace<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>, bytes: usize);

    /// Makes room in the pool for a write that has found none; returns whether there is more. The caller
    /// holds nothing.
    fn relieve<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>) -> Result<bool>;

    /// The database has been opened: starts the rest of the opening in the background.
    fn opened<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>) -> Result<()>;

    /// The tables that lie here.
    fn tables(&self) -> Option<&dyn LiveTables> {
        None
    }

    /// Compacts everything that is worth it.
    fn compact<E: PmEngine<Home = Self>>(&self, store: &PmStore<E>) -> Result<()>;

    /// Proves what lies here, given every named place. Nobody writes, and nothing runs in the background.
    fn check<E: PmEngine<Home = Self>>(
        &self,
        store: &PmStore<E>,
        named: &[Self::Place],
        report: &mut CheckReport,
    ) -> Result<()>;

    /// Does `work` while nothing moves from place to place.
    fn still<T>(&self, work: impl FnOnce() -> T) -> T;

    fn fill_stats(&self, stats: &mut Stats);

    /// No version is written here any more.
    fn close(&self) -> Result<()>;

    /// From now on nothing is written here, whatever is requested: what a repair sees must stay.
    fn stay_as_it_is(&self);

    /// Makes what lies elsewhere fit to be opened, in the view that `base` works in.
    fn salvage(base: &mut Salvage, known: Option<&State>, identity: &mut Identity) -> Result<Salvaged>;

    /// Reports every version that lies here, whether a word leads to it or not: its key, its number and the
    /// word of its place.
    fn gather(&self, take: &mut Tell<'_>) -> Result<()>;
}

/// What a repair has found outside the pool.
#[derive(Debug)]
pub(crate) struct Salvaged {
    /// The tables for the manifest, each with its level.
    pub tables: Vec<(u32, TableMeta)>,
    /// Those of them that hold the sound part of another table, with that table's number.
    pub salvaged: BTreeMap<u64, u64>,
    /// The stamp of the rest, if it is the one that the manifest knew.
    pub stamp: Option<KnownStamp>,
}

/// Nothing lies elsewhere.
#[derive(Debug)]
pub(crate) struct Nowhere;

impl Elsewhere for Nowhere {
    type Place = Infallible;
    type Coming = Infallible;
    const NUMBERS_EACH: bool = false;

    fn takes(&self, _: &[u8], _: &[u8]) -> bool {
        false
    }

    fn store(&self, _: &[Item<'_>]) -> Result<Vec<Infallible>> {
        Ok(Vec::new())
    }

    fn load(&self, _: &[u8], place: Infallible) -> Result<Option<Loaded>> {
        match place {}
    }

    fn begin(&self, _: &[Infallible]) -> Option<Infallible> {
        None
    }

    fn finish(
        &self,
        _: Option<Infallible>,
        _: &[(&[u8], Infallible)],
        _: Option<&mut ReadBuffers>,
    ) -> Vec<Option<Loaded>> {
        Vec::new()
    }

    fn freed(&self) -> u64 {
        0
    }

    fn watch(&self) -> Option<RangeScan> {
        None
    }

    fn range_was_read<E: PmEngine<Home = Self>>(&self, _: &PmStore<E>, _: Vec<u64>) {}

    fn lost(&self, place: Infallible) -> Error {
        match place {}
    }

    fn retire(&self, _: &[u8], place: Infallible) -> Result<()> {
        match place {}
    }

    fn free(&self, place: Infallible) {
        match place {}
    }

    fn tidy<E: PmEngine<Home = Self>>(&self, _: &PmStore<E>) {}

    fn bytes_at(&self, place: Infallible) -> u64 {
        match place {}
    }

    fn was_read(&self, _: RecordRef) {}

    fn was_written<P: Place>(&self, _: RecordRef, _: Option<VersionRef<P>>) {}

    fn pace<E: PmEngine<Home = Self>>(&self, _: &PmStore<E>, _: usize) {}

    fn relieve<E: PmEngine<Home = Self>>(&self, _: &PmStore<E>) -> Result<bool> {
        Ok(false)
    }

    fn opened<E: PmEngine<Home = Self>>(&self, _: &PmStore<E>) -> Result<()> {
        Ok(())
    }

    fn compact<E: PmEngine<Home = Self>>(&self, _: &PmStore<E>) -> Result<()> {
        Ok(())
    }

    fn check<E: PmEngine<Home = Self>>(
        &self,
        _: &PmStore<E>,
        _: &[Infallible],
        _: &mut CheckReport,
    ) -> Result<()> {
        Ok(())
    }

    fn still<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }

    fn fill_stats(&self, _: &mut Stats) {}

    fn close(&self) -> Result<()> {
        Ok(())
    }

    fn stay_as_it_is(&self) {}

    fn salvage(_: &mut Salvage, _: Option<&State>, _: &mut Identity) -> Result<Salvaged> {
        Ok(Salvaged { tables: Vec::new(), salvaged: BTreeMap::new(), stamp: None })
    }

    fn gather(&self, _: &mut Tell<'_>) -> Result<()> {
        Ok(())
    }
}

/// A name of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionRef<P> {
    Record(RecordRef),
    Place(P),
}

impl<P: Place> VersionRef<P> {
    /// Decodes a word; `None` if the bits are no word.
    pub fn decode(bits: u64) -> Option<VersionRef<P>> {
        match RecordRef::decode(bits) {
            Some(record) => Some(VersionRef::Record(record)),
            None => P::from_bits(bits).map(VersionRef::Place),
        }
    }

    pub fn bits(self) -> u64 {
        match self {
            VersionRef::Record(record) => record.bits(),
            VersionRef::Place(place) => place.bits(),
        }
    }

    pub fn is_tombstone(self) -> bool {
        matches!(self, VersionRef::Record(record) if record.is_tombstone())
    }

    /// The record, if the word names one.
    pub fn record(self) -> Option<RecordRef> {
        match self {
            VersionRef::Record(record) => Some(record),
            VersionRef::Place(_) => None,
        }
    }
}

/// The place of a version of `E` that is in no record.
pub(crate) type PlaceOf<E> = <<E as PmEngine>::Home as Elsewhere>::Place;

/// The word of a version of `E`.
pub(crate) type VersionRefOf<E> = VersionRef<PlaceOf<E>>;
