//! What an enemy would choose: keys that collide or differ where nobody looks, values at the edges of every size that
//! the allocator has, and much deleted before values of another size come.

use terrace::{Db, EngineKind, ErrorKind, Options, WriteBatch};
use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use crate::harness::{Contents, Engine, HASH_SEED, Machine, Map, Setup, assert_clean, setups};

/// Of colliding keys more than a shard of `turbo` has places for one hash.
const KEYS: u64 = 400;

/// Changes some of the keys, one by one or as a batch.
fn change(db: &Db, map: &mut Map, rng: &mut Rng, grows: u64) {
    let mut batch = WriteBatch::new();
    let writes = if rng.one_in(2) { 1 } else { 1 + rng.below(12) };
    for _ in 0..writes {
        let key = terrace_sim::hard(HASH_SEED, rng.below(KEYS));
        if rng.below(10) < grows {
            let value = vec![rng.below(256) as u8; rng.below(60) as usize];
            batch.put(&key, &value);
            map.insert(key, value);
        } else {
            batch.delete(&key);
            map.remove(&key);
        }
    }
    db.write(batch).unwrap();
}

fn holds(db: &Db, map: &Map) {
    let found: Map = db.all().into_iter().collect();
    assert!(found == *map, "{} entries found, {} expected", found.len(), map.len());
    for i in 0..KEYS {
        let key = terrace_sim::hard(HASH_SEED, i);
        assert_eq!(db.get(&key).unwrap().as_deref(), map.get(&key).map(Vec::as_slice));
    }
    assert_clean(db);
}

/// Puts, deletions and batches of them, snapshots, crashes.
pub fn keys_chosen_by_an_enemy(engine: &Engine) {
    for setup in setups(engine) {
        let mut machine = Machine::new(&setup);
        let mut db = machine.open_with(Options { pm_bytes: 16 << 20, ..machine.options() }).unwrap();
        let (mut map, mut rng) = (Map::new(), Rng::new(1));
        for grows in [9, 5, 8, 1] {
            let (snapshot, then) = (db.snapshot(), map.clone());
            (0..90).for_each(|_| change(&db, &mut map, &mut rng, grows));
            assert!(snapshot.all().into_iter().collect::<Map>() == then);
            drop(snapshot);
            holds(&db, &map);
            match grows {
                5 => db.flush().unwrap(),
                8 => db.compact_range(..).unwrap(),
                _ => {}
            }
            db.sync().unwrap();
            machine = machine.kill();
            db = machine.open_with(Options { pm_bytes: 16 << 20, ..machine.options() }).unwrap();
            holds(&db, &map);
        }
        map.keys().for_each(|key| db.delete(key).unwrap());
        holds(&db, &Map::new());
    }
}

/// Keys that had one hash when every table had the same seed.
pub fn the_seed_is_nobodys(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("drawn seed", engine));
    let env = terrace::Env { hash_seed: None, ..machine.env() };
    let db = Db::open_in(env, machine.dir(), machine.options()).unwrap();
    for i in 0..300u64 {
        db.put(&terrace_sim::colliding(0x7465_7272_6163_6521, i), &i.to_le_bytes()).unwrap();
    }
    assert_eq!(db.all().len(), 300);
    assert_clean(&db);
}

/// Sizes of the allocator's slots.
const CLASSES: [usize; 28] = [
    16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560,
    3072, 3584, 4096, 5120, 6144, 7168, 8192,
];

/// Most bytes that a record has beside its value.
const HEADS: usize = 44;

