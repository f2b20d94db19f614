//! Keyspaces: maps beside each other in one database.

use terrace::{Db, ErrorKind, Keyspace, KeyspaceOptions, WriteBatch};
use terrace_base::rng::Rng;

use super::transactions::open;
use crate::harness::{
    Engine, Machine, Map, Setup, all_keyspaces, assert_clean, default_of, key_in, there_is,
};

/// Keys that lie close to those of the catalogue and of other keyspaces, if they lay where they say.
pub const HOSTILE: [&[u8]; 17] = [
    b"",
    b"\x00",
    b"a",
    b"\xfe\xff",
    b"\xff",
    b"\xff\x00",
    b"\xff\x00d",
    b"\xff\x00i",
    b"\xff\x00nusers",
    b"\xff\x01",
    b"\xff\x01a",
    b"\xff\xf0",
    b"\xff\xf0\xf0",
    b"\xff\xf3\x80\x00\x00\x01k",
    b"\xff\xff",
    b"\xff\xff\x00",
    b"\xff\xff\xff",
];

pub fn owned(
    entries: impl Iterator<Item = terrace::Result<(bytes::Bytes, bytes::Bytes)>>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    entries.map(|entry| entry.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

/// Must catch a key of one keyspace that is another's, in any order of their making.
pub fn keyspaces_have_keys_of_their_own(engine: &Engine) {
    for keys_first in [true, false] {
        let (machine, db) = open("hostile", engine);
        let fill = |db: &Db, with: &str| {
            HOSTILE.iter().for_each(|key| db.put(key, [with.as_bytes(), key].concat()).unwrap());
        };
        if keys_first {
            fill(&db, "default");
        }
        let before = db.snapshot();
        let spaces: Vec<Keyspace> = ["users", "b", "c"].map(|name| db.keyspace(name).unwrap()).into();
        if !keys_first {
            fill(&db, "default");
        }
        for space in &spaces {
            HOSTILE.iter().for_each(|key| space.put(key, [space.name().as_bytes(), key].concat()).unwrap());
        }
        for space in &spaces {
            for key in HOSTILE {
                assert_eq!(space.get(key).unwrap().unwrap()[..], [space.name().as_bytes(), key].concat());
                assert_eq!(db.get(key).unwrap().unwrap()[..], [b"default", key].concat());
            }
            if let Ok(iter) = space.iter() {
                let keys: Vec<Vec<u8>> = owned(iter).into_iter().map(|(key, _)| key).collect();
                assert_eq!(keys, HOSTILE);
                let back: Vec<Vec<u8>> =
                    owned(db.iter().unwrap().rev()).into_iter().map(|(key, _)| key).collect();
                assert!(back.iter().rev().map(|key| &key[..]).eq(HOSTILE), "{back:02x?}");
            }
        }
        let there = if keys_first { HOSTILE.len() } else { 0 };
        assert_eq!(default_of(&before).unwrap().len(), there, "a snapshot of before there was one");
        for space in &spaces {
            let then = before.keyspace(space).unwrap();
            assert_eq!((then.get("a").unwrap(), then.entries().unwrap().count()), (None, 0));
            assert_eq!(then.multi_get(HOSTILE).unwrap().iter().flatten().count(), 0);
        }
        assert_eq!(db.multi_get(HOSTILE).unwrap().iter().flatten().count(), HOSTILE.len());
        HOSTILE.iter().step_by(2).for_each(|key| db.delete(key).unwrap());
        HOSTILE.iter().skip(1).step_by(2).for_each(|key| spaces[0].delete(key).unwrap());
        let map = all_keyspaces(&db).unwrap();
        assert_eq!(map.len(), 3 + HOSTILE.len() * 3);
        assert_eq!(before.entries().unwrap().count(), there);
        assert_clean(&db);
        drop((before, spaces));
        db.close().unwrap();
        drop(db);
        let db = machine.open().unwrap();
        assert_eq!(all_keyspaces(&db).unwrap(), map);
        assert_eq!(db.keyspaces().unwrap(), ["b", "c", "users"]);
        assert_clean(&db);
    }
}

/// Must catch a key of a database without keyspaces that the next opening takes for its marker.
pub fn a_marker_is_nobodys_key(engine: &Engine) {
    for way in 0..4 {
        let (machine, db) = open("marker", engine);
        let marker = [0xff, 0];
        let probe =
            db.keyspace_with("x", KeyspaceOptions { create_if_missing: false, ..KeyspaceOptions::default() });
        assert_eq!(probe.unwrap_err().kind(), ErrorKind::NoKeyspace);
        let value = b"terrace-spaces\0\x01";
        match way {
            0 => db.put(marker, value).unwrap(),
            1 => {
                let mut batch = WriteBatch::new();
                batch.put("a", "1");
                batch.put(marker, value);
                db.write(batch).unwrap();
            }
            2 => db.transact(|tx| tx.put(marker, value)).unwrap(),
            _ => drop(db.compare_and_swap(marker, None, Some(value)).unwrap()),
        }
        db.put([0xff, 7], "seven").unwrap();
        drop(db);
        let db = machine.kill().open().unwrap();
        let found = db.get(marker).unwrap();
        assert!(found.is_none() || found.as_deref() == Some(&value[..]));
        drop(db);
        let db = machine.open().unwrap();
        assert_eq!(db.get(marker).unwrap().as_deref(), Some(&value[..]), "way {way}");
        assert_eq!(db.get([0xff, 7]).unwrap().as_deref(), Some(&b"seven"[..]));
        assert_eq!(db.keyspaces().unwrap(), Vec::<String>::new());
        assert_clean(&db);
    }
}

pub fn what_is_dropped_is_gone_at_once(engine: &Engine) {
    let (machine, db) = open("dropped", engine);
    let (one, other) = (db.keyspace("one").unwrap(), db.keyspace("other").unwrap());
    (0..600u32).for_each(|i| one.put(i.to_be_bytes(), [1; 50]).unwrap());
    (0..20u32).for_each(|i| other.put(i.to_be_bytes(), [2; 50]).unwrap());
    let snapshot = db.snapshot();
    let mut batch = WriteBatch::new();
    batch.put_in(&one, "late", "1");
    batch.put_in(&other, "late", "1");
    let [tx, reading] = [db.transaction(), db.transaction()];
    tx.keyspace(&one).unwrap().put("late", "1").unwrap();
    assert!(reading.keyspace(&one).unwrap().contains_key(7u32.to_be_bytes()).unwrap());
    reading.put("read", "one").unwrap();
    db.drop_keyspace("one").unwrap();
    let gone = [
        one.put("k", "v").unwrap_err(),
        one.get("k").unwrap_err(),
        one.snapshot().unwrap_err(),
        one.compare_and_swap("k", None, Some(b"v")).unwrap_err(),
        db.write(batch).unwrap_err(),
        tx.commit().unwrap_err(),
        reading.commit().unwrap_err(),
        db.snapshot().keyspace(&one).unwrap_err(),
        db.transaction().keyspace(&one).unwrap_err(),
        db.drop_keyspace("one").unwrap_err(),
    ];
    assert!(gone.iter().all(|e| e.kind() == ErrorKind::NoKeyspace), "{gone:?}");
    assert!(!other.contains_key("late").unwrap());
    let then = snapshot.keyspace(&one).unwrap();
    assert_eq!(then.entries().unwrap().count(), 600);
    let again = db.keyspace("one").unwrap();
    assert_eq!((again.entries().unwrap().count(), again.get(7u32.to_be_bytes()).unwrap()), (0, None));
    again.put("k", "new").unwrap();
    assert_eq!((then.entries().unwrap().count(), then.get("k").unwrap()), (600, None));
    assert_clean(&db);
    drop((then, snapshot));
    assert_eq!(db.keyspaces().unwrap(), ["one", "other"]);
    drop((one, other, again));
    db.flush().unwrap();
    db.close().unwrap();
    drop(db);
    let db = machine.open().unwrap();
    let map = all_keyspaces(&db).unwrap();
    assert_eq!(map.len(), 2 + 1 + 20, "{map:02x?}");
    assert_clean(&db);
}

pub fn strangers_are_refused(engine: &Engine) {
    let (_machine, db) = open("mine", engine);
    let (_other_machine, other) = open("theirs", engine);
    let (mine, theirs) = (db.keyspace("k").unwrap(), other.keyspace("k").unwrap());
    let mut batch = WriteBatch::new();
    batch.put_in(&theirs, "a", "1");
    let tx = db.transaction();
    let refused = [
        db.write(batch).unwrap_err(),
        db.snapshot().keyspace(&theirs).unwrap_err(),
        tx.keyspace(&theirs).unwrap_err(),
        db.keyspace("").unwrap_err(),
        db.keyspace(&"n".repeat(256)).unwrap_err(),
        mine.put([1; 65_530], "v").unwrap_err(),
    ];
    assert!(refused.iter().all(|e| e.kind() == ErrorKind::InvalidArgument), "{refused:?}");
    mine.put([1; 65_529], "v").unwrap();
    db.keyspace(&"n".repeat(255)).unwrap();
    assert!(db.put([0xff; 65_535], "v").is_err(), "its place is longer");
    assert_clean(&db);
}

/// Must catch a write that gets into a keyspace as it is dropped, and a sweep that a close does not wait for.
pub fn keyspaces_come_and_go_under_threads(engine: &Engine) {
    let setup = Setup::tiny("coming and going", engine).threaded(3);
    let machine = Machine::new(&setup);
    let db = machine.open().unwrap();
    std::thread::scope(|threads| {
        for thread in 0..3u64 {
            let db = &db;
            threads.spawn(move || {
                let mut rng = Rng::new(thread);
                for i in 0..150u64 {
                    let name = ["x", "y"][rng.below(2) as usize];
                    let space = db.keyspace(name).unwrap();
                    let written =
                        (0..10).try_for_each(|j| space.put((i * 10 + j).to_be_bytes(), [thread as u8; 40]));
                    assert!(written.is_ok() || written.unwrap_err().kind() == ErrorKind::NoKeyspace);
                    db.put([0xff, thread as u8], i.to_le_bytes()).unwrap();
                    assert_eq!(db.get([0xff, thread as u8]).unwrap().unwrap()[..], i.to_le_bytes());
                    // A key of the default keyspace that lies where the catalogue does, beside one of a keyspace.
                    let mut batch = WriteBatch::new();
                    batch.put_in(&space, "k", "v");
                    batch.put([0xff, 0, thread as u8], i.to_le_bytes());
                    let written = db.write(batch);
                    assert!(written.is_ok() || written.unwrap_err().kind() == ErrorKind::NoKeyspace);
                    if rng.one_in(8) {
                        let dropped = db.drop_keyspace(name);
                        assert!(dropped.is_ok() || dropped.unwrap_err().kind() == ErrorKind::NoKeyspace);
                    }
                }
            });
        }
    });
    assert_clean(&db);
    let map = all_keyspaces(&db).unwrap();
    assert_eq!(map.keys().filter(|key| key.starts_with(b"default ")).count(), 6);
    db.close().unwrap();
    drop(db);
    let db = machine.open().unwrap();
    assert_eq!(all_keyspaces(&db).unwrap(), map);
    assert_clean(&db);
    db.keyspaces().unwrap().iter().for_each(|name| db.drop_keyspace(name).unwrap());
    assert_eq!(db.entries().unwrap().count(), 6);
}

/// A database that is opened again if it goes on refusing.
struct Stubborn<'a> {
    machine: &'a Machine,
    db: Option<Db>,
}

impl Stubborn<'_> {
    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    /// Does `step`; if it fails, again on healthy media; if it fails then, too, in a new process.
    fn takes(&mut self, step: impl Fn(&Db) -> terrace::Result<()>) {
        if step(self.db()).is_ok() {
            return;
        }
        self.machine.world().heal();
        if step(self.db()).is_err() {
            self.db = None;
            self.db = Some(self.machine.open().unwrap());
            step(self.db()).unwrap();
        }
    }
}

