//! Writes of one key of a keyspace that depend on what it has.

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::Kind;

use super::{Keyspace, sweep};
use crate::batch::Op;
use crate::core::condition::Condition;
use crate::db::CasMismatch;
use crate::db::swap::Skips;
use crate::options::WriteOptions;

impl Keyspace {
    /// Sets `key` to `value` if it does not exist; returns whether it did so.
    pub fn put_if_absent(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        self.put_if_absent_with(key, value, WriteOptions::default())
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
        self.update_if_exists_with(key, value, WriteOptions::default())
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

    /// Gives `key` the value `new` if its value is `expected`: see [`Db::compare_and_swap`].
    ///
    /// [`Db::compare_and_swap`]: crate::Db::compare_and_swap
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), CasMismatch>> {
        self.compare_and_swap_with(key, expected, new, WriteOptions::default())
    }

    /// [`compare_and_swap`](Self::compare_and_swap), with `options`.
    pub fn compare_and_swap_with(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<Result<(), CasMismatch>> {
        let swapped = self.swap(key.as_ref(), expected, new, options)?;
        self.db.told(swapped.is_ok(), options)?;
        Ok(swapped)
    }

    /// Gives `key` the value that `update` makes of its value, and returns the value that it had: see
    /// [`Db::fetch_update`].
    ///
    /// [`Db::fetch_update`]: crate::Db::fetch_update
    pub fn fetch_update<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        update: impl FnMut(Option<&[u8]>) -> Option<V>,
    ) -> Result<Option<Bytes>> {
        self.fetch_update_with(key, update, WriteOptions::default())
    }

    /// [`fetch_update`](Self::fetch_update), with `options`.
    pub fn fetch_update_with<V: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        mut update: impl FnMut(Option<&[u8]>) -> Option<V>,
        options: WriteOptions,
    ) -> Result<Option<Bytes>> {
        let key = key.as_ref();
        let swap = |expected: Option<&[u8]>, new: Option<&[u8]>| self.swap(key, expected, new, options);
        let skips = match self.db.skips(options) {
            // What is written again lives longer.
            Skips::Same if self.open.is_dated() => Skips::Nothings,
            skips => skips,
        };
        self.db.update(|| self.get(key), |current| Ok(update(current)), swap, skips)
    }

    fn swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<Result<(), CasMismatch>> {
        let swapped = self.exchange(key, expected, new, options)?;
        if swapped.is_ok() {
            let kind = if new.is_some() { Kind::Put } else { Kind::Delete };
            self.open.counts.count(Op { kind, key, value: new.unwrap_or_default() });
        }
        Ok(swapped)
    }

    /// The same, which nobody counts.
    pub(super) fn exchange(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<Result<(), CasMismatch>> {
        let stored = new.map(|new| self.stored(new, None)).transpose()?;
        let swap = || {
            let _not_dropped = self.open.write()?;
            let place = self.space().place(key)?;
            self.db.swap(&place, expected, stored.as_deref(), options)
        };
        sweep::after_write(&self.db.inner.store, swap())
    }
}