/// Values such that records of them end just before, at, and just behind the end of a slot of every size, and of one
/// extent and of two.
pub fn values_at_every_size_class(engine: &Engine) {
    for extent_bytes in [4096usize, 16 << 10, 64 << 10] {
        let setup = Setup::roomy(engine, terrace_pmem::Granularity::CacheLine);
        let machine = Machine::with_memory(&setup, 16 * extent_bytes as u64);
        let options =
            || Options { pm_bytes: 16 << 20, pool_extent_bytes: extent_bytes as u64, ..machine.options() };
        let db = machine.open_with(options()).unwrap();
        let slots = CLASSES.iter().copied().filter(|class| *class <= extent_bytes / 8);
        let mut sizes: Vec<usize> = slots.flat_map(|end| end.saturating_sub(HEADS)..=end + 1).collect();
        // Of the larger ones so many as the pool has room for.
        let step = if extent_bytes > 16 << 10 { 8 } else { 1 };
        let extents = [extent_bytes, 2 * extent_bytes].into_iter();
        sizes.extend(extents.flat_map(|end| (end - HEADS..=end + 1).step_by(step)));
        let value = |size: usize| -> Vec<u8> { (0..size).map(|i| (i * 31 + size) as u8).collect() };
        let key = |size: usize| (size as u32).to_be_bytes();
        // What replaces a value has another size.
        for shift in [1, 0] {
            sizes.iter().for_each(|size| db.put(&key(*size), &value(size + shift)).unwrap());
        }
        let expected: Map = sizes.iter().map(|size| (key(*size).to_vec(), value(*size))).collect();
        assert!(db.all().into_iter().collect::<Map>() == expected);
        assert_clean(&db);
        db.flush().unwrap();
        let db = machine.kill().open_with(options()).unwrap();
        assert!(db.all().into_iter().collect::<Map>() == expected);
        assert_clean(&db);
    }
}

/// The bytes that a database took of values of one size are there for values of another when most of them are deleted.
pub fn most_is_deleted_and_other_sizes_come(engine: &Engine) {
    const POOL: u64 = 2 << 20;
    let machine = Machine::new(&Setup::roomy(engine, terrace_pmem::Granularity::CacheLine));
    let mut options = Options { pm_bytes: POOL, ..machine.options() };
    options.slm.memtable_bytes = 64 << 10;
    options.lsm.memtable_bytes = 64 << 10;
    // The leaves of an index are to be a small part of it.
    if engine.kind == terrace::EngineKind::Sptree {
        (options.sptree.leaf_entries, options.pool_extent_bytes) = (64, 16 << 10);
    }
    if engine.kind == EngineKind::Split {
        (options.split.leaf_entries, options.pool_extent_bytes) = (64, 16 << 10);
    }
    let db = machine.open_with(options).unwrap();
    let (mut map, mut next) = (Map::new(), 0u32);
    for size in [100usize, 440, 24, 3000, 200] {
        let before = next;
        // As much as the pool takes of it, or, where values go to the disk, as it could take.
        while ((next - before) as usize * size) < POOL as usize / 2 {
            let (key, value) = (next.to_be_bytes(), vec![next as u8; size]);
            match db.put(&key, &value) {
                Ok(()) => drop(map.insert(key.to_vec(), value)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::PoolFull, "{e}");
                    break;
                }
            }
            next += 1;
        }
        let written = (next - before) as usize * size;
        assert!(written > POOL as usize / 8, "only {written} bytes of values of {size} bytes found room");
        let gone: Vec<_> =
            map.keys().enumerate().filter(|(i, _)| i % 50 != 0).map(|(_, k)| k.clone()).collect();
        for key in gone {
            db.delete(&key).unwrap();
            map.remove(&key);
        }
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        assert!(db.all().into_iter().collect::<Map>() == map);
        assert_clean(&db);
    }
}

