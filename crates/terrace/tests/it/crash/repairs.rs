//! Repairs that are killed, lose the power or meet a fault at any of their events: what there was is still there, or
//! the repair is complete, and another one brings the same as one that nothing disturbed.
//!
//! `TERRACE_REPAIR_EVERY=1` looks at every event; without it one in so many is looked at.

mod creations;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use terrace::{Db, EngineKind, Env, Error, ErrorKind, Options, RepairReport, Result};
use terrace_base::clock::ManualClock;
use terrace_base::exec::Inline;
use terrace_base::rng::Rng;
use terrace_disk::Fs;
use terrace_pmem::{Granularity, Media};
use terrace_sim::{Event, PmOptions, Snapshot, Survival, World, WorldOptions};

use super::env::{DIR, ENGINES, tiny};
use crate::damage::spaces;
use crate::harness::{HASH_SEED, Map, TwoPools};

/// Bytes of the medium; a pool takes half of them.
const MEDIUM_BYTES: u64 = 4 << 20;

/// Without the environment's word, of so many events one is looked at.
const SHARE: u64 = 23;

/// Operations within which a repair has read what says whose the files are.
const READS_AT_FIRST: u64 = 30;

fn options(engine: EngineKind) -> Options {
    Options { pm_bytes: MEDIUM_BYTES / 2, ..tiny(engine) }
}

fn env(world: &World) -> Env {
    Env {
        fs: Arc::new(world.fs()),
        pm: Arc::new(TwoPools::new(world.fs(), world.media(), world.boot_id())),
        executor: Arc::new(Inline::default()),
        clock: Arc::new(ManualClock::default()),
        hash_seed: Some(HASH_SEED),
    }
}

fn key(i: u32) -> Vec<u8> {
    format!("key {:04}", i * 7 % 1000).into_bytes()
}

/// A database with tables, older versions and deletions, operands and other contents of keyspaces, what its memtables
/// hold included, closed or killed.
fn database(engine: EngineKind, granularity: Granularity, closed: bool) -> (World, Map) {
    let pm = PmOptions { bytes: 64 << 10, capacity: MEDIUM_BYTES, granularity };
    let world = World::new(11, WorldOptions { pm });
    let db = Db::open_in(env(&world), DIR, options(engine)).unwrap();
    let mut map = Map::new();
    spaces::make(&db, &mut map);
    for round in 0..3u32 {
        for i in (0..120).filter(|i| i % (round + 1) == 0) {
            let value = format!("{round} {i} ").repeat(1 + i as usize % 4).into_bytes();
            db.put(&key(i), &value).unwrap();
            map.insert(key(i), value);
        }
        for i in (0..120).filter(|i| i % 11 == round) {
            db.delete(&key(i)).unwrap();
            map.remove(&key(i));
        }
        spaces::write_all(&db, &mut map, round);
        if round < 2 {
            db.flush().unwrap();
        }
    }
    db.sync().unwrap();
    if closed {
        db.close().unwrap();
    }
    let next = world.kill();
    drop(db);
    (next, map)
}

/// What is wrong with a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// Nothing is: a repair has nothing to do.
    None,
    /// The pointer to the manifest.
    Pointer,
    /// A block in the middle of a table, of the first of those with most entries.
    Table,
    /// Two sound tables have each other's names.
    Swapped,
    /// The manifest, past its first record.
    Manifest,
    /// Bytes of what lies in the pool.
    Pool,
    /// The pool's superblocks.
    Superblock,
}

fn tables(world: &World) -> Vec<PathBuf> {
    let files = world.fs().list(Path::new(DIR)).unwrap();
    files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "sst")).collect()
}

