//! Committing: comparing what was read, and applying what was written.
//!
//! 1. A transaction that wrote nothing has read one snapshot, and is done.
//! 2. One that has read nothing is a batch, and goes with other batches.
//! 3. Others are compared twice. The first time nobody waits: that finds conflicts early and brings what is
//!    read into memory. The second time nothing else is written until the batch has been: for that the check
//!    goes to the leader of the queue, or to the engine behind its gate. Keys that nobody has written since are not
//!    looked up again: `core/recent_writes.rs` knows them.
//! 4. One that has read and written the same key, and nothing else, is a swap where single writes skip the
//!    queue: nobody waits for it. It goes through the queue after all if the key's keyspace expires, and while merges
//!    in a group have all writes queue.
//! 5. What keeps old versions for the transaction goes before its batch is applied, unless comparing needs it.

use std::sync::Arc;

use terrace_base::{Error, ErrorKind, Result};

use super::reads::{Reads, Seen};
use super::writes::Writes;
use super::{Isolation, State, Transaction, TransactionOptions};
use crate::batch::Op;
use crate::core::condition::{Condition, Expected};
use crate::core::recent_writes::Noted;
use crate::core::snapshots::Held;
use crate::db::hold::Hold;
use crate::db::keyspace::sweep;
use crate::db::read::Snapshot;
use crate::db::write::counts_of;
use crate::db::{Db, Store};
use crate::keyspaces::Space;
use crate::options::WriteOptions;
use parking_lot::RwLockReadGuard;

impl Transaction {
    /// Applies all that was written, or nothing of it.
    ///
    /// # Errors
    ///
    /// `Conflict` if something that the transaction has read was changed since (in
    /// [`Isolation::Snapshot`]: something that it has written). Those of [`Db::write`], too: `NoSpace` or
    /// `PoolFull` when there is no room, `Closed`, `Poisoned`. Nothing has taken effect then, and the
    /// transaction can be begun anew.
    pub fn commit(self) -> Result<()> {
        let options = self.options.write;
        self.commit_with(options)
    }

    /// [`commit`](Self::commit), with `options`.
    pub fn commit_with(self, options: WriteOptions) -> Result<()> {
        let is_empty = self.state.lock().writes.newest().is_empty();
        if is_empty && (!options.sync || self.read_only) {
            return Ok(());
        }
        let db = Db { inner: self.db.upgrade().ok_or(Error::Closed)? };
        if is_empty {
            return db.sync();
        }
        sweep::after_write(&db.inner.store, self.commit_to(&db, options))
    }

    fn commit_to(self, db: &Db, options: WriteOptions) -> Result<()> {
        let Transaction { snapshot, options: TransactionOptions { isolation, .. }, state, .. } = self;
        let State { writes, mut reads, keyspaces, .. } = state.into_inner();
        let _not_dropped = db.inner.catalog.write_to(&keyspaces)?;
        let counts = |keyspace: &Arc<_>| counts_of(keyspace, writes.ops().map(|op| (op, false)));
        let counted: Vec<_> = keyspaces.iter().map(counts).collect();
        let _stays = db.still_in_place(snapshot.space(), &writes, &reads)?;
        let space = snapshot.space();
        if isolation == Isolation::Snapshot {
            // Merges have noted what they stand on.
            reads.keep_written(writes.newest());
            writes.newest().keys().for_each(|key| {
                reads.note(key.clone(), Seen::OfSnapshot);
            });
        }
        let outcome = if reads.is_empty() {
            drop(snapshot);
            match writes.only() {
                Some(op) => db.write_one(op, Condition::None, options).map(drop),
                None => db.write_placed(writes.batch(), options),
            }
        } else {
            db.write_if_unchanged(&writes, options, reads, snapshot)
        };
        match outcome {
            Ok(()) => {
                keyspaces.iter().zip(&counted).for_each(|(keyspace, counts)| keyspace.counts.add(counts))
            }
            Err(Error::Conflict { key }) => {
                db.inner.core.counters.conflicts.add(1);
                return Err(Error::Conflict { key: space.key_of(&key) });
            }
            Err(other) => return Err(other),
        }
        Ok(())
    }
}

impl Db {
    /// Calls `work` with a transaction and commits it; after a conflict it begins anew, so many times as
    /// [`TransactionOptions::attempts`] says. An error or a panic of `work` leaves nothing of it.
    ///
    /// `work` must have no effects but through its transaction, as it may be called several times. A refusal of
    /// its own is a value: return `Ok(Err(..))`, and call [`Transaction::clear`] first if something is written.
    /// A `Conflict` that `work` returns is tried again like one of the commit, also if it is that with which another
    /// `transact` within `work` has given up.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// db.put("stock/apples", "3")?;
    /// let left = db.transact(|tx| {
    ///     let stock = tx.get("stock/apples")?.unwrap_or_default();
    ///     let left = String::from_utf8_lossy(&stock).parse::<u32>().unwrap_or(0) - 1;
    ///     tx.put("stock/apples", left.to_string())?;
    ///     tx.put("order/17", "an apple")?;
    ///     Ok(left)
    /// })?;
    /// assert_eq!(left, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `work` and of [`Transaction::commit`]; `Conflict` if the last attempt met one, too.
    pub fn transact<T>(&self, work: impl FnMut(&Transaction) -> Result<T>) -> Result<T> {
        self.transact_with(TransactionOptions::default(), work)
    }

