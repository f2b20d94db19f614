//! A sync fails, the system goes on showing what it has dropped, the process is killed, and the power goes within the
//! next opening or behind it. What that opening has read must not be gone then, nor what was removed on the word of it.

use std::sync::Arc;

use parking_lot::Mutex;
use terrace::{Db, EngineKind, ErrorKind};
use terrace_disk::{Fault, Fs};

use crate::harness::{ENGINES, Engine, Machine, Setup, assert_clean};

/// Operations of a flush one of which fails, in turn.
const STEPS: u64 = 24;
const KEYS: u32 = 400;

fn key(i: u32) -> Vec<u8> {
    format!("key{i:05}").into_bytes()
}

/// This machine, the process dead and the disk full.
fn without_room(killed: &Machine) -> Machine {
    let full = killed.kill();
    full.fs().set_capacity(Some(full.fs().used_bytes()));
    full
}

/// The next opening finds no room on the disk, so that nothing it reads is decided. Then there is room: what it could
/// not let go of goes, as it does with the opening after it. Says whether it could be opened.
fn goes_on_with_room(killed: &Machine, what: &str) -> bool {
    let full = without_room(killed);
    let Ok(db) = full.open() else { return false };
    full.fs().set_capacity(None);
    for i in (0..KEYS).step_by(3) {
        db.put(&key(i), &[i as u8; 60]).unwrap_or_else(|e| panic!("{what}, then room: {e}"));
    }
    db.flush().and_then(|()| db.compact_range(..)).unwrap_or_else(|e| panic!("{what}, then room: {e}"));
    holds_all(&db, &format!("{what}, then room"));
    let lists = db.stats().lists.bytes;
    db.close().unwrap();
    drop(db);
    let db = full.open().unwrap();
    holds_all(&db, &format!("{what}, opened again with room"));
    assert_eq!(db.stats().lists.bytes, lists, "{what}: bytes of lists, opened again");
    true
}

/// The next opening finds no room on the disk, and the power goes behind it.
fn survives_without_room(killed: &Machine, what: &str) {
    let full = without_room(killed);
    let opened = full.open().and_then(|db| {
        let written = db.put(b"more", b"");
        std::mem::forget(db);
        written
    });
    if let Err(e) = opened {
        assert!([ErrorKind::NoSpace, ErrorKind::PoolFull].contains(&e.kind()), "{what}: {e}");
    }
    let cut = full.power_cut(0);
    cut.fs().set_capacity(None);
    let db = cut.open().unwrap_or_else(|e| panic!("{what}, then no room: {e}"));
    holds_all(&db, &format!("{what}, then no room"));
}

fn holds_all(db: &Db, what: &str) {
    for i in 0..KEYS {
        let found = db.get(&key(i)).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(found.as_deref(), Some(&[i as u8; 60][..]), "{what}: key {i}");
    }
    assert_clean(db);
}

/// Opens the database, and says what power cuts within that leave, at each third event.
fn opened(machine: &Machine, first: u64) -> (Db, Vec<(String, Machine)>) {
    let worlds: Arc<Mutex<Vec<_>>> = Arc::default();
    let taken = worlds.clone();
    machine.world().on_event(Box::new(move |event, world| {
        if event.index % 3 == first % 3 {
            taken.lock().push((format!("at {event:?}"), world.crash(event.index)));
        }
    }));
    let db = machine.open().unwrap();
    machine.world().ignore_events();
    let worlds = std::mem::take(&mut *worlds.lock());
    (db, worlds.into_iter().map(|(at, world)| (at, machine.on(world))).collect())
}

/// Whatever fails of a flush, a merge or a migration: all that was acknowledged is in persistent memory or in what was
/// synced.
fn survives(kind: EngineKind) {
    let engine = Engine::of(kind);
    let (mut failed, mut went_on) = (0, 0);
    for (after, first) in (0..STEPS).flat_map(|after| (0..3).map(move |first| (after, first))) {
        let machine = Machine::new(&Setup::tiny("shown", &engine));
        let db = machine.open().unwrap();
        // Neither half lies beside the other: what was flushed first is merged, and not moved.
        (0..KEYS).step_by(2).for_each(|i| db.put(&key(i), &[i as u8; 60]).unwrap());
        db.flush().unwrap();
        (1..KEYS).step_by(2).for_each(|i| db.put(&key(i), &[i as u8; 60]).unwrap());
        // What a failed sync does goes by the number of changes.
        (0..first).for_each(|n| drop(machine.fs().create(&machine.dir().join(format!("other{n}"))).unwrap()));
        machine.fs().show_dropped(true);
        machine.fs().inject(Some(Fault { after, only_changes: true, sticky: true }));
        let outcome = db.flush().and_then(|()| db.compact_range(..));
        if let Err(e) = &outcome {
            assert!([ErrorKind::Io, ErrorKind::NoSpace].contains(&e.kind()), "{after}: {e}");
        }
        failed += u64::from(outcome.is_err() || db.stats().counts.background_errors > 0);
        let killed = machine.kill();
        killed.fs().inject(None);
        std::mem::forget(db);
        survives_without_room(&killed, &format!("{kind:?}, step {after}, {first} others"));
        went_on += u64::from(goes_on_with_room(&killed, &format!("{kind:?}, step {after}, {first} others")));
        let (db, within) = opened(&killed, after);
        let behind = (0..3).map(|seed| (format!("behind it by {seed}"), killed.power_cut(seed)));
        for (at, cut) in within.into_iter().chain(behind) {
            let what = format!("{kind:?}, step {after}, {first} others, the next opening cut off {at}");
            let db = cut.open().unwrap_or_else(|e| panic!("{what}: {e}"));
            holds_all(&db, &what);
        }
        holds_all(&db, &format!("{kind:?}, killed after {after}"));
    }
    println!("{kind:?}: {failed} failed, {went_on} opened without room");
    assert!(went_on > 0, "{kind:?}: none was opened without room");
    assert!(failed > 0 || kind == EngineKind::Split, "{kind:?}: nothing failed");
}

/// Must catch tables, manifests and lists that a process builds upon and a power cut takes: it has read what a failed
/// sync dropped, and not synced it again.
#[test]
fn what_failed_syncs_dropped_is_not_built_upon() {
    ENGINES.into_iter().filter(|kind| !kind.keeps_all_in_memory()).for_each(survives);
}
