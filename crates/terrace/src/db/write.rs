//! Writes as users call them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::{Error, Result};
use terrace_table::Kind;

use super::{Db, Store};
use crate::batch::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Op, WriteBatch};
use crate::core::condition::{Check, Condition};
use crate::core::request::Request;
use crate::db::keyspace::sweep;
use crate::keyspaces::{DEADLINE_BYTES, KeyspaceCounts, OpenKeyspace, Prefix, callbacks};
use crate::options::WriteOptions;

impl Db {
    /// Sets `key` to `value`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a key over 65,535 bytes or a value over 1 GiB; `NoSpace` or `PoolFull`
    /// when there is no room: nothing is lost, and writing continues when there is. `Poisoned` after damage.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, WriteOptions::default())
    }

    /// [`put`](Self::put), with `options`.
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: WriteOptions,
    ) -> Result<()> {
        self.put_if(key.as_ref(), value.as_ref(), Condition::None, options).map(drop)
    }

    /// Removes `key`, whether it exists or not.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, WriteOptions::default())
    }

    /// [`delete`](Self::delete), with `options`.
    pub fn delete_with(&self, key: impl AsRef<[u8]>, options: WriteOptions) -> Result<()> {
        let op = Op { kind: Kind::Delete, key: key.as_ref(), value: &[] };
        self.write_default(op, Condition::None, options).map(drop)
    }

    /// Applies all of `batch`, in order, or nothing of it.
    pub fn write(&self, batch: WriteBatch) -> Result<()> {
        self.write_with(batch, WriteOptions::default())
    }

    /// [`write`](Self::write), with `options`.
    pub fn write_with(&self, batch: WriteBatch, options: WriteOptions) -> Result<()> {
        if !batch.range_deletes().is_empty() {
            return self.write_ranges(batch, options);
        }
        if !batch.has_high() && batch.keyspaces().is_empty() {
            return self.write_placed(batch, options);
        }
        sweep::after_write(&self.inner.store, self.write_to_keyspaces(batch, options))
    }

    fn write_to_keyspaces(&self, batch: WriteBatch, options: WriteOptions) -> Result<()> {
        batch.validate()?;
        let keyspaces = batch.keyspaces().to_vec();
        let _not_dropped = self.inner.catalog.write_to(&keyspaces)?;
        let (batch, _placed) = self.place_batch(batch)?;
        let counted = counts_of_all(&keyspaces, &batch);
        self.write_placed(batch, options)?;
        keyspaces.iter().zip(&counted).for_each(|(keyspace, counts)| keyspace.counts.add(counts));
        Ok(())
    }

    /// [`write_with`](Self::write_with), of a batch with every key in its place.
    pub(super) fn write_placed(&self, batch: WriteBatch, options: WriteOptions) -> Result<()> {
        if batch.is_empty() && batch.validate().is_ok() && !options.sync {
            return Ok(());
        }
        let _timing = self.inner.core.timers.put();
        if batch.len() == 1
            && !batch.has_merges()
            // Of a put alone the engine does not know that it deletes.
            && !batch.counts_as_deletion
            && batch.validate().is_ok()
            && let Some(op) = batch.ops().next()
            && let Some(outcome) = self.directly(op, Condition::None)
        {
            return outcome.map(drop);
        }
        self.commit(batch, false, options, &|| Ok(true)).map(drop)
    }

    /// Sets `key` to `value` if it does not exist; returns whether it did so.
    pub fn put_if_absent(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.put_if(key.as_ref(), value.as_ref(), Condition::IfAbsent, WriteOptions::default())
    }

    /// [`put_if_absent`](Self::put_if_absent), with `options`.
    pub fn put_if_absent_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: WriteOptions,
    ) -> Result<bool> {
        self.put_if(key.as_ref(), value.as_ref(), Condition::IfAbsent, options)
    }

    /// Sets `key` to `value` if it exists; returns whether it did so.
    pub fn update_if_exists(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.put_if(key.as_ref(), value.as_ref(), Condition::IfExists, WriteOptions::default())
    }

    /// [`update_if_exists`](Self::update_if_exists), with `options`.
    pub fn update_if_exists_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        options: WriteOptions,
    ) -> Result<bool> {
        self.put_if(key.as_ref(), value.as_ref(), Condition::IfExists, options)
    }

    fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
        options: WriteOptions,
    ) -> Result<bool> {
        let done = self.write_default(Op { kind: Kind::Put, key, value }, condition, options)?;
        self.told(done, options)
    }

    /// Whether a conditional write was `done`. What stands in its way may not be durable, and is from now on if the
    /// write was to be.
    pub(super) fn told(&self, done: bool, options: WriteOptions) -> Result<bool> {
        if !done && self.syncs(options) {
            self.sync()?;
        }
        Ok(done)
    }

    /// Whether a write with `options` is to be durable before it is acknowledged.
    pub(super) fn syncs(&self, options: WriteOptions) -> bool {
        options.sync || self.inner.core.options.sync
    }

    /// Writes one key of the default keyspace.
    pub(super) fn write_default(
        &self,
        op: Op<'_>,
        condition: Condition<'_>,
        options: WriteOptions,
    ) -> Result<bool> {
        let placed = self.place_to_write(op)?;
        self.write_one(Op { key: &placed, ..op }, condition, options)
    }

    /// Writes one key that is in its place: past the queue if the engine takes single writes, otherwise as a batch
    /// of its own.
    pub(super) fn write_one(
        &self,
        op: Op<'_>,
        condition: Condition<'_>,
        options: WriteOptions,
    ) -> Result<bool> {
        let _timing = self.inner.core.timers.put();
        // An engine knows of no deadlines: what is due is there for it.
        let is_judged_here = !condition.is_none() && self.inner.core.deadlines.is_dated(op.key, None);
        if !is_judged_here
            && op.key.len() <= MAX_KEY_BYTES
            && op.value.len() <= MAX_VALUE_BYTES
            && let Some(outcome) = self.directly(op, condition)
        {
            return outcome;
        }
        let batch = WriteBatch::of_one(op);
        let engine = &self.inner.engine;
        self.commit(batch, !condition.is_none(), options, &|| condition.holds(&**engine, op.key))
    }

    /// Has the engine write one key by itself, if it supports that.
    fn directly(&self, op: Op<'_>, condition: Condition<'_>) -> Option<Result<bool>> {
        if self.inner.read_only {
            return Some(Err(Error::ReadOnly));
        }
        if self.inner.all_queue.load(Ordering::Relaxed) {
            return None;
        }
        if let Err(error) = callbacks::check_none_runs() {
            return Some(Err(error));
        }
        let outcome = self.inner.engine.write_one(op, condition)?;
        let outcome = outcome.and_then(|done| self.inner.engine.intact().map(|()| done));
        if matches!(outcome, Ok(true)) {
            self.inner.core.counters.count_write(op);
        }
        Some(outcome)
    }

    /// Applies `batch` if `holds`, which only a batch that is `alone` is asked for; returns whether it did.
    pub(super) fn commit(
        &self,
        batch: WriteBatch,
        alone: bool,
        options: WriteOptions,
        holds: Check<'_>,
    ) -> Result<bool> {
        self.inner.commit(batch, alone, options.sync, holds)
    }
}

