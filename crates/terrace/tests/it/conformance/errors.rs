//! What goes wrong says so, and does no harm.

use terrace::{Db, Options, PoolChoice, Profile, WriteBatch};
use terrace_base::{Error, ErrorKind};
use terrace_disk::Fs;

use crate::harness::{Contents, Engine, Machine, Setup, assert_clean};

fn machine(engine: &Engine) -> Machine {
    Machine::new(&Setup::tiny("errors", engine))
}

fn kind<T>(result: Result<T, Error>) -> ErrorKind {
    result.map(drop).expect_err("this is refused").kind()
}

pub fn over_long_keys_and_values_are_refused(engine: &Engine) {
    let machine = machine(engine);
    let db = machine.open().unwrap();
    let long = vec![b'k'; 65_536];
    assert_eq!(kind(db.put(&long, b"")), ErrorKind::InvalidArgument);
    assert_eq!(kind(db.delete(&long)), ErrorKind::InvalidArgument);
    assert_eq!(kind(db.get(&long)), ErrorKind::InvalidArgument);
    assert_eq!(kind(db.contains_key(&long)), ErrorKind::InvalidArgument);
    assert_eq!(kind(db.multi_get([b"k", &long[..]])), ErrorKind::InvalidArgument);
    assert_eq!(kind(db.put_if_absent(&long, b"")), ErrorKind::InvalidArgument);
    assert_eq!(kind(db.update_if_exists(&long, b"")), ErrorKind::InvalidArgument);
    // The pages of this value are never touched.
    let huge = vec![0; (1 << 30) + 1];
    assert_eq!(kind(db.put(b"k", &huge)), ErrorKind::InvalidArgument);
    assert!(db.all().is_empty());
    db.put(b"k", b"still writable").unwrap();
}

pub fn a_second_handle_is_locked_out(engine: &Engine) {
    let machine = machine(engine);
    let db = machine.open().unwrap();
    assert_eq!(kind(machine.open()), ErrorKind::Locked);
    let other = db.clone();
    drop(db);
    assert_eq!(kind(machine.open()), ErrorKind::Locked, "a clone holds it");
    other.put(b"k", b"v").unwrap();
    drop(other);
    assert_eq!(machine.open().unwrap().get(b"k").unwrap().unwrap(), "v");

    let temp = tempfile::tempdir().unwrap();
    let mut options = machine.options();
    if engine.kind.needs_memory() {
        options.pool = PoolChoice::Emulated { path: None, profile: Profile::parse("dram").unwrap() };
    }
    let db = Db::open(temp.path(), options.clone()).unwrap();
    let refused = Db::open(temp.path(), options.clone()).unwrap_err();
    assert!(matches!(refused, Error::Locked { here: true, .. }), "{refused}");
    assert!(kind(Db::repair(temp.path(), options.clone())) == ErrorKind::Locked);
    drop(db);
    Db::open(temp.path(), options).unwrap();
}

pub fn read_only_reads(engine: &Engine) {
    let machine = machine(engine);
    let read_only = Options { read_only: true, ..machine.options() };
    assert_eq!(kind(machine.open_with(read_only.clone())), ErrorKind::NotFound);
    assert!(!machine.fs().exists(machine.dir()).unwrap(), "nothing was made");
    let db = machine.open().unwrap();
    (0..200u8).for_each(|i| db.put(&[i], &[i; 50]).unwrap());
    db.close().unwrap();
    drop(db);

    let image = machine.fs().image();
    let db = machine.open_with(read_only).unwrap();
    assert_eq!(db.get(&[7]).unwrap().unwrap(), [7; 50][..]);
    assert_eq!(db.all().len(), 200);
    assert_clean(&db);
    for refused in [
        db.put(b"k", b"v"),
        db.delete(&[7]),
        db.write(terrace::WriteBatch::new()).and_then(|()| db.flush()),
        db.put_if_absent(b"k", b"v").map(drop),
        db.compact_range(..),
    ] {
        assert_eq!(kind(refused), ErrorKind::ReadOnly);
    }
    db.close().unwrap();
    drop(db);
    let after = machine.fs().image();
    assert!(image.iter().all(|(path, data)| after.get(path) == Some(data)), "a file changed");
    assert_eq!(machine.open().unwrap().all().len(), 200);
}

