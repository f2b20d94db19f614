//! Thresholds, figures, cuts and the order of choices, by example and against plainer formulations.

use proptest::prelude::*;

use super::ranges::{are_alone, heaviest};
use super::*;
use crate::compaction::overlap::overlaps;

/// Where a bucket is cut: at keys of all tables, around tables that stay. `sample` returns keys of a
/// table, by its index.
pub(super) fn cuts(
    tables: &[BucketTable<'_>],
    sample: impl Fn(usize) -> Vec<Vec<u8>>,
    kept: &[u64],
    options: &BucketOptions,
) -> Vec<Vec<u8>> {
    let ranges: Vec<KeyRange<'_>> = tables.iter().map(BucketTable::range).collect();
    let Some(first) = ranges.iter().map(|(smallest, _)| *smallest).min() else { return Vec::new() };
    let mut keys: Vec<Vec<u8>> = (0..tables.len()).flat_map(sample).collect();
    keys.sort_unstable();
    let stay: Vec<KeyRange<'_>> =
        tables.iter().filter(|t| kept.contains(&t.number)).map(BucketTable::range).collect();
    fit(splitters(&keys, options.split_into, first), &stay, first)
}

/// A bucket of 512 bytes and memtables of one: eight sublevels on each level reach it. Thresholds are all
/// equal.
fn options() -> BucketOptions {
    BucketOptions { jitter: 0, capacity: 512, memtable_bytes: 1, ..BucketOptions::default() }
}

fn table(number: u64, level: u32, bytes: u64, range: (&'static str, &'static str)) -> BucketTable<'static> {
    BucketTable {
        number,
        level,
        bytes,
        entries: bytes,
        deletes: 0,
        smallest: range.0.as_bytes(),
        largest: range.1.as_bytes(),
        keeps_old: false,
        max_seq: number,
        busy: false,
    }
}

/// This many tables of one byte on `level`, one above the other.
fn pile(level: u32, count: u64) -> Vec<BucketTable<'static>> {
    (0..count).map(|number| table(number, level, 1, ("a", "z"))).collect()
}

/// A seed with which a bucket is full exactly at its capacity.
fn plain_seed() -> u64 {
    let full_at_once = |seed: &u64| {
        let tables = [table(1, 2, 511, ("a", "m")), table(2, 0, 1, ("a", "m"))];
        BucketFigures::new(&tables, 0.0, 0, *seed).is_full(&options(), None)
    };
    (0..100).find(full_at_once).expect("one of four seeds is such a one")
}

fn bucket(tables: &[BucketTable<'_>]) -> BucketFigures {
    BucketFigures::new(tables, 0.0, 0, plain_seed())
}

fn choice(buckets: &[BucketFigures], reads: &[[u64; LEVELS]]) -> Option<Pick> {
    choose(buckets, reads, &options(), None)
}

#[test]
fn three_levels_reach_the_capacity_whatever_a_flush_writes() {
    let with = |memtable_bytes| BucketOptions { memtable_bytes, ..options() }.threshold();
    assert_eq!([with(100), with(1)], [8, 8]);
    let of = |capacity| BucketOptions { capacity, ..options() }.threshold();
    assert_eq!([of(513), of(729), of(730), of(20 * 20 * 20), of(1 << 40)], [9, 9, 10, 20, 32]);
    assert_eq!(with(0), 32);
    assert_eq!(BucketOptions { sublevels: 0, memtable_bytes: 100, ..options() }.threshold(), 2);
}

#[test]
fn thresholds_differ_by_bucket_and_level() {
    let options = BucketOptions { jitter: 5, ..options() };
    let thresholds = |level| -> Vec<usize> {
        (0..100).map(|seed| BucketFigures::new(&[], 0.0, 0, seed).threshold(level, &options)).collect()
    };
    for level in 0..LEVELS {
        assert!((8..=13).all(|t| thresholds(level).contains(&t)));
        assert!(thresholds(level).iter().all(|t| (8..=13).contains(t)));
    }
    assert_ne!(thresholds(0), thresholds(1));
}

#[test]
fn a_level_is_due_when_it_is_deep_or_of_many_tables() {
    assert_eq!(choice(&[bucket(&pile(0, 7))], &[]), None);
    assert_eq!(choice(&[bucket(&pile(0, 8))], &[]), Some(Pick::Level { bucket: 0, level: 0 }));
    assert_eq!(choice(&[bucket(&pile(1, 8))], &[]), Some(Pick::Level { bucket: 0, level: 1 }));
    let keys: Vec<[u8; 1]> = (0..64).map(|i| [i]).collect();
    let ascending = |count: usize| -> Vec<BucketTable<'_>> {
        let at = |key| BucketTable { smallest: key, largest: key, ..table(1, 0, 1, ("", "")) };
        keys[..count].iter().map(|key| at(&key[..])).collect()
    };
    assert_eq!(choice(&[bucket(&ascending(63))], &[]), None);
    assert_eq!(choice(&[bucket(&ascending(64))], &[]), Some(Pick::Level { bucket: 0, level: 0 }));
}

