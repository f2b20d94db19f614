//! A pool without room: a refused write has taken nothing, and room can be made.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace::{Db, EngineKind, ErrorKind, Options, TieringKind, WriteBatch};
use terrace_pmem::Granularity;

use crate::harness::{Contents, Engine, Machine, Setup, assert_clean};

/// A machine whose pool may grow to 1 MiB.
fn machine(engine: &Engine, granularity: Granularity) -> (Machine, Options) {
    let mut setup = Setup::tiny("little room", engine);
    setup.granularity = granularity;
    let machine = Machine::new(&setup);
    let mut options = Options { pm_bytes: 1 << 20, ..machine.options() };
    options.split.boundary_bytes = 1 << 30;
    (machine, options)
}

/// `lsm` writes to the pool only where it is persistent memory, and those that keep everything there have no other.
fn granularities(engine: &Engine) -> Vec<Granularity> {
    match engine.kind {
        EngineKind::Slm => vec![Granularity::CacheLine, Granularity::Page],
        _ => vec![Granularity::CacheLine],
    }
}

/// A batch for which the pool is too small, of values of `bytes`.
fn too_much(bytes: usize) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for i in 0..(3 << 19) / bytes {
        batch.put(format!("batch/{i:05}").as_bytes(), &vec![7; bytes]);
    }
    batch
}

fn used(db: &Db) -> u64 {
    db.stats().pm.used
}

/// What a refused batch had taken was gone for ever: the puts after it were refused, and so was every flush.
pub fn a_refused_batch_takes_nothing(engine: &Engine) {
    for granularity in granularities(engine) {
        let (machine, options) = machine(engine, granularity);
        let db = machine.open_with(options.clone()).unwrap();
        let put = |db: &Db, i: u32| db.put(&i.to_be_bytes(), &[1; 60]).unwrap();
        (0..100).for_each(|i| put(&db, i));
        db.flush().unwrap();
        // One after which everything that is ever made for a batch is there.
        assert_eq!(db.write(too_much(100_000)).unwrap_err().kind(), ErrorKind::PoolFull);
        let before = used(&db);
        for bytes in [1000, 30_000, 100_000, 400_000, 1 << 20] {
            assert_eq!(db.write(too_much(bytes)).unwrap_err().kind(), ErrorKind::PoolFull);
            // Of many small values the index may have made room that it keeps, empty.
            let kept = if bytes < 30_000 { before / 8 } else { 0 };
            assert!(used(&db) <= before + kept, "{} used after {before}, values of {bytes}", used(&db));
        }
        let all = db.all().len();
        assert_eq!(all, 100);
        // As the process leaves it that dies in the midst of it, too.
        for db in [db, machine.kill().open_with(options.clone()).unwrap()] {
            (100..300).for_each(|i| put(&db, i));
            db.flush().unwrap();
            (0..300).for_each(|i| put(&db, i));
            db.flush().unwrap();
            assert_eq!(db.all().len(), 300);
            assert_clean(&db);
        }
    }
}

/// However full the pool is, keys can be deleted and what is written flushed, and then there is room.
pub fn a_full_pool_is_left_by_deleting(engine: &Engine) {
    for (granularity, bytes) in granularities(engine).into_iter().flat_map(|g| [(g, 10), (g, 3000)]) {
        let (machine, options) = machine(engine, granularity);
        let options = Options { pm_bytes: 512 << 10, ..options };
        let db = machine.open_with(options.clone()).unwrap();
        let key = |i: u32| i.wrapping_mul(0x9e37_79b1).to_be_bytes().repeat(4);
        // An engine with its values on disk may never find the pool full.
        let most = if engine.kind.keeps_all_in_memory() { 20_000 } else { (8 << 20) / (bytes as u32 + 600) };
        let mut there = 0;
        while there < most && db.put(&key(there), &vec![1; bytes]).is_ok() {
            there += 1;
        }
        // A full pool can be closed and opened.
        db.close().unwrap();
        drop(db);
        let db = machine.open_with(options.clone()).unwrap();
        let told = format!("{granularity:?}, values of {bytes} bytes, {there} of them");
        // What snapshots need stays; where everything is in the pool, that has an end.
        let mut held = None;
        for i in 0..there / 2 {
            if i == 40 {
                held = Some(db.snapshot());
            } else if i == 60 {
                held = None;
            }
            db.delete(&key(i)).unwrap_or_else(|e| panic!("key {i}: {e}, {told}"));
            if i % 64 == 0 {
                db.flush().unwrap_or_else(|e| panic!("flush at key {i}: {e}, {told}"));
            }
        }
        drop(held);
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        assert_eq!(db.all().len() as u32, there - there / 2, "{told}");
        (0..there / 8).for_each(|i| db.put(&key(i), &vec![2; bytes]).unwrap());
        assert_clean(&db);
    }
}

