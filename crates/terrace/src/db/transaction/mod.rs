//! Transactions: reads and writes that take effect together, or not at all.
//!
//! They are optimistic. A transaction reads a snapshot, keeps its writes to itself, and locks nothing. When it
//! is committed, what it has read is compared with what is there (`reads`), and its writes become one batch
//! (`commit`), while nothing else is written. A conflict is told and nothing has happened.
//!
//! | file | what it owns |
//! |---|---|
//! | `writes.rs` | what was written and nobody else sees, and its savepoints |
//! | `reads.rs` | what was read, and whether it is as it was |
//! | `copies.rs` | copies of keys and values, side by side |
//! | `iter.rs` | ranges over the snapshot and what was written |
//! | `keyspace.rs` | what a transaction reads and writes of another keyspace than the default one |
//! | `commit.rs` | the commit, and trying again |
//!
//! Thread safety: a transaction may be used by several threads. Its lock is held for no call of the engine.
//! Invariants:
//!
//! 1. What is read is noted before it is returned. Iterators borrow the transaction, so none reads beside or
//!    after its commit.
//! 2. Keys are noted by their places: those of all keyspaces are told apart.
//! 3. A transaction keeps its snapshot and no handle of the database: the database is closed when the last
//!    handle goes, as with snapshots.

mod commit;
mod copies;
mod iter;
mod keyspace;
mod reads;
mod writes;

use std::ops::Bound;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_table::Kind;

use self::copies::Copies;
use self::reads::{Reads, Seen};
use self::writes::{Writes, Written};
use crate::batch::{MAX_VALUE_BYTES, Op};
use crate::db::hold::Hold;
use crate::db::range::KeyRange;
use crate::db::read::Snapshot;
use crate::db::{Db, Inner};
use crate::keyspaces::{DEADLINE_BYTES, OpenKeyspace, Space, after_prefix, is_high};
use crate::options::WriteOptions;

pub use self::iter::TransactionIter;
pub use self::keyspace::TransactionKeyspace;
pub use self::writes::Savepoint;

/// What others may do to what a transaction has read before it commits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Nothing: values, absences and ranges that were read must be as they were. All transactions and other
    /// writes are as if one had come after the other.
    #[default]
    Serializable,
    /// Anything: only the keys that the transaction has written must be as they were. No update is lost, but
    /// two transactions that read what the other writes may both commit (write skew).
    Snapshot,
}

/// Options of a transaction.
///
/// ```
/// use terrace::{Isolation, TransactionOptions};
///
/// let options = TransactionOptions { isolation: Isolation::Snapshot, ..TransactionOptions::default() };
/// assert!(options.attempts > 1 && !options.write.sync);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionOptions {
    /// What others may do to what it has read.
    pub isolation: Isolation,
    /// How often [`Db::transact`] calls its closure at most: once at least.
    pub attempts: u32,
    /// Options of the write that commits it.
    pub write: WriteOptions,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        TransactionOptions { isolation: Isolation::default(), attempts: 100, write: WriteOptions::default() }
    }
}

/// Reads and writes that take effect together, or not at all.
///
/// It reads the database as it was when the transaction began, with its own writes over that. Nobody else sees
/// these before [`commit`](Self::commit); dropping it gives them up. What it has read of keys, and what it has
/// written, it keeps in memory.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
/// db.put("a", "1")?;
/// let tx = db.transaction();
/// let copy = tx.get("a")?.unwrap_or_default();
/// tx.put("b", copy)?;
/// assert_eq!(tx.range("a"..="b")?.count(), 2);
/// assert!(!db.contains_key("b")?);
/// tx.commit()?;
/// assert_eq!(db.get("b")?.as_deref(), Some(&b"1"[..]));
///
/// let tx = db.transaction();
/// tx.put("c", tx.get("a")?.unwrap_or_default())?;
/// db.put("a", "2")?; // what the transaction has read is no longer so
/// assert!(matches!(tx.commit(), Err(terrace::Error::Conflict { key }) if key == b"a"));
/// assert!(!db.contains_key("c")?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Transaction {
    db: Weak<Inner>,
    snapshot: Snapshot,
    read_only: bool,
    options: TransactionOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    writes: Writes,
    reads: Reads,
    /// Of the keys and values that both have.
    copies: Copies,
    /// The keyspaces that are part of it, but for the default one.
    keyspaces: Vec<Arc<OpenKeyspace>>,
}