/// What snapshots kept when the database was killed or closed is in the pool still, and is to be reclaimed by the next
/// session that writes and has the time: no damage to one that only reads, nor to a repair.
pub fn what_is_yet_to_be_reclaimed_is_no_damage(engine: &Engine) {
    let machine = machine(engine);
    let db = machine.open().unwrap();
    let fill = |db: &Db, value: u8| {
        (0..100u32).for_each(|i| db.put(&i.to_be_bytes(), &[value; 100]).unwrap());
        // One that has an extent of the pool for itself.
        db.put(b"large", &[value; 5000]).unwrap();
    };
    fill(&db, 1);
    let snapshot = db.snapshot();
    fill(&db, 2);
    let killed = machine.kill();
    let closed_at_once = killed.open().unwrap();
    closed_at_once.close().unwrap();
    drop(closed_at_once);
    db.close().unwrap();
    drop((snapshot, db));

    for (machine, is_kept) in [(killed, false), (machine, true)] {
        let read_only = Options { read_only: true, ..machine.options() };
        let db = machine.open_with(read_only).unwrap();
        assert_clean(&db);
        let (before, found) = (db.stats().pm.used, db.all());
        let large = found.iter().find(|(key, _)| key == b"large");
        assert_eq!((found.len(), large.map(|(_, value)| &value[..])), (101, Some(&[2; 5000][..])));
        db.close().unwrap();
        drop(db);
        let repaired = machine.kill();
        let report = Db::repair_in(repaired.env(), repaired.dir(), repaired.options()).unwrap();
        assert_eq!(report.actions, ["everything is sound: nothing had to be done"]);
        assert_eq!((report.keys, report.lost), (101, Vec::new()));
        let db = machine.open().unwrap();
        assert_clean(&db);
        assert_eq!(db.all(), found);
        // A killed one may have had the time to reclaim between its opening and its close.
        let reclaims = is_kept && engine.kind.keeps_all_in_memory();
        assert!(!reclaims || db.stats().pm.used < before, "nothing was left to reclaim");
    }
}

