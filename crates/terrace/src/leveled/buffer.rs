//! The part above level 0 of a leveled tree, which differs between designs.
//!
//! | seam | what it provides | `lsm` |
//! |---|---|---|
//! | [`Memtable`] | the contents that are read first and flushed | a list in DRAM |
//! | [`WriteBuffer`] | making a group durable before it is in a memtable, and dropping logs after a flush | the commit log |
//! | [`Stage`] | the outputs of a flush, and the part between memtables and level 0 | runs of level 0; nothing |
//!
//! A tree is compiled for its write buffer: reads go through no box and no dynamic call.
//!
//! Every version of a key in a memtable is newer than every one in an older memtable; those are newer than
//! any on the stage, and those newer than any on the levels.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_base::Result;
use terrace_pmem::Marks;
use terrace_table::{Cursor, Entry, Kind};

use super::LeveledTree;
use super::change::{LevelsEdit, Relocations};
use crate::batch::Op;
use crate::core::report::CheckReport;
use crate::core::request::Group;
use crate::levels::Stale;
use crate::levels::output::Wanted;
use crate::levels::run::Passed;
use crate::manifest::State;
use crate::manifest::{Edit, Manifest};
use crate::memtable::Version;
use crate::stats::Stats;

/// An ordered set of versions. One thread at a time inserts, while any number read. Nothing is removed from
/// it: it is dropped as a whole, with its last reader.
pub(crate) trait Memtable: Debug + Send + Sync + Sized + 'static {
    /// A cursor over it, which keeps it alive.
    type Cursor: Cursor + 'static;

    /// Average bytes that a version takes beside its key and value.
    const ENTRY_BYTES: u64;

    /// Inserts operations, each with its sequence number. This cannot fail, so a group is readable wholly or
    /// not at all.
    fn insert<'a>(&self, ops: impl Iterator<Item = (Op<'a>, u64)>);

    /// What `take` makes of the newest version of `key` up to sequence number `at`; `None` if there is none.
    fn get<T>(&self, key: &[u8], at: u64, take: impl FnOnce(Version<'_>) -> T) -> Option<T>;

    /// A cursor over all versions, not yet positioned.
    fn cursor(&self) -> Self::Cursor;

    /// Visits all versions in order.
    fn visit(&self, each: impl FnMut(&[u8], u64, Kind, &[u8]) -> Result<()>) -> Result<()>;

    /// Whether it is empty.
    fn is_empty(&self) -> bool;

    /// Bytes of its versions with their overhead: it is full when this exceeds the tree's `memtable_bytes`.
    fn bytes_used(&self) -> u64;

    /// Bytes of DRAM held.
    fn dram_bytes(&self) -> u64;

    /// The greatest sequence number in it; 0 if it is empty.
    fn max_seq(&self) -> u64;

    /// Checks everything; returns what is wrong.
    fn check(&self) -> Vec<String>;
}

/// Makes durable what is only in memtables.
///
/// Its functions receive the tree whose write buffer it is: a failed log needs memtables to be flushed, and a
/// full pool needs a memtable's log to be dropped. Only the current leader calls them, except those that a
/// flush calls.
pub(crate) trait WriteBuffer: Debug + Send + Sync + Sized + 'static {
    /// The memtables that writes go to.
    type Memtable: Memtable;
    /// The stage below the memtables.
    type Stage: Stage;

    /// An empty memtable for about `bytes`.
    fn memtable(&self, bytes: u64) -> Self::Memtable;

    /// Bytes of DRAM that memtables hold, filters left out, also those that are only read any more, and that are kept for
    /// the next ones.
    fn held_bytes(&self) -> u64;

    /// The stage.
    fn stage(&self) -> &Self::Stage;

    /// Before a group, a rotation or a sync: recovers from an earlier failure.
    fn mend(tree: &LeveledTree<Self>) -> Result<()>;

    /// Makes a group as durable as requested, before any of it is in the active memtable. On an error nothing
    /// of it was logged.
    fn log(tree: &LeveledTree<Self>, group: &Group<'_>) -> Result<()>;

    /// Makes ready what the next rotation needs, so that it takes no time. In the background.
    fn make_ready(&self, manifest: &Manifest);

    /// What is logged from now on goes into another memtable.
    fn rotate(&self) -> Result<()>;

    /// Makes everything logged so far survive a power cut.
    fn sync(tree: &LeveledTree<Self>) -> Result<()>;

    /// The edits for the manifest when `memtable`, the oldest, leaves: in one group with the runs that hold
    /// its contents.
    fn forgotten(tree: &LeveledTree<Self>, memtable: &Self::Memtable) -> Vec<Edit>;

    /// Drops what the manifest no longer needs.
    fn forget(&self, manifest: &Manifest) -> Result<()>;

    /// Marks its memory in the pool; nothing of that is freed before `then` has returned.
    fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(&Marks) -> Result<T>) -> Result<T>;

    /// Proves its parts beside memtables.
    fn check(&self, manifest: &Manifest, report: &mut CheckReport) -> Result<()>;

    /// Reports what an acknowledged write survives, and on which medium.
    fn fill_stats(tree: &LeveledTree<Self>, stats: &mut Stats);

    /// Recovers from a failure, and ends cleanly. Nothing is written any more.
    fn close(tree: &LeveledTree<Self>) -> Result<()>;
}