impl State {
    /// The value at a place, or that it has none, if the transaction, which has this snapshot, has written or read it.
    fn known(&self, snapshot: &Hold, key: &[u8]) -> Option<Option<Bytes>> {
        if let Some(written) = self.writes.newest().get(key) {
            return Some(written_to(snapshot, key, written.clone()));
        }
        match self.reads.of(key) {
            Some(Seen::Value(value)) => Some(value.clone()),
            _ => None,
        }
    }

    /// Notes the value that was read at `place`, and returns the one that the transaction has read there: another
    /// thread may have done so before it came to be due.
    fn noted(&mut self, place: &[u8], value: Option<Bytes>) -> Option<Bytes> {
        match self.reads.note(self.copies.of(place), Seen::Value(value)) {
            Seen::Value(value) => value.clone(),
            // It was there and has come to be due.
            _ => None,
        }
    }

    fn write(&mut self, place: &[u8], value: Option<&[u8]>) {
        let value = value.map(|value| self.copies.of(value));
        self.writes.write(self.copies.of(place), value);
    }
}

/// What a transaction with this snapshot sees of what it has written at `place`: the value without its deadline.
fn written_to(snapshot: &Hold, place: &[u8], written: Written) -> Option<Bytes> {
    let (stored, deadlines) = (written?, snapshot.deadlines());
    if !deadlines.is_dated(place, Some(snapshot.seq())) {
        return Some(stored);
    }
    (!deadlines.is_due(&stored)).then(|| stored.slice(DEADLINE_BYTES..))
}

impl Db {
    /// Begins a transaction; see also [`transact`](Self::transact), which tries again after conflicts.
    pub fn transaction(&self) -> Transaction {
        self.transaction_with(TransactionOptions::default())
    }

    /// [`transaction`](Self::transaction), with `options`.
    pub fn transaction_with(&self, options: TransactionOptions) -> Transaction {
        let (db, read_only) = (Arc::downgrade(&self.inner), self.inner.read_only);
        let core = &self.inner.core;
        if self.inner.engine.writes_by_groups() && !read_only {
            core.recent_writes.watch(core.snapshots.visible());
        }
        core.look_at_clock_seldom();
        Transaction { db, snapshot: self.snapshot_in_passing(), read_only, options, state: Mutex::default() }
    }
}