/// A log of which everything is in tables lay in the pool still, and what had room but for that was refused.
pub fn a_flushed_log_is_in_nobodys_way(engine: &Engine) {
    // Of some more than logs lies in the pool, which takes room.
    let is_for_more = [terrace::EngineKind::Slm, terrace::EngineKind::Tlsm].contains(&engine.kind);
    if engine.kind.keeps_all_in_memory() || is_for_more {
        return;
    }
    let setup = Setup::roomy(engine, Granularity::CacheLine);
    let mut options = setup.options();
    options.pm_bytes = 1 << 20;
    let a_quarter = options.pm_bytes / 4;
    (options.lsm.memtable_bytes, options.lab.levels.memtable_bytes) = (a_quarter, a_quarter);
    options.wip.memtable_bytes = a_quarter;
    let takes = |bytes: usize, has_lived: bool| {
        let machine = Machine::new(&setup);
        if has_lived {
            let db = machine.open_with(options.clone()).unwrap();
            (0..100u32).for_each(|i| db.put(&i.to_be_bytes(), &[1; 1000]).unwrap());
            db.flush().unwrap();
            db.close().unwrap();
        }
        match machine.open_with(options.clone()).unwrap().put(b"large", &vec![2; bytes]) {
            Err(e) => assert_eq!(e.kind(), ErrorKind::PoolFull),
            Ok(()) => return true,
        }
        false
    };
    let most = (1..64).rev().map(|n| n << 14).find(|bytes| takes(*bytes, false)).unwrap();
    assert!(takes(most, true), "{most} bytes have room without the old log");
}

/// Small writes beside one that cannot be carried out are; it alone is refused.
pub fn who_asks_too_much_harms_nobody_else(engine: &Engine) {
    let mut setup = Setup::tiny("neighbours", engine).threaded(2);
    setup.granularity = Granularity::CacheLine;
    let machine = Machine::new(&setup);
    let mut options = Options { pm_bytes: 1 << 20, ..machine.options() };
    options.split.boundary_bytes = 1 << 30;
    let db = machine.open_with(options).unwrap();
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..6u32 {
            let (db, refused) = (&db, &refused);
            scope.spawn(move || {
                for i in 0..40u32 {
                    if thread == 0 {
                        let outcome = db.write(too_much(100_000));
                        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::PoolFull);
                        refused.fetch_add(1, Ordering::Relaxed);
                    } else {
                        let key = [thread, i].map(u32::to_be_bytes).concat();
                        db.put(&key, &[1; 40]).unwrap_or_else(|e| panic!("{thread} {i}: {e}"));
                    }
                }
            });
        }
    });
    assert_eq!((refused.into_inner(), db.all().len()), (40, 200));
    assert_clean(&db);
}

/// With a pool that may grow to 16 MiB, all of it for lists.
fn with_lists(machine: &Machine, tiering: TieringKind) -> Options {
    let mut options = Options { pm_bytes: 16 << 20, ..machine.options() };
    (options.tlsm.tiering, options.tlsm.list_bytes) = (tiering, 0);
    options
}

