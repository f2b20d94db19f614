//! Naming keyspaces again after damage that has taken records of the catalogue.

use parking_lot::RwLockWriteGuard;
use terrace_base::{Error, Result};

use super::records::{LATEST, NEXT, Named, VERSION, version_with};
use crate::db::{Db, Store};
use crate::keyspaces::{DATED, ESCAPE, Space, callbacks};

impl Db {
    /// Names every keyspace that has keys and no name: see [`Db::recover_keyspaces`].
    pub(super) fn name_unknown(&self) -> Result<Vec<String>> {
        callbacks::check_none_runs()?;
        let store = &*self.inner;
        let _changing = store.catalog.hold();
        if store.read_only {
            return Err(Error::ReadOnly);
        }
        store.catalog.check_readable()?;
        if store.catalog.default_space() == Space::Default {
            return self.name_all();
        }
        if !store.has_unknown_operands()? && !store.has_lost_marker()? {
            return Ok(Vec::new());
        }
        store.catalog.note_version(LATEST);
        let mut naming = Naming::begin(store);
        let recovered = store.load_range_tombstones().and_then(|()| self.name_all());
        store.recall_keyspaces();
        naming.is_done = recovered.is_ok();
        recovered
    }

    fn name_all(&self) -> Result<Vec<String>> {
        let store = &*self.inner;
        let (names, dropped) = (store.names()?, store.dropped()?);
        let known = |number| {
            number == 0 || dropped.contains(&number) || names.values().any(|named| named.number == number)
        };
        let unknown: Vec<u32> = store.unknown(known)?.into_keys().flatten().collect();
        let free = |number: &u32| {
            let plain = match number & DATED {
                0 => format!("recovered-{number}"),
                _ => format!("recovered-expiring-{}", number & !DATED),
            };
            let further = (2..).map(|i| format!("{plain}-{i}"));
            std::iter::once(plain.clone())
                .chain(further)
                .find(|name| !names.contains_key(name))
                .unwrap_or(plain)
        };
        let recovered: Vec<(String, Named)> =
            unknown.iter().map(|number| (free(number), Named::plain(*number))).collect();
        let given = names.values().map(|named| &named.number).chain(&dropped).chain(&unknown);
        let highest = given.map(|number| number & !DATED).max().unwrap_or(0);
        let of_names = names.values().map(Named::version);
        let least = of_names.chain(dropped.iter().chain(&unknown).map(|number| version_with(*number))).max();
        store.catalog.note_version(least.unwrap_or(VERSION));
        let next = store.number_in(NEXT)?.unwrap_or(0).max(highest.saturating_add(1));
        self.name_keyspaces(&recovered, Some(next))?;
        Ok(recovered.into_iter().map(|(name, _)| name).collect())
    }
}

/// The default keyspace lies beside others, for this thread alone until it is dropped. From then on for everybody, if
/// that is done, or at least the marker is there; otherwise it lies alone again. Also after a panic.
struct Naming<'s> {
    store: &'s Store,
    is_done: bool,
    _alone: RwLockWriteGuard<'s, ()>,
}

impl<'s> Naming<'s> {
    fn begin(store: &'s Store) -> Naming<'s> {
        let naming = Naming { store, is_done: false, _alone: store.catalog.keep_out() };
        store.begin_deadlines();
        store.catalog.set_naming();
        store.core.filters.set_beside(true);
        naming
    }
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        let Naming { store, is_done, .. } = *self;
        let is_beside = is_done || store.has_marker();
        if is_beside && !is_done {
            store.recall_keyspaces();
        }
        if !is_beside {
            store.core.filters.set_beside(false);
            store.core.deadlines.end();
            store.core.range_tombstones.set(Vec::new());
            // What they hid is there again.
            store.core.empty_ranges.forget();
        }
        // Last: from now on nobody waits.
        store.catalog.set_beside(is_beside);
    }
}

impl Store {
    /// Whether there are operands of which nobody knows by what they are merged. Only keyspaces have any.
    pub(super) fn has_unknown_operands(&self) -> Result<bool> {
        if !self.engine.keeps_operands() {
            return Ok(false);
        }
        self.walk_from(&self.unmasked, &[ESCAPE], |walk| {
            while walk.next()?.is_some() {
                if walk.failure().is_some() {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::{Named, Naming};
    use crate::Db;
    use crate::keyspaces::Space;
    use crate::options::{EngineKind, Options};

    #[test]
    fn a_recovery_that_panics_finds_no_keyspaces() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options { engine: EngineKind::Lsm, ..Options::default() }).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _naming = Naming::begin(&db.inner);
            assert_eq!(db.inner.catalog.default_space(), Space::Default, "for who recovers");
            panic!("before the names are written");
        }));
        assert!(panicked.is_err());
        assert_eq!(db.inner.catalog.default_space(), Space::Alone);
        db.put([0xff, 9], "high").unwrap();
        assert_eq!(db.get([0xff, 9]).unwrap().as_deref(), Some(&b"high"[..]));
    }

    /// As after a write of somebody else that panics while the thread with the names carries it out.
    #[test]
    fn a_recovery_that_panics_behind_its_marker_has_found_the_keyspaces() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { engine: EngineKind::Lsm, ..Options::default() };
        let db = Db::open(dir.path(), options.clone()).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _naming = Naming::begin(&db.inner);
            db.name_keyspaces(&[("recovered-1".into(), Named::plain(1))], Some(2)).unwrap();
            panic!("behind the marker");
        }));
        assert!(panicked.is_err());
        assert_eq!(db.inner.catalog.default_space(), Space::Default);
        db.put([0xff, 9], "high").unwrap();
        drop(db);
        let db = Db::open(dir.path(), options).unwrap();
        assert_eq!(db.get([0xff, 9]).unwrap().as_deref(), Some(&b"high"[..]));
        assert_eq!(db.keyspaces().unwrap(), ["recovered-1"]);
    }

    /// Whoever begins during a recovery that fails does not take the keyspaces for found: its keys would lie where
    /// nobody looks for them.
    #[test]
    fn what_begins_during_a_recovery_waits_for_its_outcome() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options { engine: EngineKind::Lsm, ..Options::default() }).unwrap();
        let catalog = &db.inner.catalog;
        std::thread::scope(|scope| {
            let alone = catalog.keep_out();
            catalog.set_naming();
            assert_eq!(catalog.default_space(), Space::Default, "for who recovers");
            let begun = scope.spawn(|| {
                let tx = db.transaction();
                tx.put([0xff, 9], "high").unwrap();
                tx.commit().unwrap();
            });
            // Whoever does not wait has begun by now.
            (0..10_000).take_while(|_| !begun.is_finished()).for_each(|_| std::thread::yield_now());
            catalog.set_beside(false);
            drop(alone);
        });
        assert_eq!(db.get([0xff, 9]).unwrap().as_deref(), Some(&b"high"[..]));
    }
}