impl Transaction {
    /// The value of `key`, if it exists: the one that the transaction has written, else the one that it had
    /// when the transaction began.
    ///
    /// # Errors
    ///
    /// `Corruption` if its data is damaged; `InvalidArgument` for an over-long key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        self.get_at(&self.snapshot.place(key.as_ref())?)
    }

    /// Whether `key` exists. Another value of it is no conflict then, only its absence.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.contains_at(&self.snapshot.place(key.as_ref())?)
    }

    /// The values of `keys`, each as [`get`](Self::get) reads it, in the order of the keys. What the transaction has
    /// neither written nor read yet is read together: see [`Db::multi_get`].
    ///
    /// # Errors
    ///
    /// As of [`get`](Self::get); then nothing counts as read.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Bytes>>> {
        self.get_many_in(self.snapshot.space(), keys)
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a key over 65,535 bytes or a value over 1 GiB, `ReadOnly`. The transaction is as
    /// it was before.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.write_default(key.as_ref(), Some(value.as_ref()))
    }

    /// Removes `key`, whether it exists or not.
    ///
    /// # Errors
    ///
    /// As of [`put`](Self::put).
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.write_default(key.as_ref(), None)
    }

    /// All entries, in key order: see [`range`](Self::range).
    pub fn iter(&self) -> Result<TransactionIter<'_>> {
        self.range(..)
    }

    /// The entries whose keys lie in `range`, with the transaction's writes so far. What the iterator gives is
    /// what the transaction has read, and that there is nothing in between.
    ///
    /// # Errors
    ///
    /// `Unsupported` by an engine without an order of keys.
    pub fn range(&self, range: impl KeyRange) -> Result<TransactionIter<'_>> {
        let (from, to) = range.bounds();
        TransactionIter::new(self, self.snapshot.space(), from, to)
    }

    /// The entries whose keys begin with `prefix`: see [`range`](Self::range).
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<TransactionIter<'_>> {
        self.prefix_in(self.snapshot.space(), prefix.as_ref())
    }

    /// Marks what was written so far, to come back to it. It costs nothing, and one may be used many times.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// let tx = db.transaction();
    /// tx.put("kept", "1")?;
    /// let savepoint = tx.savepoint();
    /// tx.put("kept", "2")?;
    /// tx.put("dropped", "3")?;
    /// tx.rollback_to(savepoint)?;
    /// tx.commit()?;
    /// assert_eq!(db.get("kept")?.as_deref(), Some(&b"1"[..]));
    /// assert!(!db.contains_key("dropped")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn savepoint(&self) -> Savepoint {
        self.state.lock().writes.savepoint()
    }

    /// Takes back what was written since `savepoint`. What was read stays read: the transaction may have
    /// decided by it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the savepoint is another transaction's, or was taken after one that the transaction
    /// has been rolled back to since.
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        self.state.lock().writes.roll_back(savepoint)
    }

    /// Takes back everything that was written, and all savepoints. What was read stays read.
    pub fn clear(&self) {
        self.state.lock().writes.clear();
    }

    fn get_at(&self, place: &[u8]) -> Result<Option<Bytes>> {
        if let Some(known) = self.state.lock().known(self.snapshot.hold(), place) {
            return Ok(known);
        }
        match self.notes(place) {
            true => self.read_at(place),
            false => self.snapshot.hold().get(place),
        }
    }

    /// Whether what is read at `place` is noted. The snapshot tells later what it had there, but for an entry that has
    /// come to be due since.
    fn notes(&self, place: &[u8]) -> bool {
        let hold = self.snapshot.hold();
        self.options.isolation == Isolation::Serializable
            || hold.deadlines().is_dated(place, Some(hold.seq()))
    }

    /// What the transaction's snapshot has at `place`. That is compared at the commit, in `Snapshot` isolation if the
    /// transaction has written there.
    fn noted_at(&self, place: &[u8]) -> Result<Option<Bytes>> {
        if let Some(Seen::Value(value)) = self.state.lock().reads.of(place) {
            return Ok(value.clone());
        }
        self.read_at(place)
    }

    /// The same of what the transaction has not read yet.
    fn read_at(&self, place: &[u8]) -> Result<Option<Bytes>> {
        let hold = self.snapshot.hold();
        // It is copied: it may share the mapping of a table, whose pages are not to be relied upon for long, and would
        // keep it.
        let copy = |value: &[u8]| self.state.lock().copies.of(value);
        let value = hold.soundly(|| hold.get_with(place, copy))?;
        Ok(self.state.lock().noted(place, value))
    }

    /// What the transaction has written at `place`, if anything.
    fn written_at(&self, place: &[u8]) -> Option<Written> {
        self.state.lock().writes.newest().get(place).cloned()
    }

    fn contains_at(&self, place: &[u8]) -> Result<bool> {
        {
            let State { writes, reads, .. } = &*self.state.lock();
            if let Some(written) = writes.newest().get(place) {
                return Ok(written_to(self.snapshot.hold(), place, written.clone()).is_some());
            }
            match reads.of(place) {
                Some(Seen::Value(value)) => return Ok(value.is_some()),
                Some(Seen::Exists) => return Ok(true),
                Some(Seen::Gone) => return Ok(false),
                _ => {}
            }
        }
        if self.options.isolation == Isolation::Snapshot {
            // Once it is written, another value is a conflict.
            return match self.notes(place) {
                true => self.read_at(place).map(|value| value.is_some()),
                false => self.snapshot.hold().contains(place),
            };
        }
        let exists = self.snapshot.hold().contains(place)?;
        let seen = if exists { Seen::Exists } else { Seen::Value(None) };
        let State { reads, copies, .. } = &mut *self.state.lock();
        Ok(!matches!(reads.note(copies.of(place), seen), Seen::Value(None) | Seen::Gone))
    }

    fn get_many_in<K: AsRef<[u8]>>(
        &self,
        space: Space,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Bytes>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        keys.iter().try_for_each(|key| self.snapshot.hold().check_owner_of(key.as_ref()))?;
        let places = keys.iter().map(|key| space.place(key.as_ref())).collect::<Result<Vec<_>>>()?;
        let known: Vec<Option<Option<Bytes>>> = {
            let state = self.state.lock();
            places.iter().map(|place| state.known(self.snapshot.hold(), place)).collect()
        };
        let unknown = places.iter().zip(&known).filter(|(_, known)| known.is_none());
        let unknown: Vec<&[u8]> = unknown.map(|(place, _)| place.as_ref()).collect();
        let mut read = self.snapshot.hold().get_many(&unknown)?;
        {
            // Copied: they may share the mapping of a table, whose pages are not to be relied upon for long, and would
            // keep it.
            let mut state = self.state.lock();
            for (place, value) in unknown.iter().zip(&mut read).filter(|(place, _)| self.notes(place)) {
                let copy = value.as_deref().map(|value| state.copies.of(value));
                *value = state.noted(place, copy);
            }
        }
        let mut read = read.into_iter();
        Ok(known.into_iter().map(|known| known.unwrap_or_else(|| read.next().flatten())).collect())
    }

    fn prefix_in(&self, space: Space, prefix: &[u8]) -> Result<TransactionIter<'_>> {
        let end = after_prefix(prefix);
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        TransactionIter::new(self, space, Bound::Included(prefix), end)
    }

    fn write_default(&self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let space = self.snapshot.space();
        self.snapshot.hold().check_owner_of(key)?;
        if let (Space::Alone, true, Some(value)) = (space, is_high(key), value) {
            self.make_room_for(Op { kind: Kind::Put, key, value })?;
        }
        self.write(&space.place(key)?, value)
    }

    /// Has the database make room for keyspaces if a put would be taken for a record of theirs. The
    /// transaction is of before that, and begun anew.
    fn make_room_for(&self, op: Op<'_>) -> Result<()> {
        let db = Db { inner: self.db.upgrade().ok_or(Error::Closed)? };
        match db.make_room_for(op)? {
            true => Err(Error::Conflict { key: op.key.to_vec() }),
            false => Ok(()),
        }
    }

    /// Writes the key at `place`, or removes it.
    fn write(&self, place: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.check_write(value)?;
        self.state.lock().write(place, value);
        Ok(())
    }

    /// The same with `value`, if the transaction's write there is still `before`; returns whether it is.
    fn write_over(&self, before: Option<&Written>, place: &[u8], value: &[u8]) -> Result<bool> {
        self.check_write(Some(value))?;
        let mut state = self.state.lock();
        let is_same = state.writes.newest().get(place) == before;
        if is_same {
            state.write(place, Some(value));
        }
        Ok(is_same)
    }

    fn check_write(&self, value: Option<&[u8]>) -> Result<()> {
        let bytes = value.map_or(0, <[u8]>::len);
        if bytes > MAX_VALUE_BYTES {
            return Err(Error::invalid(format!(
                "a value of {bytes} bytes is over the limit of {MAX_VALUE_BYTES}"
            )));
        }
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }
}
