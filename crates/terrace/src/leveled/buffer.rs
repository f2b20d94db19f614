//! What stands above level 0 of a leveled tree, and is different in each design.
//!
//! | seam | what it answers | `lsm` |
//! |---|---|---|
//! | [`Memtable`] | what is read first and flushed | a skiplist in DRAM |
//! | [`WriteBuffer`] | what makes a group durable before it is in a memtable, and what may be forgotten after a flush | the commit log |
//! | [`Stage`] | what a flush makes, and what lies between memtables and level 0 | runs of level 0; nothing |
//!
//! A tree is compiled for its write buffer: none of this is a box or a call through a table on the way of a read.
//!
//! Every version of a key in a memtable is newer than every one in an older memtable, those are newer than any on the stage,
//! and those newer than any on the levels.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_base::Result;
use terrace_pmem::Marks;
use terrace_table::{Cursor, Entry, Kind};

use super::LeveledTree;
use super::change::{Change, Relocations};
use crate::batch::Op;
use crate::core::report::CheckReport;
use crate::core::request::Group;
use crate::levels::Stale;
use crate::levels::output::Wanted;
use crate::levels::run::Passed;
use crate::manifest::State;
use crate::manifest::{Edit, Manifest};
use crate::stats::Stats;

/// Versions of keys in order. One thread at a time inserts, any number read beside it. Nothing is removed from it: it goes
/// as a whole, with its last reader.
pub(crate) trait Memtable: Debug + Send + Sync + Sized + 'static {
    /// A place in it, which it keeps.
    type Cursor: Cursor + 'static;

    /// What a version takes beside its key and value, on average.
    const ENTRY_BYTES: u64;

    /// Inserts operations, each with its sequence number. That cannot fail, so a group is readable wholly or not at all.
    fn insert<'a>(&self, ops: impl Iterator<Item = (Op<'a>, u64)>);

    /// The newest version of `key` up to sequence number `at`.
    fn get(&self, key: &[u8], at: u64) -> Option<Entry>;

    /// A cursor over all versions, at none yet.
    fn cursor(&self) -> Self::Cursor;

    /// All versions in order, as they lie.
    fn visit(&self, each: impl FnMut(&[u8], u64, Kind, &[u8]) -> Result<()>) -> Result<()>;

    /// Whether nothing is in it.
    fn is_empty(&self) -> bool;

    /// Bytes of its versions, with what they take beside: where this passes the tree's `memtable_bytes`, it is full.
    fn bytes_used(&self) -> u64;

    /// Bytes of DRAM held.
    fn dram_bytes(&self) -> u64;

    /// The greatest sequence number in it; 0 if it is empty.
    fn max_seq(&self) -> u64;

    /// Looks at everything; says what is wrong.
    fn check(&self) -> Vec<String>;
}

/// What makes durable what memtables alone would not.
///
/// Its functions are given the tree whose write buffer it is: a log that has failed wants memtables flushed, and a pool
/// without room wants a memtable's log to go. The one leader of the moment calls them, but for what a flush calls.
pub(crate) trait WriteBuffer: Debug + Send + Sync + Sized + 'static {
    /// What is written into.
    type Memtable: Memtable;
    /// What lies below the memtables.
    type Stage: Stage;

    /// An empty memtable that is meant to hold about `bytes`.
    fn memtable(&self, bytes: u64) -> Self::Memtable;

    /// The stage.
    fn stage(&self) -> &Self::Stage;

    /// Before a group, a rotation or a sync: makes good what an earlier failure has left.
    fn mend(tree: &LeveledTree<Self>) -> Result<()>;

    /// Makes a group as durable as it is asked to be, before any of it is in the active memtable. It is refused wholly or
    /// not at all.
    fn log(tree: &LeveledTree<Self>, group: &Group<'_>) -> Result<()>;

    /// What is logged from now on goes into another memtable.
    fn rotate(&self) -> Result<()>;

    /// Makes everything logged so far power-safe.
    fn sync(tree: &LeveledTree<Self>) -> Result<()>;

    /// What the manifest is told as `memtable`, the oldest, leaves: in one group with the runs that hold its contents.
    fn forgotten(tree: &LeveledTree<Self>, memtable: &Self::Memtable) -> Vec<Edit>;

    /// Lets go of what the manifest says is no longer needed.
    fn forget(&self, manifest: &Manifest) -> Result<()>;

    /// Marks what it has in the pool; nothing of that is freed before `then` has returned.
    fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(&Marks) -> Result<T>) -> Result<T>;

    /// Proves what it has beside memtables.
    fn check(&self, manifest: &Manifest, report: &mut CheckReport) -> Result<()>;

    /// Says what an acknowledged write survives, and on what.
    fn fill_stats(tree: &LeveledTree<Self>, stats: &mut Stats);

    /// Makes good what a failure has left, and ends it in order. Nothing is written any more.
    fn close(tree: &LeveledTree<Self>) -> Result<()>;
}