#[test]
fn a_level_that_a_job_reads_waits() {
    let mut tables = pile(0, 20);
    tables.push(BucketTable { busy: true, ..table(99, 0, 1, ("a", "z")) });
    assert_eq!(choice(&[bucket(&tables)], &[]), None);
    tables.extend(pile(1, 8));
    assert_eq!(choice(&[bucket(&tables)], &[]), Some(Pick::Level { bucket: 0, level: 1 }));
}

#[test]
fn what_is_read_is_merged_before_it_is_due() {
    let two = [bucket(&pile(0, 14)), bucket(&pile(0, 15))];
    let options = BucketOptions { sublevels: 16, capacity: 400, ..options() };
    let choice = |buckets: &[BucketFigures], reads: &[[u64; LEVELS]]| choose(buckets, reads, &options, None);
    assert_eq!(choice(&two, &[]), None);
    assert_eq!(choice(&two, &[[1, 0, 0], [0; 3]]), Some(Pick::Level { bucket: 0, level: 0 }));
    let shallow = [bucket(&pile(0, 3))];
    assert_eq!(choice(&shallow, &[[1000, 0, 0]]), None);
    // Too few reads for its cost.
    let large: Vec<_> = pile(0, 4).into_iter().map(|t| BucketTable { bytes: 100 << 10, ..t }).collect();
    let vast = BucketOptions { capacity: 1 << 30, memtable_bytes: 1 << 20, ..options.clone() };
    assert_eq!(choose(&[bucket(&large)], &[[6, 0, 0]], &vast, None), None);
    assert!(choose(&[bucket(&large)], &[[7, 0, 0]], &vast, None).is_some());
    let unaware = BucketOptions { read_aware: false, ..options.clone() };
    assert_eq!(choose(&two, &[[1000, 0, 0], [0; 3]], &unaware, None), None);
}

#[test]
fn priority_is_by_reads_then_by_sublevels() {
    let level = |bucket| Some(Pick::Level { bucket, level: 0 });
    let due = [bucket(&pile(0, 9)), bucket(&pile(0, 10)), bucket(&pile(0, 8))];
    assert_eq!(choice(&due, &[]), level(1));
    assert_eq!(choice(&due, &[[0; 3], [1, 0, 0], [9, 0, 0]]), level(2));
    let unaware = BucketOptions { read_aware: false, ..options() };
    assert_eq!(choose(&due, &[[0; 3], [1, 0, 0], [9, 0, 0]], &unaware, None), level(1));
    // A due level precedes one that is only read.
    let mixed = [bucket(&pile(0, 7)), bucket(&pile(0, 8))];
    assert_eq!(choice(&mixed, &[[1000, 0, 0], [0; 3]]), level(1));
}

#[test]
fn a_full_bucket_goes_after_urgent_levels_and_before_others() {
    let full = bucket(&[table(1, 2, 511, ("a", "z")), table(2, 0, 1, ("a", "z"))]);
    let due = bucket(&pile(0, 15));
    let urgent = bucket(&pile(0, 16));
    assert_eq!(choice(&[due.clone(), full.clone()], &[]), Some(Pick::Whole { bucket: 1 }));
    assert_eq!(choice(&[full, due, urgent], &[]), Some(Pick::Level { bucket: 2, level: 0 }));
}

