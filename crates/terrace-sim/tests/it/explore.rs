//! The explorer itself: what it visits, how it reports, shrinks and replays.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::checksum::crc32c;
use terrace_disk::{Fs, WriteFile};
use terrace_pmem::{Granularity, Media};
use terrace_sim::{
    Change, Explorer, KvModel, Map, PmOptions, Recorder, Route, Scenario, World, WorldOptions, kv_scenario,
};

use crate::raw::{load, store, store_persist};

/// Words of persistent memory, each its own record: key `k` lives at `64 k`, 0 is absent.
fn put(world: &World, key: u64, value: u64, buggy: bool) {
    let pm = world.media();
    store(&pm, key * 64, value);
    if !(buggy && key == 5) {
        pm.flush(key * 64, 8);
    }
    pm.drain();
}

fn words(world: &World) -> Map {
    let pm = world.media();
    let pairs = (0..16u64).map(|key| (key, load(&pm, key * 64))).filter(|&(_, value)| value != 0);
    pairs.map(|(key, value)| (key.to_le_bytes().to_vec(), value.to_le_bytes().to_vec())).collect()
}

/// Puts `ops`, forgetting to flush key 5 if `buggy`.
fn word_store(buggy: bool) -> impl Scenario<Op = (u64, u64), Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[(u64, u64)]| {
            for &(key, value) in ops {
                let change = Change::put(key.to_le_bytes(), value.to_le_bytes());
                let _ = recorder.apply::<_, ()>(change, || {
                    put(world, key, value, buggy);
                    Ok(())
                });
            }
            Ok(())
        },
        |world, model| model.accepts_in(world, &words(world)),
    )
}

fn ops() -> Vec<(u64, u64)> {
    (0..30).map(|i| (i * 7 % 16, i + 1)).collect()
}

fn explorer() -> Explorer {
    let pm = PmOptions { bytes: 16384, ..PmOptions::default() };
    Explorer::new(3).world(WorldOptions { pm }).images(600)
}

#[test]
fn a_correct_store_passes_at_every_event() {
    let summary = explorer().must_pass(word_store(false), ops());
    assert_eq!(summary.events, 31);
    assert_eq!(summary.events_tried, 31);
    assert!(summary.images >= 31 * 9, "{summary:?}");
}

#[test]
fn a_failure_is_shrunk_and_each_route_replays() {
    let failure = explorer().explore(word_store(true), ops()).unwrap_err();
    let report = failure.to_string();
    assert!(report.contains(&format!("replay: {}", failure.route)), "{report}");
    let shrunk = failure.shrunk.as_ref().unwrap();
    assert_eq!(shrunk.ops.len(), 1, "{report}");
    assert_eq!(shrunk.ops[0].0, 5);

    let again = explorer().replay(word_store(true), ops(), &failure.route).unwrap_err();
    assert_eq!((&again.message, &again.route), (&failure.message, &failure.route));
    let small = explorer().replay(word_store(true), shrunk.ops.clone(), &shrunk.route).unwrap_err();
    assert_eq!(small.message, shrunk.message);
    explorer().replay(word_store(false), ops(), &failure.route).unwrap();
}

#[test]
fn a_route_that_is_not_there_is_an_error() {
    let route: Route = "seed=3 event=99999 image=0".parse().unwrap();
    let missed = explorer().replay(word_store(false), ops(), &route).unwrap_err();
    assert!(missed.message.contains("never reached"), "{}", missed.message);
}

#[test]
fn a_small_budget_samples_and_never_leaves_out_the_end() {
    if std::env::var_os("TERRACE_CRASH_IMAGES").is_some() {
        return; // A long run: no budget is small.
    }
    let summary = explorer().images(60).nested(0, 0).explore(word_store(false), ops()).unwrap();
    assert!(summary.events_tried >= 5 && summary.events_tried < 10, "{summary:?}");
    assert!(summary.images <= 60);
    let last = explorer().images(1).nested(0, 0).explore(word_store(true), vec![(5, 1)]).unwrap_err();
    assert!(last.story[0].contains("(end)"), "{last}");
}

#[test]
fn a_panic_in_verify_is_a_failure_with_its_place() {
    let scenario = kv_scenario(
        |world: &World, _: &mut Recorder<KvModel>, _: &[()]| {
            store_persist(&world.media(), 0, 1);
            Ok(())
        },
        |world, _| {
            assert_eq!(load(&world.media(), 0), 0, "seen");
            Ok(())
        },
    );
    let failure = explorer().explore(scenario, vec![]).unwrap_err();
    assert!(failure.message.contains("panicked") && failure.message.contains("explore.rs"), "{failure}");
}