/// What lies between memtables and level 0.
///
/// Only flushes change it. What leaves it must be on the levels first, in the manifest too; and what a snapshot still needs
/// of a version that is replaced here, before that. So a reader that has found `readable` unchanged after he looked here has
/// missed nothing ([`Moment`]); one that has not looks again.
pub(crate) trait Stage: Debug + Send + Sync + Sized + 'static {
    /// Whether anything ever leaves it.
    const CHANGES: bool;

    /// The newest version of `key` up to sequence number `at`.
    fn get(&self, key: &[u8], at: u64) -> Result<Option<Entry>>;

    /// Cursors over its versions, for a reader of `moment`.
    fn cursors(&self, moment: &Arc<Moment>) -> Vec<Box<dyn Cursor>>;

    /// A cursor over versions here with sequence numbers up to `seq`, whose values are not asked for: a compaction drops what
    /// they hide.
    fn hiding(&self, _seq: u64) -> Option<Box<dyn Cursor>> {
        None
    }

    /// What it has to do with a part of a merge, if anything.
    fn watch<'a>(&'a self, _part: &MergePart<'a>) -> Result<Option<Watched<'a>>> {
        Ok(None)
    }

    /// Is told where versions have come to lie that it asked about. The manifest says so, and readers see it.
    fn placed<B: WriteBuffer<Stage = Self>>(_tree: &LeveledTree<B>, _relocations: &Relocations) {}

    /// Bytes of runs that are known to be outdated.
    fn stale(&self) -> Arc<Stale> {
        Arc::default()
    }

    /// Proves, before logs are replayed, that a manifest which says `state` has not lost what it rests on. `logged` says
    /// how far logs go on behind a write; none where one cannot be read to its end.
    fn prove(&self, _state: &State, _logged: impl FnOnce(u64) -> Option<u64>) -> Result<()> {
        Ok(())
    }

    /// Flushes `memtable`, the oldest: what is not kept here goes to level 0 ([`LeveledTree::to_level_0`]). What is kept is
    /// durable when this returns; the change is put into the manifest in one group with the end of what the memtable was logged in.
    fn flush<B: WriteBuffer<Stage = Self>>(tree: &LeveledTree<B>, memtable: &B::Memtable) -> Result<Change>;

    /// Has what is to leave go to level 0. What the last flush made is there, and no other runs.
    fn evict<B: WriteBuffer<Stage = Self>>(_tree: &LeveledTree<B>) -> Result<()> {
        Ok(())
    }

    /// Has all that may leave go to level 0: somebody wants everything merged. No flush runs.
    fn clear<B: WriteBuffer<Stage = Self>>(_tree: &LeveledTree<B>) -> Result<()> {
        Ok(())
    }

    /// Marks what it has in the pool; nothing of that is freed before `then` has returned.
    fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T>;

    /// Proves what it has. Neither flush nor compaction runs.
    fn check<B: WriteBuffer<Stage = Self>>(_tree: &LeveledTree<B>, _report: &mut CheckReport) -> Result<()> {
        Ok(())
    }

    /// Bytes of DRAM held.
    fn dram_bytes(&self) -> u64 {
        0
    }

    /// Says what it holds.
    fn fill_stats(&self, _stats: &mut Stats) {}

    /// Saves what makes the next opening faster. Nothing is written any more.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// A part of a merge: keys from one to another, the last excluded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergePart<'a> {
    pub from: Option<&'a [u8]>,
    pub to: Option<&'a [u8]>,
    /// The numbers of the runs that are merged.
    pub inputs: &'a BTreeSet<u64>,
    /// Snapshots, listed after `visible` was asked for: no later one is older than that.
    pub held: &'a [u64],
    pub visible: u64,
}

/// What a stage has to do with a part of a merge.
pub(crate) struct Watched<'a> {
    /// Of which keys it is to be told where they come to lie.
    pub wanted: Box<Wanted<'a>>,
    /// Blocks of the inputs that need not be read: nobody can see anything in them.
    pub passed: Passed,
    /// Keys of which it was told that they lie in the inputs.
    pub named: Vec<Vec<u8>>,
}

/// What a reader of a stage reads beside it, all from one moment. Once something else is readable he is told, by cursors that
/// end, to go on from where he is with what there is then.
pub(crate) struct Moment {
    lasts: Box<dyn Fn() -> bool + Send + Sync>,
    is_over: AtomicBool,
}

impl Moment {
    /// A moment that is over when `lasts` says so.
    pub fn new(lasts: impl Fn() -> bool + Send + Sync + 'static) -> Arc<Moment> {
        Arc::new(Moment { lasts: Box::new(lasts), is_over: AtomicBool::new(false) })
    }

    /// A moment without an end, for who knows that nothing changes.
    pub fn forever() -> Arc<Moment> {
        Moment::new(|| true)
    }

    /// Whether it lasts, asked by who has just looked at the stage. Where not, all his cursors end.
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

/// Nothing lies between.
impl Stage for () {
    const CHANGES: bool = false;

    fn get(&self, _key: &[u8], _at: u64) -> Result<Option<Entry>> {
        Ok(None)
    }

    fn cursors(&self, _moment: &Arc<Moment>) -> Vec<Box<dyn Cursor>> {
        Vec::new()
    }

    fn flush<B: WriteBuffer<Stage = Self>>(tree: &LeveledTree<B>, memtable: &B::Memtable) -> Result<Change> {
        tree.to_level_0(|add| memtable.visit(add))
    }

    fn with_marked<T>(&self, marks: Marks, then: impl FnOnce(Marks) -> Result<T>) -> Result<T> {
        then(marks)
    }
}