/// Must catch what a failed step leaves half done, for the same step again and for the next opening.
pub fn failed_steps_are_tried_again(engine: &Engine) {
    let high = [0xff, 7];
    let dropped = |db: &Db| match db.drop_keyspace("users") {
        // It was dropped, and that was not told.
        Err(e) if e.kind() == ErrorKind::NoKeyspace => Ok(()),
        outcome => outcome,
    };
    for nth in 0..40 {
        let (machine, db) = open("failing", engine);
        db.put(high, "high").unwrap();
        machine.world().fail_nth(nth);
        let mut stubborn = Stubborn { machine: &machine, db: Some(db) };
        stubborn.takes(|db| db.keyspace("users")?.put("old", "1"));
        stubborn.takes(|db| (0..20u8).try_for_each(|i| db.keyspace("users")?.put([i], [i; 30])));
        stubborn.takes(Db::flush);
        stubborn.takes(dropped);
        stubborn.takes(|db| db.keyspace("users")?.put("new", "1"));
        stubborn.takes(|db| db.keyspace("other")?.put("k", "1"));
        stubborn.takes(Db::flush);
        machine.world().heal();
        let found = all_keyspaces(stubborn.db()).unwrap();
        let wanted: Map = [
            (key_in(None, &high), b"high".to_vec()),
            (there_is("users"), Vec::new()),
            (key_in(Some("users"), b"new"), b"1".to_vec()),
            (there_is("other"), Vec::new()),
            (key_in(Some("other"), b"k"), b"1".to_vec()),
        ]
        .into();
        assert_eq!(found, wanted, "operation {nth} failed");
        let db = stubborn.db.take().unwrap();
        db.close().unwrap();
        drop(db);
        let db = machine.open().unwrap();
        assert_eq!(all_keyspaces(&db).unwrap(), wanted, "operation {nth} failed, opened again");
        assert_clean(&db);
    }
}
