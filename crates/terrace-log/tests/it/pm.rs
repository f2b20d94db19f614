//! Logs on persistent memory: power cuts at every drain, kills, damage, space.

use std::path::Path;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use terrace_base::ErrorKind;
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::rng::Rng;
use terrace_log::{LogReader, LogWriter, PmLog, PmSegment, Segment};
use terrace_pmem::{Granularity, Kind, MemMedia, Opened, Pool, PoolOptions};
use terrace_sim::{Survival, World, WorldOptions};

const KIND: Kind = Kind(40);
const ROOT: &str = "log";

fn options(boot_id: Option<&str>) -> PoolOptions {
    PoolOptions {
        size: 128 << 10,
        max_size: 4 << 20,
        extent_bytes: 4096,
        prefault: false,
        boot_id: boot_id.map(str::to_owned),
        ..PoolOptions::default()
    }
}

fn create(world: &World) -> Pool {
    Pool::create_on(world.media(), Path::new("pool"), &options(Some(world.boot_id()))).unwrap()
}

fn open(world: &World) -> Pool {
    Pool::open_on(world.media(), Path::new("pool"), &options(Some(world.boot_id()))).unwrap()
}

fn memory_pool(max_size: u64) -> Pool {
    let media = Arc::new(MemMedia::new(128 << 10, max_size, Granularity::CacheLine).unwrap());
    Pool::create_on(media, Path::new("pool"), &PoolOptions { max_size, ..options(None) }).unwrap()
}

/// Opens the log in a survivor and checks that its entries are `all`'s first, at least `sure` of them.
fn survived(pool: &Pool, all: &[Vec<u8>], sure: usize) -> PmLog {
    let head = pool.root(ROOT).unwrap().unwrap();
    let log = PmLog::open(pool, head).unwrap();
    let entries: Vec<_> = log.iter().unwrap().collect();
    assert!(entries.len() >= sure && entries[..] == all[..entries.len()], "{} of {sure}", entries.len());
    assert_eq!((log.entries(), log.check()), (entries.len() as u64, Vec::new()));
    let mut marks = pool.marks();
    log.mark(&mut marks).unwrap();
    pool.reclaim(&marks).unwrap();
    let mut marks = pool.marks();
    log.mark(&mut marks).unwrap();
    assert!(pool.check(&marks).is_empty());
    log
}

#[derive(Debug, Clone)]
enum Op {
    Append(Vec<u8>),
    Persist,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Op::Append),
        1 => prop::collection::vec(any::<u8>(), 0..9000).prop_map(Op::Append),
        4 => Just(Op::Persist),
        1 => Just(Op::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_was_persisted_survives(ops in prop::collection::vec(op(), 1..25), seed: u64) {
        let world = World::new(seed, WorldOptions::default());
        let pool = create(&world);
        let mut log = PmLog::create(&pool, KIND, 100).unwrap();
        pool.set_root(ROOT, log.head()).unwrap();
        let (mut all, mut sure, mut rng) = (Vec::new(), 0, Rng::new(seed));
        for op in &ops {
            match op {
                Op::Append(entry) => {
                    log.append(entry).unwrap();
                    all.push(entry.clone());
                }
                Op::Persist => {
                    log.persist().unwrap();
                    sure = all.len();
                }
                Op::Reopen => {
                    log = PmLog::open(&pool, log.head()).unwrap();
                    sure = all.len();
                }
            }
            for next in [world.crash(rng.next_u64()), world.crash(rng.next_u64())] {
                go_on(&next, &all, sure, &mut rng);
            }
        }
        let killed = open(&world.kill());
        prop_assert_eq!(killed.opened(), Opened::SameBoot);
        survived(&killed, &all, all.len());
    }
}

