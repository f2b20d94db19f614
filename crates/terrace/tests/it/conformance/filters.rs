//! Compaction filters.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use terrace::{
    CompactionFilter, Db, EngineKind, ErrorKind, Expiry, FilterDecision, Keyspace, KeyspaceOptions, Options,
};
use terrace_base::rng::Rng;

use super::transactions::open;
use crate::harness::{Engine, Machine, Map, Setup, assert_clean, entries, setups};

/// Lets go of values that begin with `x`.
fn no_x() -> CompactionFilter {
    CompactionFilter::new(|entry| decision(entry.value.starts_with(b"x")))
}

fn decision(goes: bool) -> FilterDecision {
    if goes { FilterDecision::Remove } else { FilterDecision::Keep }
}

fn filtered(db: &Db, name: &str, filter: CompactionFilter, expiry: Option<Expiry>) -> Keyspace {
    let options = KeyspaceOptions { compaction_filter: Some(filter), expiry, ..KeyspaceOptions::default() };
    db.keyspace_with(name, options).unwrap()
}

fn open_filtered(machine: &Machine, filter: CompactionFilter) -> Db {
    let options = Options { compaction_filter: Some(filter), ..machine.options() };
    Db::open_in(machine.env(), machine.dir(), options).unwrap()
}

/// Has everything be met by a compaction, in engines that have any.
fn compact(db: &Db) {
    db.flush().unwrap();
    // What lies in persistent memory alone is met once it has been moved.
    db.compact_range(..).unwrap();
    db.compact_range(..).unwrap();
}

/// An engine without compactions refuses filters; returns whether this one does.
fn refuses(engine: &Engine, machine: &Machine) -> bool {
    if !engine.kind.keeps_all_in_memory() {
        return false;
    }
    let options = Options { compaction_filter: Some(no_x()), ..machine.options() };
    let refused = Db::open_in(machine.env(), machine.dir(), options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let db = machine.open().unwrap();
    let options = KeyspaceOptions { compaction_filter: Some(no_x()), ..KeyspaceOptions::default() };
    assert_eq!(db.keyspace_with("space", options).unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(db.keyspaces().unwrap().is_empty(), "a refused keyspace is not made");
    true
}

/// Must catch an entry that stays or goes against what its filter says, a filter that is asked about another's keys,
/// about a key that is not as its user knows it or with a value that has a deadline, and a snapshot that misses an entry.
pub fn what_is_let_go_is_deleted(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        if refuses(engine, &machine) {
            return;
        }
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let watching = |name: &'static str| {
            let asked = asked.clone();
            CompactionFilter::new(move |entry| {
                asked.lock().unwrap().insert((name, entry.key.to_vec(), entry.value.to_vec()));
                decision(entry.value.starts_with(b"x"))
            })
        };
        let db = open_filtered(&machine, watching("default"));
        let hour = Expiry::After(Duration::from_secs(3600));
        let spaces = [
            filtered(&db, "plain", watching("plain"), None),
            filtered(&db, "dated", watching("dated"), Some(hour)),
            db.keyspace("free").unwrap(),
        ];
        let key = |i: u8| if i.is_multiple_of(5) { vec![0xff, i, 0xff] } else { vec![i, b'k'] };
        let value =
            |i: u8| [if i.is_multiple_of(3) { "x" } else { "y" }, &"v".repeat(usize::from(i))].concat();
        let mut known = BTreeSet::new();
        for i in 0..120 {
            db.put(key(i), value(i)).unwrap();
            known.insert(("default", key(i), value(i).into_bytes()));
            for space in &spaces {
                space.put(key(i), value(i)).unwrap();
                let name = ["plain", "dated", "free"].into_iter().find(|name| *name == space.name());
                known.insert((name.unwrap(), key(i), value(i).into_bytes()));
            }
        }
        // Compactions in the background may have met some already.
        let before = db.snapshot();
        let plain = before.keyspace(&spaces[0]).unwrap();
        let all_of = || (0..120).map(|i| (before.get(key(i)).unwrap(), plain.get(key(i)).unwrap()));
        let then: Vec<_> = all_of().collect();
        compact(&db);
        assert!(asked.lock().unwrap().is_subset(&known), "{}", setup.name);
        assert!(!asked.lock().unwrap().iter().any(|(name, ..)| *name == "free"));
        // Small items stay in persistent memory as long as there is room.
        let meets_all = engine.kind != EngineKind::Split;
        let check = |db: &Db, spaces: &[Keyspace]| {
            for i in 0..120 {
                let has = |found: Option<terrace::Bytes>| match found {
                    Some(found) => found == value(i).as_bytes(),
                    None => i % 3 == 0,
                };
                assert!(has(db.get(key(i)).unwrap()), "{i} of {}", setup.name);
                assert!(spaces.iter().all(|space| has(space.get(key(i)).unwrap())));
                let goes = i % 3 == 0 && meets_all;
                assert!(!goes || db.get(key(i)).unwrap().is_none(), "{i} of {}", setup.name);
                assert!(!goes || spaces[..2].iter().all(|space| space.get(key(i)).unwrap().is_none()));
                assert!(spaces[2].get(key(i)).unwrap().is_some(), "it has no filter");
            }
        };
        check(&db, &spaces);
        assert!(all_of().eq(then), "a snapshot is of its time");
        assert_clean(&db);
        drop((before, plain, spaces, db));
        let db = machine.open().unwrap();
        check(&db, &["plain", "dated", "free"].map(|name| db.keyspace(name).unwrap()));
        compact(&db);
        assert_clean(&db);
    }
}

