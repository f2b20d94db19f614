//! The commit log in files: what damage to it leaves of a database.

use std::collections::BTreeMap;
use std::path::PathBuf;

use terrace::{Db, EngineKind, Error, ErrorKind, Options};
use terrace_disk::Fs;
use terrace_pmem::Granularity;

use crate::harness::{Engine, Machine, Map, Setup, assert_clean, engines_on_files};
use crate::logs::{all, logs, put, roomy};

/// After a clean close a log that is cut short, missing or damaged is told, and a repair says what is gone.
#[test]
fn a_log_that_was_closed_is_whole() {
    let machine = roomy(EngineKind::Lsm);
    let (db, mut map) = (machine.open().unwrap(), Map::new());
    for i in 0..50 {
        put(&db, &mut map, &format!("key {i}"), 50, false).unwrap();
    }
    db.close().unwrap();
    let [path] = &logs(&machine)[..] else { panic!("{:?}", logs(&machine)) };
    let bytes = machine.fs().read(path).unwrap();
    let end = bytes.len();
    let mut damages: Vec<Option<Vec<u8>>> = vec![None, Some(Vec::new())];
    damages.extend(
        (0..end).step_by(97).chain([64, 70, end - 24, end - 1]).map(|len| Some(bytes[..len].to_vec())),
    );
    damages.extend((0..end * 8).step_by(1001).map(|bit| {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        Some(bytes)
    }));
    for (i, damage) in damages.into_iter().enumerate() {
        for machine in [machine.kill(), machine.power_cut(7)] {
            match &damage {
                Some(bytes) => machine.fs().plant(path, bytes).unwrap(),
                None => machine.fs().remove(path).unwrap(),
            }
            let error = machine.open().map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption, "{i}: {error}");
            let report = Db::repair_in(machine.env(), machine.dir(), machine.options()).unwrap();
            let found = all(&machine.open().unwrap());
            assert!(
                !report.lost.is_empty(),
                "{i}: {} of {} keys, {:?}",
                found.len(),
                map.len(),
                report.actions
            );
            assert!(found.iter().all(|(k, v)| map.get(k) == Some(v)));
        }
    }
    assert!(all(&machine.kill().open().unwrap()) == map);
}

/// The newest log is missed where it is missing, however the process and the power ended, as soon as it has a group.
#[test]
fn a_missing_newest_log_is_told() {
    let machine = roomy(EngineKind::Lsm);
    let (db, mut map) = (machine.open().unwrap(), Map::new());
    put(&db, &mut map, "of the first session", 50, false).unwrap();
    db.close().unwrap();
    drop(db);
    let db = machine.open().unwrap();
    put(&db, &mut map, "of the second session", 50, false).unwrap();
    let newest = logs(&machine).pop().unwrap();
    for world in [machine.kill(), machine.power_cut(1), machine.power_cut(2)] {
        world.fs().remove(&newest).unwrap();
        let error = world.open().map(drop).unwrap_err();
        let words = error.to_string();
        assert!(error.kind() == ErrorKind::Corruption && words.contains("was begun"), "{words}");
    }
    assert!(all(&machine.kill().open().unwrap()) == map);
}

/// Where memtables outlive the process a log that was closed and has lost its end costs nothing yet; it is begun anew,
/// before a power cut finds it.
#[test]
fn a_log_without_its_end_is_begun_anew_beside_a_pool() {
    for gone in [false, true] {
        let machine = roomy(EngineKind::Slm);
        let (db, mut map) = (machine.open().unwrap(), Map::new());
        for i in 0..50 {
            put(&db, &mut map, &format!("key {i}"), 50, false).unwrap();
        }
        db.close().unwrap();
        drop(db);
        let path = logs(&machine).pop().unwrap();
        match gone {
            true => machine.fs().remove(&path).unwrap(),
            false => machine.fs().damage(&path, |bytes| bytes.truncate(1000)).unwrap(),
        }
        let db = machine.open().unwrap();
        assert!(all(&db) == map);
        assert_clean(&db);
        put(&db, &mut map, "one more", 50, true).unwrap();
        for seed in 0..10 {
            assert!(all(&machine.power_cut(seed).open().unwrap()) == map, "power cut {seed}");
        }
    }
}

