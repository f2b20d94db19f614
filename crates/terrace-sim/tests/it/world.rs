//! Worlds: one list of events, survivors that are apart, boot ids, faults.

use std::path::{Path, PathBuf};

use terrace_base::ErrorKind;
use terrace_disk::{Access, Fs};
use terrace_pmem::{Granularity, Media};
use terrace_sim::{Event, EventKind, PmOptions, Survival, World, WorldOptions};

use crate::raw::{at_events, busy_work, contents, load, store, store_persist};

fn world(granularity: Granularity) -> World {
    let pm = PmOptions { bytes: 8192, capacity: 65536, granularity };
    World::new(7, WorldOptions { pm })
}

fn small() -> World {
    world(Granularity::CacheLine)
}

#[test]
fn both_media_share_one_list_of_events() {
    let path = PathBuf::from("/a");
    let events = at_events(
        &small(),
        |world| {
            let mut file = world.fs().create(Path::new("/a")).unwrap();
            world.media().drain();
            file.append(b"xy").unwrap();
            world.media().grow(16384).unwrap();
            file.sync().unwrap();
            world.media().sync().unwrap();
            world.fs().rename(Path::new("/a"), Path::new("/b")).unwrap();
            world.fs().sync_dir(Path::new("/")).unwrap();
            world.fs().remove(Path::new("/b")).unwrap();
            world.end();
        },
        |_, _| (),
    );
    let kinds: Vec<EventKind> = events.iter().map(|(event, ())| event.kind.clone()).collect();
    let expected = [
        EventKind::Create(path.clone()),
        EventKind::Drain,
        EventKind::Write(path.clone(), 2),
        EventKind::PmGrow(16384),
        EventKind::Sync(path.clone()),
        EventKind::PmSync,
        EventKind::Rename(path, "/b".into()),
        EventKind::SyncDir("/".into()),
        EventKind::Remove("/b".into()),
        EventKind::End,
    ];
    assert_eq!(kinds, expected);
    assert!(events.iter().enumerate().all(|(i, (event, ()))| event.index == i as u64));
}

#[test]
fn an_event_is_told_before_it_takes_effect() {
    let seen = at_events(
        &small(),
        |world| {
            store_persist(&world.media(), 0, 1);
            let mut file = world.fs().create(Path::new("/a")).unwrap();
            file.append(b"xyz").unwrap();
        },
        |event, world| match event.kind {
            EventKind::Drain => load(&world.capture().power_cut(Survival::Nothing).media(), 0),
            EventKind::Create(_) => u64::from(world.fs().exists(Path::new("/a")).unwrap()),
            _ => world.fs().open(Path::new("/a"), Access::Random).unwrap().len(),
        },
    );
    assert_eq!(seen.into_iter().map(|(_, saw)| saw).collect::<Vec<_>>(), [0, 0, 0]);
}

#[test]
fn a_callback_may_use_the_world_and_others_and_change_the_callback() {
    let seen = at_events(
        &small(),
        |world| {
            busy_work(world);
            store_persist(&world.media(), 0, 77);
        },
        |event, world| {
            let survivor = world.crash(event.index);
            let inner = at_events(&survivor, |w| w.media().drain(), |_, w| w.kill().events());
            // Its own events are numbered and not reported, lest it be called for ever.
            world.media().drain();
            inner.len()
        },
    );
    assert!(seen.len() > 30 && seen.iter().all(|(_, inner)| *inner == 1));
    let world = small();
    world.on_event(Box::new(|_, world| world.ignore_events()));
    world.media().drain();
    world.on_event(Box::new(|_, world| world.on_event(Box::new(|_, _| panic!("reached")))));
    world.media().drain();
    let second = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.media().drain()));
    assert!(second.is_err(), "the callback that was set inside a callback is called");
}

#[test]
fn the_same_seed_gives_the_same_events_and_images() {
    type Image = (Vec<(u64, u64)>, std::collections::BTreeMap<PathBuf, Vec<u8>>, String);
    let look = |world: &World| (contents(&world.media()), world.fs().image(), world.boot_id().to_string());
    let run = |seed: u64| -> Vec<(Event, Vec<Image>)> {
        let options = PmOptions { bytes: 8192, capacity: 65536, granularity: Granularity::CacheLine };
        at_events(&World::new(seed, WorldOptions { pm: options }), busy_work, move |event, world| {
            (0..4).map(|image| look(&world.crash(event.index * 4 + image))).collect()
        })
    };
    let (first, second) = (run(1), run(1));
    assert!(first == second, "two runs of one seed differ");
    assert!(first != run(2), "another seed changes nothing");
}