/// Must catch more that goes than can be noted one by one and stays.
pub fn however_much_is_let_go_it_goes(engine: &Engine) {
    if engine.kind.keeps_all_in_memory() || engine.kind == EngineKind::Split {
        return;
    }
    let machine = Machine::new(&Setup::tiny("filters", engine));
    let db = open_filtered(&machine, no_x());
    let key = |i: usize| format!("{i:01000}");
    for i in 0..1500 {
        db.put(key(i), if i % 10 == 0 { "y" } else { "x" }).unwrap();
    }
    compact(&db);
    let left = entries(db.iter().unwrap());
    let of = |letter: &[u8]| -> Vec<&str> {
        let left = left.iter().filter(|(_, value)| value == letter);
        left.map(|(key, _)| std::str::from_utf8(&key[994..]).unwrap()).collect()
    };
    assert_eq!(of(b"y").len(), 150);
    assert_eq!(of(b"x"), [""; 0]);
    assert_clean(&db);
}

/// Must catch a delete of what a filter keeps after all, a panic that loses something or ends a thread, and a wait for
/// ever where a filter uses the database.
pub fn a_filter_is_asked_again_and_may_fail(engine: &Engine) {
    let (_machine, db) = open("filters", engine);
    if engine.kind.keeps_all_in_memory() {
        return;
    }
    let changes_its_mind = {
        let asked = Mutex::new(BTreeSet::new());
        CompactionFilter::new(move |entry| decision(asked.lock().unwrap().insert(entry.key.to_vec())))
    };
    let panics = CompactionFilter::new(|entry| match entry.value.first() {
        Some(b'x') => FilterDecision::Remove,
        _ => panic!("on request"),
    });
    let (handle, was_used) = (Arc::new(OnceLock::<Db>::new()), Arc::new(AtomicUsize::new(0)));
    let is_refused = Arc::new(AtomicBool::new(true));
    let uses = {
        let (handle, was_used, is_refused) = (handle.clone(), was_used.clone(), is_refused.clone());
        CompactionFilter::new(move |_| {
            let db = handle.get().unwrap();
            was_used.fetch_add(1, Ordering::Relaxed);
            let refused = [
                db.put("a", "b").map(drop),
                db.flush(),
                db.keyspaces().map(drop),
                db.compact_range(..),
                db.sweep(),
            ];
            let all =
                refused.iter().all(|r| r.as_ref().is_err_and(|e| e.kind() == ErrorKind::InvalidArgument));
            is_refused.fetch_and(all, Ordering::Relaxed);
            FilterDecision::Keep
        })
    };
    let spaces = [("mind", changes_its_mind), ("panics", panics), ("uses", uses)]
        .map(|(name, filter)| filtered(&db, name, filter, None));
    let _ = handle.set(db.clone());
    for i in 0..50 {
        for space in &spaces {
            space.put(format!("{i}"), if i % 2 == 0 { "x" } else { "y" }).unwrap();
        }
    }
    compact(&db);
    assert_eq!(spaces[2].iter().unwrap().count(), 50);
    assert!(is_refused.load(Ordering::Relaxed));
    let meets_all = engine.kind != EngineKind::Split;
    if meets_all {
        assert_eq!(spaces[0].iter().unwrap().count(), 50, "it is asked again before it is deleted");
        assert_eq!(spaces[1].iter().unwrap().count(), 25);
        assert!(was_used.load(Ordering::Relaxed) > 0);
    }
    assert!(spaces[1].get("1").unwrap().is_some());
    assert_clean(&db);
    // The filter keeps a handle of the database, which nobody should: it has to go for the database to be closed.
    db.close().unwrap();
}

