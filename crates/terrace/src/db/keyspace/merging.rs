//! Merging operands into values, as users call it.

use terrace_base::{Error, Result};
use terrace_table::Kind;

use super::Keyspace;
use crate::batch::{Op, WriteBatch};
use crate::db::swap::Skips;
use crate::options::WriteOptions;

impl Keyspace {
    /// Gives `key` the value that the keyspace's [operator](crate::MergeOperator) makes of its value and `operand`, in
    /// one step: no other write comes in between.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use terrace::{Db, KeyspaceOptions, MergeOperator, Options};
    ///
    /// let db = Db::open(dir.path(), Options::default())?;
    /// let options = KeyspaceOptions { merge: Some(MergeOperator::add()), ..KeyspaceOptions::default() };
    /// let visits = db.keyspace_with("visits", options)?;
    /// visits.merge("front page", 1i64.to_le_bytes())?;
    /// visits.merge("front page", 41i64.to_le_bytes())?;
    /// assert_eq!(visits.get("front page")?.as_deref(), Some(&42i64.to_le_bytes()[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`put`](Self::put) and [`get`](Self::get). `MergeFailed` if the operator fails or panics, unless that is
    /// told later by reads, as of a [deferred](crate::MergeOperator::deferred) one;
    /// `InvalidArgument` if the keyspace has none, or has one that is not built in and was not given to
    /// [`KeyspaceOptions::merge`](super::KeyspaceOptions::merge) since the database was opened.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.merge_with(key, operand, WriteOptions::default())
    }

    /// [`merge`](Self::merge), with `options`.
    pub fn merge_with(
        &self,
        key: impl AsRef<[u8]>,
        operand: impl AsRef<[u8]>,
        options: WriteOptions,
    ) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        if self.db.inner.engine.writes_by_groups() {
            // Those of many writers are one group.
            let mut batch = WriteBatch::new();
            batch.merge_in(self, key, operand);
            return self.db.write_with(batch, options);
        }
        let (store, operator) = (&self.db.inner, self.open.operator()?);
        if store.read_only {
            return Err(Error::ReadOnly);
        }
        let read = || {
            let current = store.get(&self.space().place(key)?)?;
            // Only now: it was not dropped before that was read.
            self.open.check_exists()?;
            Ok(current)
        };
        let update = |current: Option<&[u8]>| operator.merge(key, current, operand).map(Some);
        let swap = |expected: Option<&[u8]>, new: Option<&[u8]>| self.exchange(key, expected, new, options);
        self.db.update(read, update, swap, Skips::None)?;
        self.open.counts.count(Op { kind: Kind::Put, key, value: operand });
        Ok(())
    }

    /// Whether operands of merges are kept as they come: its operator is
    /// [deferred](crate::MergeOperator::deferred), and the engine keeps any.
    pub fn keeps_operands(&self) -> bool {
        self.open.is_deferred()
    }

    /// The name of its merge operator, if it has one.
    pub fn merge_operator(&self) -> Option<&str> {
        self.open.operator_name().map(|operator| &operator.name[..])
    }
}

impl WriteBatch {
    /// Adds a merge of `operand` into the value of a key of `keyspace`, which is the one that it has after what stands
    /// before in the batch: see [`Keyspace::merge`]. What is refused there makes the whole batch fail when it is
    /// written.
    pub fn merge_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        match keyspace.open.operator() {
            Ok(_) => self.push_merge_in(&keyspace.open, key.as_ref(), operand.as_ref()),
            Err(error) => self.refuse(error),
        }
    }
}