#[test]
fn a_scenario_that_fails_by_itself_says_so() {
    let scenario =
        kv_scenario(|_: &World, _: &mut Recorder<KvModel>, _: &[()]| Err("no".into()), |_, _| Ok(()));
    let failure = explorer().explore(scenario, vec![]).unwrap_err();
    assert!(failure.is_of_scenario() && failure.to_string().contains("without a crash"), "{failure}");
}

/// A store whose recovery finishes a half-done move, and may lose it by clearing the note before the
/// target is durable.
fn mover(buggy: bool) -> impl Scenario<Op = u64, Model = KvModel> {
    // Words: 0 the value, 64 the note of a value to be moved there. Acknowledged once noted.
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[u64]| {
            for &value in ops {
                let pm = world.media();
                let _ = recorder.apply::<_, ()>(Change::put("v", value.to_le_bytes()), || {
                    store_persist(&pm, 64, value);
                    Ok(())
                });
                store_persist(&pm, 0, value);
                store_persist(&pm, 64, 0);
            }
            Ok(())
        },
        move |world, model| {
            let pm = world.media();
            let note = load(&pm, 64);
            if note != 0 {
                store(&pm, 0, note);
                if !buggy {
                    pm.flush(0, 8);
                    pm.drain();
                }
                store_persist(&pm, 64, 0);
                pm.flush(0, 8);
                pm.drain();
            }
            let found = [load(&pm, 0)].into_iter().filter(|&value| value != 0);
            let map = found.map(|value| (b"v".to_vec(), value.to_le_bytes().to_vec())).collect();
            model.accepts_in(world, &map)
        },
    )
}

#[test]
fn a_crash_within_recovery_is_found_and_replays() {
    explorer().must_pass(mover(false), (1..8).collect());
    explorer().nested(0, 0).must_pass(mover(true), (1..8).collect());
    let failure = explorer().explore(mover(true), (1..8).collect()).unwrap_err();
    assert_eq!(failure.route.steps.len(), 2, "{failure}");
    let again = explorer().replay(mover(true), (1..8).collect(), &failure.route).unwrap_err();
    assert_eq!(again.message, failure.message);
    explorer().replay(mover(false), (1..8).collect(), &failure.route).unwrap();
}

#[test]
fn nothing_is_interrupted_once_recovery_is_done() {
    let scenario = kv_scenario(
        |world: &World, _: &mut Recorder<KvModel>, ops: &[u64]| {
            ops.iter().for_each(|&op| store_persist(&world.media(), 0, op));
            Ok(())
        },
        |world, _| {
            let pm = world.media();
            let probed = load(&pm, 64) != 0;
            world.recovery_done();
            store_persist(&pm, 64, 1);
            if probed { Err("the probe of another verify is here".into()) } else { Ok(()) }
        },
    );
    let summary = explorer().nested(2, 4).must_pass(scenario, (1..20).collect());
    assert_eq!(summary.nested, 0);
}

/// A log record that puts `key`.
fn record(key: u64) -> Vec<u8> {
    let body = [key.to_le_bytes(), (key * 3).to_le_bytes()].concat();
    [&crc32c(&body).to_le_bytes()[..], &body].concat()
}

/// What a log puts, up to the first record that is not whole.
fn replay_log(data: &[u8], checks: bool) -> Map {
    let whole = |entry: &&[u8]| !checks || entry[..4] == crc32c(&entry[4..]).to_le_bytes();
    let entries = data.chunks_exact(20).take_while(whole);
    entries.map(|entry| (entry[4..12].to_vec(), entry[12..].to_vec())).collect()
}

/// A store on `Page` media: persistent memory is a cache of a log, every third change is synced.
fn logged(checks: bool) -> impl Scenario<Op = u64, Model = KvModel> {
    kv_scenario(
        move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[u64]| {
            let fs = world.fs();
            let mut log: Box<dyn WriteFile> = fs.create(Path::new("/log")).map_err(|e| e.to_string())?;
            fs.sync_dir(Path::new("/")).map_err(|e| e.to_string())?;
            for (i, &key) in ops.iter().enumerate() {
                let change = Change::put(key.to_le_bytes(), (key * 3).to_le_bytes());
                if i % 3 == 2 {
                    let done =
                        recorder.apply_synced(change, || log.append(&record(key)).and_then(|()| log.sync()));
                    done.map_err(|e| e.to_string())?;
                } else {
                    recorder.apply(change, || log.append(&record(key))).map_err(|e| e.to_string())?;
                }
            }
            Ok(())
        },
        move |world, model| {
            let data = world.fs().read(Path::new("/log")).unwrap_or_default();
            model.accepts_in(world, &replay_log(&data, checks))
        },
    )
}

