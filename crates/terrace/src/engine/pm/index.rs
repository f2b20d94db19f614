//! What these engines require of their index: from a key to the word of its newest version.

use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;

use terrace_base::Result;
use terrace_index::{PointIndex, ScanBatch, Still};
use terrace_pmem::{Kind as PmKind, Pool};

use super::elsewhere::Elsewhere;
use crate::core::Core;
use crate::manifest::{Identity, Manifest};
use crate::options::EngineKind;

/// What these engines require of a persistent index beyond single keys, and how it is made and opened.
///
/// Thread safety and durability are those of [`PointIndex`]. In addition, the caller need only flush, not
/// drain, what a new word names if [`drains_first`](Self::drains_first) says so.
pub(crate) trait KeyIndex: PointIndex + Sized + 'static {
    /// The engine that has this index.
    const KIND: EngineKind;

    /// Its roots in the pool.
    const ROOTS: &'static [&'static str];

    /// The root of the records' header.
    const HEADER_ROOT: &'static str;

    /// The kinds of the index's slots that can be moved.
    const MOVES: &'static [PmKind];

    /// The part of the versions that is not in the pool.
    type Home: Elsewhere;

    /// The position of a walk over everything.
    type Cursor: Default + Debug + Send + Sync;

    /// Makes an empty index.
    fn create(pool: &Pool, core: &Core) -> Result<()>;

    /// Creates the empty home of a new database outside the pool, and notes in the database's identity what
    /// it was made with. The remains of an earlier attempt are removed.
    fn create_home(core: &Core, identity: &mut Identity) -> Result<()>;

    /// Opens the home outside `pool`; without a pool, to salvage what is there.
    fn open_home(core: &Arc<Core>, manifest: &Arc<Manifest>, pool: Option<&Pool>) -> Result<Self::Home>;

    /// Attaches to the index.
    fn open(pool: &Pool, core: &Core) -> Result<Self>;

    /// Attaches to the index of a damaged pool, to read its sound parts.
    fn open_to_salvage(pool: &Pool, core: &Core) -> Result<Self> {
        Self::open(pool, core)
    }

    /// Whether every write drains what its thread has flushed before it publishes a word.
    fn drains_first(&self) -> bool;

    /// Appends about `limit` keys from `cursor` on and advances it; returns whether there may be more. It
    /// meets all keys that exist throughout the walk.
    fn walk(&self, cursor: &mut Self::Cursor, limit: usize, out: &mut ScanBatch) -> Result<bool>;

    /// Appends up to `limit` keys from `from` on, in order. `Unsupported` if the index has no order.
    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()>;

    /// Moves the index's contents of the slot of `kind` at `at` to a slot elsewhere, as crash-safe as a
    /// write; false if the index has nothing there.
    ///
    /// # Safety
    ///
    /// An active slot of `kind`, one of [`MOVES`](Self::MOVES), begins at `at`, and its slab is held until this returns.
    unsafe fn move_slot(&self, kind: PmKind, at: u64) -> Result<bool>;

    /// Gives back what was unlinked; returns whether that is everything.
    fn drain(&self) -> bool;

    /// Postpones the index's background work while the guard exists.
    fn still(&self) -> Option<Still<'_>> {
        None
    }

    /// Does the index's remaining work. Writers are at rest.
    fn rest(&self, _core: &Core) -> Result<()> {
        Ok(())
    }
}