/// Whether there was something to be damaged.
fn spoil(world: &World, damage: Damage) -> bool {
    let fs = world.fs();
    let named = |name: &str| {
        fs.list(Path::new(DIR)).unwrap().into_iter().find(|p| p.to_string_lossy().contains(name))
    };
    match damage {
        Damage::None => {}
        Damage::Pointer => fs.damage(&named("CURRENT").unwrap(), |bytes| bytes[3] ^= 4).unwrap(),
        Damage::Table => {
            let Some(path) = tables(world).into_iter().max_by_key(|path| fs.read(path).unwrap().len()) else {
                return false;
            };
            fs.damage(&path, |bytes| bytes[100] ^= 4).unwrap();
        }
        Damage::Swapped => {
            let [one, two, ..] = &tables(world)[..] else { return false };
            let (first, second) = (fs.read(one).unwrap(), fs.read(two).unwrap());
            fs.plant(one, &second).unwrap();
            fs.plant(two, &first).unwrap();
        }
        Damage::Manifest => fs.damage(&named("MANIFEST-").unwrap(), |bytes| bytes[150] ^= 4).unwrap(),
        Damage::Pool | Damage::Superblock => {
            let Some(name) = named("pool") else { return false };
            let half = u64::from(fs.read(&name).unwrap()[0] == b'1') * MEDIUM_BYTES / 2;
            let used: Vec<u64> =
                if damage == Damage::Superblock { vec![0, 4096] } else { used_lines(world, half) };
            for at in used {
                let byte = [!byte(world, half + at)];
                world.media().copy_flush(half + at, &byte);
            }
            world.media().drain();
            world.media().sync().unwrap();
        }
    }
    true
}

fn byte(world: &World, at: u64) -> u8 {
    // SAFETY: the caller asks for a place within the medium, to which nobody stores meanwhile.
    unsafe { *world.media().base().add(at as usize) }
}

/// Some bytes past the pool's own head that are in use.
fn used_lines(world: &World, half: u64) -> Vec<u64> {
    let len = world.media().len().saturating_sub(half).min(MEDIUM_BYTES / 2);
    let used: Vec<u64> = (16 << 10..len).filter(|at| byte(world, half + at) != 0).collect();
    let mut rng = Rng::new(5);
    (0..3.min(used.len())).map(|_| used[rng.below(used.len() as u64) as usize]).collect()
}

fn repair(world: &World, engine: EngineKind) -> Result<RepairReport> {
    Db::repair_in(env(world), DIR, options(engine))
}

fn open(world: &World, engine: EngineKind) -> Result<Db> {
    Db::open_in(env(world), DIR, options(engine))
}

fn read_all(world: &World, engine: EngineKind) -> Result<Map> {
    read(&open(world, engine)?)
}

/// The same of a database that was repaired: of keyspaces that have lost their names, too.
fn read_repaired(world: &World, engine: EngineKind) -> Result<Map> {
    let db = open(world, engine)?;
    if !db.check()?.is_clean() {
        db.recover_keyspaces()?;
    }
    read(&db)
}

fn read(db: &Db) -> Result<Map> {
    let found = spaces::all_of(db)?;
    let problems = db.check()?.problems;
    if let Some(problem) = problems.first() {
        return Err(Error::corruption(Path::new(DIR), 0, "a sound database", problem));
    }
    db.close()?;
    Ok(found)
}

/// What an undisturbed repair makes of a damaged database.
struct Case {
    what: String,
    engine: EngineKind,
    damaged: Snapshot,
    /// What is in it afterwards.
    right: Map,
    lost: Vec<String>,
}

impl Case {
    /// Repairs and looks; what was written must be there unless its loss is told.
    fn new(engine: EngineKind, granularity: Granularity, closed: bool, damage: Damage) -> Option<Case> {
        let what = format!("{engine:?}, {granularity:?}, closed {closed}, {damage:?}");
        let (world, written) = database(engine, granularity, closed);
        if !spoil(&world, damage) {
            return None;
        }
        let damaged = world.capture();
        let report = repair(&world, engine).unwrap_or_else(|e| panic!("{what}: {e}"));
        let right = read_repaired(&world, engine).unwrap_or_else(|e| panic!("{what}, {report:?}: {e}"));
        let must_be_whole = [Damage::None, Damage::Pointer, Damage::Swapped].contains(&damage);
        if report.lost.is_empty() || must_be_whole {
            assert!(right == written, "{what}: {} of {} keys, {report:?}", right.len(), written.len());
        }
        if damage == Damage::Table {
            assert!(!report.set_aside.is_empty() && !report.lost.is_empty(), "{what}: {report:?}");
            let list = world.fs().read(&Path::new(DIR).join("lost/LIST")).unwrap();
            assert!(String::from_utf8(list).unwrap().contains(".sst: "), "{what}");
        }
        Some(Case { what, engine, damaged, right, lost: report.lost })
    }

