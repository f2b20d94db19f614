//! The stores that survive, depending on flushes, orderings and drains.

use std::collections::HashSet;

use super::*;

fn medium(granularity: Granularity) -> SimPm {
    SimPm::new(PmOptions { bytes: 8192, capacity: 65536, granularity })
}

fn store(pm: &SimPm, at: u64, value: u64) {
    assert!(at.is_multiple_of(8) && at + 8 <= pm.len());
    // SAFETY: an aligned word inside the medium, as just asserted.
    unsafe { AtomicU64::from_ptr(pm.base().add(at as usize).cast()) }.store(value, Ordering::Release);
}

fn load(pm: &SimPm, at: u64) -> u64 {
    assert!(at.is_multiple_of(8) && at + 8 <= pm.len());
    // SAFETY: an aligned word inside the medium, as just asserted.
    unsafe { AtomicU64::from_ptr(pm.base().add(at as usize).cast()) }.load(Ordering::Acquire)
}

fn persist(pm: &SimPm, at: u64) {
    pm.flush(at, 8);
    pm.drain();
}

/// Every combination of the words at `at` that power cuts with many seeds leave.
fn outcomes(pm: &SimPm, at: &[u64]) -> HashSet<Vec<u64>> {
    let snapshot = pm.capture();
    (0..400)
        .map(|seed| {
            let survivor = snapshot.power_cut(Survival::Seeded(seed));
            at.iter().map(|&at| load(&survivor, at)).collect()
        })
        .collect()
}

#[test]
fn what_is_drained_is_there_and_nothing_else_is_certain() {
    let pm = medium(Granularity::CacheLine);
    store(&pm, 0, 1);
    persist(&pm, 0);
    store(&pm, 64, 2);
    pm.flush(64, 8);
    store(&pm, 128, 3);
    let nothing = pm.capture().power_cut(Survival::Nothing);
    assert_eq!([0, 64, 128].map(|at| load(&nothing, at)), [1, 0, 0]);
    let everything = pm.capture().power_cut(Survival::Everything);
    assert_eq!([0, 64, 128].map(|at| load(&everything, at)), [1, 2, 3]);
    let all = [[1, 0, 0], [1, 2, 0], [1, 0, 3], [1, 2, 3]].map(Vec::from);
    assert_eq!(outcomes(&pm, &[0, 64, 128]), HashSet::from(all));
}

#[test]
fn a_store_after_the_flush_is_not_covered_by_it() {
    let pm = medium(Granularity::CacheLine);
    store(&pm, 0, 1);
    pm.flush(0, 8);
    store(&pm, 0, 2);
    pm.drain();
    assert_eq!(outcomes(&pm, &[0]), HashSet::from([vec![1], vec![2]]));
}

#[test]
fn words_of_one_line_are_torn_apart_unless_ordered() {
    let pm = medium(Granularity::CacheLine);
    store(&pm, 0, 1);
    store(&pm, 8, 1);
    let free = [[0, 0], [0, 1], [1, 0], [1, 1]].map(Vec::from);
    assert_eq!(outcomes(&pm, &[0, 8]), HashSet::from(free));

    let pm = medium(Granularity::CacheLine);
    store(&pm, 0, 1);
    pm.order(0);
    store(&pm, 8, 1);
    let ordered = [[0, 0], [1, 0], [1, 1]].map(Vec::from);
    assert_eq!(outcomes(&pm, &[0, 8]), HashSet::from(ordered));
}

#[test]
fn a_flush_alone_orders_nothing() {
    let pm = medium(Granularity::CacheLine);
    store(&pm, 0, 1);
    pm.flush(0, 8);
    store(&pm, 8, 1);
    assert!(outcomes(&pm, &[0, 8]).contains(&vec![0, 1]));
}

#[test]
fn a_line_may_hold_a_state_it_only_passed_through() {
    let pm = medium(Granularity::CacheLine);
    for value in 1..4 {
        store(&pm, 0, value);
        pm.order(0);
    }
    assert_eq!(outcomes(&pm, &[0]), HashSet::from([0, 1, 2, 3].map(|v| vec![v])));
}

#[test]
fn one_threads_drain_leaves_the_other_threads_flushes_pending() {
    let pm = medium(Granularity::CacheLine);
    store(&pm, 0, 1);
    std::thread::scope(|s| {
        s.spawn(|| pm.flush(0, 8));
    });
    pm.drain();
    assert_eq!(load(&pm.capture().power_cut(Survival::Nothing), 0), 0);
}

