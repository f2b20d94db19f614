//! What the store requires of an engine.
//!
//! Both keep the store's promises: the store orders writers and decides what is visible; the engine makes a
//! group durable before it returns from [`Engine::apply`], and finds what is requested.

use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_pmem::Pool;
use terrace_table::Cursor;

use super::condition::{Check, Condition};
use super::lent::Lent;
use super::report::CheckReport;
use super::request::Group;
use super::scrub::LiveTables;
use super::snapshots::{Held, Snapshots};
use crate::batch::Op;
use crate::stats::Stats;

/// The operations of every engine. `apply` is called by one thread at a time, the rest by any.
pub(crate) trait Engine: Send + Sync + Debug {
    /// Whether all writes come by groups. Then the caller of `apply` is alone with what is there, and the
    /// visible number tells whether anything has been written.
    fn writes_by_groups(&self) -> bool {
        true
    }

    /// Whether readers see the group that was applied under `number`. The store asks engines whose writes do not all
    /// come by groups, and only about numbers of groups that have at least begun.
    fn has_happened(&self, _number: u64) -> bool {
        true
    }

    /// Carries out `op` if `condition` holds, durably and visibly; returns whether it did. `None`, with
    /// nothing done, from an engine that applies all writes by groups.
    fn write_one(&self, _op: Op<'_>, _condition: Condition<'_>) -> Option<Result<bool>> {
        None
    }

    /// Registers the present for a reader.
    fn hold(&self, snapshots: &Arc<Snapshots>) -> Held {
        snapshots.hold()
    }

    /// `Unsupported` from an engine without key order: `walk` is refused, too.
    fn ordered(&self) -> Result<()> {
        Ok(())
    }

    /// A walk over all live keys of snapshot `at`, in order if the engine has one.
    fn walk_all(self: Arc<Self>, at: u64) -> Result<Box<dyn EngineIter>> {
        let mut walk = self.walk(at, Direction::Forward)?;
        walk.seek(Bound::Unbounded)?;
        Ok(walk)
    }