/// The stage between memtables and level 0.
///
/// Only flushes change it. What leaves it must first be on the levels, and in the manifest; and any version
/// replaced here that a snapshot still needs must be there before it is replaced. So a reader that finds
/// `readable` unchanged after looking here has missed nothing ([`Moment`]); otherwise it looks again.
pub(crate) trait Stage: Debug + Send + Sync + Sized + 'static {
    /// Whether anything ever leaves it.
    const CHANGES: bool;

    /// The newest version of `key` up to sequence number `at`.
    fn get(&self, key: &[u8], at: u64) -> Result<Option<Entry>>;

    /// Cursors over its versions, for a reader of `moment`.
    fn cursors(&self, moment: &Arc<Moment>) -> Vec<Box<dyn Cursor>>;

    /// A cursor over versions here with sequence numbers up to `seq`, without their values: a compaction
    /// drops what they hide.
    fn hiding(&self, _seq: u64) -> Option<Box<dyn Cursor>> {
        None
    }

    /// Its interest in a part of a merge, if any.
    fn watch<'a>(&'a self, _part: &MergePart<'a>) -> Result<Option<Watched<'a>>> {
        Ok(None)
    }

    /// Receives the new places of the versions that it asked about. The manifest has recorded them, and
    /// readers see them.
    fn placed<B: WriteBuffer<Stage = Self>>(_tree: &LeveledTree<B>, _relocations: &Relocations) {}

    /// Bytes of runs that are known to be stale.
    fn stale(&self) -> Arc<Stale> {
        Arc::default()
    }

    /// Before logs are replayed, proves that a manifest with `state` has not lost anything the stage depends
    /// on. `logged` tells how far logs continue after a write; `None` if that cannot be told.
    fn prove(&self, _state: &State, _logged: impl FnOnce(u64) -> Option<u64>) -> Result<()> {
        Ok(())
    }

    /// Flushes `memtable`, the oldest: what the stage does not keep goes to level 0
    /// ([`LeveledTree::to_level_0`]). What it keeps is durable on return; the change is put into the manifest
    /// in one group with the end of the memtable's log.
    fn flush<B: WriteBuffer<Stage = Self>>(
        tree: &LeveledTree<B>,
        memtable: &B::Memtable,
    ) -> Result<LevelsEdit>;

    /// Moves what is to leave to level 0. The runs of the last flush are there, and no other new ones.
    fn evict<B: WriteBuffer<Stage = Self>>(_tree: &LeveledTree<B>) -> Result<()> {
        Ok(())
    }

    /// Moves everything that may leave to level 0: the caller wants everything merged. No flush runs.
    fn clear<B: WriteBuffer<Stage = Self>>(_tree: &LeveledTree<B>) -> Result<()> {
        Ok(())
    }

    /// Marks its memory in the pool; nothing of that is freed before `then` has returned.
    fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T>;

    /// Proves its contents. Neither flush nor compaction runs.
    fn check<B: WriteBuffer<Stage = Self>>(_tree: &LeveledTree<B>, _report: &mut CheckReport) -> Result<()> {
        Ok(())
    }

    /// Bytes of DRAM held.
    fn dram_bytes(&self) -> u64 {
        0
    }

    /// Reports what it holds.
    fn fill_stats(&self, _stats: &mut Stats) {}

    /// Saves what makes the next opening faster. Nothing is written any more.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// A part of a merge: a range of keys, without its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergePart<'a> {
    pub from: Option<&'a [u8]>,
    pub to: Option<&'a [u8]>,
    /// The numbers of the merged runs.
    pub inputs: &'a BTreeSet<u64>,
    /// Snapshots, listed after asking for `visible`: no later snapshot is older than that.
    pub held: &'a [u64],
    pub visible: u64,
}

/// A stage's interest in a part of a merge.
pub(crate) struct Watched<'a> {
    /// The keys whose new places it wants.
    pub wanted: Box<Wanted<'a>>,
    /// Blocks of the inputs that need not be read: nobody can see anything in them.
    pub passed: Passed,
    /// Keys that it was told lie in the inputs.
    pub named: Vec<Vec<u8>>,
}

/// What a reader of a stage reads beside it, all from one moment. When the readable set changes, the reader's
/// cursors end; it must then continue from its position with the new set.
pub(crate) struct Moment {
    lasts: Box<dyn Fn() -> bool + Send + Sync>,
    is_over: AtomicBool,
}

impl Moment {
    /// A moment that lasts while `lasts` returns true.
    pub fn new(lasts: impl Fn() -> bool + Send + Sync + 'static) -> Arc<Moment> {
        Arc::new(Moment { lasts: Box::new(lasts), is_over: AtomicBool::new(false) })
    }

    /// A moment without an end, for a caller that knows that nothing changes.
    pub fn forever() -> Arc<Moment> {
        Moment::new(|| true)
    }

    /// Whether it still lasts; the caller has just looked at the stage. If not, all cursors of this moment
    /// end.
    pub fn lasts(&self) -> bool {
        if !(self.lasts)() {
            self.is_over.store(true, Ordering::Release);
        }
        !self.is_over()
    }

    /// Whether a cursor has ended because of that.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moment").field("is_over", &self.is_over()).finish()
    }
}

/// No stage.
impl Stage for () {
    const CHANGES: bool = false;

    fn get(&self, _key: &[u8], _at: u64) -> Result<Option<Entry>> {
        Ok(None)
    }

    fn cursors(&self, _moment: &Arc<Moment>) -> Vec<Box<dyn Cursor>> {
        Vec::new()
    }

    fn flush<B: WriteBuffer<Stage = Self>>(
        tree: &LeveledTree<B>,
        memtable: &B::Memtable,
    ) -> Result<LevelsEdit> {
        tree.to_level_0(|add| memtable.visit(add))
    }

    fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T> {
        then(marks)
    }
}