/// Where all lists stay in the pool, or all keys do, writes are refused once its medium is full. They went on being
/// refused when there was room again: nothing took of the pool, so nothing saw it.
pub fn writes_go_on_once_the_medium_has_room(engine: &Engine) {
    let all_keys = [EngineKind::Slm, EngineKind::Turbo, EngineKind::Sptree];
    if engine.kind != EngineKind::Tlsm && !all_keys.contains(&engine.kind) {
        return;
    }
    for limit in [1 << 20, (1 << 20) + (300 << 10), 2 << 20] {
        let machine = Machine::new(&Setup::tiny("a medium that is full for a time", engine));
        let media = machine.world().media();
        media.set_limit(limit);
        let db = machine.open_with(with_lists(&machine, TieringKind::None)).unwrap();
        // Long ones fill the index of `slm` soon.
        let put = |i: u32| db.put(i.wrapping_mul(0x9e37_79b1).to_be_bytes().repeat(75), [i as u8; 300]);
        let taken = (0..20_000).take_while(|&i| put(i).is_ok()).count() as u32;
        assert!(taken < 20_000, "{taken} puts");
        // The first refusals may still take something of the pool.
        (0..20).for_each(|_| assert!(put(taken).unwrap_err().is_out_of_space()));
        media.set_limit(16 << 20);
        (taken..taken + 1000).for_each(|i| put(i).unwrap_or_else(|e| panic!("{limit}, put {i}: {e}")));
        assert_eq!(db.all().len() as u32, taken + 1000);
        assert_clean(&db);
    }
}

/// Puts entries, smaller and smaller ones, until some of each size were refused: in the end there is no room for
/// anything, since a place for one key is none for others. Returns how many were tried and how many taken.
fn fill(engine: &Engine, put: &dyn Fn(u32, usize) -> bool) -> (u32, u32) {
    // In `slm` it has waited for a flush.
    let at_least = if engine.kind == EngineKind::Slm { 1 } else { 50 };
    let (mut tried, mut taken) = (0, 0);
    for bytes in [200, 100, 40, 0] {
        let mut refused = 0;
        while tried < 40_000 && refused < at_least {
            let is_taken = put(tried, bytes);
            (refused, taken) = (refused + u32::from(!is_taken), taken + u32::from(is_taken));
            tried += 1;
        }
    }
    assert!(tried < 40_000);
    (tried, taken)
}

/// A full pool refuses no deletion, neither of a key, a range, nor a keyspace: they make room.
pub fn a_full_pool_takes_deletions_of_ranges(engine: &Engine) {
    // In others what does not fit becomes tables.
    if !engine.kind.keeps_all_in_memory() && ![EngineKind::Slm, EngineKind::Split].contains(&engine.kind) {
        return;
    }
    let ways = ["keys", "range", "batch", "clear", "drop", "first range"];
    // With long keys few fill an index; with short ones the index has more of the pool.
    let cases = match engine.kind {
        EngineKind::Slm => &[(300, false)][..],
        EngineKind::Sptree => &[(300, false), (4, false), (4, true)],
        _ => &[(300, false), (4, false)],
    };
    for (granularity, (len, buffered)) in
        granularities(engine).into_iter().flat_map(|g| cases.iter().map(move |c| (g, *c)))
    {
        let key = |i: u32| [&i.to_be_bytes()[..], &vec![0; len]].concat();
        for way in ways {
            let (machine, options) = machine(engine, granularity);
            // What is kept back is more than the record of a group.
            let mut options = Options { pm_bytes: 2 << 20, ..options };
            options.sptree.buffered = buffered;
            let db = machine.open_with(options.clone()).unwrap();
            let is_first = way == "first range";
            let space = (!is_first).then(|| db.keyspace("space").unwrap());
            let put = |i: u32, bytes: usize| match &space {
                Some(space) => space.put(key(i), vec![1; bytes]),
                None => db.put(key(i), vec![1; bytes]),
            };
            db.put([0], "kept").unwrap();
            let (tried, taken) = fill(engine, &|i, bytes| put(i, bytes).is_ok());
            let all = || 0u32.to_be_bytes()..u32::MAX.to_be_bytes();
            let outcome = match (way, &space) {
                ("keys", Some(space)) => (0..tried).try_for_each(|i| space.delete(key(i))),
                ("range", Some(space)) => space.delete_range(all()),
                ("batch", Some(space)) => {
                    let mut batch = WriteBatch::new();
                    batch.delete_in(space, key(0));
                    batch.delete_range_in(space, all());
                    db.write(batch)
                }
                ("clear", Some(space)) => space.clear(),
                ("drop", _) => db.drop_keyspace("space"),
                _ => db.delete_range(all()),
            };
            outcome.unwrap_or_else(|e| panic!("{granularity:?}, {way} after {taken} puts: {e}"));
            let left = if way == "drop" {
                0
            } else {
                space.as_ref().map_or(0, |space| space.entries().unwrap().count())
            };
            assert_eq!((left, db.all().len()), (0, 1), "{way}");
            // Single deletions leave nothing that waits for a sweep.
            if way != "keys" {
                db.sweep().unwrap();
                db.compact_range(..).unwrap();
            }
            let after = db.keyspace("after").unwrap();
            for i in 0..taken / 3 {
                let what =
                    || format!("{granularity:?}, {len}, {buffered}, {way} after {taken} puts, put {i}");
                after.put(key(i), [2; 200]).unwrap_or_else(|e| panic!("{}: {e}", what()));
            }
            assert_clean(&db);
            drop((space, after, db));
            let db = machine.open_with(options).unwrap();
            assert_eq!(db.keyspace("after").unwrap().entries().unwrap().count() as u32, taken / 3, "{way}");
            assert_clean(&db);
        }
    }
}