#[test]
fn page_media_may_lose_what_was_not_synced_but_keep_a_prefix() {
    let pm = PmOptions { bytes: 8192, capacity: 8192, granularity: Granularity::Page };
    let explorer = explorer().world(WorldOptions { pm });
    explorer.must_pass(logged(true), (1..20).collect());
    let failure = explorer.explore(logged(false), (1..20).collect()).unwrap_err();
    assert!(failure.message.contains("no prefix"), "{failure}");
}

#[test]
fn faults_are_explored_one_by_one() {
    // A log that takes an append for done although it failed.
    let careless = |trusting: bool| {
        kv_scenario(
            move |world: &World, recorder: &mut Recorder<KvModel>, ops: &[u64]| {
                let Ok(mut log) = world.fs().create(Path::new("/log")) else { return Ok(()) };
                if world.fs().sync_dir(Path::new("/")).is_err() {
                    return Ok(());
                }
                for &key in ops {
                    let done =
                        recorder.apply(Change::put(key.to_le_bytes(), (key * 3).to_le_bytes()), || {
                            let done = log.append(&record(key)).and_then(|()| log.sync());
                            if trusting { Ok(()) } else { done }
                        });
                    if done.is_err() {
                        break;
                    }
                }
                Ok(())
            },
            |world, model| {
                let data = world.fs().read(Path::new("/log")).unwrap_or_default();
                model.accepts_in(world, &replay_log(&data, true))
            },
        )
    };
    let keys: Vec<u64> = (1..6).collect();
    let summary = explorer().explore_faults(careless(false), keys.clone()).unwrap();
    assert_eq!(summary.events_tried, 12, "{summary:?}");
    let failure = explorer().explore_faults(careless(true), keys.clone()).unwrap_err();
    assert!(failure.route.fault.is_some(), "{failure}");
    let again = explorer().replay(careless(true), keys, &failure.route).unwrap_err();
    assert_eq!((again.message, again.route), (failure.message, failure.route));
}

#[test]
fn two_explorations_verify_the_same_images() {
    let explore = || {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let scenario = kv_scenario(
            |world: &World, _: &mut Recorder<KvModel>, ops: &[u64]| {
                for &op in ops {
                    store(&world.media(), op % 16 * 72, op);
                    store_persist(&world.media(), op % 32 * 64, op);
                }
                Ok(())
            },
            move |world, _| {
                log.lock().push((world.seed(), world.boot_id().to_string(), words(world)));
                world.media().drain();
                Ok(())
            },
        );
        let summary = explorer().must_pass(scenario, (1..40).collect());
        let seen = std::mem::take(&mut *seen.lock());
        (summary, seen)
    };
    let (first, second) = (explore(), explore());
    assert!(first.0.nested > 0);
    assert!(first == second);
}

/// A scenario with kills leaves databases behind that hold their world for ever. What that takes is given back.
#[test]
fn an_explorer_empties_the_worlds_that_it_is_done_with() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = |kept: &Arc<Mutex<Vec<World>>>, world: &World| kept.lock().push(world.clone());
    let (in_run, in_verify) = (kept.clone(), kept.clone());
    let scenario = kv_scenario(
        move |world: &World, _: &mut Recorder<KvModel>, ops: &[(u64, u64)]| {
            keep(&in_run, world);
            world.fs().plant(Path::new("/file"), b"bytes").unwrap();
            ops.iter().for_each(|&(key, value)| put(world, key, value, false));
            Ok(())
        },
        move |world: &World, _: &KvModel| {
            keep(&in_verify, world);
            Ok(())
        },
    );
    let summary = explorer().images(20).must_pass(scenario, ops());
    let kept = kept.lock();
    assert!(kept.len() as u64 > summary.images, "{summary:?}");
    for world in kept.iter() {
        assert_eq!(words(world), Map::new());
        assert!(world.fs().image().is_empty() && !world.media().is_dirty());
    }
}
