//! What of an engine's versions lies elsewhere than in the pool, and the words that name the one and the other.
//!
//! Most engines of this sort have everything in records, and nothing elsewhere ([`Nowhere`]). One that has more gives a
//! version that is there a *place*. The word of a place stands where that of a record would: in the index, or under a
//! newer version that a snapshot does not see. Where something has to hang under a version that lies elsewhere, or its
//! number is another one than is said there, the word is that of a record with the place in it (*remote*).
//!
//! 1. A place is durable before a word of it is published.
//! 2. Each place has one word, that of a remote record included. It is retired by whoever has that word replaced by
//!    another version's, or moves the version, and freed when those have left who were present then.
//! 3. What a place tells of a number is not told by its word: who keeps a version for a snapshot without reading it takes
//!    it for the oldest that it can be.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Debug;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_table::TableMeta;

use super::PmStore;
use super::index::KeyIndex;
use crate::core::report::CheckReport;
use crate::manifest::{Identity, KnownStamp, State};
use crate::salvage::Salvage;
use crate::stats::Stats;
use crate::versions::RecordRef;

/// Where a version lies that is in no record.
pub(crate) trait Place: Copy + Eq + Debug + Send + Sync + 'static {
    /// The place whose word this is. No record has such a word.
    fn from_bits(bits: u64) -> Option<Self>;

    /// Its word.
    fn bits(self) -> u64;

    /// The table that it is in, if it is in one.
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

/// A version that was read where it lies.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub number: u64,
    pub value: Bytes,
}

/// What is told of a version that lies elsewhere: its key, its number and the word of its place.
pub(crate) type Tell<'a> = dyn FnMut(&[u8], u64, u64) -> Result<()> + 'a;

/// A version that is to be written elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub number: u64,
}

