//! What the store asks of an engine.
//!
//! What the store promises is kept jointly: the store orders writers and decides what is visible, the
//! engine makes a group durable before it returns from [`Engine::apply`] and finds what is asked for.

use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;

use super::report::CheckReport;
use super::request::{Condition, Group};
use super::snapshots::{Held, Snapshots};
use crate::batch::Op;
use crate::stats::Stats;

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
    fn walk_all(self: Arc<Self>, at: u64) -> Result<Box<dyn EngineIter>> {
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
    fn walk(self: Arc<Self>, at: u64, direction: Direction) -> Result<Box<dyn EngineIter>>;

    /// Closes the write buffer and starts another; called by the leader, between groups.
    fn rotate(&self) -> Result<()>;

    /// Waits until closed write buffers are flushed.
    fn wait_until_flushed(&self) -> Result<()>;

    /// Makes everything applied so far power-safe.
    fn sync(&self) -> Result<()>;

    /// Merges every table that holds keys of the range, dropping what is dead.
    fn compact(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()>;

    /// A snapshot was let go; versions it alone needed may go too.
    fn released(&self);

    /// Fills in the engine's part.
    fn fill_stats(&self, stats: &mut Stats);

    /// Where each of the ranges begins that the keys are cut into, in order; none of an engine that does not cut them.
    fn partitions(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Proves every structure; damage goes into the report. Called by the leader, between groups.
    fn check(&self) -> Result<CheckReport>;

    /// An error if what was read or written since the opening may rest on a piece of the pool that is not what it was
    /// closed with. Asked after each operation, before its outcome is told.
    fn intact(&self) -> Result<()>;

    /// Waits for the background work that has begun and marks everything closed. Later calls do nothing.
    fn close(&self) -> Result<()>;
}

/// Which way a walk goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// A one-way walk over live keys.
pub(crate) trait EngineIter: Send + Sync {
    /// Places the walk so that `next` gives the first key past `bound` in its direction.
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()>;

    /// The next key and its value.
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>>;
}
