//! Putting the keys of writes in their places.

use parking_lot::RwLockReadGuard;
use terrace_base::Result;
use terrace_table::Kind;

use super::catalog::{Placed, is_in_catalogue};
use super::records;
use crate::batch::{Op, WriteBatch};
use crate::db::Db;
use crate::keyspaces::is_high;

impl Db {
    /// The place of the key of an operation on the default keyspace.
    #[inline]
    pub(in crate::db) fn place_to_write<'a>(&'a self, op: Op<'a>) -> Result<Placed<'a>> {
        if is_high(op.key) {
            self.make_room_for(op)?;
        }
        self.inner.catalog.place(op.key)
    }

    /// Has the default keyspace make room if `op` would be taken for a record of the catalogue; returns whether it
    /// would.
    pub(in crate::db) fn make_room_for(&self, op: Op<'_>) -> Result<bool> {
        let is_record = is_in_catalogue(op.key) && records::is_record(op.value);
        if self.inner.read_only || op.kind != Kind::Put || !is_record {
            return Ok(false);
        }
        // Without the lock, which somebody may have who waits for what this thread holds. A recovery that takes place may
        // find no keyspaces, and is waited for.
        if !self.inner.catalog.is_beside() {
            let _changing = self.inner.catalog.hold();
            self.make_room_for_keyspaces()?;
        }
        Ok(true)
    }

    /// `batch` with every key in its place, which it stays as long as the second part of the outcome is kept.
    pub(in crate::db) fn place_batch(
        &self,
        batch: WriteBatch,
    ) -> Result<(WriteBatch, Option<RwLockReadGuard<'_, ()>>)> {
        if !batch.has_high() {
            return Ok((batch, None));
        }
        self.inner.catalog.check_readable()?;
        batch.ops_of_default().try_for_each(|op| self.make_room_for(op).map(drop))?;
        let stays = self.inner.catalog.stay();
        let batch = batch.into_places(self.inner.catalog.default_space())?;
        Ok((batch, Some(stays)))
    }
}