/// Must catch a filter whose deletes hide what is put beside them, or bring something back.
pub fn filtered_entries_match_a_map(engine: &Engine) {
    if engine.kind.keeps_all_in_memory() {
        return;
    }
    for setup in setups(engine) {
        let (machine, mut rng) = (Machine::new(&setup), Rng::new(71));
        let mut db = open_filtered(&machine, no_x());
        let mut map = Map::new();
        let mut held: Option<(terrace::Snapshot, Map)> = None;
        for round in 0..600 {
            let key = format!("{:02}", rng.below(40)).into_bytes();
            match rng.below(20) {
                0..9 => {
                    let value = format!("{}{round}", ["x", "y"][rng.below(2) as usize]).into_bytes();
                    db.put(&key, &value).unwrap();
                    map.insert(key, value);
                }
                9..12 => {
                    db.delete(&key).unwrap();
                    map.remove(&key);
                }
                12 => db.flush().unwrap(),
                13 => db.compact_range(&key[..]..).unwrap(),
                14 => held = None,
                15 if held.is_none() => {
                    let snapshot = db.snapshot();
                    // What it does not have was let go before.
                    map.retain(|key, _| snapshot.get(key).unwrap().is_some());
                    held = Some((snapshot, map.clone()));
                }
                16 if round % 5 == 0 => {
                    held = None;
                    drop(db);
                    db = open_filtered(&machine, no_x());
                }
                _ => {
                    let found = db.get(&key).unwrap().map(|value| value.to_vec());
                    let may_be_gone = map.get(&key).is_none_or(|value| value.starts_with(b"x"));
                    assert!(found.as_ref() == map.get(&key) || found.is_none() && may_be_gone, "{round}");
                    if found.is_none() {
                        map.remove(&key);
                    }
                    if let Some((snapshot, then)) = &held {
                        let found = snapshot.get(&key).unwrap().map(|value| value.to_vec());
                        assert_eq!(found.as_ref(), then.get(&key), "a snapshot is of its time");
                    }
                }
            }
        }
        held = None;
        compact(&db);
        map.retain(|_, value| value.starts_with(b"y"));
        let kept = entries(db.iter().unwrap()).into_iter().filter(|(_, value)| value.starts_with(b"y"));
        assert_eq!(kept.collect::<Map>(), map, "{}", setup.name);
        assert!(held.is_none());
        assert_clean(&db);
    }
}
