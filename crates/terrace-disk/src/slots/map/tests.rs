//! The map against a list of slots, with items of 4 KiB to 1 GiB: nothing is written here, so they cost nothing.

use super::*;
use proptest::prelude::*;

/// Sectors of 1 GiB, of 512 bytes each.
const GIB: u64 = 1 << 21;

#[derive(Debug, Clone)]
enum Op {
    /// Items of so many sectors, in one submission.
    Write(Vec<u64>),
    /// The same, in one run.
    Pack(Vec<u64>),
    /// A submission that fails.
    Fail(Vec<u64>),
    Free(usize),
    /// All but every nth is freed.
    Thin(usize),
    /// All but so many blocks are given back, so many at a time, if the file system takes them.
    GiveBack(u64, u64, bool),
    Reopen,
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    let near =
        (0..22u32, 0..3u64).prop_map(|(power, off)| ((1 << power) + off).saturating_sub(1).clamp(1, GIB));
    let size = prop_oneof![4 => 8..20u64, 3 => Just(9u64), 2 => near, 1 => 1..GIB];
    prop::collection::vec(size, 1..40)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => sizes().prop_map(Op::Write),
        1 => sizes().prop_map(Op::Pack),
        1 => sizes().prop_map(Op::Fail),
        8 => (0..1000usize).prop_map(Op::Free),
        1 => (2..9usize).prop_map(Op::Thin),
        2 => (0..5000u64, 1..(1u64 << 17), prop::bool::weighted(0.8)).prop_map(|(s, m, t)| Op::GiveBack(s, m, t)),
        1 => Just(Op::Reopen),
    ]
}

/// Has a place for items, in a file that is grown for them by no more than all of them need, in as many runs.
fn place(map: &mut Map, sizes: &[u64], packed: bool) -> Vec<Run> {
    let needed = sizes.iter().sum::<u64>() / map.sectors_per_block + sizes.len() as u64;
    let mut grown = 0;
    loop {
        let before = map.counts();
        let missing = match map.place(sizes, packed) {
            Ok(runs) => return runs,
            Err(missing) => missing,
        };
        assert_eq!(map.counts(), before, "what does not fit takes nothing");
        grown += missing;
        assert!(missing > 0 && grown <= needed);
        map.grown(before.end + missing);
    }
}

fn free(map: &mut Map, live: &mut BTreeSet<Slot>, slot: Slot) {
    assert!(live.remove(&slot));
    let before = map.counts();
    let is_alone = |block: &u64| !map.shared.contains_key(block);
    let alone = map.blocks(slot).filter(is_alone).count() as u64;
    map.retire(slot).unwrap();
    map.free(slot).unwrap();
    assert_eq!(map.counts().free - before.free, alone);
}

/// Nothing overlaps or leaks, and the held blocks are those of live items, including the rest of the blocks at the ends
/// of each.
fn check(map: &Map, live: &BTreeSet<Slot>) {
    assert_eq!(map.check(live), Ok(0));
    let counts = map.counts();
    let (items, sectors) = (live.len() as u64, live.iter().map(|slot| slot.sectors()).sum::<u64>());
    assert_eq!((counts.items, counts.sectors), (items, sectors));
    let held = (counts.end - counts.free - counts.holes) * map.sectors_per_block;
    assert!(held <= sectors + 2 * items * (map.sectors_per_block - 1), "{counts:?}");
    // Of a block in which one item ends the others have more than is left.
    let share = |slot: &Slot| (slot.sectors(), map.share_of(*slot), map.blocks(*slot));
    let shares = live.iter().map(|slot| map.share_of(*slot)).sum::<u64>();
    let most = held + items * map.sectors_per_block;
    assert!(shares <= most, "{shares} of {held} for {items}");
    assert!(
        live.iter().map(share).all(|(own, share, blocks)| blocks.end - blocks.start == 1 || share >= own)
    );
}