/// What happens to a log, by what it is called.
type Harm = (&'static str, fn(&mut Vec<u8>));

/// After a clean close the memtables of `slm` hold all that a damaged log does: `check` names the damage and says so,
/// and a repair that does not call everything sound leaves nothing for the next check to name.
#[test]
fn check_and_repair_are_of_one_mind_about_a_log() {
    let harms: [Harm; 6] = [
        ("cut", |log| log.truncate(log.len() / 2)),
        ("empty", Vec::clear),
        ("longer", |log| log.extend([7; 90])),
        ("zeroed", |log| log.fill(0)),
        ("flipped", |log| log[1000] ^= 4),
        ("flipped at its end", |log| *log.last_mut().unwrap() ^= 4),
    ];
    for harm in harms.map(Some).into_iter().chain([None]) {
        let what = harm.map_or("removed", |(what, _)| what);
        let machine = roomy(EngineKind::Slm);
        let (db, mut map) = (machine.open().unwrap(), Map::new());
        for i in 0..200 {
            put(&db, &mut map, &format!("key {i:03}"), 50, false).unwrap();
        }
        db.flush().unwrap();
        for i in 150..250 {
            put(&db, &mut map, &format!("key {i:03}"), 60, false).unwrap();
        }
        db.delete(b"key 000").unwrap();
        db.delete(b"key 249").unwrap();
        map.retain(|key, _| key != b"key 000" && key != b"key 249");
        db.close().unwrap();
        drop(db);
        let path = logs(&machine).pop().unwrap();
        match harm {
            Some((_, harm)) => machine.fs().damage(&path, harm).unwrap(),
            None => machine.fs().remove(&path).unwrap(),
        }
        let check = || {
            let db = machine.open_with(Options { read_only: true, ..machine.options() }).unwrap();
            assert!(all(&db) == map, "{what}");
            db.check().unwrap()
        };
        let report = check();
        assert_eq!(report.keys, map.len() as u64, "{what}");
        let [problem] = &report.problems[..] else { panic!("{what}: {:?}", report.problems) };
        assert!(problem.contains(".log") && problem.contains("nothing is lost"), "{what}: {problem}");
        let repaired = Db::repair_in(machine.env(), machine.dir(), machine.options()).unwrap();
        assert!(repaired.lost.is_empty() && repaired.doubts.is_empty(), "{what}: {repaired:?}");
        assert!(repaired.actions.iter().any(|line| line.contains(".log")), "{what}: {repaired:?}");
        assert_eq!(repaired.keys, map.len() as u64, "{what}");
        let report = check();
        assert!(report.is_clean() && report.keys == map.len() as u64, "{what}: {report:?}");
    }
}

/// `check` counts what memtables hold, and what they take away.
#[test]
fn check_counts_the_keys_of_memtables() {
    for kind in engines_on_files() {
        let machine = roomy(kind);
        let db = machine.open().unwrap();
        let mut map = Map::new();
        for round in 0..3u8 {
            for i in 0..40 {
                put(&db, &mut map, &format!("key {}", i * (round + 1)), 30, false).unwrap();
            }
            for i in 0..10 {
                let key = format!("key {}", i * 7).into_bytes();
                db.delete(&key).unwrap();
                map.remove(&key);
            }
            assert_eq!(db.check().unwrap().keys, map.len() as u64, "{kind:?}, round {round}");
            if round < 2 {
                db.flush().unwrap();
                assert_eq!(db.check().unwrap().keys, map.len() as u64, "{kind:?}, round {round}, flushed");
            }
        }
    }
}

/// Within one boot nothing of a log is lost when a process is killed, synced or not: one flipped bit anywhere is
/// damage. After a power cut an unsynced log ends there, and a synced one is damaged.
#[test]
fn a_flipped_bit_is_damage_until_the_power_is_cut() {
    for sync_at in [None, Some(30), Some(49)] {
        let machine = roomy(EngineKind::Lsm);
        let (db, mut map) = (machine.open().unwrap(), Map::new());
        for i in 0..50 {
            put(&db, &mut map, &format!("key {i:02}"), 50, Some(i) == sync_at).unwrap();
        }
        let path = logs(&machine).pop().unwrap();
        let bytes = machine.fs().read(&path).unwrap();
        let end = written(&bytes);
        for bit in (64 * 8..bytes.len() * 8).step_by(509) {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let killed = machine.kill();
            killed.fs().plant(&path, &bad).unwrap();
            let error = killed.open().map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption, "bit {bit}: {error}");
            // The same bytes on a machine that was booted since.
            let cut = machine.kill();
            cut.fs().set_epoch(9);
            cut.fs().plant(&path, &bad).unwrap();
            match (cut.open(), sync_at) {
                (Ok(db), _) => {
                    let found = all(&db);
                    let prefix: Map =
                        map.iter().take(found.len()).map(|(k, v)| (k.clone(), v.clone())).collect();
                    // Behind what was written is room, in which nothing can be lost.
                    let is_whole = found.len() == map.len();
                    assert!(found == prefix && is_whole == (bit / 8 >= end), "bit {bit}: {}", found.len());
                    // A sync of the last record has nothing behind it that would tell.
                    assert!(sync_at.is_none_or(|at| found.len() > at as usize || at == 49), "bit {bit}");
                }
                (Err(Error::Corruption { .. }), Some(30)) => assert!(bit / 8 < end * 4 / 5),
                (Err(e), _) => panic!("bit {bit}: {e}"),
            }
        }
    }
}

