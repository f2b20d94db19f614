//! Writes that panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI64, Ordering};

use terrace::{Db, WriteBatch};

use crate::harness::{Background, Engine, Machine, setups};

const KEYS: [&str; 3] = ["a", "b", "c"];

fn batch(value: &str) -> WriteBatch {
    let mut batch = WriteBatch::new();
    KEYS.iter().for_each(|key| batch.put(key, value));
    batch
}

fn assert_sound(db: &Db, what: &str) {
    let problems = db.check().unwrap().problems;
    assert!(problems.is_empty(), "{what}: {problems:?}");
}

/// The value of all keys, which is one.
fn value(db: &Db, what: &str) -> String {
    let values = KEYS.map(|key| db.get(key).unwrap().unwrap_or_else(|| panic!("{what}: {key} is gone")));
    assert!(values.iter().all(|value| *value == values[0]), "{what}: half a batch: {values:?}");
    String::from_utf8(values[0].to_vec()).unwrap()
}

/// Must catch a batch of which a half is seen after its writer has panicked, or that another writer makes visible.
pub fn half_a_batch_is_never_seen(engine: &Engine) {
    for setup in setups(engine) {
        for at in 0.. {
            let what = format!("{}, event {at}", setup.name);
            let machine = Machine::new(&setup);
            let db = machine.open().unwrap();
            db.write(batch("before")).unwrap();
            let left = AtomicI64::new(at);
            machine.world().on_event(Box::new(move |_, _| {
                assert!(left.fetch_sub(1, Ordering::Relaxed) != 0, "on request");
            }));
            let outcome = catch_unwind(AssertUnwindSafe(|| db.write(batch("after"))));
            machine.world().ignore_events();
            if outcome.is_ok() {
                assert!(at > 0, "{what}: nothing happened");
                break;
            }
            value(&db, &what);
            assert!(db.write(batch("later")).is_err(), "{what}: written beside half a batch");
            assert_ne!(value(&db, &what), "later");
            let killed = machine.kill();
            drop(db);
            for (machine, how) in [(killed, "killed"), (machine, "closed")] {
                let what = format!("{what}, {how}");
                let db = machine.open().unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_ne!(value(&db, &what), "later");
                assert_sound(&db, &what);
                db.write(batch("again")).unwrap();
                assert_eq!(value(&db, &what), "again");
            }
        }
    }
}

/// Must catch a database that is given up because a destructor uses it while its thread unwinds for another reason.
pub fn a_destructor_may_write(engine: &Engine) {
    struct Lease<'d>(&'d Db);
    impl Drop for Lease<'_> {
        fn drop(&mut self) {
            self.0.write(batch("released")).unwrap();
            self.0.delete("lease").unwrap();
            self.0.flush().unwrap();
            self.0.compact_range(..).unwrap();
            assert_sound(self.0, "while it unwinds");
        }
    }
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        db.put("lease", "held").unwrap();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _lease = Lease(&db);
            panic!("on request");
        }));
        assert!(unwound.is_err());
        assert_eq!(value(&db, setup.name), "released");
        db.write(batch("later")).unwrap();
        db.close().unwrap();
        drop(db);
        let db = machine.open().unwrap();
        assert_eq!((value(&db, setup.name), db.get("lease").unwrap()), ("later".into(), None));
        assert_sound(&db, setup.name);
    }
}

/// Writes versions 1 to 60 with flushes in between, and compacts; says in `written` how far it has come.
fn write_all(db: &Db, written: &AtomicI64) {
    for version in 1..=60 {
        db.write(batch(&version_of(version))).unwrap();
        written.store(version, Ordering::Relaxed);
        if version % 15 == 0 {
            db.flush().unwrap();
        }
    }
    db.compact_range(..).unwrap();
}

fn version_of(version: i64) -> String {
    format!("{version:0200}")
}

/// Must catch a panic on the way of any change that costs what was acknowledged: also one of a flush or a compaction,
/// which run on the writer's thread here.
pub fn a_panic_anywhere_loses_nothing(engine: &Engine) {
    const POINTS: u64 = 60;
    for setup in setups(engine) {
        let events = {
            let machine = Machine::new(&setup);
            let db = machine.open().unwrap();
            let before = machine.world().events();
            write_all(&db, &AtomicI64::new(0));
            machine.world().events() - before
        };
        assert!(events > POINTS, "{}", setup.name);
        for point in 0..POINTS {
            let at = (events * point / POINTS) as i64;
            let what = format!("{}, event {at} of {events}", setup.name);
            let machine = Machine::new(&setup);
            let db = machine.open().unwrap();
            db.write(batch(&version_of(0))).unwrap();
            let (left, written) = (AtomicI64::new(at), AtomicI64::new(0));
            machine.world().on_event(Box::new(move |_, _| {
                assert!(left.fetch_sub(1, Ordering::Relaxed) != 0, "on request");
            }));
            let outcome = catch_unwind(AssertUnwindSafe(|| write_all(&db, &written)));
            machine.world().ignore_events();
            let written = written.into_inner();
            let is_right = |value: &str| [written, written + 1].map(version_of).contains(&value.to_owned());
            assert!(is_right(&value(&db, &what)), "{what}: {outcome:?}");
            // Files and memory are of one moment only while no thread changes them.
            let killed = matches!(setup.background, Background::Inline).then(|| machine.kill());
            drop(db);
            let images = killed.into_iter().map(|killed| (killed, "killed")).chain([(machine, "closed")]);
            for (machine, how) in images {
                let what = format!("{what}, {how}");
                let db = machine.open().unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(is_right(&value(&db, &what)), "{what}: after {written}");
                assert_sound(&db, &what);
                write_all(&db, &AtomicI64::new(0));
                assert_eq!(value(&db, &what), version_of(60));
            }
        }
    }
}