/// Recovers, appends other entries than were lost, and recovers again: nothing lost comes back.
fn go_on(world: &World, all: &[Vec<u8>], sure: usize, rng: &mut Rng) {
    let pool = open(world);
    let mut log = survived(&pool, all, sure);
    let mut kept: Vec<_> = log.iter().unwrap().collect();
    let again = world.crash(rng.next_u64());
    survived(&open(&again), &kept, kept.len());
    // As long as the entry that was lost, so that later ones would fit behind it.
    let len = all.get(kept.len()).map_or(10, Vec::len);
    kept.push(vec![0x5a; len]);
    log.append(&kept[kept.len() - 1]).unwrap();
    log.persist().unwrap();
    survived(&open(&world.crash(rng.next_u64())), &kept, kept.len());
}

#[test]
fn one_drain_makes_a_batch_durable() {
    let pool = memory_pool(4 << 20);
    let mut log = PmLog::create(&pool, KIND, 100 << 10).unwrap();
    let before = pool.stats();
    for i in 0..100u64 {
        log.append(&i.to_le_bytes()).unwrap();
    }
    log.persist().unwrap();
    assert_eq!(pool.stats().since(&before).drains, 1);
    log.persist().unwrap();
    assert_eq!(pool.stats().since(&before).drains, 1, "nothing new, nothing to drain");
}

#[test]
fn extents_used_before_bring_nothing_back() {
    let pool = memory_pool(4 << 20);
    let mut heads = Vec::new();
    for round in 0..5u8 {
        let mut log = PmLog::create(&pool, KIND, 100).unwrap();
        heads.push(log.head());
        assert_eq!(PmLog::open(&pool, log.head()).unwrap().entries(), 0);
        for i in 0..300u64 {
            log.append(&[i.to_le_bytes(), [round; 8]].concat()).unwrap();
        }
        log.persist().unwrap();
        // Reopened after each round with the same entries behind every possible end.
        assert_eq!(PmLog::open(&pool, log.head()).unwrap().entries(), 300);
        log.free().unwrap();
    }
    heads.dedup();
    assert_eq!(heads.len(), 1, "the allocator gives the same extent again, or this tests nothing");
    assert!(pool.extents(KIND).is_empty());
}

