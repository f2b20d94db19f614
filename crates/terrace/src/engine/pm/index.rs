//! What these engines are made of: an index from a key to the word of its newest version, and a home for versions
//! outside the pool.

use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;

use terrace_base::Result;
use terrace_index::{OrderedIndex, PointIndex, ScanBatch, SpTree, Still};
use terrace_pmem::{Kind as PmKind, Pool};

use super::elsewhere::Elsewhere;
use crate::core::Core;
use crate::manifest::{Identity, Manifest};
use crate::options::EngineKind;

/// One of these engines: its index and its home, and how both are made and opened.
pub(crate) trait PmEngine: Debug + Send + Sync + Sized + 'static {
    /// Which engine that is.
    const KIND: EngineKind;

    /// The index's roots in the pool.
    const ROOTS: &'static [&'static str];

    /// The root of the records' header.
    const HEADER_ROOT: &'static str;

    /// The index over all keys.
    type Index: KeyIndex;

    /// The part of the versions that is not in the pool.
    type Home: Elsewhere;

    /// Makes an empty index.
    fn create(pool: &Pool, core: &Core) -> Result<()>;

    /// Creates the empty home of a new database outside the pool, and notes in the database's identity what
    /// it was made with. The remains of an earlier attempt are removed.
    fn create_home(core: &Core, identity: &mut Identity) -> Result<()>;

    /// Opens the home outside `pool`; without a pool, to salvage what is there.
    fn open_home(core: &Arc<Core>, manifest: &Arc<Manifest>, pool: Option<&Pool>) -> Result<Self::Home>;

    /// Attaches to the index.
    fn open(pool: &Pool, core: &Core) -> Result<Self::Index>;

    /// Attaches to the index of a damaged pool, to read its sound parts.
    fn open_to_salvage(pool: &Pool, core: &Core) -> Result<Self::Index> {
        Self::open(pool, core)
    }
}

/// The position of a walk over everything in the index of `E`.
pub(crate) type PositionOf<E> = <<E as PmEngine>::Index as KeyIndex>::Position;

/// What these engines require of a persistent index beyond single keys.
///
/// Thread safety and durability are those of [`PointIndex`]. In addition, the caller need only flush, not
/// drain, what a new word names if [`drains_first`](Self::drains_first) says so.
pub(crate) trait KeyIndex: PointIndex + Sized + 'static {
    /// The kinds of the index's slots that can be moved.
    const MOVES: &'static [PmKind];

    /// The position of a walk over everything.
    type Position: Default + Debug + Send + Sync;

    /// Whether every write drains what its thread has flushed before it publishes a word.
    fn drains_first(&self) -> bool;

    /// Appends about `limit` keys from `position` on and advances it; returns whether there may be more. It
    /// meets all keys that exist throughout the walk.
    fn walk(&self, position: &mut Self::Position, limit: usize, out: &mut ScanBatch) -> Result<bool>;

    /// Appends up to `limit` keys from `from` on, in order. `Unsupported` if the index has no order.
    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()>;

    /// Moves the index's contents of the slot of `kind` at `at` to a slot elsewhere, as crash-safe as a
    /// write; false if the index has nothing there.
    ///
    /// # Safety
    ///
    /// An active slot of `kind`, one of [`MOVES`](Self::MOVES), begins at `at`, and its slab is held until this
    /// returns.
    unsafe fn move_slot(&self, kind: PmKind, at: u64) -> Result<bool>;

    /// Gives back what was unlinked; returns whether that is everything.
    fn drain(&self) -> bool;

    /// Makes the index as small as its keys let it be. Runs beside readers and writers.
    fn shrink(&self) -> Result<()> {
        Ok(())
    }

    /// Makes the index smaller where that was not done as keys went; returns whether it may have become so. Runs beside
    /// readers and writers, and may go through all of it.
    fn catch_up(&self) -> Result<bool> {
        Ok(false)
    }

    /// Gives back memory with which writes are faster; returns whether there was any. Runs beside readers and writers.
    fn give_up_buffers(&self) -> Result<bool> {
        Ok(false)
    }

    /// Postpones the index's background work while the guard exists.
    fn still(&self) -> Option<Still<'_>> {
        None
    }

    /// Does the index's remaining work. Writers are at rest.
    fn rest(&self, _core: &Core) -> Result<()> {
        Ok(())
    }
}

/// The position of a walk over an ordered index: behind this key, or before the first.
#[derive(Debug, Default)]
pub(crate) struct BehindKey(Option<Vec<u8>>);

impl KeyIndex for SpTree {
    const MOVES: &'static [PmKind] = SpTree::MOVES;
    type Position = BehindKey;

    /// A leaf's slot is drained before the bitmap that makes it valid. A write buffer's entry is durable with
    /// the log's record, and nothing is drained before that.
    fn drains_first(&self) -> bool {
        !self.is_buffered()
    }

    fn walk(&self, position: &mut BehindKey, limit: usize, out: &mut ScanBatch) -> Result<bool> {
        let from = position.0.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        OrderedIndex::scan(self, from, false, limit, out)?;
        if let Some(last) = out.len().checked_sub(1) {
            position.0 = Some(out.key(last).to_vec());
        }
        Ok(out.len() == limit)
    }

    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()> {
        OrderedIndex::scan(self, from, reverse, limit, out)
    }

    unsafe fn move_slot(&self, kind: PmKind, at: u64) -> Result<bool> {
        // SAFETY: the caller's promise.
        unsafe { SpTree::move_slot(self, kind, at) }
    }

    fn drain(&self) -> bool {
        SpTree::drain(self)
    }

    fn shrink(&self) -> Result<()> {
        SpTree::shrink(self)
    }

    fn catch_up(&self) -> Result<bool> {
        SpTree::catch_up(self)
    }

    fn give_up_buffers(&self) -> Result<bool> {
        SpTree::give_up_buffers(self)
    }

    fn still(&self) -> Option<Still<'_>> {
        Some(SpTree::still(self))
    }

    fn rest(&self, core: &Core) -> Result<()> {
        if core.options.read_only { self.rebuild() } else { SpTree::rest(self) }
    }
}