fn apply(map: &mut Map, live: &mut BTreeSet<Slot>, op: &Op) {
    match op {
        Op::Write(sizes) | Op::Pack(sizes) => {
            let before = map.counts();
            let packed = matches!(op, Op::Pack(_));
            let runs = place(map, sizes, packed);
            assert!(!packed || runs.len() == 1);
            let slots: Vec<Slot> = runs.iter().flat_map(|run| run.slots.clone()).collect();
            assert_eq!(slots.iter().map(|slot| slot.sectors()).collect::<Vec<_>>(), *sizes);
            for run in &runs {
                assert_eq!(run.blocks.start * map.sectors_per_block, run.slots[0].first());
                map.give_out(run);
            }
            live.extend(slots);
            // A submission holds no more than its items and the rest of the last block of each run.
            let after = map.counts();
            let held = (after.end - after.free - after.holes) - (before.end - before.free - before.holes);
            let spare = runs.len() as u64 * (map.sectors_per_block - 1);
            assert!(held * map.sectors_per_block <= sizes.iter().sum::<u64>() + spare);
        }
        Op::Fail(sizes) => {
            let runs = place(map, sizes, false);
            runs.iter().for_each(|run| map.put_back(run));
        }
        Op::Free(nth) => {
            if let Some(&slot) = live.iter().nth(nth % live.len().max(1)) {
                free(map, live, slot);
            }
        }
        Op::Thin(nth) => {
            let doomed: Vec<Slot> =
                live.iter().enumerate().filter(|(i, _)| i % nth > 0).map(|(_, s)| *s).collect();
            doomed.into_iter().for_each(|slot| free(map, live, slot));
        }
        Op::GiveBack(spare, most, are_taken) => {
            while let Some(blocks) = map.take_spare(*spare, *most) {
                assert!(blocks.end - blocks.start <= *most && blocks.end <= map.end);
                map.end_spare(blocks, *are_taken);
                if !are_taken {
                    return;
                }
            }
            assert!(map.counts().free <= *spare);
        }
        Op::Reopen => {
            *map = Map::unknown(map.sectors_per_block, map.end);
            map.adopt(live).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_block_has_one_owner_and_few_are_held_in_vain(
        ops in prop::collection::vec(op(), 1..80), per_block in prop::sample::select(vec![1u64, 2, 8, 128]),
    ) {
        let (mut map, mut live) = (Map::unknown(per_block, 0), BTreeSet::new());
        map.adopt(&live).unwrap();
        for op in ops {
            apply(&mut map, &mut live, &op);
            check(&map, &live);
        }
        for slot in live.clone() {
            free(&mut map, &mut live, slot);
        }
        let counts = map.counts();
        prop_assert_eq!((counts.free + counts.holes, counts.items, map.shared.len()), (counts.end, 0, 0));
        prop_assert!(map.free.iter().count() + map.holes.iter().count() <= 1 + 2 * map.holes.iter().count());
    }
}

/// Items of ever larger sizes follow items of half the size, of which so many stay that none of the larger ones fits
/// between them. A file that cannot give space back grows as far as no order of blocks could avoid; otherwise it takes
/// the live items and the spare space.
#[test]
fn sizes_that_double_take_no_more_than_they_must() {
    const MOST: u64 = 1 << 14;
    for are_taken in [true, false] {
        let (mut map, mut live, mut most_taken) = (Map::unknown(1, 0), BTreeSet::new(), 0);
        map.adopt(&live).unwrap();
        for power in 0..13u32 {
            let size = 1u64 << power;
            while live.iter().map(|slot: &Slot| slot.sectors()).sum::<u64>() + size <= MOST {
                apply(&mut map, &mut live, &Op::Write(vec![size]));
                most_taken = most_taken.max(map.end - map.holes.total());
            }
            // One stays in every two of this size.
            let mut last = u64::MAX;
            for slot in live.clone() {
                if slot.first() / (2 * size) == last {
                    free(&mut map, &mut live, slot);
                }
                last = slot.first() / (2 * size);
            }
            if are_taken {
                apply(&mut map, &mut live, &Op::GiveBack(MOST / 8, 1 << 12, true));
            }
            check(&map, &live);
        }
        let most = if are_taken { MOST + MOST / 8 } else { MOST * 6 };
        assert!(most_taken <= most, "{most_taken} of {most}");
    }
}

/// Slots behind the end of a file that was cut are reported, although the file has grown over them since.
#[test]
fn what_lay_behind_the_end_of_a_cut_file_is_told() {
    let (mut map, mut live) = (Map::unknown(8, 0), BTreeSet::new());
    map.adopt(&live).unwrap();
    apply(&mut map, &mut live, &Op::Write(vec![9; 40]));
    let lost: Vec<Slot> = live.iter().skip(30).copied().collect();
    let kept: BTreeSet<Slot> = live.iter().filter(|slot| slot.end() <= 20 * 8).copied().collect();
    let mut cut = Map::unknown(8, 20);
    let mut early = BTreeSet::new();
    apply(&mut cut, &mut early, &Op::Write(vec![10; 60]));
    assert!(cut.end > map.end);
    for slot in lost {
        let list = kept.iter().chain(&early).copied().chain([slot]).collect();
        assert!(cut.adopt(&list).is_err() && !cut.is_known());
    }
    // Slots that were given out since may be in the list, or may be gone again.
    let gone = *early.first().unwrap();
    cut.retire(gone).unwrap();
    cut.free(gone).unwrap();
    cut.adopt(&kept.iter().chain(&early).copied().collect()).unwrap();
    early.remove(&gone);
    check(&cut, &kept.union(&early).copied().collect());
}