#[test]
fn a_power_cut_changes_the_boot_and_a_kill_does_not() {
    let world = small();
    let (cut, killed) = (world.crash(1), world.kill());
    assert_ne!(cut.boot_id(), world.boot_id());
    assert_ne!(cut.crash(1).boot_id(), cut.boot_id());
    assert_eq!(killed.boot_id(), world.boot_id());
    assert!(cut.lost_power() && !killed.lost_power() && !world.lost_power());
    assert!(cut.kill().lost_power(), "what power took stays lost");
}

#[test]
fn extremes_hold_for_both_media_at_once() {
    let world = small();
    store(&world.media(), 0, 1);
    world.media().flush(0, 8);
    let mut file = world.fs().create(Path::new("/a")).unwrap();
    file.append(b"pending").unwrap();
    let snapshot = world.capture();
    let nothing = snapshot.power_cut(Survival::Nothing);
    assert_eq!(load(&nothing.media(), 0), 0);
    assert!(!nothing.fs().exists(Path::new("/a")).unwrap());
    // What survived is on the media: a second power cut takes none of it.
    let everything = snapshot.power_cut(Survival::Everything).capture().power_cut(Survival::Nothing);
    assert_eq!(load(&everything.media(), 0), 1);
    assert_eq!(everything.fs().read(Path::new("/a")).unwrap(), b"pending");
    let killed = snapshot.kill();
    assert_eq!(load(&killed.media(), 0), 1);
    assert_eq!(killed.fs().read(Path::new("/a")).unwrap(), b"pending");
    assert!(!killed.capture().power_cut(Survival::Nothing).fs().exists(Path::new("/a")).unwrap());
    assert_eq!(load(&snapshot.power_cut(Survival::Wiped).media(), 0), 0);
}

#[test]
fn a_medium_may_keep_what_the_other_loses() {
    let world = small();
    store(&world.media(), 0, 1);
    let fs = world.fs();
    fs.create_dir_all(Path::new("/d")).unwrap();
    fs.create(Path::new("/d/old")).unwrap();
    fs.sync_dir(Path::new("/d")).unwrap();
    fs.remove(Path::new("/d/old")).unwrap();
    let there = |world: &World| (load(&world.media(), 0), world.fs().exists(Path::new("/d/old")).unwrap());
    let snapshot = world.capture();
    assert_eq!(there(&snapshot.power_cut(Survival::OnlyPm)), (1, true));
    let disk = snapshot.power_cut(Survival::OnlyDisk);
    assert_eq!(there(&disk), (0, false));
    // The removal has reached the disk for good, though nothing else lies in that directory.
    assert_eq!(there(&disk.capture().power_cut(Survival::Nothing)), (0, false));
}

#[test]
fn faults_count_over_both_media() {
    let steps = |world: &World| -> Vec<Option<ErrorKind>> {
        let kind = |result: terrace_base::Result<()>| result.err().map(|e| e.kind());
        let (pm, fs) = (world.media(), world.fs());
        vec![
            kind(pm.grow(pm.len() + 4096)),
            kind(fs.create_dir_all(Path::new("/d"))),
            kind(fs.create(Path::new("/d/f")).map(drop)),
            kind(pm.sync()),
            kind(fs.sync_dir(Path::new("/d"))),
        ]
    };
    let (full, io) = (Some(ErrorKind::NoSpace), Some(ErrorKind::Io));
    let expected = [
        [full, None, None, None, None],
        [None, io, None, None, io],
        [None, None, io, None, None],
        [None, None, None, io, None],
        [None, None, None, None, io],
    ];
    for (nth, expected) in expected.into_iter().enumerate() {
        let world = small();
        world.media().drain();
        world.fail_nth(nth as u64);
        // Where making the directory failed, everything in it fails of itself.
        let got = steps(&world);
        if nth == 1 {
            assert_eq!(got[1], io);
        } else {
            assert_eq!(got, expected, "operation {nth}");
        }
        assert_eq!(world.fallible_operations(), 5);
    }
    let world = small();
    world.fail_from(1);
    assert_eq!(steps(&world), [None, io, io, io, io]);
    world.heal();
    assert_eq!(steps(&world), [None; 5]);
}

#[test]
fn media_that_outlive_their_world_go_on_without_events() {
    let world = small();
    let (pm, fs) = (world.media(), world.fs());
    world.on_event(Box::new(|_, _| panic!("nobody is there to be told")));
    drop(world);
    store_persist(&pm, 0, 1);
    assert!(!pm.is_dirty());
    fs.create(Path::new("/a")).unwrap();
}

#[test]
fn events_of_several_threads_are_numbered_once_each() {
    let events = at_events(
        &small(),
        |world| {
            std::thread::scope(|s| {
                for thread in 0..4u64 {
                    s.spawn(move || (0..50).for_each(|_| store_persist(&world.media(), thread * 64, 1)));
                }
            });
        },
        |event, _| event.index,
    );
    let mut numbers: Vec<u64> = events.into_iter().map(|(_, number)| number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>());
}