#[test]
fn what_there_is_no_room_for_is_in_no_others_way() {
    let full = |bytes| bucket(&[table(1, 2, bytes, ("a", "z")), table(2, 0, 1, ("a", "z"))]);
    let choice = |buckets: &[BucketFigures], room| {
        let options = BucketOptions { room, ..options() };
        choose(buckets, &[], &options, None)
    };
    let two = [full(600), full(800)];
    let picks = [u64::MAX, 801, 800, 601, 600].map(|room| choice(&two, room));
    let whole = |bucket| Some(Pick::Whole { bucket });
    assert_eq!(picks, [whole(1), whole(1), whole(0), whole(0), None]);
    assert_eq!(choice(&[full(800).keeping(790)], 11), whole(0), "what stays needs no room");
    let mut tables = pile(0, 8);
    tables.push(table(50, 2, 800, ("a", "z")));
    let level = Some(Pick::Level { bucket: 0, level: 0 });
    assert_eq!([808, 100, 7].map(|room| choice(&[bucket(&tables)], room)), [whole(0), level, None]);
    assert_eq!(choice(&[bucket(&[]), bucket(&[])], 0), Some(Pick::Join { left: 0 }));
}

#[test]
fn a_full_bucket_waits_until_it_is_idle_and_no_other_job_starts_in_it() {
    let mut tables = pile(0, 8);
    tables.push(table(50, 2, 512, ("a", "z")));
    tables.push(BucketTable { busy: true, ..table(60, 1, 5, ("a", "z")) });
    assert_eq!(choice(&[bucket(&tables)], &[]), None);
    tables.extend(pile(0, 8));
    assert_eq!(choice(&[bucket(&tables)], &[]), Some(Pick::Level { bucket: 0, level: 0 }));
    tables.retain(|t| !t.busy && t.number > 7);
    assert_eq!(choice(&[bucket(&tables)], &[]), Some(Pick::Whole { bucket: 0 }));
}

#[test]
fn capacities_differ_by_eighths() {
    let full_from = |seed| {
        let is_full = |bytes: &u64| {
            BucketFigures::new(&[table(1, 2, *bytes, ("a", "z"))], 0.0, 0, seed).is_full(&options(), None)
        };
        (1..2000).find(is_full).expect("a bucket of twice its capacity is full")
    };
    let mut found: Vec<u64> = (0..100).map(full_from).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, [512, 576, 640, 704]);
}

#[test]
fn what_could_not_be_split_is_merged_again_when_it_has_grown_by_half() {
    let is_full = |bytes, merged| {
        let figures = BucketFigures::new(&[table(1, 2, bytes, ("a", "z"))], 0.0, merged, plain_seed());
        figures.is_full(&options(), None)
    };
    assert!(is_full(600, 0) && is_full(600, 400));
    assert!(!is_full(600, 600) && !is_full(899, 600));
    assert!(is_full(900, 600));
}