    /// The files of a world, but for what a repair writes on its way.
    fn files(world: &World) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = world.fs().image();
        let passing = |path: &Path| path.ends_with("LOCK") || path.extension().is_some_and(|e| e == "new");
        files.retain(|path, _| path.parent() == Some(Path::new(DIR)) && !passing(path));
        files
    }

    /// A repair that was cut short left `world`: another brings the same as one that was not.
    fn judge(&self, world: &World, when: &str) {
        let what = format!("{}, {when}", self.what);
        let opened = world.kill();
        match read_all(&opened, self.engine) {
            // Before the last step it is as damaged as it was; afterwards it is right.
            Ok(found) => assert!(found == self.right || !self.lost.is_empty(), "{what}: opened, it is wrong"),
            Err(e) => {
                assert!([ErrorKind::Corruption, ErrorKind::InvalidFormat].contains(&e.kind()), "{what}: {e}")
            }
        }
        let report = repair(world, self.engine).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = read_repaired(world, self.engine).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(found == self.right, "{what}: {} keys, not {}: {report:?}", found.len(), self.right.len());
        let folder = world.fs().list(&Path::new(DIR).join("repair")).unwrap_or_default();
        assert_eq!(folder, Vec::<PathBuf>::new(), "{what}");
    }

    /// Every so many events of a repair, with what a kill and a power cut leave there.
    fn cut_short(&self, share: u64, first: u64) -> usize {
        let world = self.damaged.kill();
        let shots: Arc<Mutex<Vec<Snapshot>>> = Arc::default();
        let (taken, mut seen) = (shots.clone(), first);
        world.on_event(Box::new(move |_, world| {
            seen += 1;
            if seen.is_multiple_of(share) {
                taken.lock().unwrap().push(world.capture());
            }
        }));
        repair(&world, self.engine).unwrap();
        world.ignore_events();
        let shots = std::mem::take(&mut *shots.lock().unwrap());
        for (i, shot) in shots.iter().enumerate() {
            self.judge(&shot.kill(), &format!("killed at look {i}"));
            let survival = Survival::Seeded(i as u64);
            self.judge(&shot.power_cut(survival), &format!("power cut at look {i}"));
        }
        shots.len()
    }

    /// Each of `operations` of a repair fails: it says so and has changed nothing, or it is complete.
    fn with_faults(&self, operations: impl IntoIterator<Item = u64>) {
        for nth in operations {
            let world = self.damaged.kill();
            let before = Self::files(&world);
            world.fail_nth(nth);
            let outcome = repair(&world, self.engine);
            let met = world.fault_met().is_some();
            world.heal();
            let when = format!("operation {nth} failed, {outcome:?}");
            let has_begun = world.fs().exists(&Path::new(DIR).join("REPAIR")).unwrap();
            if outcome.is_err() && !has_begun && Self::files(&world) != before {
                let found = read_all(&world.kill(), self.engine);
                assert!(found.is_ok_and(|found| found == self.right), "{}, {when}: neither", self.what);
            }
            self.judge(&world, &when);
            if !met {
                return;
            }
        }
    }
}

const DAMAGES: [Damage; 7] = [
    Damage::None,
    Damage::Pointer,
    Damage::Table,
    Damage::Swapped,
    Damage::Manifest,
    Damage::Pool,
    Damage::Superblock,
];

fn cases() -> impl Iterator<Item = Case> {
    let kinds = ENGINES.into_iter().flat_map(|engine| {
        let media = [Granularity::CacheLine, Granularity::Page];
        media
            .into_iter()
            .filter(move |media| super::env::runs_on(engine, *media))
            .map(move |media| (engine, media))
    });
    kinds.flat_map(|(engine, media)| {
        DAMAGES
            .into_iter()
            .filter_map(move |damage| Case::new(engine, media, damage != Damage::Pointer, damage))
    })
}

fn share() -> u64 {
    std::env::var("TERRACE_REPAIR_EVERY").map_or(SHARE, |text| text.parse().expect("a number"))
}