/// Keys of which each takes extents of its own, alike at their ends or at their beginnings: flushed or not, one by one or
/// in a group for whose keys the index may have no room, they can be deleted from a full pool.
pub fn a_pool_full_of_long_keys_is_left_by_deleting(engine: &Engine) {
    // In others what does not fit becomes tables.
    if !engine.kind.keeps_all_in_memory() && ![EngineKind::Slm, EngineKind::Split].contains(&engine.kind) {
        return;
    }
    let cases = [9_000, 20_000].into_iter().flat_map(|len| [false, true].map(|at_end| (len, at_end)));
    for (len, at_end) in cases {
        let machine = Machine::with_memory(&Setup::roomy(engine, Granularity::CacheLine), 8 << 20);
        let options = Options { pm_bytes: 8 << 20, pool_extent_bytes: 64 << 10, ..machine.options() };
        let mut db = machine.open_with(options.clone()).unwrap();
        let key = |i: u32| match at_end {
            true => [&vec![7; len][..], &i.to_be_bytes()].concat(),
            false => [&i.to_be_bytes()[..], &vec![7; len]].concat(),
        };
        let delete = |db: &Db, i: u32| {
            db.delete(key(i)).unwrap_or_else(|e| panic!("key {i} of {len} bytes, {at_end}: {e}"));
        };
        // Short keys come between, so that the mean length says nothing.
        let short = |i: u32| [&[1][..], &i.to_le_bytes()[..]].concat();
        let put = |i: u32| {
            (0..10).try_for_each(|n| db.put(short(i * 10 + n), "")).and_then(|()| db.put(key(i), [1; 10]))
        };
        let there = (0..2000).find(|i| put(*i).is_err()).unwrap_or(2000);
        assert!((20..2000).contains(&there), "{there} keys of {len} bytes");
        (0..there / 2).for_each(|i| delete(&db, i));
        db.flush().unwrap();
        // What deletions have left is given back without more of them.
        (0..100u32).for_each(|i| db.put(i.to_le_bytes(), "short").unwrap());
        let mut group = WriteBatch::new();
        (0..there * 2 / 3).for_each(|i| group.put(key(3000 + i), [3; 10]));
        let is_written = db.write(group).is_ok();
        for i in there / 2..there {
            if i == there * 3 / 4 {
                drop(db);
                db = machine.open_with(options.clone()).unwrap();
            }
            delete(&db, i);
        }
        let long_keys = |db: &Db| db.all().iter().filter(|(key, _)| key.len() > len).count() as u32;
        assert_eq!(long_keys(&db), if is_written { there * 2 / 3 } else { 0 });
        (0..there * 2 / 3).for_each(|i| delete(&db, 3000 + i));
        db.flush().unwrap();
        assert_eq!(long_keys(&db), 0);
        db.compact_range(..).unwrap();
        (0..there / 2).for_each(|i| db.put(key(i), [2; 10]).unwrap());
        assert_clean(&db);
    }
}

/// Puts keys of one length until some are refused: they can be flushed, deleted and put back, also after the pool was
/// lost. The index has rows of extents for them, and what a job records of them is as long as they are.
pub fn long_keys_fill_a_pool_of_any_extents(engine: &Engine) {
    if engine.kind != EngineKind::Slm {
        return;
    }
    // Pools like these were stuck for good, or could not be opened.
    let cases = [
        (4 << 20, 4096, 741, Granularity::CacheLine, true),
        (4 << 20, 8192, 2464, Granularity::Page, true),
        (8 << 20, 8192, 8871, Granularity::CacheLine, false),
    ];
    for (pm_bytes, pool_extent_bytes, len, granularity, at_end) in cases {
        let what = format!("{len} bytes in {pm_bytes}, {pool_extent_bytes} an extent");
        let key = |i: u32| {
            let number = i.wrapping_mul(0x9e37_79b1).to_be_bytes();
            let rest = vec![7; len];
            if at_end { [&rest[..], &number].concat() } else { [&number[..], &rest].concat() }
        };
        let mut machine = Machine::with_memory(&Setup::roomy(engine, granularity), pm_bytes);
        let mut options = Options { pm_bytes, pool_extent_bytes, ..machine.options() };
        options.slm.memtable_bytes = 1 << 20;
        let mut db = machine.open_with(options.clone()).unwrap();
        let there = (0..40_000).find(|i| db.put(key(*i), [1; 20]).is_err()).unwrap_or(40_000);
        (0..20).for_each(|i| drop(db.put(key(there + i), [1; 20])));
        db.flush().unwrap_or_else(|e| panic!("{what}: {there} keys: {e}"));
        if granularity == Granularity::Page {
            // The pool is lost.
            db.sync().unwrap();
            machine = machine.power_cut(1);
            db = machine.open_with(options.clone()).unwrap_or_else(|e| panic!("{what}: power cut: {e}"));
        }
        for i in 0..there + 20 {
            db.delete(key(i)).unwrap_or_else(|e| panic!("{what}: deletion {i} of {there}: {e}"));
        }
        db.flush().unwrap_or_else(|e| panic!("{what}: after the deletions: {e}"));
        assert_eq!(db.all().len(), 0, "{what}");
        (0..there / 2).for_each(|i| db.put(key(i), [2; 20]).unwrap_or_else(|e| panic!("{what}: {e}")));
        assert_clean(&db);
    }
}
