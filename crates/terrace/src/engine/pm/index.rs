//! What these engines ask of their index: from a key to the word of its newest version.

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

/// What these engines ask of a persistent index beyond single keys, and how it is made and opened.
///
/// Thread safety and durability are those of [`PointIndex`]. Beyond them: what a new word names needs only be flushed by
/// the caller, not drained, if [`drains_first`](Self::drains_first) says so.
pub(crate) trait KeyIndex: PointIndex + Sized + 'static {
    /// The engine that the index makes.
    const KIND: EngineKind;

    /// Roots that it sets in the pool.
    const ROOTS: &'static [&'static str];

    /// The root of the records' header.
    const HEADER_ROOT: &'static str;

    /// What of the index can be moved from slot to slot.
    const MOVES: &'static [PmKind];

    /// What of the versions is not in the pool.
    type Home: Elsewhere;

    /// Where a walk over everything stands.
    type Cursor: Default + Debug + Send + Sync;

    /// Makes an empty index.
    fn create(pool: &Pool, core: &Core) -> Result<()>;

    /// Makes what lies elsewhere of a new database, with nothing in it, and notes in the database's identity what it was made
    /// with. What an earlier attempt has left goes.
    fn create_home(core: &Core, identity: &mut Identity) -> Result<()>;

    /// Opens what lies elsewhere than in `pool`; without one, to salvage what is there.
    fn open_home(core: &Arc<Core>, manifest: &Arc<Manifest>, pool: Option<&Pool>) -> Result<Self::Home>;

    /// Attaches to the index.
    fn open(pool: &Pool, core: &Core) -> Result<Self>;

    /// Attaches to the index of a pool that is damaged, to read what is sound of it.
    fn open_to_salvage(pool: &Pool, core: &Core) -> Result<Self> {
        Self::open(pool, core)
    }

    /// Whether every write drains what its thread has flushed before it publishes a word.
    fn drains_first(&self) -> bool;

    /// Appends about `limit` keys from `cursor` on and moves it; says whether there may be more. Keys that are there
    /// throughout are met.
    fn walk(&self, cursor: &mut Self::Cursor, limit: usize, out: &mut ScanBatch) -> Result<bool>;

    /// Appends up to `limit` keys from `from` on, in order. `Unsupported` where there is none.
    fn scan(&self, from: Bound<&[u8]>, reverse: bool, limit: usize, out: &mut ScanBatch) -> Result<()>;

    /// Moves what the index has in the slot of `kind` at `at` to a slot elsewhere, with the crash safety of a write; false if
    /// it has nothing there.
    ///
    /// # Safety
    ///
    /// An active slot of `kind`, one of [`MOVES`](Self::MOVES), begins at `at`, and its slab is held until this returns.
    unsafe fn move_slot(&self, kind: PmKind, at: u64) -> Result<bool>;

    /// Gives back what was unlinked; says whether that is everything.
    fn drain(&self) -> bool;

    /// Puts off what the index does in the background, for as long as the guard is there.
    fn still(&self) -> Option<Still<'_>> {
        None
    }

    /// Does what the index has left to be done. Writers are at rest.
    fn rest(&self, _core: &Core) -> Result<()> {
        Ok(())
    }
}
