//! What a transaction reads and writes of another keyspace than the default one.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use terrace_base::{Error, Result};

use super::{Transaction, TransactionIter, written_to};
use crate::db::keyspace::Keyspace;
use crate::db::range::KeyRange;
use crate::keyspaces::{OpenKeyspace, Space, millis};

/// A keyspace as a transaction sees it, with its own writes: see [`Transaction::keyspace`].
#[derive(Debug)]
pub struct TransactionKeyspace<'tx> {
    transaction: &'tx Transaction,
    keyspace: Arc<OpenKeyspace>,
}

impl Transaction {
    /// `keyspace`, to be read and written within this transaction.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// let (stock, orders) = (db.keyspace("stock")?, db.keyspace("orders")?);
    /// stock.put("apples", "3")?;
    /// db.transact(|tx| {
    ///     let (stock, orders) = (tx.keyspace(&stock)?, tx.keyspace(&orders)?);
    ///     let left = String::from_utf8_lossy(&stock.get("apples")?.unwrap_or_default()).parse::<u32>().unwrap() - 1;
    ///     stock.put("apples", left.to_string())?;
    ///     orders.put("17", "an apple")
    /// })?;
    /// assert_eq!(stock.get("apples")?.as_deref(), Some(&b"2"[..]));
    /// assert!(orders.contains_key("17")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the keyspace is another database's; `NoKeyspace` if it was dropped; `Conflict` if the
    /// transaction began when the database had no keyspace yet. The commit fails with `NoKeyspace` if the keyspace is
    /// dropped before it, even if it was only read, unless the transaction has written nothing at all.
    pub fn keyspace(&self, keyspace: &Keyspace) -> Result<TransactionKeyspace<'_>> {
        let keyspace = keyspace.open().clone();
        keyspace.check_is_of(self.snapshot.hold().owner())?;
        keyspace.check_exists()?;
        if self.snapshot.space() == Space::Alone {
            // There was none when the transaction began.
            return Err(Error::Conflict { key: Vec::new() });
        }
        let keyspaces = &mut self.state.lock().keyspaces;
        if !keyspaces.iter().any(|other| Arc::ptr_eq(other, &keyspace)) {
            keyspaces.push(keyspace.clone());
        }
        Ok(TransactionKeyspace { transaction: self, keyspace })
    }
}

impl<'tx> TransactionKeyspace<'tx> {
    fn space(&self) -> Space {
        self.keyspace.space()
    }

    /// The value of `key`: see [`Transaction::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>> {
        self.transaction.get_at(&self.space().place(key.as_ref())?)
    }

    /// Whether `key` exists: see [`Transaction::contains_key`].
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.transaction.contains_at(&self.space().place(key.as_ref())?)
    }

    /// The values of `keys`: see [`Transaction::multi_get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> Result<Vec<Option<Bytes>>> {
        self.transaction.get_many_in(self.space(), keys)
    }

    /// Sets `key` to `value`: see [`Transaction::put`].
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_for(key.as_ref(), value.as_ref(), None)
    }

    /// Sets `key` to `value`, for `ttl` from now on: see [`Keyspace::put_with_ttl`].
    pub fn put_with_ttl(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, ttl: Duration) -> Result<()> {
        self.put_for(key.as_ref(), value.as_ref(), Some(millis(ttl)))
    }

    /// Merges `operand` into the value of `key`, which is read for that: see [`Keyspace::merge`].
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        let (key, operator) = (key.as_ref(), self.keyspace.operator()?);
        let place = self.space().place(key)?;
        loop {
            let written = self.transaction.written_at(&place);
            let before = match &written {
                Some(written) => written_to(self.transaction.snapshot.hold(), &place, written.clone()),
                None => self.transaction.noted_at(&place)?,
            };
            let value = operator.merge(key, before.as_deref(), operand.as_ref())?;
            let stored = self.stored(&value, None)?;
            // Another thread may have written to the key meanwhile.
            if self.transaction.write_over(written.as_ref(), &place, &stored)? {
                return Ok(());
            }
        }
    }

    /// Removes `key`, whether it exists or not.
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.transaction.write(&self.space().place(key.as_ref())?, None)
    }

    /// All entries, in key order: see [`range`](Self::range).
    pub fn iter(&self) -> Result<TransactionIter<'tx>> {
        self.range(..)
    }

    /// The entries whose keys lie in `range`: see [`Transaction::range`].
    pub fn range(&self, range: impl KeyRange) -> Result<TransactionIter<'tx>> {
        let (from, to) = range.bounds();
        TransactionIter::new(self.transaction, self.space(), from, to)
    }

    /// The entries whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<TransactionIter<'tx>> {
        self.transaction.prefix_in(self.space(), prefix.as_ref())
    }

    fn put_for(&self, key: &[u8], value: &[u8], ttl: Option<u64>) -> Result<()> {
        self.transaction.write(&self.space().place(key)?, Some(&self.stored(value, ttl)?))
    }

    fn stored<'v>(&self, value: &'v [u8], ttl: Option<u64>) -> Result<Cow<'v, [u8]>> {
        self.transaction.snapshot.hold().deadlines().stored(&self.keyspace, value, ttl)
    }
}