/// The rest of an engine's versions. Everything may be called from any thread.
pub(crate) trait Elsewhere: Debug + Send + Sync + Sized + 'static {
    type Place: Place;

    /// Whether each version has a number of its own, by which those found in different places are told apart.
    const NUMBERS_EACH: bool;

    /// Whether a put of so much is to be written here.
    fn takes(&self, key: &[u8], value: &[u8]) -> bool;

    /// Writes `items`, all or none. They are durable then.
    fn store(&self, items: &[Item<'_>]) -> Result<Vec<Self::Place>>;

    /// The version of `key` at `place`, which some word has named since the caller is present. `None` if it has moved since.
    fn load(&self, key: &[u8], place: Self::Place) -> Result<Option<Loaded>>;

    /// The same of several, which are read together.
    fn load_many(&self, wanted: &[(&[u8], Self::Place)]) -> Result<Vec<Option<Loaded>>>;

    /// The error that `place` is named and not there.
    fn lost(&self, place: Self::Place) -> Error;

    /// No word leads to the version of `key` at `place` any more, and none will.
    fn retire(&self, key: &[u8], place: Self::Place) -> Result<()>;

    /// Nobody looks at what was retired any more.
    fn free(&self, place: Self::Place);

    /// A write has happened, and its caller holds nothing: gives back what writes have left here, where that comes to much.
    fn tidy<I: KeyIndex<Home = Self>>(&self, store: &PmStore<I>);

    /// Bytes that are read for the version at `place`.
    fn bytes_at(&self, place: Self::Place) -> u64;

    /// A reader has found its version in `record`.
    fn was_read(&self, record: RecordRef);

    /// Of the version in `record` that of `before` is the older one; none if its key was not there.
    fn was_written<P: Place>(&self, record: RecordRef, before: Option<VersionRef<P>>);

    /// A version of so many bytes is about to be written to the pool, before anything is held: the moment to slow writers down.
    fn pace<I: KeyIndex<Home = Self>>(&self, store: &PmStore<I>, bytes: usize);

    /// Makes room in the pool for a write that has found none; whether that has come to something. Nothing is held.
    fn relieve<I: KeyIndex<Home = Self>>(&self, store: &PmStore<I>) -> Result<bool>;

    /// The database has been opened: has the rest of the opening done in the background.
    fn opened<I: KeyIndex<Home = Self>>(&self, store: &PmStore<I>) -> Result<()>;

    /// Brings everything into order that is worth it.
    fn compact<I: KeyIndex<Home = Self>>(&self, store: &PmStore<I>) -> Result<()>;

    /// Proves what lies here, given every place that is named. Nobody writes, and nothing runs in the background.
    fn check<I: KeyIndex<Home = Self>>(
        &self,
        store: &PmStore<I>,
        named: &[Self::Place],
        report: &mut CheckReport,
    ) -> Result<()>;

    /// Does `work` while nothing is moved from place to place.
    fn still<T>(&self, work: impl FnOnce() -> T) -> T;

    fn fill_stats(&self, stats: &mut Stats);

    /// No version is written here any more.
    fn close(&self) -> Result<()>;

    /// From now on nothing is written here, whatever is asked for: what a repair sees must stay.
    fn stay_as_it_is(&self);

    /// Brings what lies elsewhere into a state in which it can be opened, in the view that `base` works in.
    fn salvage(base: &mut Salvage, known: Option<&State>, identity: &mut Identity) -> Result<Salvaged>;

    /// Tells of every version that lies here, whether a word leads to it or not: its key, its number and the word of its place.
    fn gather(&self, take: &mut Tell<'_>) -> Result<()>;
}

/// What a repair has found elsewhere than in the pool.
#[derive(Debug)]
pub(crate) struct Salvaged {
    /// The tables that are to be in the manifest, each with its level.
    pub tables: Vec<(u32, TableMeta)>,
    /// Of those, the ones in which is what was sound of another one, with the number of that.
    pub salvaged: BTreeMap<u64, u64>,
    /// The stamp of what else lies there, if it is that which the manifest knew.
    pub stamp: Option<KnownStamp>,
}

/// Nothing lies elsewhere.
#[derive(Debug)]
pub(crate) struct Nowhere;

impl Elsewhere for Nowhere {
    type Place = Infallible;
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

    fn load_many(&self, _: &[(&[u8], Infallible)]) -> Result<Vec<Option<Loaded>>> {
        Ok(Vec::new())
    }

    fn lost(&self, place: Infallible) -> Error {
        match place {}
    }

    fn retire(&self, _: &[u8], place: Infallible) -> Result<()> {
        match place {}
    }

    fn free(&self, place: Infallible) {
        match place {}
    }

    fn tidy<I: KeyIndex<Home = Self>>(&self, _: &PmStore<I>) {}

    fn bytes_at(&self, place: Infallible) -> u64 {
        match place {}
    }

    fn was_read(&self, _: RecordRef) {}

    fn was_written<P: Place>(&self, _: RecordRef, _: Option<VersionRef<P>>) {}

    fn pace<I: KeyIndex<Home = Self>>(&self, _: &PmStore<I>, _: usize) {}

    fn relieve<I: KeyIndex<Home = Self>>(&self, _: &PmStore<I>) -> Result<bool> {
        Ok(false)
    }

    fn opened<I: KeyIndex<Home = Self>>(&self, _: &PmStore<I>) -> Result<()> {
        Ok(())
    }

    fn compact<I: KeyIndex<Home = Self>>(&self, _: &PmStore<I>) -> Result<()> {
        Ok(())
    }

    fn check<I: KeyIndex<Home = Self>>(
        &self,
        _: &PmStore<I>,
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

/// What names a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionRef<P> {
    Record(RecordRef),
    Place(P),
}

impl<P: Place> VersionRef<P> {
    /// The word that the bits are, if they are one.
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

    /// The record, if it is one's.
    pub fn record(self) -> Option<RecordRef> {
        match self {
            VersionRef::Record(record) => Some(record),
            VersionRef::Place(_) => None,
        }
    }
}

/// The place of a version that is in no record of `I`'s.
pub(crate) type PlaceOf<I> = <<I as KeyIndex>::Home as Elsewhere>::Place;

/// The word of a version of `I`'s.
pub(crate) type VersionRefOf<I> = VersionRef<PlaceOf<I>>;
