//! Operands in memtables and tables of buckets that change.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::rng::Rng;
use terrace_table::{Cursor, Kind};

use super::walks::{join_some, tiny};
use super::*;
use crate::batch::Op;
use crate::core::snapshots::Held;
use crate::keyspaces::{MergeOperator, Prefix};
use crate::manifest::Edit;
use crate::repair::{RepairOptions, run};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The place of a key of a keyspace whose operands are kept.
fn place(key: &str) -> Vec<u8> {
    [Prefix::of(1).as_slice(), key.as_bytes()].concat()
}

fn opened(world: &World, options: Options) -> Arc<Wip> {
    opened_by(Replaying::Known, world, options)
}

fn opened_by(replaying: Replaying, world: &World, options: Options) -> Arc<Wip> {
    let wip = open_by(replaying, Arc::new(world.fs()), options);
    wip.core.merging.set(1, &MergeOperator::append());
    wip
}

fn merge(wip: &Wip, place: &[u8], operand: &[u8]) {
    let mut batch = WriteBatch::new();
    batch.push(Op { kind: Kind::Operand, key: place, value: operand });
    let request = Request { batch, alone: false, sync: false };
    let first_seq = wip.core.snapshots.visible() + 1;
    wip.apply(Group { requests: &[&request], first_seq, sync: false }).unwrap();
    wip.core.snapshots.advance(first_seq);
}

/// Everything that a reader at `at` can ask, against `map`.
fn compare(wip: &Arc<Wip>, at: Option<u64>, map: &Map, told: &str) {
    let places: Vec<Vec<u8>> = (0..KEYS).map(some_place).chain(map.keys().cloned()).collect();
    let keys: Vec<&[u8]> = places.iter().map(|place| &place[..]).collect();
    let wanted: Vec<Option<&[u8]>> = keys.iter().map(|key| map.get(*key).map(|value| &value[..])).collect();
    for (key, wanted) in keys.iter().zip(&wanted) {
        assert_eq!(wip.get(key, at).unwrap().as_deref(), *wanted, "{told}: {}", key.escape_ascii());
        assert!(at.is_some() || wip.contains(key).unwrap() == wanted.is_some(), "{told}");
    }
    let at = at.unwrap_or_else(|| wip.core.snapshots.visible());
    let found = wip.get_many(&keys, at).unwrap();
    assert!(found.iter().map(Option::as_deref).eq(wanted), "{told}");
    for direction in [Direction::Forward, Direction::Backward] {
        let mut walk = wip.clone().walk(at, direction).unwrap();
        walk.seek(Bound::Unbounded).unwrap();
        let mut found: Vec<_> = std::iter::from_fn(|| walk.next().unwrap()).collect();
        if direction == Direction::Backward {
            found.reverse();
        }
        assert!(walk.failure().is_none());
        assert!(found.iter().map(|(k, v)| (&k[..], &v[..])).eq(map.iter().map(|(k, v)| (&k[..], &v[..]))));
    }
}

fn assert_is(wip: &Arc<Wip>, key: &str, value: &str) {
    let map = [(place(key), value.as_bytes().to_vec())];
    let at = wip.core.snapshots.visible();
    assert_eq!(wip.get(&place(key), None).unwrap().as_deref(), Some(value.as_bytes()));
    let mut walk = wip.clone().walk(at, Direction::Forward).unwrap();
    walk.seek(Bound::Included(&place(key))).unwrap();
    let found = walk.next().unwrap().map(|(key, value)| (key.to_vec(), value.to_vec()));
    assert_eq!(found, map.into_iter().next());
}

/// The kinds and the number of all versions in tables.
fn in_tables(wip: &Wip) -> (u64, u64) {
    let (mut operands, mut entries) = (0, 0);
    for bucket in wip.buckets().iter() {
        for table in bucket.readable.load().tables.iter() {
            let mut cursor = table.run.cursor(false, 0);
            cursor.seek_first().unwrap();
            while cursor.valid() {
                (operands, entries) = (operands + u64::from(cursor.kind() == Kind::Operand), entries + 1);
                cursor.next().unwrap();
            }
        }
    }
    (operands, entries)
}

fn compact_all(wip: &Wip) {
    wip.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
}

