//! Keyspaces as users call them: named maps in one database.
//!
//! | file | what it owns |
//! |---|---|
//! | `catalog.rs` | which keyspaces there are, and whether the default one makes room for them |
//! | `check.rs` | whether every key is some keyspace's |
//! | `dropping.rs` | dropping a keyspace |
//! | `due.rs` | looking for entries that are due |
//! | `expiry.rs` | entries that expire |
//! | `merging.rs` | merging operands into values |
//! | `moving.rs` | moving keys of the default keyspace before the first other one |
//! | `opening.rs` | opening keyspaces, and making them |
//! | `options.rs` | what a keyspace is opened with |
//! | `placing.rs` | the places of the keys of writes |
//! | `ranges_file.rs` | the file of a database that may have range tombstones |
//! | `records.rs` | its records, and what lies in each keyspace |
//! | `recover.rs` | naming keyspaces again after damage |
//! | `swap.rs` | writes of one key that depend on what it has |
//! | `sweep.rs` | removing what nobody needs any more |
//!
//! Where their keys lie is in `keyspaces`.

pub(super) mod catalog;
mod check;
mod dropping;
mod due;
mod expiry;
mod merging;
mod moving;
mod opening;
mod options;
mod placing;
mod ranges_file;
mod records;
mod recover;
mod swap;
pub(super) mod sweep;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use expiry::Expiry;
pub use options::KeyspaceOptions;

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::Kind;

use crate::batch::{Op, WriteBatch};
use crate::core::condition::Condition;
use crate::db::{Db, DbIter, Entries, KeyRange, Snapshot};
use crate::keyspaces::{MAX_NUMBERED_KEY_BYTES, OpenKeyspace, Space, TableSettings, callbacks};
use crate::options::WriteOptions;
use crate::stats::KeyspaceStats;

/// A named map in a database, with keys of its own. It is a handle, as [`Db`] is: cloning is cheap, and the database
/// stays open as long as there is one.
///
/// What the database promises of its keys it promises of those of all keyspaces together: a [`WriteBatch`], a
/// [`Snapshot`] and a [`Transaction`](crate::Transaction) may be about several.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use terrace::{Db, Options, WriteBatch};
///
/// let db = Db::open(dir.path(), Options::default())?;
/// let (users, emails) = (db.keyspace("users")?, db.keyspace("emails")?);
/// let mut batch = WriteBatch::new();
/// batch.put_in(&users, "17", "ada@example.org");
/// batch.put_in(&emails, "ada@example.org", "17");
/// db.write(batch)?;
/// assert_eq!(emails.get("ada@example.org")?.as_deref(), Some(&b"17"[..]));
/// assert_eq!(users.iter()?.count(), 1);
/// assert!(!db.contains_key("17")?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Keyspace {
    db: Db,
    open: Arc<OpenKeyspace>,
}

impl Db {
    /// The keyspace of this name, which is made if there is none.
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put) if it is made; `InvalidArgument` for a name that is empty or longer than 255 bytes.
    /// The first keyspace of a database moves keys of the database itself that begin with byte 255, and is refused
    /// as `InvalidArgument` if there are more than 64 MiB of them, or if one of them is 65,535 bytes long.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        self.keyspace_with(name, KeyspaceOptions::default())
    }

    /// [`keyspace`](Self::keyspace), with `options`.
    ///
    /// # Errors
    ///
    /// `NoKeyspace` if there is none and none is to be made; `InvalidArgument` if there is one whose entries cannot
    /// expire and they are to, or one with another merge operator; `Unsupported` for settings of tables, or a filter of
    /// compactions, that the engine has no use for.
    pub fn keyspace_with(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace> {
        let open = self.open_keyspace(name, &options)?;
        Ok(Keyspace { db: self.clone(), open })
    }

    /// The names of all keyspaces, in order. The database itself, whose keys are those of the default one, is not
    /// among them.
    ///
    /// # Errors
    ///
    /// Why it is not known which there are, if their names cannot be read.
    pub fn keyspaces(&self) -> Result<Vec<String>> {
        callbacks::check_none_runs()?;
        self.inner.catalog.check_readable()?;
        let _unchanged = self.inner.catalog.hold();
        Ok(self.inner.names()?.into_keys().collect())
    }

    /// Drops keyspace `name` with all its keys, at once; the space that they take comes back in the background. Its
    /// handles are refused from then on, and a new keyspace of this name is empty. A crash leaves it whole or dropped.
    /// Older snapshots still read it.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// let cache = db.keyspace("cache")?;
    /// cache.put("k", "v")?;
    /// db.drop_keyspace("cache")?;
    /// assert!(cache.get("k").is_err());
    /// assert!(db.keyspace("cache")?.get("k")?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `NoKeyspace` if there is none; those of [`delete`](Self::delete).
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.drop_named(name)?;
        sweep::start(&self.inner.store);
        Ok(())
    }

    /// Removes now what dropped keyspaces and deleted ranges have left, and every entry that has expired, instead of in
    /// the background.
    ///
    /// # Errors
    ///
    /// Those of [`delete`](Self::delete).
    pub fn sweep(&self) -> Result<()> {
        self.inner.sweep_everything()
    }

    /// Gives every keyspace that has keys and has lost its name a new one, and returns these names. There is one only
    /// after damage: [`check`](Self::check) tells of it.
    pub fn recover_keyspaces(&self) -> Result<Vec<String>> {
        let recovered = self.name_unknown()?;
        // Deletions of ranges may have been found again.
        sweep::start(&self.inner.store);
        Ok(recovered)
    }
}