/// What `batch` does to each of `keyspaces`.
pub(super) fn counts_of_all(keyspaces: &[Arc<OpenKeyspace>], batch: &WriteBatch) -> Vec<KeyspaceCounts> {
    let ops = || batch.ops_and_merges().map(|(op, merge)| (op, merge.is_some()));
    keyspaces.iter().map(|keyspace| counts_of(keyspace, ops())).collect()
}

/// What writes do to `keyspace`; with each, whether it is a merge.
pub(super) fn counts_of<'a>(
    keyspace: &OpenKeyspace,
    ops: impl Iterator<Item = (Op<'a>, bool)>,
) -> KeyspaceCounts {
    let (prefix, counts) = (Prefix::of(keyspace.number), KeyspaceCounts::default());
    for (op, is_merge) in ops {
        let Some(key) = op.key.strip_prefix(prefix.as_slice()) else { continue };
        let has_deadline = op.kind == Kind::Put && !is_merge && keyspace.is_dated();
        let value = if has_deadline { &op.value[DEADLINE_BYTES..] } else { op.value };
        counts.count(Op { key, value, ..op });
    }
    counts
}

impl Store {
    /// Applies `batch`, which has its keys in their places: see [`Db::commit`].
    pub(super) fn commit(
        &self,
        batch: WriteBatch,
        alone: bool,
        sync: bool,
        holds: Check<'_>,
    ) -> Result<bool> {
        batch.validate()?;
        if self.read_only {
            return Err(Error::ReadOnly);
        }
        // Its own group may be the one that is waited for.
        callbacks::check_none_runs()?;
        let sync = sync || self.core.options.sync;
        let request = Request { batch, alone, sync };
        self.queue.commit(request, |group| self.apply(group, holds))
    }
}