/// The size that a merge left is known until the database is closed: after that each value larger than a
/// bucket was rewritten.
#[test]
fn one_key_larger_than_a_bucket_is_not_merged_for_its_size() {
    let only = table(1, 2, 1 << 20, ("a", "a"));
    let is_full = |tables: &[BucketTable<'_>]| bucket(tables).is_full(&options(), None);
    assert!(!is_full(&[only]));
    assert!(is_full(&[BucketTable { keeps_old: true, ..only }]), "old versions may go");
    assert!(is_full(&[only, table(2, 0, 1, ("a", "a"))]) && is_full(&[BucketTable { level: 1, ..only }]));
    assert!(
        is_full(&[only, table(2, 2, 1, ("b", "b"))]) && is_full(&[BucketTable { largest: b"b", ..only }])
    );
}

#[test]
fn what_a_bucket_should_not_hold_is_weighed_against_what_it_should() {
    let base = table(1, 2, 256, ("a", "z"));
    let upper = |bytes| table(2, 1, bytes, ("a", "z"));
    let excess = |bytes, overlap| {
        BucketFigures::new(&[base, upper(bytes)], overlap, 0, plain_seed()).excess(&options(), None)
    };
    assert_eq!(excess(128, 0.0), 0.375, "of twice the capacity");
    assert_eq!(excess(1792, 0.0), 2.0);
    assert_eq!(excess(256, 1.0), 1.0, "as much garbage as lives");
    let unsplit = BucketFigures::new(&[table(1, 2, 5000, ("a", "z"))], 0.0, 5000, 0);
    assert!(unsplit.excess(&options(), None) < 1.0, "it cannot be helped");
}

proptest! {
    /// Throttled writers wait only for jobs that are chosen.
    #[test]
    fn what_writers_wait_for_is_to_be_done(
        tables in prop::collection::vec((0..3u32, 1..2000u64, 0..9u64, 0..3usize), 1..12),
        overlap in 0.0..1.0,
        merged in 0..4000u64,
        memtable_bytes in 1..200u64,
        seed in 0..9u64,
        oldest in prop::option::of(0..12u64),
    ) {
        const RANGES: [(&str, &str); 3] = [("a", "z"), ("a", "k"), ("m", "z")];
        let tables: Vec<_> = (0..)
            .zip(&tables)
            .map(|(i, (level, bytes, deletes, range))| BucketTable {
                deletes: *deletes,
                ..table(i, *level, *bytes, RANGES[*range])
            })
            .collect();
        let options = BucketOptions { memtable_bytes, jitter: 5, ..options() };
        let figures = [BucketFigures::new(&tables, overlap, merged, seed)];
        if figures[0].excess(&options, oldest) >= 2.0 {
            prop_assert!(choose(&figures, &[], &options, oldest).is_some());
        }
    }
}

#[test]
fn a_last_level_of_many_sublevels_is_full_unless_one_is_most_of_it() {
    let deep = |base: u64, others: u64| {
        let mut tables = pile(2, others);
        tables.push(table(99, 2, base, ("a", "z")));
        bucket(&tables).is_full(&options(), None)
    };
    assert!(!deep(1, 6) && deep(1, 7) && deep(14, 7));
    assert!(!deep(100, 7) && !deep(100, 14) && deep(100, 15));
}

#[test]
fn garbage_is_what_newer_versions_and_tombstones_hide() {
    let wide = BucketOptions { capacity: 1 << 20, memtable_bytes: 2, ..options() };
    let base = table(1, 2, 100, ("a", "z"));
    let upper = table(2, 1, 50, ("a", "z"));
    let figures = |overlap| BucketFigures::new(&[base, upper], overlap, 0, 0);
    assert_eq!(figures(0.0).live_bytes(None), 150);
    assert_eq!(figures(0.5).live_bytes(None), 125);
    assert!(!figures(1.0).is_full(&wide, None), "a third is not enough");
    let more = table(3, 1, 20, ("a", "z"));
    assert!(BucketFigures::new(&[base, upper, more], 1.0, 0, 0).is_full(&wide, None));
    let large_memtables = BucketOptions { memtable_bytes: 18, ..wide.clone() };
    assert!(!BucketFigures::new(&[base, upper, more], 1.0, 0, 0).is_full(&large_memtables, None));
    // Twenty tombstones, and what they hide: two bytes each, since half of the table are tombstones.
    let deleted = BucketTable { entries: 40, deletes: 20, bytes: 40, ..upper };
    let figures = BucketFigures::new(&[base, deleted], 0.0, 0, 0);
    assert_eq!(figures.live_bytes(None), 60);
    assert!(figures.is_full(&wide, None));
    assert_eq!(figures.live_bytes(Some(1)), 140, "an older snapshot needs what they hide");
    assert!(!figures.is_full(&wide, Some(1)) && figures.is_full(&wide, Some(2)));
    // Tombstones are smaller than what they hide, if they hide anything.
    let large = BucketTable { entries: 10, ..table(1, 2, 1000, ("a", "z")) };
    let small = BucketTable { entries: 10, deletes: 10, ..table(2, 0, 20, ("a", "z")) };
    let figures = |overlap| BucketFigures::new(&[large, small], overlap, 0, 0);
    assert!(figures(1.0).is_full(&wide, None) && !figures(0.0).is_full(&wide, None));
}

#[test]
fn what_snapshots_kept_goes_once_they_are_gone() {
    let wide = BucketOptions { capacity: 1 << 20, memtable_bytes: 1 << 10, ..options() };
    let full =
        |tables: &[BucketTable<'_>], oldest| BucketFigures::new(tables, 0.0, 0, 0).is_full(&wide, oldest);
    let clean = table(1, 2, 100, ("a", "m"));
    let old = BucketTable { keeps_old: true, ..table(7, 2, 10, ("n", "z")) };
    assert!(full(&[clean, old], None) && full(&[clean, old], Some(7)));
    assert!(!full(&[clean, old], Some(6)) && !full(&[clean], None));
    let tombstones = BucketTable { deletes: 1, ..old };
    assert!(full(&[clean, BucketTable { keeps_old: false, ..tombstones }], None));
    // It is little while something lies above.
    let upper = table(8, 0, 1, ("a", "z"));
    assert!(!full(&[clean, old, upper], None));
    let large = BucketTable { bytes: 200, ..old };
    assert!(full(&[clean, large, upper], None));
    assert!(!full(&[clean, BucketTable { keeps_old: false, ..tombstones }, upper], None));
}

#[test]
fn small_neighbours_are_joined_when_nothing_else_is_to_be_done() {
    let of = |bytes: u64| bucket(&[table(1, 2, bytes, ("a", "z"))]);
    // 512 / (2 * 8) is 32.
    assert_eq!(choice(&[of(16), of(16), of(16)], &[]), None);
    assert_eq!(choice(&[of(16), of(16), of(15), of(16), of(14)], &[]), Some(Pick::Join { left: 3 }));
    assert_eq!(choice(&[of(0), of(16)], &[]), Some(Pick::Join { left: 0 }));
    assert_eq!(choice(&[bucket(&[])], &[]), None, "the only one has no neighbour");
    assert_eq!(choice(&[bucket(&[]), bucket(&[])], &[]), Some(Pick::Join { left: 0 }));
    let busy = bucket(&[BucketTable { busy: true, ..table(1, 2, 1, ("a", "z")) }]);
    assert_eq!(choice(&[of(1), busy, of(1)], &[]), None);
    assert_eq!(choice(&[of(1), of(1), bucket(&pile(0, 8))], &[]), Some(Pick::Level { bucket: 2, level: 0 }));
}

fn keys(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|name| name.as_bytes().to_vec()).collect()
}

#[test]
fn splitters_are_real_keys_that_cut_evenly() {
    let even = keys(&["a", "b", "c", "d", "e", "f", "g", "h"]);
    assert_eq!(splitters(&even, 4, b"a"), keys(&["c", "e", "g"]));
    assert_eq!(splitters(&even, 1, b""), keys(&[]));
    assert_eq!(splitters(&keys(&["a"; 9]), 8, b"a"), keys(&[]), "there is no key to cut at");
    assert_eq!(splitters(&keys(&["a", "b"]), 8, b"a"), keys(&["b"]));
    assert_eq!(splitters(&[], 8, b""), keys(&[]));
}

#[test]
fn cuts_go_around_tables_that_stay() {
    let kept: [KeyRange<'_>; 2] = [(b"c", b"f"), (b"k", b"n")];
    assert_eq!(fit(keys(&["b", "d", "e", "k", "n", "o"]), &kept, b"a"), keys(&["b", "c", "k", "o"]));
    assert_eq!(fit(keys(&["d", "g"]), &kept, b"c"), keys(&["g"]), "the first piece would be empty");
}

#[test]
fn tables_that_overlap_no_other_are_kept() {
    let tables = [
        table(1, 2, 50, ("a", "c")),
        table(2, 2, 50, ("d", "m")),
        table(3, 0, 5, ("e", "f")),
        table(4, 1, 50, ("n", "p")),
        table(5, 1, 9, ("q", "r")),
        table(6, 1, 91, ("s", "t")),
        BucketTable { deletes: 1, ..table(7, 1, 50, ("u", "v")) },
        BucketTable { keeps_old: true, ..table(8, 1, 50, ("w", "x")) },
    ];
    assert_eq!(kept(&tables, 10..=90), [1, 4]);
    assert_eq!(kept(&tables, 0..=100), [1, 4, 5, 6]);
}

#[test]
fn a_bucket_is_cut_if_half_of_its_capacity_lives() {
    let pieces = |live| pieces(live, &options());
    assert_eq!([pieces(0), pieces(256), pieces(257), pieces(2047)], [1, 1, 8, 8]);
    assert_eq!([pieces(2304), pieces(51_200)], [9, 200], "what an ingest has brought");
}

fn some_ranges() -> impl Strategy<Value = Vec<((u8, u8), u64)>> {
    let range = (0u8..30, 0u8..10).prop_map(|(from, len)| (from, from + len));
    prop::collection::vec((range, 1u64..20), 0..12)
}

proptest! {
    #[test]
    fn depth_rows_and_weight_are_what_they_say(ranges in some_ranges()) {
        let bytes: Vec<([u8; 1], [u8; 1])> = ranges.iter().map(|((from, to), _)| ([*from], [*to])).collect();
        let plain: Vec<KeyRange<'_>> = bytes.iter().map(|(from, to)| (&from[..], &to[..])).collect();
        let at = |key: u8| ranges.iter().filter(|((from, to), _)| (*from..=*to).contains(&key)).count();
        prop_assert_eq!(sublevels(&plain), (0..50).map(at).max().unwrap_or(0));

        let rows = rows(&plain);
        let alone = are_alone(&plain);
        for i in 0..plain.len() {
            let others = || (0..plain.len()).filter(|j| *j != i && overlaps(plain[*j], plain[i]));
            prop_assert!(others().all(|j| rows[j] != rows[i]));
            prop_assert_eq!(others().count() == 0, alone[i]);
        }

        let weighed: Vec<_> = plain.iter().copied().zip(ranges.iter().map(|(_, weight)| *weight)).collect();
        let apart = |set: &u32| {
            let inside = || (0..plain.len()).filter(move |i| set >> i & 1 == 1);
            inside().all(|i| inside().all(|j| i == j || !overlaps(plain[i], plain[j])))
        };
        let weight = |set: u32| (0..plain.len()).filter(|i| set >> i & 1 == 1).map(|i| weighed[i].1).sum::<u64>();
        let best = (0..1u32 << plain.len()).filter(apart).map(weight).max().unwrap_or(0);
        prop_assert_eq!(heaviest(&weighed), best);
    }

    #[test]
    fn cuts_are_real_and_leave_no_piece_empty(
        mut all in prop::collection::vec(any::<u8>(), 0..80),
        pieces in 1usize..9,
        kept_from in any::<u8>(),
        kept_len in 1u8..9,
    ) {
        all.sort_unstable();
        let sample: Vec<Vec<u8>> = all.iter().map(|key| vec![*key]).collect();
        let first = vec![all.iter().copied().min().unwrap_or(0)];
        let cuts = splitters(&sample, pieces, &first);
        prop_assert!(cuts.len() < pieces);
        prop_assert!(cuts.iter().all(|cut| all.contains(&cut[0]) && *cut > first));
        prop_assert!(cuts.windows(2).all(|pair| pair[0] < pair[1]));
        let (smallest, largest) = ([kept_from], [kept_from.saturating_add(kept_len)]);
        let fitted = fit(cuts.clone(), &[(&smallest, &largest)], &first);
        prop_assert!(fitted.windows(2).all(|pair| pair[0] < pair[1]));
        for cut in &fitted {
            prop_assert!(cuts.contains(cut) || cut[..] == smallest);
            prop_assert!(!(smallest[..] < cut[..] && cut[..] <= largest[..]) && *cut > first);
        }
    }
}
