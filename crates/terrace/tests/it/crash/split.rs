//! The engine `split`, crashed at every event of what moves items: migrations, rewritings of tables, updates
//! that carry an item over the boundary, slots that are used again, openings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use terrace::{EngineKind, Options, Stats};
use terrace_disk::Fs;
use terrace_pmem::Granularity;
use terrace_sim::{PmOptions, World, WorldOptions};

use super::env::{DIR, runs_on};
use super::judge::{Shared, options};
use super::moments::{Every, Moment, at_every_event, judge_all, judge_openings};
use super::ops::{Op, Write};
use super::run::{Errors, Session};

/// Bytes of values on both sides of the boundary, which is 160 with the key.
const SMALL: u32 = 60;
const LARGE: u32 = 700;

/// Rounds of updates after which slots are used again, at most.
const MOST_ROUNDS: usize = 100;

/// Of all engines this one alone is meant, where it is tried at all.
fn is_tried() -> bool {
    runs_on(EngineKind::Split, Granularity::CacheLine)
}

fn tiny() -> Options {
    options(EngineKind::Split)
}

fn world() -> World {
    let pm = PmOptions { bytes: 1280 << 10, capacity: 4 << 20, granularity: Granularity::CacheLine };
    World::new(7, WorldOptions { pm })
}

/// A database on a world, and what it should hold.
struct Life<'a> {
    world: &'a World,
    session: Session<'a>,
    ledger: Shared,
}