#[test]
fn a_full_pool_loses_nothing() {
    let pool = memory_pool(256 << 10);
    let mut log = PmLog::create(&pool, KIND, 100).unwrap();
    let mut entries = 0;
    let error = loop {
        match log.append(&[entries as u8; 1000]) {
            Ok(_) => entries += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::PoolFull);
    log.persist().unwrap();
    assert_eq!(log.entries(), entries);
    let again = PmLog::open(&pool, log.head()).unwrap();
    assert_eq!((again.entries(), again.check()), (entries, Vec::new()));
}

/// Slabs that are empty are room: no extent is free beside them.
#[test]
fn empty_slabs_are_room() {
    const OTHERS: Kind = Kind(41);
    let pool = memory_pool(256 << 10);
    let mut log = PmLog::create(&pool, KIND, 100).unwrap();
    let mut others = Vec::new();
    while let Ok(extent) = pool.reserve_extent(OTHERS, 1) {
        pool.activate(&extent);
        pool.drain();
        others.push(extent.offset);
    }
    let sizes = [64, 128, 256, 512];
    for (extent, _) in others.iter().step_by(5).zip(sizes) {
        pool.free_extent(*extent, OTHERS).unwrap();
    }
    let slots = sizes.map(|bytes| pool.reserve(OTHERS, bytes).unwrap());
    for slot in slots {
        pool.activate(&slot);
        pool.drain();
        pool.free(slot.offset, OTHERS).unwrap();
    }
    for i in 0..4 {
        log.append(&[i; 3500]).unwrap();
    }
    assert_eq!(log.entries(), 4);
}

/// What is refused has taken nothing of the pool, so nothing but the next append sees that the medium has room again.
#[test]
fn appends_go_on_once_the_medium_has_room() {
    let world = World::new(12, WorldOptions::default());
    let options = PoolOptions { max_size: 4 << 20, ..options(Some(world.boot_id())) };
    let pool = Pool::create_on(world.media(), Path::new("pool"), &options).unwrap();
    let mut log = PmLog::create(&pool, KIND, 100).unwrap();
    world.media().set_limit(pool.size());
    let refused = (0..1000).find_map(|_| log.append(&[1; 3000]).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let (entries, free) = (log.entries(), pool.free_bytes());
    (0..20).for_each(|_| assert_eq!(log.append(&[1; 1 << 20]).unwrap_err().kind(), ErrorKind::NoSpace));
    assert_eq!((log.entries(), pool.free_bytes()), (entries, free));
    world.media().set_limit(4 << 20);
    log.append(&[2; 1 << 20]).unwrap();
    log.persist().unwrap();
    assert_eq!((log.entries(), log.check()), (entries + 1, Vec::new()));
}

/// Room for several entries is there, but in no two extents that adjoin. Must catch extents that are linked in another
/// order than they are filled, and what a refused growth has linked and nobody frees.
#[test]
fn scattered_extents_are_room() {
    const OTHERS: Kind = Kind(41);
    let world = World::new(11, WorldOptions::default());
    let options = PoolOptions { max_size: 1 << 20, ..options(Some(world.boot_id())) };
    let pool = Pool::create_on(world.media(), Path::new("pool"), &options).unwrap();
    let mut log = PmLog::create(&pool, KIND, 100).unwrap();
    pool.set_root(ROOT, log.head()).unwrap();
    let mut others = Vec::new();
    while let Ok(extent) = pool.reserve_extent(OTHERS, 1) {
        pool.activate(&extent);
        pool.drain();
        others.push(extent.offset);
    }
    let (freed, held): (Vec<u64>, Vec<u64>) = others.into_iter().partition(|offset| offset / 4096 % 2 == 0);
    freed.iter().for_each(|offset| pool.free_extent(*offset, OTHERS).unwrap());
    assert!(freed.len() > 8 && pool.reserve_extent(OTHERS, 4097).is_err(), "{freed:?}");

    let caught: Arc<Mutex<Vec<_>>> = Arc::default();
    let taken = caught.clone();
    world.on_event(Box::new(move |_, world| taken.lock().unwrap().push(world.capture())));
    log.reserve(6, 18_000).unwrap();
    let reserved = caught.lock().unwrap().len();
    assert!(reserved >= 5, "{reserved} events");
    let all: Vec<_> = (0..6u8).map(|i| vec![i + 1; 3000]).collect();
    for entry in &all {
        log.append(entry).unwrap();
    }
    log.persist().unwrap();
    // More than there is: nothing is taken.
    assert_eq!(log.reserve(1, 2 << 20).unwrap_err().kind(), ErrorKind::PoolFull);
    pool.cancel(pool.reserve_extent(OTHERS, 1).unwrap());
    world.ignore_events();
    for (i, snapshot) in caught.lock().unwrap().iter().enumerate() {
        for world in [snapshot.power_cut(Survival::Seeded(i as u64)), snapshot.kill()] {
            let pool = Pool::open_on(world.media(), Path::new("pool"), &options).unwrap();
            let mut log = survived(&pool, &all, 0);
            let mut kept: Vec<_> = log.iter().unwrap().collect();
            kept.push(vec![9; 2000]);
            log.append(&kept[kept.len() - 1]).unwrap();
            log.persist().unwrap();
            drop(log);
            survived(&pool, &kept, kept.len());
        }
    }
    assert_eq!(PmLog::open(&pool, log.head()).unwrap().iter().unwrap().collect::<Vec<_>>(), all);
    held.iter().for_each(|offset| pool.free_extent(*offset, OTHERS).unwrap());
    log.append(&[7; 60 << 10]).unwrap();
    pool.clear_root(ROOT).unwrap();
    log.free().unwrap();
    assert!(pool.extents(KIND).is_empty() && pool.check(&pool.marks()).is_empty());
}

#[test]
fn every_flipped_bit_is_found() {
    let pool = memory_pool(4 << 20);
    let mut log = PmLog::create(&pool, KIND, 100).unwrap();
    let written = [&b"first"[..], b"second", b"third"];
    for entry in written {
        log.append(entry).unwrap();
        log.persist().unwrap();
    }
    let (head, used) = (log.head(), 64 + log.len());
    let last = used - 24 - 5;
    for at in head..head + used {
        for bit in 0..8 {
            // SAFETY: nobody else uses this pool.
            let byte = unsafe { pool.bytes(at, 1).unwrap()[0] };
            pool.write(at, &[byte ^ 1 << bit]);
            let opened = PmSegment::open(&pool, head).and_then(|segment| {
                let mut found = Vec::new();
                LogReader::read_file(&segment.read()?, segment.path(), segment.id(), &mut |_, entry| {
                    found.push(entry.to_vec());
                    Ok(())
                })?;
                Ok(found)
            });
            match opened {
                Ok(found) if found.len() == 3 => {
                    assert_eq!(found, written);
                    panic!("byte {} bit {bit} went unseen", at - head);
                }
                Ok(found) => assert!(found == written[..2] && at - head >= last, "byte {}", at - head),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corruption, "byte {}", at - head),
            }
            pool.write(at, &[byte]);
        }
    }
}

/// Must catch a sound log of a later version that is taken for damage, which a repair gives up.
#[test]
fn a_sound_extent_of_another_version_is_refused_by_name() {
    let pool = memory_pool(4 << 20);
    let mut log = PmLog::create(&pool, KIND, 100).unwrap();
    log.append(b"entry").unwrap();
    let head = log.head();
    // SAFETY: nobody else is at the pool.
    let image = unsafe { pool.bytes(head, 56).unwrap() }.to_vec();
    for version in [0u32, 2, 0x0100_0001] {
        let mut other = image.clone();
        other[8..12].copy_from_slice(&version.to_le_bytes());
        pool.write(head, &other);
        assert_eq!(PmLog::open(&pool, head).unwrap_err().kind(), ErrorKind::Corruption, "another check");
        let check = crc32c_append(crc32c(&other[..12]), &other[16..56]);
        pool.write(head + 12, &check.to_le_bytes());
        let error = PmLog::open(&pool, head).unwrap_err();
        assert!(error.is_of_another_version(), "{error}");
    }
    pool.write(head, &image);
    assert_eq!(PmLog::open(&pool, head).unwrap().entries(), 1);
}

#[test]
fn wild_heads_are_corruption() {
    let pool = memory_pool(4 << 20);
    let log = PmLog::create(&pool, KIND, 100).unwrap();
    for head in
        [0, 1, log.head() + 8, log.head() + 4096, pool.size() - 8, pool.size(), u64::MAX - 8, u64::MAX]
    {
        assert_eq!(PmLog::open(&pool, head).unwrap_err().kind(), ErrorKind::Corruption, "{head:#x}");
    }
}

#[test]
fn a_commit_by_another_thread_than_the_appends_is_durable() {
    let world = World::new(5, WorldOptions::default());
    let pool = create(&world);
    let segment = PmSegment::create(&pool, KIND, 100).unwrap();
    pool.set_root(ROOT, segment.head()).unwrap();
    let id = segment.id();
    let mut writer = LogWriter::create(segment, id).unwrap();
    for i in 0..3u8 {
        std::thread::scope(|scope| {
            let writer = &mut writer;
            scope.spawn(move || writer.append(&[i; 100]).unwrap());
        });
    }
    // This thread's append has to take over what the others flushed, and its sync drains it all.
    writer.append(&[3; 100]).unwrap();
    writer.sync().unwrap();
    let entries: Vec<_> = (0..4).map(|i| vec![i; 100]).collect();
    for seed in 0..20 {
        survived(&open(&world.crash(seed)), &entries, 4);
    }
}

#[test]
fn what_a_dead_process_stored_and_the_next_one_read_is_durable() {
    let world = World::new(7, WorldOptions::default());
    let pool = create(&world);
    let mut log = PmLog::create(&pool, KIND, 100).unwrap();
    pool.set_root(ROOT, log.head()).unwrap();
    let entries = [vec![1; 300], vec![2; 300]];
    entries.iter().for_each(|entry| assert!(log.append(entry).is_ok()));
    let next = world.kill();
    let pool = open(&next);
    assert_eq!(PmLog::open(&pool, log.head()).unwrap().entries(), 2);
    for seed in 0..20 {
        survived(&open(&next.crash(seed)), &entries, 2);
    }
}