    /// [`transact`](Self::transact), with `options`.
    pub fn transact_with<T>(
        &self,
        options: TransactionOptions,
        mut work: impl FnMut(&Transaction) -> Result<T>,
    ) -> Result<T> {
        let mut attempts = self.inner.turns.begin_transaction();
        loop {
            let transaction = self.transaction_with(options);
            let outcome = work(&transaction).and_then(|value| transaction.commit().map(|()| value));
            match outcome {
                Err(e) if e.kind() == ErrorKind::Conflict && attempts.failed() + 1 < options.attempts => {}
                outcome => return outcome,
            }
            attempts.fail();
        }
    }

    /// Keeps the default keyspace where it lay when a transaction began: `space`.
    ///
    /// # Errors
    ///
    /// `Conflict` if it lies elsewhere: what the transaction has read and written is in other places.
    fn still_in_place(
        &self,
        space: Space,
        writes: &Writes,
        reads: &Reads,
    ) -> Result<Option<RwLockReadGuard<'_, ()>>> {
        if space != Space::Alone || !writes.may_be_moved() && !reads.may_be_moved() {
            return Ok(None);
        }
        let stays = self.inner.catalog.stay();
        if self.inner.catalog.default_space() != space {
            let key = writes.newest().keys().next().map(|key| key.to_vec());
            return Err(Error::Conflict { key: key.unwrap_or_default() });
        }
        Ok(Some(stays))
    }

    /// Applies `writes` if what was read from `snapshot` is still there.
    fn write_if_unchanged(
        &self,
        writes: &Writes,
        options: WriteOptions,
        mut reads: Reads,
        snapshot: Snapshot,
    ) -> Result<()> {
        let inner = &*self.inner;
        let by_groups = inner.engine.writes_by_groups();
        let since = snapshot.hold().seq();
        let mut compared_at = since;
        if !by_groups {
            // Such an engine works for every version that it must keep.
            reads.fetch(snapshot.hold())?;
            if let Some((op, value)) = swap_of(writes, &reads) {
                drop(snapshot);
                let expected = Expected::new(value);
                return match self.write_one(op, Condition::IfIs(&expected), options)? {
                    true => Ok(()),
                    false => Err(Error::Conflict { key: op.key.to_vec() }),
                };
            }
        }
        let _timing = inner.core.timers.put();
        let snapshot = reads.needs_snapshot().then_some(snapshot);
        let then: Option<&Hold> = snapshot.as_ref().map(|snapshot| &**snapshot.hold());
        // What was read may have come to be due, which is no write.
        let stands = by_groups && !reads.have_any(|place| inner.core.deadlines.is_dated(place, None));
        let is_unchanged = |since| stands && inner.core.snapshots.visible() == since;
        let noted = |now| inner.core.recent_writes.between(since, now).filter(|_| stands);
        let walks = reads.has_ranges();
        let is_quick = inner.core.options.engine.keeps_all_in_memory() && !walks;
        if !is_unchanged(compared_at) && !is_quick {
            // Only a walk needs the present to stay.
            let now = walks.then(|| self.snapshot());
            compared_at = now.as_ref().map_or_else(|| inner.core.snapshots.visible(), |now| now.hold().seq());
            inner.compare(&reads, then, compared_at, noted(compared_at))?;
        }
        let holds = || {
            if is_unchanged(compared_at) {
                return Ok(true);
            }
            // Where the engine keeps writers out there is no newer version to be kept from a walk.
            let held = (by_groups && walks).then(|| inner.core.snapshots.hold());
            let now = held.as_ref().map_or(u64::MAX, Held::seq);
            inner.compare(&reads, then, now, noted(inner.core.snapshots.visible())).map(|()| true)
        };
        self.commit(writes.batch(), true, options, &holds).map(drop)
    }
}

/// The one write and the value that its key had, if nothing else was read.
fn swap_of<'a>(writes: &'a Writes, reads: &'a Reads) -> Option<(Op<'a>, Option<&'a [u8]>)> {
    let (op, (key, value)) = (writes.only()?, reads.only_value()?);
    (key == op.key).then_some((op, value))
}

impl Store {
    /// Compares what was read with what is there now: see [`Reads::compare`]. If a mapping of a table fails
    /// meanwhile, it does so again, by calls.
    fn compare(&self, reads: &Reads, then: Option<&Hold>, now: u64, noted: Option<Noted<'_>>) -> Result<()> {
        let compare = || reads.compare((&self.engine, &self.core.empty_ranges), then, now, noted);
        let outcome = self.core.table_reader.soundly(compare);
        self.engine.intact().and(outcome)
    }
}