/// What is kept back for flushes is there when they need it: extents, however scattered, and not slots of sizes that
/// nobody asks for. Neither the first keys of a size nor deletions under a snapshot used to leave enough: no flush
/// ended any more, and so no deletion was taken.
pub fn what_is_kept_back_is_enough(engine: &Engine) {
    // In others nothing waits for a flush to make room.
    if engine.kind != EngineKind::Slm {
        return;
    }
    for (extent, lens, held) in [
        (64 << 10, 60..61, false),
        (64 << 10, 60..61, true),
        (16 << 10, 200..201, true),
        (4096, 200..201, true),
        // A slab for each size.
        (64 << 10, 4..1500, false),
        (16 << 10, 4..400, true),
    ] {
        let machine = Machine::with_memory(&Setup::roomy(engine, Granularity::Page), 16 * extent);
        let mut options = Options { pm_bytes: 4 << 20, pool_extent_bytes: extent, ..machine.options() };
        options.slm.memtable_bytes = 1 << 20;
        let db = machine.open_with(options.clone()).unwrap();
        let space = db.keyspace("space").unwrap();
        let key = |i: u32| {
            let mixed = i.wrapping_mul(0x9e37_79b1);
            let len = lens.start + (mixed >> 16) as usize % lens.len();
            [&mixed.to_be_bytes()[..], &vec![0; len]].concat()
        };
        let taken = (0..).find(|i| space.put(key(*i), [1; 100]).is_err()).unwrap();
        let what = format!("extents of {extent}, keys of {lens:?}, {taken} puts, held: {held}");
        let snapshot = held.then(|| db.snapshot());
        if held {
            // They may be refused.
            let _ = (0..taken).try_for_each(|i| space.delete(key(i)));
        }
        drop(snapshot);
        db.flush().unwrap_or_else(|e| panic!("{what}: {e}"));
        space.clear().unwrap_or_else(|e| panic!("{what}: {e}"));
        db.sweep().unwrap_or_else(|e| panic!("{what}: {e}"));
        db.flush().unwrap_or_else(|e| panic!("{what}: {e}"));
        db.compact_range(..).unwrap_or_else(|e| panic!("{what}: {e}"));
        for i in 0..taken / 3 {
            space.put(key(i), [2; 100]).unwrap_or_else(|e| panic!("{what}: put {i}: {e}"));
        }
        assert_clean(&db);
        drop((space, db));
        let db = machine.open_with(options).unwrap();
        assert_eq!(db.keyspace("space").unwrap().entries().unwrap().count() as u32, taken / 3, "{what}");
    }
}