pub fn a_missing_database_is_not_made(engine: &Engine) {
    let machine = machine(engine);
    let options = Options { create_if_missing: false, ..machine.options() };
    let error = machine.open_with(options.clone()).map(drop).unwrap_err();
    assert!(error.to_string().contains("no database"), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    machine.open().unwrap().put(b"k", b"v").unwrap();
    assert_eq!(machine.open_with(options).unwrap().get(b"k").unwrap().unwrap(), "v");
}

pub fn a_file_is_no_directory(engine: &Engine) {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("file");
    std::fs::write(&path, b"not a database").unwrap();
    let options = machine(engine).options();
    let error = Db::open(&path, options.clone()).map(drop).unwrap_err();
    assert!(error.to_string().contains("file"), "{error}");
    assert!(Db::open(path.join("below"), options).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"not a database");
}

pub fn foreign_files_stay(engine: &Engine) {
    let machine = machine(engine);
    machine.open().unwrap().put(b"k", b"v").unwrap();
    let foreign = ["notes.txt", "000001.sst.bak", "12.sst", "MANIFEST-x", "CURRENT~"];
    for name in foreign {
        machine.fs().plant(&machine.dir().join(name), b"mine").unwrap();
    }
    let db = machine.open().unwrap();
    for i in 0..300u32 {
        db.put(&i.to_be_bytes(), &[0; 100]).unwrap();
    }
    db.compact_range(..).unwrap();
    db.close().unwrap();
    drop(db);
    assert_eq!(machine.open().unwrap().get(b"k").unwrap().unwrap(), "v");
    for name in foreign {
        assert_eq!(machine.fs().read(&machine.dir().join(name)).unwrap(), b"mine");
    }
}

pub fn a_closed_database_refuses(engine: &Engine) {
    let machine = machine(engine);
    let db = machine.open().unwrap();
    db.put(b"k", b"u").unwrap();
    let snapshot = db.snapshot();
    let entries = db.entries().unwrap();
    db.put(b"k", b"v").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    db.close().unwrap();
    assert_eq!(kind(db.get(b"k")), ErrorKind::Closed);
    assert_eq!(kind(db.get_with(b"k", <[u8]>::len)), ErrorKind::Closed);
    assert_eq!(kind(db.contains_key(b"k")), ErrorKind::Closed);
    assert_eq!(kind(db.multi_get([b"k"])), ErrorKind::Closed);
    assert_eq!(kind(db.entries().map(drop)), ErrorKind::Closed);
    assert_eq!(kind(db.explain(b"k").map(drop)), ErrorKind::Closed);
    assert_eq!(snapshot.get(b"k").unwrap().unwrap(), "u", "a snapshot may still read");
    assert_eq!(kind(machine.open().map(drop)), ErrorKind::Locked);
    assert_eq!(kind(db.put(b"k", b"w")), ErrorKind::Closed);
    assert_eq!(kind(db.put_if_absent(b"l", b"w")), ErrorKind::Closed);
    let mut batch = WriteBatch::new();
    batch.put(b"k", b"w");
    batch.delete(b"l");
    assert_eq!(kind(db.write(batch)), ErrorKind::Closed);
    assert_eq!(kind(db.flush()), ErrorKind::Closed);
    // What readers keep of the pool when it is closed is given back by the next open.
    drop(entries);
    let checked = db.check().map(|report| report.problems);
    assert_eq!(kind(checked), ErrorKind::Closed);
    drop((db, snapshot));
    let db = machine.open().unwrap();
    assert_eq!(db.get(b"k").unwrap().unwrap(), "v");
    assert_clean(&db);
}

/// A database without its pointer is not taken for none, and comes back whole from a repair.
pub fn damage_is_told_and_repaired(engine: &Engine) {
    let machine = machine(engine);
    let db = machine.open().unwrap();
    let fill =
        |db: &Db| (0..300u32).for_each(|i| db.put(&i.to_be_bytes(), &i.to_le_bytes().repeat(10)).unwrap());
    fill(&db);
    db.flush().unwrap();
    db.close().unwrap();
    drop(db);
    let before = machine.open().unwrap().all();
    for damage in ["CURRENT gone", "CURRENT damaged", "manifest damaged"] {
        let machine = machine.kill();
        let fs = machine.fs();
        let current = machine.dir().join("CURRENT");
        match damage {
            "CURRENT gone" => fs.remove(&current).unwrap(),
            "CURRENT damaged" => fs.plant(&current, b"MANIFEST-000099\n").unwrap(),
            _ => {
                let name = String::from_utf8(fs.read(&current).unwrap()).unwrap();
                let path = machine.dir().join(name.split(' ').next().unwrap());
                let mut data = fs.read(&path).unwrap();
                data[60] ^= 1;
                fs.plant(&path, &data).unwrap();
            }
        }
        assert_eq!(kind(machine.open()), ErrorKind::Corruption, "{damage}");
        let report = Db::repair_in(machine.env(), machine.dir(), machine.options()).unwrap();
        assert!(report.lost.is_empty(), "{damage}: {:?}", report.lost);
        let db = machine.open().unwrap();
        assert_eq!(db.all(), before, "{damage}");
        assert_clean(&db);
        fill(&db);
    }
}

pub fn options_that_cannot_work_are_refused(engine: &Engine) {
    let machine = machine(engine);
    for spoil in [
        |o: &mut Options| o.slm.memtable_bytes = 0,
        |o: &mut Options| o.slm.live_key_threshold = 1.5,
        |o: &mut Options| o.slm.live_key_threshold = f64::NAN,
        |o: &mut Options| o.slm.max_merge_files = 0,
        |o: &mut Options| o.lsm.memtables = 1,
        |o: &mut Options| o.lsm.l0_stop_tables = o.lsm.l0_slowdown_tables,
        |o: &mut Options| o.lsm.level_multiplier = f64::NAN,
        |o: &mut Options| o.background_threads = 0,
        |o: &mut Options| o.pm_bytes = 0,
        |o: &mut Options| o.pool_extent_bytes = 1000,
    ] {
        let mut options = machine.options();
        spoil(&mut options);
        assert_eq!(kind(machine.open_with(options)), ErrorKind::InvalidArgument);
    }
    machine.open().unwrap();
}