/// Bytes of a log without the room behind it. What the tests write does not end in zeros.
fn written(log: &[u8]) -> usize {
    log.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1)
}

/// A log that is missing before another that was begun durably is told, power cut or not.
#[test]
fn a_missing_log_before_another_is_told() {
    let setup = Setup::tiny("tiny", &Engine::of(EngineKind::Lsm));
    let machine = Machine::new(&setup.on(Granularity::Page));
    let (db, mut map) = (machine.open().unwrap(), Map::new());
    let mut told = 0;
    for i in 0..130 {
        put(&db, &mut map, &format!("key {i}"), 60, i % 9 == 0).unwrap();
        let all = logs(&machine);
        if all.len() > 1 {
            for world in [machine.kill(), machine.power_cut(i)] {
                world.fs().remove(&all[0]).unwrap();
                if let Err(e) = world.open().map(drop) {
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                    told += 1;
                } else {
                    // Of the next nothing was durable, not even where it begins.
                    assert!(world.world().lost_power());
                }
            }
        }
    }
    assert!(told > 30, "{told}");
}

/// A log that has lost its last records, as an older copy of it has, is told by the one that was begun behind it.
#[test]
fn an_older_copy_of_a_log_before_another_is_told() {
    let setup = Setup::tiny("tiny", &Engine::of(EngineKind::Lsm));
    let machine = Machine::new(&setup.on(Granularity::Page));
    let (db, mut map) = (machine.open().unwrap(), Map::new());
    let mut copies: BTreeMap<PathBuf, Vec<Vec<u8>>> = BTreeMap::new();
    let mut told = 0;
    for i in 0..130 {
        put(&db, &mut map, &format!("key {i}"), 60, i % 9 == 0).unwrap();
        let all = logs(&machine);
        for path in &all[..all.len().saturating_sub(1)] {
            let now = machine.fs().read(path).unwrap();
            let is_older = |copy: &&Vec<u8>| written(copy) < written(&now);
            for copy in copies.get(path).into_iter().flatten().filter(is_older) {
                let killed = machine.kill();
                killed.fs().plant(path, copy).unwrap();
                let error = killed.open().map(drop).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                told += 1;
            }
        }
        if let Some(last) = all.last() {
            copies.entry(last.clone()).or_default().push(machine.fs().read(last).unwrap());
        }
    }
    assert!(told > 30, "{told}");
}
