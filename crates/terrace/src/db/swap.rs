//! Reading and writing one key in one step, without a transaction.

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::Kind;

use super::Db;
use crate::batch::Op;
use crate::core::condition::{Condition, Expected};
use crate::options::WriteOptions;

/// A key had another value than the one that [`Db::compare_and_swap`] was told to expect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CasMismatch {
    /// The value that it had; `None` if it did not exist.
    pub current: Option<Bytes>,
}

impl std::fmt::Display for CasMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the key has another value than the expected one")
    }
}

impl std::error::Error for CasMismatch {}

/// Which updates that change nothing are not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skips {
    None,
    /// Those of a key that does not exist.
    Nothings,
    Same,
}

impl Db {
    /// Gives `key` the value `new` if its value is `expected`, in one step: no other write comes in between.
    /// `None` stands for a key that does not exist, so that a swap may create a key or remove it.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// assert!(db.compare_and_swap("leader", None, Some(b"ada"))?.is_ok());
    /// let mismatch = db.compare_and_swap("leader", None, Some(b"alan"))?.unwrap_err();
    /// assert_eq!(mismatch.current.as_deref(), Some(&b"ada"[..]));
    /// assert!(db.compare_and_swap("leader", Some(b"ada"), None)?.is_ok());
    /// assert!(!db.contains_key("leader")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put) and [`get`](Self::get). That the value is another is none, but the inner
    /// result.
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
        let swapped = self.swap_key(key.as_ref(), expected, new, options)?;
        self.told(swapped.is_ok(), options)?;
        Ok(swapped)
    }

    fn swap_key(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<Result<(), CasMismatch>> {
        let kind = if new.is_some() { Kind::Put } else { Kind::Delete };
        let placed = self.place_to_write(Op { kind, key, value: new.unwrap_or_default() })?;
        self.swap(&placed, expected, new, options)
    }

    /// The same, of the key at `place`.
    pub(super) fn swap(
        &self,
        place: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        options: WriteOptions,
    ) -> Result<Result<(), CasMismatch>> {
        let expected = Expected::new(expected);
        let (kind, value) = match new {
            Some(value) => (Kind::Put, value),
            None => (Kind::Delete, &[][..]),
        };
        let op = Op { kind, key: place, value };
        Ok(match self.write_one(op, Condition::IfIs(&expected), options)? {
            true => Ok(()),
            false => Err(CasMismatch { current: expected.into_found() }),
        })
    }

    /// Gives `key` the value that `update` makes of its value, and returns the value that it had. `None` stands
    /// for a key that does not exist. No other write comes in between: if one does, `update` is called again,
    /// with the newer value. It is called until it succeeds, as each failure is another writer's success.
    /// If it changes nothing, nothing is written, unless `sync` is asked for, or a keyspace's entries expire: what is
    /// written again lives longer.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
    /// let add_one = |count: Option<&[u8]>| {
    ///     let count = count.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    ///     Some((count + 1).to_le_bytes())
    /// };
    /// assert_eq!(db.fetch_update("visits", add_one)?, None);
    /// assert_eq!(db.fetch_update("visits", add_one)?.as_deref(), Some(&1u64.to_le_bytes()[..]));
    /// assert_eq!(db.get("visits")?.as_deref(), Some(&2u64.to_le_bytes()[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put) and [`get`](Self::get). If `update` panics, nothing is written.
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
        let swap = |expected: Option<&[u8]>, new: Option<&[u8]>| self.swap_key(key, expected, new, options);
        let skips = self.skips(options);
        self.update(|| self.get(key), |current| Ok(update(current)), swap, skips)
    }

    /// Which updates need not be written with `options`. What was there before may not be durable.
    pub(super) fn skips(&self, options: WriteOptions) -> Skips {
        if self.syncs(options) { Skips::None } else { Skips::Same }
    }

    /// Swaps the value that `read` reads for what `update` makes of it, until no other write comes in between. If that
    /// is the same, `skips` says whether it does.
    pub(super) fn update<V: AsRef<[u8]>>(
        &self,
        read: impl Fn() -> Result<Option<Bytes>>,
        mut update: impl FnMut(Option<&[u8]>) -> Result<Option<V>>,
        swap: impl Fn(Option<&[u8]>, Option<&[u8]>) -> Result<Result<(), CasMismatch>>,
        skips: Skips,
    ) -> Result<Option<Bytes>> {
        // What is read before a wait is old after it.
        let mut attempts = self.inner.turns.begin_update();
        let mut current = read()?;
        loop {
            let new = update(current.as_deref())?;
            let new = new.as_ref().map(AsRef::as_ref);
            let is_nothing = skips == Skips::Nothings && new.is_none();
            if new == current.as_deref() && (skips == Skips::Same || is_nothing) {
                return Ok(current);
            }
            let Err(mismatch) = swap(current.as_deref(), new)? else { return Ok(current) };
            current = if attempts.fail() { read()? } else { mismatch.current };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::options::{EngineKind, Options};

    /// Updates a value that is another one whenever it is looked at; the swap fails once. Returns the values that the
    /// update was called with.
    fn values_of_update(db: &Db) -> Vec<u8> {
        let (value, seen, swaps) = (Cell::new(0), Cell::new(Vec::new()), Cell::new(0));
        let look = || {
            value.set(value.get() + 1);
            Some(Bytes::copy_from_slice(&[value.get()]))
        };
        let update = |current: Option<&[u8]>| {
            seen.set([seen.take(), current.unwrap_or_default().to_vec()].concat());
            Ok(Some(b"new"))
        };
        let swap = |_: Option<&[u8]>, _: Option<&[u8]>| {
            swaps.set(swaps.get() + 1);
            Ok(if swaps.get() == 1 { Err(CasMismatch { current: look() }) } else { Ok(()) })
        };
        db.update(|| Ok(look()), update, swap, Skips::None).unwrap();
        seen.take()
    }

    #[test]
    fn an_update_that_has_waited_reads_again() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options { engine: EngineKind::Lsm, ..Options::default() }).unwrap();
        assert_eq!(values_of_update(&db), [1, 2], "what the swap has found");
        let (taken, is_taken) = channel();
        let (over, is_over) = channel::<()>();
        let (db, turns) = (&db, &db.inner.turns);
        std::thread::scope(move |scope| {
            scope.spawn(move || {
                let mut attempts = turns.begin_update();
                attempts.fail();
                taken.send(()).unwrap();
                is_over.recv().unwrap();
            });
            is_taken.recv().unwrap();
            assert_eq!(values_of_update(db), [1, 3], "what was read after the wait");
            over.send(()).unwrap();
        });
    }
}