/// Must catch a repair that removes or replaces files before what it makes of them is complete: the next one finds
/// less.
#[test]
fn a_repair_that_is_cut_short_is_begun_again() {
    let looks = cases().enumerate().map(|(i, case)| case.cut_short(share(), i as u64 * 7));
    let (cases, looks) = looks.fold((0, 0), |(cases, all), looks| (cases + 1, all + looks));
    assert!(looks > 3 * cases, "{looks} looks at {cases} repairs");
}

/// The ends of lives that a repair finds: what the last process was doing when it was cut off.
#[derive(Debug, Clone, Copy)]
enum CutOff {
    Flush,
    Compaction,
    Opening,
}

/// Databases that were cut off at each of so many events of what they did, and what is in them: it changes nothing of
/// that.
fn cut_off(engine: EngineKind, granularity: Granularity, doing: CutOff, share: u64) -> (Vec<Snapshot>, Map) {
    let (world, written) = database(engine, granularity, false);
    let shots: Arc<Mutex<Vec<Snapshot>>> = Arc::default();
    let (taken, mut seen) = (shots.clone(), 0);
    let catch = Box::new(move |_: Event, world: &World| {
        seen += 1;
        if seen % share == 0 {
            taken.lock().unwrap().push(world.capture());
        }
    });
    let opened = |world: &World| Db::open_in(env(world), DIR, options(engine)).unwrap();
    match doing {
        CutOff::Flush => {
            let db = opened(&world);
            world.on_event(catch);
            db.flush().unwrap();
        }
        CutOff::Compaction => {
            let db = opened(&world);
            db.flush().unwrap();
            world.on_event(catch);
            db.compact_range(..).unwrap();
        }
        CutOff::Opening => {
            world.on_event(catch);
            drop(opened(&world));
        }
    }
    world.ignore_events();
    (std::mem::take(&mut *shots.lock().unwrap()), written)
}

/// Must catch a repair that loses writes because a flush, a compaction or an opening was half done: it takes what is
/// not there yet for lost, or what is about to go for all there is.
#[test]
fn what_was_cut_off_in_the_middle_of_something_is_repaired_whole() {
    let mut looks = 0;
    let media = [Granularity::CacheLine, Granularity::Page];
    let kinds = ENGINES.into_iter().flat_map(|engine| media.map(|media| (engine, media)));
    for (engine, media) in kinds.filter(|(engine, media)| super::env::runs_on(*engine, *media)) {
        for doing in [CutOff::Flush, CutOff::Compaction, CutOff::Opening] {
            let (shots, written) = cut_off(engine, media, doing, share().div_ceil(4));
            for (i, shot) in shots.iter().enumerate() {
                let power_cut = shot.power_cut(Survival::Seeded(i as u64));
                for (world, end) in [(shot.kill(), "killed"), (power_cut, "without power")] {
                    let what = format!("{engine:?}, {media:?}, {doing:?} {end} at look {i}");
                    if i % 2 == 1 {
                        spoil(&world, Damage::Pointer);
                    }
                    let report = repair(&world, engine).unwrap_or_else(|e| panic!("{what}: {e}"));
                    let found =
                        read_repaired(&world, engine).unwrap_or_else(|e| panic!("{what}, {report:?}: {e}"));
                    let (found_keys, keys) = (found.len(), written.len());
                    // What was deleted may be back, of lists of which nobody knows whether they have left.
                    let may_be_more = report.doubts.iter().any(|doubt| doubt.contains("may be back"));
                    let has_all = written.iter().all(|(key, value)| found.get(key) == Some(value));
                    let is_right = found == written || may_be_more && has_all;
                    assert!(is_right, "{what}: {found_keys} of {keys} keys, {report:?}");
                    looks += 1;
                }
            }
        }
    }
    println!("{looks} repairs");
    assert!(looks > 20);
}

/// Must catch a repair that goes on behind a failed operation and leaves a database that is neither as it was nor
/// right.
#[test]
fn a_repair_that_meets_a_fault_has_changed_nothing_or_is_complete() {
    let operations = |i: usize| (i as u64 * 5 % share()..).step_by(share() as usize);
    cases().enumerate().for_each(|(i, case)| case.with_faults(operations(i)));
}

/// Must catch a repair that takes what it cannot read for damaged: manifests and the heads of tables are read first.
#[test]
fn a_repair_that_cannot_read_at_first_takes_nothing_for_damaged() {
    cases().for_each(|case| case.with_faults(0..READS_AT_FIRST));
}