#[test]
fn byte_media_need_a_drain_and_no_flush() {
    let pm = medium(Granularity::Byte);
    store(&pm, 0, 1);
    assert_eq!(outcomes(&pm, &[0]), HashSet::from([vec![0], vec![1]]));
    pm.drain();
    assert!(!pm.is_dirty());
    assert_eq!(outcomes(&pm, &[0]), HashSet::from([vec![1]]));
}

#[test]
fn page_media_need_a_sync_and_tear_whole_pages() {
    let pm = medium(Granularity::Page);
    store(&pm, 0, 1);
    persist(&pm, 0);
    assert_eq!(load(&pm.capture().power_cut(Survival::Nothing), 0), 0);
    pm.sync().unwrap();
    store(&pm, 0, 2);
    store(&pm, 2048, 2);
    let all = [[1, 0], [2, 0], [1, 2], [2, 2]].map(Vec::from);
    assert_eq!(outcomes(&pm, &[0, 2048]), HashSet::from(all));
    assert_eq!(load(&pm.capture().power_cut(Survival::Wiped), 0), 0);
}

#[test]
fn growth_of_a_page_medium_is_durable_after_sync() {
    let pm = medium(Granularity::Page);
    pm.grow(16384).unwrap();
    let lengths: HashSet<u64> = (0..20).map(|s| pm.capture().power_cut(Survival::Seeded(s)).len()).collect();
    assert_eq!(lengths, HashSet::from([8192, 16384]));
    pm.sync().unwrap();
    assert_eq!(pm.capture().power_cut(Survival::Nothing).len(), 16384);
}

#[test]
fn grown_bytes_are_zero_whatever_the_buffer_held_before() {
    for _ in 0..3 {
        let pm = medium(Granularity::CacheLine);
        assert_eq!(load(&pm, 0), 0);
        pm.grow(65536).unwrap();
        assert!((0..65536 / 8).all(|i| load(&pm, i * 8) == 0));
        assert!(!pm.is_dirty());
        (0..65536 / 8).for_each(|i| store(&pm, i * 8, u64::MAX));
    }
}

#[test]
fn a_full_medium_says_so_and_stays_as_it_was() {
    let pm = medium(Granularity::CacheLine);
    assert!(matches!(pm.grow(65537), Err(Error::NoSpace { .. })));
    pm.set_limit(16384);
    assert!(matches!(pm.grow(20480), Err(Error::NoSpace { .. })));
    assert_eq!(pm.len(), 8192);
    pm.grow(16384).unwrap();
    assert_eq!(pm.len(), 16384);
}

#[test]
fn a_kill_keeps_every_store_but_makes_none_durable() {
    let pm = medium(Granularity::CacheLine);
    store(&pm, 0, 1);
    pm.flush(0, 8);
    let heir = pm.capture().kill();
    assert_eq!(load(&heir, 0), 1);
    heir.drain();
    assert_eq!(load(&heir.capture().power_cut(Survival::Nothing), 0), 0);
    heir.sync().unwrap();
    assert_eq!(load(&heir.capture().power_cut(Survival::Nothing), 0), 1);
}

#[test]
fn a_survivor_is_apart_from_its_parent() {
    let pm = medium(Granularity::CacheLine);
    store(&pm, 0, 1);
    persist(&pm, 0);
    let survivor = pm.capture().power_cut(Survival::Everything);
    store(&survivor, 0, 9);
    persist(&survivor, 0);
    assert_eq!(load(&pm, 0), 1);
    assert_eq!(load(&pm.capture().power_cut(Survival::Nothing), 0), 1);
}

#[test]
fn the_same_seed_leaves_the_same_bytes() {
    let pm = medium(Granularity::CacheLine);
    (0..100).for_each(|i| store(&pm, i * 72, i));
    let bytes = |seed| {
        let survivor = pm.capture().power_cut(Survival::Seeded(seed));
        (0..8192 / 8).map(|i| load(&survivor, i * 8)).collect::<Vec<_>>()
    };
    for seed in 0..20 {
        assert_eq!(bytes(seed), bytes(seed));
    }
    assert!((1..20).any(|seed| bytes(seed) != bytes(0)));
}

#[test]
#[should_panic(expected = "flush of 8 bytes")]
fn a_wild_flush_is_a_bug_of_the_program() {
    medium(Granularity::CacheLine).flush(8190, 8);
}