impl Keyspace {
    /// Longest key in bytes.
    pub const MAX_KEY_BYTES: usize = MAX_NUMBERED_KEY_BYTES;

    /// Its name.
    pub fn name(&self) -> &str {
        &self.open.name
    }

    /// The database that it is in.
    pub fn db(&self) -> &Db {
        &self.db
    }

    pub(super) fn space(&self) -> Space {
        self.open.space()
    }

    pub(super) fn open(&self) -> &Arc<OpenKeyspace> {
        &self.open
    }

    /// How its keys are written into tables, where that is otherwise than for the database.
    pub fn tables(&self) -> TableSettings {
        self.open.tables()
    }

    /// What was done to it. [`Stats::keyspaces`](crate::Stats::keyspaces) has it for all that are open.
    pub fn stats(&self) -> KeyspaceStats {
        self.open.counts.figures()
    }

    /// The value of `key`, if it exists: see [`Db::get`].
    ///
    /// # Errors
    ///
    /// As of [`Db::get`]; `NoKeyspace` if the keyspace was dropped, here and everywhere below.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        let found = self.db.inner.get(&self.space().place(key.as_ref())?);
        self.has_read(found, 1)
    }

    /// What `f` makes of the value of `key`: see [`Db::get_with`].
    pub fn get_with<T>(&self, key: impl AsRef<[u8]>, f: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let found = self.db.inner.get_with(&self.space().place(key.as_ref())?, f);
        self.has_read(found, 1)
    }

    /// Whether `key` exists: see [`Db::contains_key`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let found = self.db.inner.contains(&self.space().place(key.as_ref())?);
        self.has_read(found, 1)
    }

    /// The values of `keys`: see [`Db::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Bytes>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let found = self.snapshot()?.multi_get(&keys);
        self.has_read(found, keys.len())
    }

    /// All entries, in key order.
    pub fn iter(&self) -> Result<DbIter> {
        self.range(..)
    }

    /// All entries, in key order if the engine has one.
    pub fn entries(&self) -> Result<Entries> {
        self.snapshot()?.entries()
    }

    /// The entries whose keys lie in `range`: see [`Db::range`].
    pub fn range(&self, range: impl KeyRange) -> Result<DbIter> {
        self.snapshot()?.range(range)
    }

    /// The entries whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<DbIter> {
        self.snapshot()?.prefix(prefix)
    }

    /// The keyspace as it is now, as long as the snapshot is kept: see [`Snapshot::keyspace`] for one of several.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.db.inner.check_not_closed()?;
        let snapshot = self.db.snapshot();
        // Only now: it was not dropped before the snapshot was taken.
        self.open.check_exists()?;
        snapshot.keyspace(self)
    }

    /// Sets `key` to `value`: see [`Db::put`].
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
        self.write_one(op, Condition::None, options).map(drop)
    }

    /// Flushes, and merges all tables with keys of the keyspace in `range`.
    pub fn compact_range(&self, range: impl KeyRange) -> Result<()> {
        self.open.check_exists()?;
        self.db.flush()?;
        let (from, to) = range.bounds();
        let (places, _) = self.space().places(from, to);
        self.db.inner.compact(&places)
    }

    /// What was read, unless the keyspace was dropped meanwhile: its keys may be gone.
    fn has_read<T>(&self, found: Result<T>, keys: usize) -> Result<T> {
        self.open.check_exists()?;
        self.open.counts.gets.add(keys as u64);
        found
    }

    fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition<'_>,
        options: WriteOptions,
    ) -> Result<bool> {
        let done = self.write_one(Op { kind: Kind::Put, key, value }, condition, options)?;
        self.db.told(done, options)
    }

    fn write_one(&self, op: Op<'_>, condition: Condition<'_>, options: WriteOptions) -> Result<bool> {
        self.write_for(op, None, condition, options)
    }

    /// Writes one key; what is put lives for `ttl`, in the unit of deadlines, or as long as others here.
    fn write_for(
        &self,
        op: Op<'_>,
        ttl: Option<u64>,
        condition: Condition<'_>,
        options: WriteOptions,
    ) -> Result<bool> {
        let stored = if op.kind == Kind::Put { self.stored(op.value, ttl)? } else { op.value.into() };
        let write = || {
            let _not_dropped = self.open.write()?;
            let place = self.space().place(op.key)?;
            self.db.write_one(Op { key: &place, value: &stored, ..op }, condition, options)
        };
        let done = sweep::after_write(&self.db.inner.store, write())?;
        if done {
            self.open.counts.count(op);
        }
        Ok(done)
    }
}

impl WriteBatch {
    /// Adds a put of a key of `keyspace`. A key or value over its limit makes the whole batch fail when it is
    /// written.
    pub fn put_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let op = Op { kind: Kind::Put, key: key.as_ref(), value: value.as_ref() };
        self.put_stored(keyspace, op, None);
    }

    /// Adds a delete of a key of `keyspace`.
    pub fn delete_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        self.push_in(keyspace.open(), Op { kind: Kind::Delete, key: key.as_ref(), value: &[] });
    }
}
