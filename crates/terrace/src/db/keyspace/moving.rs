//! Moving the keys of the default keyspace that begin with byte 255, once, before the first keyspace is made.

use parking_lot::RwLockWriteGuard;
use terrace_base::{Error, Result};
use terrace_table::Kind;

use super::catalog::is_in_catalogue;
use super::records::{self, CATALOGUE, NEXT, VERSION};
use crate::batch::{Op, WriteBatch};
use crate::db::{Db, Store};
use crate::keyspaces::{ESCAPE, Prefix, Space};
use crate::options::WriteOptions;

/// Most bytes of keys and values that the first keyspace moves.
const MOST_MOVED_BYTES: usize = 64 << 20;

/// Approximate bytes of memory that a key takes beside its own and its value's.
const ENTRY_BYTES: usize = 96;

/// The keys of the default keyspace move beside others; nobody reads or writes them until this is dropped. From then on
/// they lie there, if that is done, or at least the marker is there, as after a write of somebody else that panics on
/// this thread. Otherwise they lie where they did.
struct Moving<'s> {
    store: &'s Store,
    /// Whether they may have moved.
    is_begun: bool,
    is_done: bool,
    _alone: RwLockWriteGuard<'s, ()>,
}

impl<'s> Moving<'s> {
    fn begin(store: &'s Store) -> Moving<'s> {
        let moving = Moving { store, is_begun: false, is_done: false, _alone: store.catalog.keep_out() };
        store.core.filters.set_beside(false);
        store.catalog.set_moving();
        moving
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let Moving { store, is_begun, is_done, .. } = *self;
        let is_beside = is_done || is_begun && store.has_marker();
        if is_beside {
            store.begin_deadlines();
        }
        store.catalog.set_beside(is_beside);
        store.core.filters.set_beside(is_beside);
    }
}

fn too_long_to_move(key: &[u8]) -> Error {
    let shown = key[..key.len().min(32)].escape_ascii();
    Error::invalid(format!(
        "the first keyspace makes keys that begin with byte 255 a byte longer, and one of {} bytes, which begins with \
         \"{shown}\", has no room for it",
        key.len()
    ))
}

impl Db {
    /// Has the default keyspace lie beside others, if it lies alone. `changing` is locked.
    pub(super) fn make_room_for_keyspaces(&self) -> Result<()> {
        let catalog = &self.inner.catalog;
        if catalog.default_space() == Space::Default {
            return Ok(());
        }
        let mut moving = Moving::begin(&self.inner);
        let moved = self.moved()?;
        moving.is_begun = true;
        self.write_placed(moved, WriteOptions::default())?;
        moving.is_done = true;
        Ok(())
    }

    /// What moves the keys that begin with byte 255, and sets the marker.
    fn moved(&self) -> Result<WriteBatch> {
        let (mut bytes, mut high) = (0, Vec::new());
        self.inner.visit(Prefix::escape(), |rest, value| {
            let key = [&[ESCAPE], rest].concat();
            // Only keyspaces have what cannot be folded.
            let value = value.map_err(|_| self.inner.catalog.damaged("a marker beside operands", &key))?;
            if is_in_catalogue(&key) && records::is_record(value) {
                return Err(self.inner.catalog.damaged("a marker beside a record", &key));
            }
            bytes += key.len() + value.len() + ENTRY_BYTES;
            high.push((key, value.to_vec()));
            Ok(bytes <= MOST_MOVED_BYTES)
        })?;
        if bytes > MOST_MOVED_BYTES {
            return Err(Error::invalid(format!(
                "the first keyspace moves keys that begin with byte 255, and there are more than {} MiB of them",
                MOST_MOVED_BYTES >> 20
            )));
        }
        let mut batch = WriteBatch::new();
        for (key, _) in &high {
            batch.push(Op { kind: Kind::Delete, key, value: &[] });
        }
        for (key, value) in &high {
            let place = Space::Default.place(key).map_err(|_| too_long_to_move(key))?;
            batch.push(Op { kind: Kind::Put, key: &place, value });
        }
        self.inner.catalog.set_marker(&mut batch, VERSION);
        batch.push(Op { kind: Kind::Put, key: &CATALOGUE.place(NEXT)?, value: &records::of_numbers(&[1]) });
        if high.is_empty() {
            // The first deletion of a range needs it. It is small, and written once.
            batch.counts_as_deletion = true;
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::Moving;
    use crate::Db;
    use crate::keyspaces::Space;
    use crate::options::{EngineKind, Options, WriteOptions};

    const HIGH: [u8; 2] = [0xff, 9];

    /// As after a write of somebody else that panics on the thread that moves keys, before it has written them or after.
    #[test]
    fn where_keys_lie_after_a_panic_is_where_they_are() {
        for is_written in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let options = Options { engine: EngineKind::Lsm, ..Options::default() };
            let db = Db::open(dir.path(), options.clone()).unwrap();
            db.put(HIGH, "high").unwrap();
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let mut moving = Moving::begin(&db.inner);
                let moved = db.moved().unwrap();
                moving.is_begun = true;
                if is_written {
                    db.write_placed(moved, WriteOptions::default()).unwrap();
                }
                panic!("before this is known");
            }));
            assert!(panicked.is_err());
            let space = if is_written { Space::Default } else { Space::Alone };
            assert_eq!(db.inner.catalog.default_space(), space);
            assert_eq!(db.get(HIGH).unwrap().as_deref(), Some(&b"high"[..]));
            db.put([0xff, 5, 1], "later").unwrap();
            drop(db);
            let db = Db::open(dir.path(), options).unwrap();
            assert_eq!(db.get(HIGH).unwrap().as_deref(), Some(&b"high"[..]));
            assert_eq!(db.get([0xff, 5, 1]).unwrap().as_deref(), Some(&b"later"[..]));
            db.keyspace("first").unwrap();
            assert_eq!(db.get(HIGH).unwrap().as_deref(), Some(&b"high"[..]));
        }
    }

    #[test]
    fn a_key_that_cannot_move_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options { engine: EngineKind::Lsm, ..Options::default() }).unwrap();
        let long = [&[0xff, b'x'][..], &[0; 65_533]].concat();
        db.put(&long, "long").unwrap();
        for error in [db.keyspace("first").map(drop).unwrap_err(), db.delete_range("a".."b").unwrap_err()] {
            assert!(error.to_string().contains("65535 bytes, which begins with \"\\xffx"), "{error}");
        }
        assert_eq!(db.get(&long).unwrap().as_deref(), Some(&b"long"[..]));
        db.delete(&long).unwrap();
        db.keyspace("first").unwrap();
    }
}