/// Puts the newest table of the only bucket onto another level.
fn move_newest(wip: &Wip, level: usize) {
    let number = wip.buckets().at(0).readable.load().tables[0].run.number();
    let mut change = BucketsEdit::default();
    change.runs.move_to(level, [number]);
    wip.install(change, &[]).unwrap();
}

fn compact_level(wip: &Wip, level: usize) {
    assert!(wip.compact_level(wip.buckets().at(0), level, Patience::ToTheEnd).unwrap());
}

/// Must catch a merge that folds an operand with an older version although one in between is elsewhere: where a merge
/// of the whole bucket has been cut short its tables stay on their levels, above newer ones.
#[test]
fn nothing_is_folded_past_what_a_newer_level_lacks() {
    let world = world();
    let wip = opened(&world, options());
    let k = place("k");
    put(&wip, &k, b"1");
    flush(&wip);
    merge(&wip, &k, b"2");
    flush(&wip);
    move_newest(&wip, 1);
    merge(&wip, &k, b"3");
    flush(&wip);
    compact_level(&wip, 0);
    assert_is(&wip, "k", "123");
    assert_eq!(in_tables(&wip), (2, 3));
    compact_all(&wip);
    assert_is(&wip, "k", "123");
    assert_eq!(in_tables(&wip), (0, 1));
    // And one whose value is deeper.
    merge(&wip, &k, b"4");
    flush(&wip);
    compact_level(&wip, 0);
    assert_eq!(in_tables(&wip), (1, 2));
    assert_is(&wip, "k", "1234");
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

/// Must catch an operand that is folded twice, or onto nothing: of two joined buckets one may be flushed further than
/// the other, and what is replayed of it lies in tables already, even folded.
#[test]
fn what_a_joined_bucket_is_replayed_is_folded_once() {
    let world = world();
    let wip = opened(&world, options());
    let (a, n) = (place("a"), place("n"));
    split(&wip, &place("m"));
    put(&wip, &n, b"1");
    put(&wip, &a, b"a");
    wip.freeze(&[bucket(&wip, &a)]);
    wip.wait_until_flushed().unwrap();
    // From here on the log is replayed.
    put(&wip, &a, b"b");
    merge(&wip, &n, b"2");
    merge(&wip, &n, b"3");
    wip.freeze(&[bucket(&wip, &n)]);
    wip.wait_until_flushed().unwrap();
    wip.compact(Bound::Included(&n), Bound::Included(&n)).unwrap();
    assert_eq!(in_tables(&wip), (0, 2));
    join(&wip, &a, &n);
    let world = world.kill();
    let wip = opened(&world, options());
    assert_eq!(wip.operands_in_memory(&n), Some(2));
    assert_is(&wip, "n", "123");
    compact_all(&wip);
    assert_is(&wip, "n", "123");
    merge(&wip, &n, b"4");
    flush(&wip);
    assert_is(&wip, "n", "1234");
    compact_level(&wip, 0);
    assert_is(&wip, "n", "1234");
    assert_eq!(in_tables(&wip).0, 3, "nobody knows what they stand on");
    merge(&wip, &n, b"5");
    flush(&wip);
    compact_all(&wip);
    assert_is(&wip, "n", "12345");
    assert_eq!(in_tables(&wip), (0, 2));
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

/// A value and two operands of key "k", each in a table of its own and all in the log. Returns the number of the
/// value's table.
fn three_tables(wip: &Wip) -> u64 {
    let k = place("k");
    split(wip, &place("m"));
    // The log stays for this.
    put(wip, &place("z"), b"z");
    put(wip, &k, b"0");
    for value in [b"1", b"2", b"3"] {
        match value {
            b"1" => put(wip, &k, value),
            _ => merge(wip, &k, value),
        }
        wip.freeze(&[bucket(wip, &k)]);
        wip.wait_until_flushed().unwrap();
    }
    let readable = bucket(wip, &k).readable.load_full();
    assert_eq!(readable.tables.len(), 3);
    readable.tables.iter().map(|table| table.run.number()).min().unwrap()
}

/// Must catch a value that a repair does not take from the log because tables have an operand that stands on it.
#[test]
fn a_repair_takes_from_the_log_what_operands_stand_on() {
    let world = world();
    let wip = opened(&world, options());
    let number = three_tables(&wip);
    let world = world.kill();
    let fs = world.fs();
    fs.damage(Path::new(&format!("/{number:06}.sst")), |bytes| bytes.fill(0x5a)).unwrap();
    let (pm, clock) = (Arc::new(RealPm::with_copies()), Arc::new(ManualClock::default()));
    let executor = Arc::new(Between::default());
    let env = Env { fs: Arc::new(fs.clone()), pm, executor, clock, hash_seed: None };
    let how = RepairOptions { engine: Some(EngineKind::Wip), ..RepairOptions::default() };
    let report = run(&env, Path::new("/"), options(), how).unwrap();
    assert!(!report.lost.is_empty(), "a table was damaged");
    let wip = opened(&world, options());
    assert_is(&wip, "k", "123");
    assert_eq!(in_tables(&wip).0, 2, "nobody has folded them before what they stand on was there");
    compact_all(&wip);
    assert_is(&wip, "k", "123");
    assert_is(&wip, "z", "z");
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

/// Must catch a merge of tables that folds operands although what they stand on is still in a memtable, into which a
/// repair has read it from the log.
#[test]
fn nothing_is_folded_past_what_a_memtable_has() {
    let world = world();
    let wip = opened(&world, options());
    let number = three_tables(&wip);
    let mut change = BucketsEdit::default();
    change.runs.remove([number]);
    // As after the loss of a table.
    change.edits.push(Edit::SetBucket { lower: bucket(&wip, &place("k")).lower.clone(), flushed: 0 });
    wip.install(change, &[]).unwrap();
    let wip = opened_by(Replaying::Asked, &world.kill(), options());
    assert_eq!(in_tables(&wip), (2, 2));
    compact_all(&wip);
    assert_eq!(in_tables(&wip), (2, 2));
    flush(&wip);
    assert_is(&wip, "k", "123");
    compact_all(&wip);
    assert_is(&wip, "k", "123");
    assert_eq!(in_tables(&wip), (0, 2));
    assert_eq!(wip.check().unwrap().problems, Vec::<String>::new());
}

/// Must catch operands in tables that a merge of the whole bucket would leave as they are.
#[test]
fn who_asks_for_a_compaction_finds_everything_folded() {
    let world = world();
    let mut options = options();
    (options.wip.memtable_bytes, options.wip.most_memtable_bytes) = (8 << 10, 8 << 10);
    (options.wip.bucket_bytes, options.wip.split_into) = (32 << 10, 8);
    let wip = opened(&world, options);
    let mut operand = [0; 3000];
    Rng::new(1).fill(&mut operand);
    merge(&wip, &place("k"), &operand);
    flush(&wip);
    let tables = bucket(&wip, &place("k")).readable.load().tables.clone();
    assert!(wip.bytes_kept().contains(&tables[0].run.meta().file_bytes));
    assert_eq!((in_tables(&wip), wip.check().unwrap().keys), ((1, 1), 1));
    compact_all(&wip);
    assert_eq!((in_tables(&wip), wip.check().unwrap().keys), ((0, 1), 1));
    assert_eq!(wip.get(&place("k"), None).unwrap().as_deref(), Some(&operand[..]));
}

/// Must catch a walk that folds operands of a key beyond its bucket, where it does not see what they stand on.
#[test]
fn nothing_is_folded_beyond_its_bucket() {
    static WITHOUT: AtomicU64 = AtomicU64::new(0);
    let picky = MergeOperator::new("picky", |_, value, operand| match value {
        Some(value) => Ok([value, operand].concat()),
        None => {
            WITHOUT.fetch_add(1, Ordering::Relaxed);
            Err("there is no value".into())
        }
    });
    let world = world();
    let wip = open_on(Arc::new(world.fs()), options());
    wip.core.merging.set(1, &picky);
    split(&wip, &place("m"));
    for key in ["b", "k", "n"] {
        put(&wip, &place(key), b"1");
    }
    flush(&wip);
    // The two buckets are one while this is written.
    join(&wip, &place("a"), &place("m"));
    for key in ["b", "k", "n"] {
        merge(&wip, &place(key), b"2");
    }
    split(&wip, &place("m"));
    for direction in [Direction::Forward, Direction::Backward] {
        let mut walk = wip.clone().walk(wip.core.snapshots.visible(), direction).unwrap();
        walk.seek(Bound::Unbounded).unwrap();
        let found: Vec<_> = std::iter::from_fn(|| walk.next().unwrap()).collect();
        assert!(found.len() == 3 && found.iter().all(|(_, value)| value == "12"), "{found:?}");
    }
    assert_eq!(WITHOUT.load(Ordering::Relaxed), 0);
}

const KEYS: u64 = 40;

fn some_place(i: u64) -> Vec<u8> {
    place(&format!("{i:02}"))
}

/// Puts some table onto another level, as if a merge of its whole bucket had been cut short.
fn move_some(wip: &Wip, rng: &mut Rng) {
    let bucket = wip.buckets().find(&some_place(rng.below(KEYS))).clone();
    let tables = bucket.readable.load().tables.clone();
    if !tables.is_empty() {
        let number = tables[rng.below(tables.len() as u64) as usize].run.number();
        let mut change = BucketsEdit::default();
        change.runs.move_to(rng.below(3) as usize, [number]);
        wip.install(change, &[]).unwrap();
    }
}

/// Must catch operands that are lost, folded twice or in another order, whatever becomes of their buckets and of the
/// process.
#[test]
fn they_match_a_map_whatever_becomes_of_buckets() {
    let (mut splits, mut joins, mut kept) = (0, 0, 0);
    for seed in 0..30 {
        let (mut world, mut rng) = (world(), Rng::new(seed));
        let options = tiny(&mut rng);
        let mut wip = opened(&world, options.clone());
        let (mut map, mut snapshots) = (Map::new(), Vec::<(Held, Map)>::new());
        for step in 0..500u32 {
            let (told, key) = (format!("seed {seed}, step {step}"), some_place(rng.below(KEYS)));
            match rng.below(44) {
                0..16 => {
                    let operand = vec![b'a' + rng.below(26) as u8; rng.below(60) as usize];
                    merge(&wip, &key, &operand);
                    map.entry(key).or_default().extend(operand);
                }
                16..19 => {
                    let value = vec![step as u8; rng.below(120) as usize];
                    put(&wip, &key, &value);
                    map.insert(key, value);
                }
                19..22 => {
                    delete(&wip, &key);
                    map.remove(&key);
                }
                22..26 => wip.freeze(&[bucket(&wip, &key)]),
                26 => flush(&wip),
                27..32 => drop(wip.compact_next().unwrap()),
                32 => join_some(&wip, &mut rng),
                33 => wip.compact(Bound::Included(&key), Bound::Included(&key)).unwrap(),
                34 | 35 => move_some(&wip, &mut rng),
                36 => while wip.core.env.executor.help() {},
                37 if snapshots.len() < 5 => snapshots.push((wip.core.snapshots.hold(), map.clone())),
                38 if !snapshots.is_empty() => {
                    drop(snapshots.swap_remove(rng.below(snapshots.len() as u64) as usize));
                    wip.released();
                }
                39 if rng.one_in(6) => {
                    snapshots.clear();
                    splits += wip.reshaped.splits.load(Ordering::Relaxed);
                    joins += wip.reshaped.joins.load(Ordering::Relaxed);
                    world = world.kill();
                    wip = opened(&world, options.clone());
                }
                40 => snapshots.iter().for_each(|(held, map)| compare(&wip, Some(held.seq()), map, &told)),
                41 => kept += in_tables(&wip).0,
                _ => compare(&wip, None, &map, &told),
            }
        }
        let told = format!("seed {seed}, at the end");
        snapshots.iter().for_each(|(held, map)| compare(&wip, Some(held.seq()), map, &told));
        snapshots.clear();
        compact_all(&wip);
        compare(&wip, None, &map, &told);
        assert_eq!(wip.check().unwrap().problems, Vec::<String>::new(), "{told}");
        splits += wip.reshaped.splits.load(Ordering::Relaxed);
        joins += wip.reshaped.joins.load(Ordering::Relaxed);
    }
    println!("{splits} splits, {joins} joins, {kept} operands seen in tables");
    assert!(splits > 60 && joins > 60 && kept > 300, "{splits} splits, {joins} joins, {kept} operands");
}