    /// Makes `group` durable and findable, though not yet visible. On an error none of its batches is.
    fn apply(&self, group: Group<'_>) -> Result<()>;

    /// [`apply`](Self::apply), if `holds`, which may read, says so while nothing else is written; returns
    /// whether it did. An engine whose writes do not all come by groups keeps the others out meanwhile.
    fn apply_if(&self, group: Group<'_>, holds: Check<'_>) -> Result<bool> {
        if !holds()? {
            return Ok(false);
        }
        self.apply(group).map(|()| true)
    }

    /// Writes the entries that `fill` passes, each key once and in order, into tables that nobody sees yet, as versions
    /// with this `number`. `None`, with nothing done, from an engine that makes no tables of them.
    fn write_hidden(&self, _number: u64, _fill: &mut Fill<'_>) -> Option<Result<Box<dyn HiddenTables>>> {
        None
    }

    /// Whether it takes merge operands in groups, and keeps them until they are folded by the store's operators.
    fn keeps_operands(&self) -> bool {
        false
    }

    /// How many operands lie in memory for `key` on top of whatever is below; `None` if its value, or that it has none,
    /// is known in memory. Asked by the leader.
    fn operands_in_memory(&self, _key: &[u8]) -> Option<usize> {
        None
    }

    /// The value of `key`: its version at snapshot `at`, else the newest visible one.
    fn get(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>>;

    /// As [`get`](Self::get), but shows the value to `show`, once at most, where it lies if that is possible; returns
    /// whether there is one.
    fn get_with(&self, key: &[u8], at: Option<u64>, show: &mut dyn FnMut(Lent<'_>)) -> Result<bool>;

    /// The number of the version that [`get`](Self::get) finds, whether its value is known or not.
    fn version(&self, key: &[u8], at: Option<u64>) -> Result<Option<u64>> {
        let mut found = None;
        self.get_with(key, at, &mut |value| found = Some(value.number))?;
        Ok(found)
    }

    /// The values of `keys` at snapshot `at`, in their order. An engine that can waits for what it has to read of them
    /// side by side.
    fn get_many(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        keys.iter().map(|key| self.get(key, Some(at))).collect()
    }

    /// Whether `key` exists now, without reading its value.
    fn contains(&self, key: &[u8]) -> Result<bool>;

    /// A walk over the live keys of snapshot `at`, which must stay held as long as the walk.
    fn walk(self: Arc<Self>, at: u64, direction: Direction) -> Result<Box<dyn EngineIter>>;

    /// Closes the write buffer and starts another; the leader calls it between groups.
    fn rotate(&self) -> Result<()>;

    /// Waits until closed write buffers are flushed.
    fn wait_until_flushed(&self) -> Result<()>;

    /// Makes everything applied so far survive a power cut.
    fn sync(&self) -> Result<()>;

    /// Merges every table with keys of the range, and drops what is dead.
    fn compact(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()>;

    /// A snapshot was released; versions that only it needed may be dropped.
    fn released(&self);

    /// Fills in the engine's part.
    fn fill_stats(&self, stats: &mut Stats);

    /// The lower bounds of the ranges into which the keys are divided, in order; empty from an engine that
    /// does not divide them.
    fn partitions(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Its tables; `None` from an engine that has none.
    fn tables(&self) -> Option<&dyn LiveTables> {
        None
    }

    /// Proves every structure; damage goes into the report. The leader calls it between groups.
    fn check(&self) -> Result<CheckReport>;

    /// The pool, if there is one.
    fn pool(&self) -> Option<&Pool>;

    /// An error if anything read or written since the opening may depend on a piece of the pool that differs
    /// from what it was closed with. Checked after each operation, before its outcome is returned.
    fn intact(&self) -> Result<()> {
        self.pool().map_or(Ok(()), Pool::intact)
    }

    /// Waits for the background work that has begun and marks everything closed. Later calls do nothing.
    fn close(&self) -> Result<()>;
}

/// The error of an engine that gets an operand and [keeps none](Engine::keeps_operands).
#[cold]
pub(crate) fn no_operands() -> Error {
    Error::invalid("a merge operand where none is kept")
}

/// Takes a key and its value.
pub(crate) type Take<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Passes entries, in order.
pub(crate) type Fill<'a> = dyn FnMut(&mut Take<'_>) -> Result<()> + 'a;

/// Tables that an engine has written and nobody sees. They are removed with this unless they are shown.
pub(crate) trait HiddenTables: Send {
    /// Waits as a write would, if background work is behind, and does what can be done before the caller leads.
    fn prepare(&mut self) -> Result<()>;

    /// Makes all of them durable, findable and visible, or none. The caller leads, and their number is the highest that
    /// was given out.
    fn show(self: Box<Self>) -> Result<()>;

    /// The same entries as versions with another `number`.
    fn renumbered(self: Box<Self>, number: u64) -> Result<Box<dyn HiddenTables>>;
}

/// The direction of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// The entry that a step of a walk has come to.
#[derive(Debug, Default)]
pub(crate) enum Step {
    /// [`EngineIter::here`] shows it until the walk is moved.
    #[default]
    Here,
    /// A key and its value.
    Entry(Bytes, Bytes),
}

impl Step {
    /// The entry, to be kept, of a walk that is `here`.
    pub fn into_entry(self, here: &Here<'_>) -> Result<(Bytes, Bytes)> {
        match self {
            Step::Here => Ok((Bytes::copy_from_slice(here.key), here.value_to_keep()?)),
            Step::Entry(key, value) => Ok((key, value)),
        }
    }
}

/// An entry in its place.
#[derive(Default)]
pub(crate) struct Here<'a> {
    pub key: &'a [u8],
    /// Where its value lies; nowhere if there is no entry.
    pub cursor: Option<&'a dyn Cursor>,
}

impl<'a> Here<'a> {
    pub fn value(&self) -> Result<&'a [u8]> {
        self.cursor.map_or(Ok(&[]), |cursor| cursor.value_in_place())
    }

    fn value_to_keep(&self) -> Result<Bytes> {
        self.cursor.map_or(Ok(Bytes::new()), |cursor| cursor.value())
    }
}

/// A one-way walk over live keys.
pub(crate) trait EngineIter: Send + Sync {
    /// Places the walk so that `next` gives the first key past `bound` in its direction.
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()>;

    /// The next key and its value.
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>>;

    /// The same, without a copy where the walk can do without: whether there is one. It is put into `entry`, as a step
    /// would be moved several times on its way to the caller.
    fn step(&mut self, entry: &mut Step) -> Result<bool> {
        let Some((key, value)) = self.next()? else { return Ok(false) };
        *entry = Step::Entry(key, value);
        Ok(true)
    }

    /// The entry at which a step has left the walk, in its place.
    fn here(&self) -> Here<'_> {
        Here::default()
    }

    /// Why the value that `next` or `step` gave last is not known, if it is not: operands could not be folded into it.
    fn failure(&self) -> Option<&Error> {
        None
    }

    /// How many versions that the snapshot sees as deleted, or not at all, were passed since the walk was
    /// made. Zero from an engine whose writes do not all go through the queue, or that passes none.
    fn passed(&self) -> u64 {
        0
    }
}
