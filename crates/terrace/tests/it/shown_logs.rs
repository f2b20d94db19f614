//! What `shown.rs` does, with the log in files: a sync of it fails, the system shows what that has dropped, and the
//! process is killed. The next one builds upon what it has read; a power cut within it or behind leaves a prefix of
//! all writes, with each that was synced.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace::{Db, EngineKind, ErrorKind, Options, WriteBatch, WriteOptions};
use terrace_disk::{Fault, Fs};
use terrace_pmem::Granularity;
use terrace_sim::{EventKind, World};

use crate::harness::{Contents, Engine, Machine, Setup, assert_clean, engines_on_files};

/// Each so many writes one is synced.
const SYNC_EVERY: u32 = 9;

/// Thirty values of these are more than one record of a log that replaces others, and fewer than a memtable.
const LARGE_VALUE_BYTES: usize = 8500;

fn key(i: u32) -> String {
    format!("key{i:05}")
}

/// Whether `path` is a commit log's.
fn is_log(path: &Path) -> bool {
    path.to_string_lossy().contains(".log")
}

/// What a process was told: so many writes happened, and so many of these are synced.
#[derive(Debug, Clone, Copy)]
struct Told {
    written: u32,
    synced: u32,
    /// Bytes of each value.
    value_bytes: usize,
}

impl Told {
    /// Nothing yet.
    fn new(value_bytes: usize) -> Told {
        Told { written: 0, synced: 0, value_bytes }
    }

    /// The value of write `i`.
    fn value(&self, i: u32) -> Vec<u8> {
        vec![i as u8; self.value_bytes]
    }

    /// Writes until it is refused, or up to `most`.
    fn write(&mut self, db: &Db, most: u32) {
        while self.written < most {
            let sync = self.written % SYNC_EVERY == SYNC_EVERY - 1;
            match db.put_with(key(self.written), self.value(self.written), WriteOptions { sync }) {
                Ok(()) => self.written += 1,
                Err(e) => {
                    assert!([ErrorKind::Io, ErrorKind::NoSpace].contains(&e.kind()), "{e}");
                    return;
                }
            }
            if sync {
                self.synced = self.written;
            }
        }
    }

    /// How many writes are there: the first so many, with all that were synced. One that was refused may be among
    /// them.
    fn found(&self, db: &Db, what: &str) -> u32 {
        let all = db.all();
        let count = all.len() as u32;
        for (i, (found, value)) in (0..).zip(&all) {
            assert!(
                found[..] == *key(i).as_bytes() && value[..] == self.value(i),
                "{what}: a hole before {found:?}"
            );
        }
        assert!((self.synced..=self.written + 1).contains(&count), "{what}: {count} of {self:?}");
        assert_clean(db);
        count
    }
}

/// Which syncs of logs fail.
#[derive(Debug, Clone, Copy)]
struct Failing {
    /// So many succeed before.
    spared: u64,
    /// How many succeed between the one that fails and all that do; none if the others are well.
    then: Option<u64>,
    /// So many changes come before, by whose number a failed sync drops something.
    others: u64,
}

impl Failing {
    /// Has them fail, and everything behind the last of them.
    fn over(self, world: &World) {
        let seen = AtomicU64::new(0);
        world.on_event(Box::new(move |event, world| {
            if !matches!(&event.kind, EventKind::Sync(path) if is_log(path)) {
                return;
            }
            let nth = seen.fetch_add(1, Ordering::Relaxed);
            if nth == self.spared {
                world.fs().inject(Some(Fault { after: 0, only_changes: true, sticky: false }));
            } else if self.then.is_some_and(|between| nth == self.spared + 1 + between) {
                world.fs().inject(Some(Fault { after: 0, only_changes: true, sticky: true }));
            }
        }));
    }
}

/// What the second process does.
#[derive(Debug, Clone, Copy)]
enum Second {
    Nothing,
    SyncedWrites,
    Sync,
    Flush,
    Close,
}

impl Second {
    const ALL: [Second; 5] =
        [Second::Nothing, Second::SyncedWrites, Second::Sync, Second::Flush, Second::Close];

