//! What a session has left in the pool without an owner: it is a debt, which is paid, and no damage.

use std::sync::Arc;

use terrace::{Db, EngineKind};
use terrace_base::exec::{Executor, Inline};
use terrace_pmem::{Kind, PoolOptions};

use crate::harness::{Contents, Engine, Machine, Map, Setup, assert_clean, test_each_engine};

/// A kind of allocation that no engine has.
const NOBODYS: Kind = Kind(250);

/// A database that was killed, with an extent in its pool that a crash left without an owner.
fn killed_with_a_debt(kind: EngineKind) -> (Machine, Map) {
    let machine = Machine::new(&Setup::tiny("debts", &Engine::of(kind)));
    let (db, mut map) = (machine.open().unwrap(), Map::new());
    write(&db, &mut map, "old");
    let killed = machine.kill();
    let pool = killed.env().pm.open(&killed.dir().join("pool"), &PoolOptions::default()).unwrap();
    pool.activate(&pool.reserve_extent(NOBODYS, 1).unwrap());
    pool.drain();
    (killed, map)
}

fn write(db: &Db, map: &mut Map, what: &str) {
    for i in 0..100u32 {
        let (key, value) = (format!("key{i:03}").into_bytes(), format!("{what}{i}").repeat(8).into_bytes());
        db.put(&key, &value).unwrap();
        map.insert(key, value);
    }
}

/// The extents without an owner, as a process finds them after this one.
fn unreclaimed(machine: &Machine) -> usize {
    let machine = machine.kill();
    let pool = machine.env().pm.open(&machine.dir().join("pool"), &PoolOptions::default()).unwrap();
    pool.extents(NOBODYS).len()
}

/// A disk without room keeps a manifest from deciding what exists, and so the opening from reclaiming.
fn put_off(kind: EngineKind) {
    for checks in [true, false] {
        let (machine, mut map) = killed_with_a_debt(kind);
        let full = machine.fs().used_bytes();
        machine.fs().set_capacity(Some(full));
        let executor = Arc::new(Inline::default());
        let db = Db::open_in(machine.env_on(executor.clone()), machine.dir(), machine.options()).unwrap();
        while executor.help() {}
        match db.check() {
            Ok(report) => assert_eq!(report.problems, Vec::<String>::new()),
            Err(e) => assert!(e.is_out_of_space(), "{e}"),
        }
        machine.fs().set_capacity(None);
        if checks {
            assert_clean(&db);
        } else {
            write(&db, &mut map, "new");
            db.flush().unwrap();
            while executor.help() {}
        }
        assert_eq!(unreclaimed(&machine), 0, "with room, {}", if checks { "checked" } else { "written to" });
        assert_clean(&db);
        db.close().unwrap();
        drop(db);
        let db = machine.open().unwrap();
        assert_clean(&db);
        assert_eq!(db.all().into_iter().collect::<Map>(), map);
    }
}

test_each_engine!(put_off);