impl<'a> Life<'a> {
    fn on(world: &'a World, options: &Options) -> Life<'a> {
        let session = Session::open(world, options, Errors::Fail).unwrap();
        // The walk after the opening is over: slots are used again, and tables rewritten.
        session.rest();
        Life { world, session, ledger: Shared::over(Default::default()) }
    }

    fn does(&mut self, ops: &[Op]) {
        ops.iter().for_each(|op| self.session.carry_out(op, &mut self.ledger).unwrap());
        self.session.rest();
    }

    /// Does `ops`; every moment of that. Both media must have had their share of it.
    fn moments_of(&mut self, what: &str, ops: &[Op]) -> Vec<Moment> {
        let moments = at_every_event(&mut self.session, self.world, ops, &self.ledger);
        let of_memory = moments.iter().filter(|moment| moment.is_of_memory()).count();
        println!("{what}: {} events, {of_memory} of them of memory", moments.len());
        assert!(of_memory > 10 && moments.len() > of_memory + 10, "{what}: {of_memory} of {}", moments.len());
        moments
    }

    fn stats(&self) -> Stats {
        self.session.db().stats()
    }

    fn tables(&self) -> BTreeSet<PathBuf> {
        let files = self.world.fs().list(Path::new(DIR)).unwrap();
        files.into_iter().filter(|path| path.extension().is_some_and(|it| it == "sst")).collect()
    }

    /// Where items begin in the file of slots, and the number of each, be it living or not.
    fn items(&self) -> BTreeMap<usize, u64> {
        let file = self.world.fs().read(&Path::new(DIR).join("SLOTS")).unwrap();
        let number = |item: &[u8]| u64::from_le_bytes(item[16..24].try_into().unwrap()) << 16 >> 16;
        let items = file.chunks(512).enumerate().filter(|(_, sector)| sector.starts_with(b"TERSLOT1"));
        items.map(|(at, sector)| (at * 512, number(sector))).collect()
    }
}

/// Places of items where others have been written since.
fn used_again(before: &BTreeMap<usize, u64>, after: &BTreeMap<usize, u64>) -> usize {
    before.iter().filter(|(at, number)| after.get(at).is_some_and(|now| now != *number)).count()
}

fn puts(keys: impl Iterator<Item = u16>, len: u32) -> Vec<Op> {
    keys.map(|k| Op::Put { key: k, len }).collect()
}

/// So many small items, of which some have been migrated, to tables that lie side by side and over one
/// another.
fn migrated(life: &mut Life<'_>) {
    for from in (0..120).step_by(30) {
        life.does(&puts(from..from + 30, SMALL));
        life.does(&puts((0..from).step_by(7), SMALL + 8));
    }
    let stats = life.stats();
    assert!(stats.split.migrated > 60 && stats.ssd.tables > 2, "{:?} {:?}", stats.split, stats.ssd);
}

/// What migrates a part of itself: new keys, updates of what lies in tables and in memory, deletions,
/// batches.
fn crowd() -> Vec<Op> {
    let mut ops = Vec::new();
    for round in 0..4u16 {
        ops.extend(puts(120 + 10 * round..130 + 10 * round, SMALL));
        ops.extend(puts((round..120).step_by(23), SMALL + 4));
        ops.push(Op::Delete { key: 11 + round });
        ops.push(Op::Batch(vec![
            Write::Put { key: 2 * round, len: SMALL },
            Write::Delete { key: 60 + round },
            Write::Put { key: 90 + round, len: SMALL },
        ]));
        ops.push(Op::Background);
    }
    ops
}

fn crash_in_a_migration(what: &str, before: &[Op], ops: &[Op]) -> (Vec<Moment>, Stats) {
    let world = world();
    let mut life = Life::on(&world, &tiny());
    migrated(&mut life);
    life.does(before);
    let first = life.stats();
    let moments = life.moments_of(what, ops);
    let then = life.stats();
    let gone = then.split.migrated - first.split.migrated;
    assert!(gone > 20, "{gone} records were migrated: {then:?}");
    (moments, then)
}

/// Must catch a word that leads to a table which is not durable, a record that goes before the word leads
/// elsewhere, and an update that a migration takes back.
#[test]
fn crashes_in_migrations() {
    if is_tried() {
        let (moments, _) = crash_in_a_migration("migration", &[], &crowd());
        judge_all(&tiny(), &moments, "migration");
    }
}

/// Must catch what hangs over an older version and is migrated without it.
#[test]
fn crashes_in_migrations_under_snapshots() {
    if is_tried() {
        let before = [vec![Op::Snapshot], puts((0..120).step_by(11), SMALL), vec![Op::Snapshot]].concat();
        let ops = [crowd(), vec![Op::ReadSnapshots, Op::Release, Op::Background], crowd()].concat();
        let (moments, _) = crash_in_a_migration("migration under snapshots", &before, &ops);
        judge_all(&tiny(), &moments, "migration under snapshots");
    }
}

/// Must catch what a recovery leaves that is cut short itself: the walk along the index, tables that nothing
/// names.
#[test]
fn crashes_in_openings_after_migrations() {
    if is_tried() {
        let (moments, _) = crash_in_a_migration("migration", &[], &crowd());
        let looks = judge_openings(&tiny(), &moments, Every(37), "migration");
        println!("{looks} openings that were cut short");
        assert!(looks > 50, "{looks}");
    }
}

/// What has most of the tables die: updates, deletions, and small items that become large.
fn death() -> Vec<Op> {
    let mut ops = puts((0..120).filter(|k| k % 3 == 0), SMALL);
    ops.extend((0..120).filter(|k| k % 3 == 1).map(|key| Op::Delete { key }));
    ops.extend(puts((0..120).filter(|k| k % 12 == 2), LARGE));
    ops
}

/// Must catch a table that goes while a word leads there, and an entry that a rewriting brings back.
#[test]
fn crashes_in_rewritings_of_tables() {
    if !is_tried() {
        return;
    }
    let world = world();
    let mut life = Life::on(&world, &tiny());
    migrated(&mut life);
    let (first, tables) = (life.stats(), life.tables());
    let moments = life.moments_of("rewriting", &death());
    let (then, left) = (life.stats(), life.tables());
    assert!(then.counts.compactions > first.counts.compactions, "{:?}", then.counts);
    assert!(!tables.is_empty() && tables.is_disjoint(&left), "{tables:?} {left:?}");
    judge_all(&tiny(), &moments, "rewriting");
    let looks = judge_openings(&tiny(), &moments, Every(37), "rewriting");
    assert!(looks > 50, "{looks}");
}

/// Must catch a table that goes although a link under a newer version leads there.
#[test]
fn crashes_in_rewritings_under_a_snapshot() {
    if !is_tried() {
        return;
    }
    let world = world();
    let mut life = Life::on(&world, &tiny());
    migrated(&mut life);
    life.does(&[Op::Snapshot]);
    let (first, tables) = (life.stats(), life.tables());
    let held = life.moments_of("rewriting under a snapshot", &death());
    let kept: Vec<_> = tables.intersection(&life.tables()).cloned().collect();
    assert!(!kept.is_empty(), "what the snapshot needs stays where it is");
    let ops = [Op::ReadSnapshots, Op::Release, Op::Background, Op::COMPACT_LONG_KEYS];
    let released = life.moments_of("a snapshot is released", &ops);
    let (then, left) = (life.stats(), life.tables());
    assert!(then.counts.compactions > first.counts.compactions, "{:?}", then.counts);
    assert!(kept.iter().all(|table| !left.contains(table)), "{kept:?} {left:?}");
    judge_all(&tiny(), &held, "rewriting under a snapshot");
    judge_all(&tiny(), &released, "a snapshot is released");
}

/// Must catch an item that is in neither place or in the wrong one: small ones in memory and in tables become
/// large, large ones small, alone and in batches, with a snapshot of what was before and without.
#[test]
fn crashes_where_items_cross_the_boundary() {
    if !is_tried() {
        return;
    }
    for held in [false, true] {
        let what = if held { "crossing under a snapshot" } else { "crossing" };
        let world = world();
        let mut life = Life::on(&world, &tiny());
        migrated(&mut life);
        // Of what crosses, some lies in tables, some in memory and some in slots.
        life.does(&puts(200..206, LARGE));
        life.does(&puts(0..4, SMALL));
        if held {
            life.does(&[Op::Snapshot]);
        }
        let first = life.stats().split;
        assert_eq!((first.items, first.retired_bytes), (6, 0), "{first:?}");
        let grown = [puts((0..120).step_by(13), LARGE), puts(0..4, LARGE + 512)].concat();
        let mut moments = life.moments_of(what, &grown);
        let then = life.stats().split;
        assert!(then.item_bytes - then.retired_bytes >= first.item_bytes + 13 * 1024, "{then:?}");
        let shrunk: Vec<Op> = puts(200..204, SMALL)
            .into_iter()
            .chain(puts((0..120).step_by(26), SMALL))
            .chain([Op::Batch(vec![
                Write::Put { key: 13, len: SMALL },
                Write::Put { key: 204, len: SMALL },
                Write::Delete { key: 39 },
                Write::Put { key: 5, len: LARGE },
            ])])
            .chain([
                Op::Batch(vec![
                    Write::Delete { key: 205 },
                    Write::Put { key: 206, len: LARGE },
                    Write::Put { key: 207, len: SMALL },
                ]),
                Op::Compare,
            ])
            .chain(held.then_some([Op::ReadSnapshots, Op::Release]).into_iter().flatten())
            .chain([Op::Background, Op::COMPACT_LONG_KEYS])
            .collect();
        moments.extend(life.moments_of(what, &shrunk));
        let last = life.stats().split;
        assert!(last.item_bytes < then.item_bytes && last.retired_bytes == 0, "{last:?}");
        judge_all(&tiny(), &moments, what);
    }
}

/// Must catch a slot that is written to while a snapshot needs it, or before what replaced its word is
/// durable.
#[test]
fn crashes_where_slots_are_used_again() {
    if !is_tried() {
        return;
    }
    let world = world();
    let mut life = Life::on(&world, &tiny());
    life.does(&puts(0..12, LARGE));
    life.does(&[Op::Snapshot]);
    let first = life.items();
    let compact = Op::COMPACT_LONG_KEYS;
    let update: Vec<Op> = puts(0..12, LARGE + 512);
    let held = [update, vec![Op::Delete { key: 3 }, compact.clone()], puts(20..26, LARGE)].concat();
    let mut moments = life.moments_of("slots that a snapshot needs", &held);
    let then = life.items();
    assert_eq!(used_again(&first, &then), 0, "a snapshot needs what is there");
    let ops = [vec![Op::ReadSnapshots, Op::Release, Op::Background, compact], puts(30..50, LARGE)].concat();
    moments.extend(life.moments_of("slots that are free", &ops));
    let (again, all) = (used_again(&first, &life.items()), first.len());
    println!("of {all} slots {again} were used again");
    assert!(again > 6, "{again} of {all}");
    judge_all(&tiny(), &moments, "slots");
    let looks = judge_openings(&tiny(), &moments, Every(19), "slots");
    assert!(looks > 50, "{looks}");
}

/// Must catch a slot that writers alone use again, nobody compacting, before what replaced its word is durable.
#[test]
fn crashes_where_writers_use_slots_again() {
    if !is_tried() {
        return;
    }
    let world = world();
    let mut life = Life::on(&world, &tiny());
    // What is retired is freed many at a time, and used again behind what was never used.
    for _ in 0..MOST_ROUNDS {
        let before = life.items();
        life.does(&puts(0..8, LARGE));
        if used_again(&before, &life.items()) > 0 {
            break;
        }
    }
    let first = life.items();
    let ops: Vec<Op> = (0..6).flat_map(|_| puts(0..8, LARGE)).collect();
    let moments = life.moments_of("writers alone", &ops);
    let again = used_again(&first, &life.items());
    println!("{again} slots were used again");
    assert!(again > 6, "{again}");
    judge_all(&tiny(), &moments, "writers alone");
}

/// Must catch a word that leads to a copy of an item that is not durable, the place of an item that is used again
/// while its word still leads there, and a copy that hides a newer item.
#[test]
fn crashes_where_items_are_packed() {
    if !is_tried() {
        return;
    }
    for held in [false, true] {
        let what = if held { "packing under a snapshot" } else { "packing" };
        let world = world();
        let mut life = Life::on(&world, &tiny());
        life.does(&puts(0..16, LARGE));
        if held {
            life.does(&[vec![Op::Snapshot], puts((0..16).step_by(3), LARGE + 300)].concat());
        }
        let first = life.items();
        let ops: Vec<Op> = [Op::COMPACT_LONG_KEYS]
            .into_iter()
            .chain(puts((0..16).step_by(5), LARGE + 512))
            .chain([Op::Delete { key: 2 }, Op::Delete { key: 9 }])
            .chain(puts(20..26, LARGE))
            .chain(held.then_some([Op::ReadSnapshots, Op::Release]).into_iter().flatten())
            .chain([Op::Background, Op::COMPACT_LONG_KEYS, Op::Compare])
            .collect();
        let moments = life.moments_of(what, &ops);
        let (then, split) = (life.items(), life.stats().split);
        let numbers = |items: &BTreeMap<usize, u64>| items.values().copied().collect::<BTreeSet<u64>>();
        let moved = then
            .iter()
            .filter(|(at, number)| numbers(&first).contains(number) && first.get(at) != Some(number));
        assert!(moved.count() > 4, "{first:?} {then:?}");
        // Beside items there are the block of the stamp, and the last one of a packed run.
        assert!(split.held_bytes <= split.item_bytes + split.item_bytes / 12 + 2 * 4096, "{split:?}");
        judge_all(&tiny(), &moments, what);
        let looks = judge_openings(&tiny(), &moments, Every(37), what);
        assert!(looks > 20, "{looks}");
    }
}