    /// Does it, and says what it was told; forgets the process.
    fn act(self, db: Db, mut told: Told) -> Told {
        let all_synced = Told { synced: told.written, ..told };
        match self {
            Second::Nothing => {}
            Second::SyncedWrites => {
                let most = told.written + 3 * SYNC_EVERY;
                told.write(&db, most);
                assert!(told.written == most && told.synced > all_synced.synced, "{told:?}");
            }
            Second::Sync => {
                db.sync().unwrap();
                told = all_synced;
            }
            Second::Flush => {
                db.flush().unwrap();
                told = all_synced;
            }
            Second::Close => {
                db.close().unwrap();
                return all_synced;
            }
        }
        std::mem::forget(db);
        told
    }
}

/// Lets `second` happen on `killed`, with power cuts at each fourth event of it and behind.
fn goes_on(killed: &Machine, options: &Options, told: Told, second: Second, what: &str) {
    let worlds: Arc<Mutex<Vec<_>>> = Arc::default();
    let taken = worlds.clone();
    killed.world().on_event(Box::new(move |event, world| {
        if event.index.is_multiple_of(4) {
            taken.lock().push((event.kind.to_string(), world.crash(event.index)));
        }
    }));
    let db = killed.open_with(options.clone()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = told.found(&db, what);
    assert!(found >= told.written, "{what}: {found} of {told:?}");
    let then = second.act(db, Told { written: found, ..told });
    killed.world().ignore_events();
    let within = Told { written: then.written, ..told };
    for (at, world) in std::mem::take(&mut *worlds.lock()) {
        let what = format!("{what}, cut off at {at}");
        let db = killed.on(world).open().unwrap_or_else(|e| panic!("{what}: {e}"));
        within.found(&db, &what);
    }
    for seed in 0..4 {
        let what = format!("{what}, cut off behind by {seed}");
        let db = killed.power_cut(seed).open().unwrap_or_else(|e| panic!("{what}: {e}"));
        then.found(&db, &what);
    }
}

/// A first process of which syncs fail, and the machine behind it.
fn first(setup: &Setup, failing: Failing, value_bytes: usize) -> (Machine, Told) {
    let machine = Machine::new(setup);
    let db = machine.open().unwrap();
    let mut told = Told::new(value_bytes);
    told.write(&db, SYNC_EVERY + 3);
    let other = |n| drop(machine.fs().create(&machine.dir().join(format!("other{n}"))).unwrap());
    (0..failing.others).for_each(other);
    machine.fs().show_dropped(true);
    failing.over(machine.world());
    told.write(&db, 6 * SYNC_EVERY);
    machine.world().ignore_events();
    let killed = machine.kill();
    killed.fs().inject(None);
    std::mem::forget(db);
    (killed, told)
}

fn survives(kind: EngineKind) {
    let engine = Engine::of(kind);
    let setup = |name| match name {
        "roomy" => Setup::roomy(&engine, Granularity::Page),
        _ => Setup::tiny(name, &engine).on(Granularity::Page),
    };
    let mut dropped = 0;
    let cases = ["roomy", "tiny"].into_iter().flat_map(|name| {
        let failing = |case: u64| {
            let then = [None, Some(0), Some(1)][case as usize % 3];
            Failing { spared: case / 3 % 3, then, others: case / 9 }
        };
        (0..36).map(move |case| (name, failing(case)))
    });
    for (name, failing) in cases {
        let (killed, told) = first(&setup(name), failing, 300);
        dropped += u64::from(killed.fs().has_dropped_pages());
        for second in Second::ALL {
            let what = format!("{kind:?}, {name}, {failing:?}, {second:?}");
            goes_on(&killed.kill(), &killed.options(), told, second, &what);
            if name == "roomy" {
                // Smaller memtables are flushed while logs are read.
                let tiny = setup("tiny").options();
                goes_on(&killed.kill(), &tiny, told, second, &format!("{what}, smaller memtables"));
            }
        }
    }
    assert!(dropped > 10, "{kind:?}: {dropped} lost something");
}

/// Must catch writes of a log that a process acknowledges as synced, or puts into tables, on the word of pages that a
/// failed sync dropped, so that a power cut leaves a hole.
#[test]
fn what_failed_syncs_dropped_of_logs_is_not_built_upon() {
    engines_on_files().for_each(survives);
}

/// Must catch logs that are removed because one replaces them that a dead process had not synced: what it holds takes
/// several records, and smaller memtables are flushed between them while it is read.
#[test]
fn a_log_that_replaces_others_does_so_only_once_it_is_durable() {
    let mut replaced = 0;
    for kind in engines_on_files() {
        let engine = Engine::of(kind);
        let setup = Setup::roomy(&engine, Granularity::Page);
        let tiny = Setup::tiny("tiny", &engine).options();
        let cases = (3..5).flat_map(|spared| (0..3).map(move |between| (spared, between)));
        for (spared, between) in cases {
            let failing = Failing { spared, then: Some(between), others: 0 };
            let (killed, told) = first(&setup, failing, LARGE_VALUE_BYTES);
            replaced += u64::from(killed.fs().has_dropped_pages());
            for second in [Second::Nothing, Second::SyncedWrites] {
                let what = format!("{kind:?}, {failing:?}, {second:?}, large values");
                goes_on(&killed.kill(), &tiny, told, second, &what);
            }
        }
    }
    assert!(replaced > 0);
}

/// Whether all of the batch is there, or nothing; with what was synced before it.
fn is_whole(db: &Db, what: &str) -> bool {
    let found = (0..BATCH_WRITES).filter(|&i| db.get(key(i)).unwrap().is_some()).count() as u32;
    assert!([0, BATCH_WRITES].contains(&found), "{what}: {found} of {BATCH_WRITES} writes of a batch");
    assert!(db.get("first").unwrap().is_some(), "{what}: a synced write is gone");
    assert_clean(db);
    found > 0
}

/// Writes of the batch of [`batches_stay_whole`].
const BATCH_WRITES: u32 = 40;

/// Must catch a part of a batch in a table while a power cut takes the rest: a log that replaces others cuts it into
/// several records, and smaller memtables are filled by each.
#[test]
fn batches_stay_whole() {
    for kind in engines_on_files() {
        let engine = Engine::of(kind);
        let setup = Setup::roomy(&engine, Granularity::Page);
        let tiny = Setup::tiny("tiny", &engine).options();
        let cases = (0..3).flat_map(|between| (0..4).map(move |others| (between, others)));
        for (between, others) in cases {
            let failing = Failing { spared: 0, then: Some(between), others };
            let what = format!("{kind:?}, {failing:?}");
            let machine = Machine::new(&setup);
            let db = machine.open().unwrap();
            db.put_with("first", [0; 300], WriteOptions { sync: true }).unwrap();
            let mut batch = WriteBatch::new();
            (0..BATCH_WRITES).for_each(|i| batch.put(key(i), vec![i as u8; LARGE_VALUE_BYTES]));
            db.write(batch).unwrap();
            let other = |n| drop(machine.fs().create(&machine.dir().join(format!("other{n}"))).unwrap());
            (0..others).for_each(other);
            machine.fs().show_dropped(true);
            failing.over(machine.world());
            assert!(db.put_with("last", [0; 300], WriteOptions { sync: true }).is_err(), "{what}");
            machine.world().ignore_events();
            let killed = machine.kill();
            killed.fs().inject(None);
            std::mem::forget(db);
            cut_everywhere(&killed, &tiny, &what);
        }
    }
}

/// Opens `killed` with `options`, with power cuts at every event of that and behind.
fn cut_everywhere(killed: &Machine, options: &Options, what: &str) {
    let worlds: Arc<Mutex<Vec<_>>> = Arc::default();
    let taken = worlds.clone();
    killed.world().on_event(Box::new(move |event, world| {
        taken.lock().push((event.kind.to_string(), world.crash(event.index)));
    }));
    let db = killed.open_with(options.clone()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(is_whole(&db, what), "{what}: the batch was acknowledged, and nothing but the process has ended");
    killed.world().ignore_events();
    let behind = (0..4).map(|seed| (format!("the end, by {seed}"), killed.power_cut(seed)));
    let within = std::mem::take(&mut *worlds.lock()).into_iter().map(|(at, world)| (at, killed.on(world)));
    for (at, machine) in within.chain(behind) {
        let what = format!("{what}, cut off at {at}");
        is_whole(&machine.open().unwrap_or_else(|e| panic!("{what}: {e}")), &what);
    }
}
