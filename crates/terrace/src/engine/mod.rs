//! The designs. Each engine is one folder that wires shared parts; what two need is a part.
//!
//! What the store promises is kept jointly: the store orders writers and decides what is visible, the
//! engine makes a group durable before it returns from [`Engine::apply`] and finds what is asked for.

pub(crate) mod lsm;
pub(crate) mod pm;
pub(crate) mod slm;
pub(crate) mod sptree;
pub(crate) mod turbo;

use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::Kind;

use crate::batch::Op;
use crate::db::commit::{Condition, Request};
use crate::db::core::Core;
use crate::db::report::CheckReport;
use crate::db::snapshots::{Held, Snapshots};
use crate::options::EngineKind;
use crate::pool;
use crate::repair::Salvage;
use crate::stats::Stats;

/// A group of batches to be applied together; each batch is atomic by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group<'a> {
    pub requests: &'a [&'a Request],
    /// The sequence number of the first operation; the others count on from it.
    pub first_seq: u64,
    /// Whether the group must be power-safe on return whatever the medium.
    pub sync: bool,
}

impl Group<'_> {
    /// Operations in all batches.
    pub fn ops(&self) -> u64 {
        self.requests.iter().map(|r| r.batch.len() as u64).sum()
    }

    /// Whether nothing is to be added.
    pub fn only_deletes(&self) -> bool {
        self.requests.iter().flat_map(|r| r.batch.ops()).all(|op| op.kind == Kind::Delete)
    }

    /// Encoded bytes of all batches.
    pub fn bytes(&self) -> u64 {
        self.requests.iter().map(|r| r.batch.encoded().len() as u64).sum()
    }
}

/// What every engine does. `apply` is called by one thread at a time, the rest by any.
pub(crate) trait Engine: Send + Sync + Debug {
    /// Carries `op` out if `condition` holds, durably and visibly; says whether it did. `None`, having done nothing, of
    /// an engine whose writes are all applied by groups.
    fn write_one(&self, _op: Op<'_>, _condition: Condition) -> Option<Result<bool>> {
        None
    }

    /// Registers the present for a reader.
    fn hold(&self, snapshots: &Arc<Snapshots>) -> Held {
        snapshots.hold()
    }

    /// `Unsupported` of an engine that keeps keys in no order: `walk` is refused, too.
    fn ordered(&self) -> Result<()> {
        Ok(())
    }

    /// A walk over all live keys of snapshot `at`, in order where there is one.
    fn walk_all(self: Arc<Self>, at: u64) -> Result<Box<dyn Walk>> {
        let mut walk = self.walk(at, Direction::Forward)?;
        walk.seek(Bound::Unbounded)?;
        Ok(walk)
    }

    /// Makes `group` durable and findable, though not yet visible. On an error no batch of it is.
    fn apply(&self, group: Group<'_>) -> Result<()>;

    /// The value of `key`: its version at snapshot `at`, else the newest visible one.
    fn get(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>>;

    /// Whether `key` exists now, without reading its value.
    fn contains(&self, key: &[u8]) -> Result<bool>;

    /// A walk over the live keys of snapshot `at`, which must stay held as long as the walk.
    fn walk(self: Arc<Self>, at: u64, direction: Direction) -> Result<Box<dyn Walk>>;

    /// Closes the write buffer and starts another; called by the leader, between groups.
    fn rotate(&self) -> Result<()>;

    /// Waits until closed write buffers are flushed.
    fn settle(&self) -> Result<()>;

    /// Makes everything applied so far power-safe.
    fn sync(&self) -> Result<()>;

    /// Merges every table that holds keys of the range, dropping what is dead.
    fn compact(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()>;

    /// A snapshot was let go; versions it alone needed may go too.
    fn released(&self);

    /// Fills in the engine's part.
    fn fill_stats(&self, stats: &mut Stats);

    /// Proves every structure; damage goes into the report. Called by the leader, between groups.
    fn check(&self) -> Result<CheckReport>;

    /// An error if what was read or written since the opening may rest on a piece of the pool that is not what it was
    /// closed with. Asked after each operation, before its outcome is told.
    fn intact(&self) -> Result<()>;

    /// Waits for background work and marks everything closed. Later calls do nothing.
    fn close(&self) -> Result<()>;
}

/// Which way a walk goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// A one-way walk over live keys.
pub(crate) trait Walk: Send + Sync {
    /// Places the walk so that `next` gives the first key past `bound` in its direction.
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()>;

    /// The next key and its value.
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>>;
}

/// Opens or creates the engine's data in `core.dir`; returns it and the last sequence number in it.
pub(crate) fn open(core: Arc<Core>) -> Result<(Arc<dyn Engine>, u64)> {
    pool::refuse_headless(&core)?;
    match core.options.engine {
        EngineKind::Slm => slm::open(core),
        EngineKind::Lsm => lsm::open(core),
        EngineKind::Turbo => pm::open::<turbo::TurboIndex>(core),
        EngineKind::Sptree => pm::open::<sptree::SptreeIndex>(core),
    }
}

/// Brings back all that is not itself damaged.
pub(crate) fn repair(base: Salvage) -> Result<Salvage> {
    match base.core.options.engine {
        EngineKind::Slm => slm::repair(base),
        EngineKind::Lsm => lsm::repair(base),
        EngineKind::Turbo => pm::repair::<turbo::TurboIndex>(base),
        EngineKind::Sptree => pm::repair::<sptree::SptreeIndex>(base),
    }
}