/// The same where a full pool is opened again and again, and takes a little each time.
pub fn what_is_kept_back_lasts(engine: &Engine) {
    if engine.kind != EngineKind::Slm {
        return;
    }
    for (extent, lens, opens) in [(64 << 10, 16..17, 20), (4096, 8..300, 40)] {
        let machine = Machine::with_memory(&Setup::roomy(engine, Granularity::Page), 16 * extent);
        let mut options = Options { pm_bytes: 4 << 20, pool_extent_bytes: extent, ..machine.options() };
        options.slm.memtable_bytes = 1 << 20;
        let mut db = machine.open_with(options.clone()).unwrap();
        let key =
            |i: u32, len: usize| [&i.wrapping_mul(0x9e37_79b1).to_be_bytes()[..], &vec![0; len - 4]].concat();
        let what = format!("extents of {extent}, keys of {lens:?}");
        let before = (0..).find(|i| db.put(key(*i, 16), [1; 100]).is_err()).unwrap();
        (0..before).step_by(2).for_each(|i| db.delete(key(i, 16)).unwrap_or_else(|e| panic!("{what}: {e}")));
        db.flush().unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut next = before;
        for open in 0..opens {
            let put = |i: u32| db.put(key(i, lens.start + i as usize % lens.len()), [2; 100]);
            next = (next..).find(|i| put(*i).is_err()).unwrap();
            for i in 0..2 {
                let one = key(2 * (2 * open + i) + 1, 16);
                db.delete(one)
                    .unwrap_or_else(|e| panic!("{what}, opened {open} times, after {next} puts: {e}"));
            }
            drop(db);
            db = machine.open_with(options.clone()).unwrap();
        }
        db.flush().unwrap_or_else(|e| panic!("{what}: {e}"));
        db.delete_range(..).unwrap_or_else(|e| panic!("{what}: {e}"));
        db.sweep().unwrap_or_else(|e| panic!("{what}: {e}"));
        db.compact_range(..).unwrap_or_else(|e| panic!("{what}: {e}"));
        (0..before / 3).for_each(|i| db.put(key(i, 16), [3; 100]).unwrap_or_else(|e| panic!("{what}: {e}")));
        assert_clean(&db);
    }
}

/// A pool of so few extents that what is kept back is most of it takes puts again whenever it is opened.
pub fn a_pool_of_few_extents_takes_puts_when_it_is_opened(engine: &Engine) {
    if engine.kind != EngineKind::Slm {
        return;
    }
    for (pool, extent) in
        [(768 << 10, 64 << 10), (512 << 10, 64 << 10), (6 << 20, 512 << 10), (8 << 20, 1 << 20)]
    {
        let machine = Machine::with_memory(&Setup::roomy(engine, Granularity::Page), pool);
        let mut options = Options { pm_bytes: pool, pool_extent_bytes: extent, ..machine.options() };
        options.slm.memtable_bytes = pool / 4;
        for _ in 0..3 {
            let db = machine.open_with(options.clone()).unwrap();
            let from = db.all().len() as u32;
            for i in from..from + 20 {
                db.put(i.to_be_bytes(), [0; 100]).unwrap_or_else(|e| panic!("{extent} of {pool}, {i}: {e}"));
            }
            assert_clean(&db);
        }
    }
}

/// A pool that is larger than the medium has room for. `tlsm` counted on all of it, and refused every write, deletions as
/// well, once the medium was full.
pub fn a_medium_without_room_for_the_whole_pool_is_enough(engine: &Engine) {
    if engine.kind.keeps_all_in_memory() {
        return;
    }
    for granularity in granularities(engine) {
        let mut setup = Setup::tiny("a full medium", engine);
        setup.granularity = granularity;
        let machine = Machine::new(&setup);
        let media = machine.world().media();
        media.set_limit(1 << 20);
        let options = || with_lists(&machine, TieringKind::Lru);
        let db = machine.open_with(options()).unwrap();
        let key = |i: u32| i.wrapping_mul(0x9e37_79b1).to_be_bytes().repeat(4);
        // In `split` the index takes more than a KiB a key of a small pool.
        let (keys, bytes) = if engine.kind == EngineKind::Split { (500, 4000) } else { (4000, 600) };
        let value = |i: u32| vec![i as u8; bytes];
        let put = |db: &Db, i: u32| {
            db.put(key(i), value(i)).unwrap_or_else(|e| panic!("{granularity:?}, put {i}: {e}"));
        };
        (0..keys).for_each(|i| put(&db, i));
        (0..keys / 2).for_each(|i| db.delete(key(i)).unwrap());
        assert_clean(&db);
        drop(db);
        let db = machine.open_with(options()).unwrap();
        (keys / 2..keys).for_each(|i| assert_eq!(db.get(key(i)).unwrap().as_deref(), Some(&value(i)[..])));
        assert_eq!(db.all().len() as u32, keys / 2);
        // Room is taken again once there is some.
        media.set_limit(16 << 20);
        (0..keys).for_each(|i| put(&db, i));
        assert_eq!(db.all().len() as u32, keys);
        if engine.kind == EngineKind::Tlsm {
            assert!(used(&db) > 1 << 20, "{} bytes of the pool are in use", used(&db));
        }
        assert_clean(&db);
    }
}
