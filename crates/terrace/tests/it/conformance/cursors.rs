//! Iterators: bounds, directions, seeks.

use std::ops::Bound;

use terrace::{Db, Snapshot};

use crate::harness::{Engine, Machine, Setup, Span, entries, setups};

/// Keys b, d, f, ..., each in another floor than its neighbours.
fn every_floor(machine: &Machine) -> Db {
    let db = machine.open().unwrap();
    for (n, round) in [2, 0, 1].into_iter().enumerate() {
        for (i, letter) in ('b'..='z').step_by(2).enumerate() {
            if i % 3 == round {
                db.put(letter.to_string().as_bytes(), &[letter as u8; 60]).unwrap();
            }
        }
        match n {
            0 => db.compact_range(..).unwrap(),
            1 => db.flush().unwrap(),
            _ => (),
        }
    }
    for gone in ["c", "g0"] {
        db.put(gone.as_bytes(), b"").unwrap();
        db.delete(gone.as_bytes()).unwrap();
    }
    db
}

fn keys(db: &Db, span: Span) -> String {
    entries(db.range(span).unwrap()).into_iter().map(|(key, _)| key[0] as char).collect()
}

/// A key written so often that passing its versions one by one would take long, between two others.
pub fn keys_with_many_versions(engine: &Engine) {
    if !engine.kind.is_ordered() {
        return;
    }
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let all = |snapshot: &Snapshot| {
            let up = entries(snapshot.iter().unwrap());
            let mut down: Vec<_> = snapshot.iter().unwrap().rev().map(Result::unwrap).collect();
            down.reverse();
            assert!(up.iter().map(|(k, v)| (&k[..], &v[..])).eq(down.iter().map(|(k, v)| (&k[..], &v[..]))));
            up.into_iter().map(|(key, value)| (key[0] as char, value.len())).collect::<Vec<_>>()
        };
        for key in ["a", "z"] {
            db.put(key.as_bytes(), b"1").unwrap();
        }
        let mut snapshots = Vec::new();
        for n in 0..40usize {
            snapshots.push((n, db.snapshot()));
            db.put(b"k", &vec![0; n]).unwrap();
        }
        for (n, snapshot) in &snapshots {
            let seen = n.checked_sub(1).map(|len| ('k', len));
            let expected: Vec<_> = [('a', 1)].into_iter().chain(seen).chain([('z', 1)]).collect();
            assert_eq!(all(snapshot), expected, "{}", setup.name);
        }
        db.delete(b"k").unwrap();
        assert_eq!(all(&db.snapshot()), [('a', 1), ('z', 1)], "{}", setup.name);
    }
}

pub fn bounds_and_directions(engine: &Engine) {
    if !engine.kind.is_ordered() {
        return has_no_iterators(engine);
    }
    use Bound::{Excluded, Included, Unbounded};
    let key = |c: char| vec![c as u8];
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = every_floor(&machine);
        for (span, expected) in [
            ((Unbounded, Unbounded), "bdfhjlnprtvxz"),
            ((Included(key('d')), Excluded(key('j'))), "dfh"),
            ((Excluded(key('d')), Included(key('j'))), "fhj"),
            ((Included(key('c')), Included(key('i'))), "dfh"),
            ((Excluded(key('a')), Excluded(key('b'))), ""),
            ((Included(key('b')), Included(key('b'))), "b"),
            ((Excluded(key('b')), Excluded(key('b'))), ""),
            ((Included(key('j')), Included(key('d'))), ""),
            ((Excluded(key('z')), Unbounded), ""),
            ((Unbounded, Included(vec![])), ""),
            ((Included(vec![]), Included(key('b'))), "b"),
        ] {
            assert_eq!(keys(&db, span.clone()), expected, "{span:?} under {}", setup.name);
            let back: String =
                db.range(span.clone()).unwrap().rev().map(|item| item.unwrap().0[0] as char).collect();
            assert_eq!(back, expected.chars().rev().collect::<String>(), "{span:?} backwards");
        }
        assert_eq!(db.range(&b"d"[..]..&b"h"[..]).unwrap().count(), 2);
        assert_eq!(db.range("x"..).unwrap().count(), 2);
    }
}

pub fn seeking_goes_both_ways(engine: &Engine) {
    if !engine.kind.is_ordered() {
        return has_no_iterators(engine);
    }
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = every_floor(&machine);
        let mut iter = db.range(&b"d"[..]..=&b"r"[..]).unwrap();
        let mut at = |seek: &str| {
            iter.seek(seek.as_bytes());
            iter.next().map(|item| item.unwrap().0[0] as char)
        };
        for (seek, expected) in [
            ("l", Some('l')),
            ("m", Some('n')),
            ("e", Some('f')),
            ("", Some('d')),
            ("r", Some('r')),
            ("s", None),
            ("h", Some('h')),
        ] {
            assert_eq!(at(seek), expected, "seek {seek} under {}", setup.name);
        }
        assert_eq!(iter.next().unwrap().unwrap().0, "j");
        let mut iter = db.range(&b"d"[..]..=&b"r"[..]).unwrap();
        let mut at = |seek: &str| {
            iter.seek_for_prev(seek.as_bytes());
            iter.next_back().map(|item| item.unwrap().0[0] as char)
        };
        for (seek, expected) in [
            ("l", Some('l')),
            ("m", Some('l')),
            ("z", Some('r')),
            ("c", None),
            ("d", Some('d')),
            ("q", Some('p')),
        ] {
            assert_eq!(at(seek), expected, "seek back to {seek} under {}", setup.name);
        }
        assert_eq!(iter.next_back().unwrap().unwrap().0, "n");
    }
}

pub fn both_ends_meet(engine: &Engine) {
    if !engine.kind.is_ordered() {
        return has_no_iterators(engine);
    }
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = every_floor(&machine);
        for ahead in 0..15 {
            let mut iter = db.iter().unwrap();
            let mut seen: Vec<u8> = iter.by_ref().take(ahead).map(|item| item.unwrap().0[0]).collect();
            let mut back: Vec<u8> = iter.by_ref().rev().map(|item| item.unwrap().0[0]).collect();
            back.reverse();
            seen.extend(back);
            assert_eq!(seen, b"bdfhjlnprtvxz");
            assert!(iter.next().is_none() && iter.next_back().is_none());
        }
    }
}

/// An iterator goes on over what it saw at first, whatever happens, and after its database was let go.
pub fn an_iterator_outlives_everything(engine: &Engine) {
    if !engine.kind.is_ordered() {
        return has_no_iterators(engine);
    }
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = every_floor(&machine);
        let mut iter = db.iter().unwrap();
        assert_eq!(iter.next().unwrap().unwrap().0, "b");
        for letter in 'a'..='z' {
            db.put(letter.to_string().as_bytes(), b"newer").unwrap();
        }
        db.flush().unwrap();
        assert_eq!(iter.next().unwrap().unwrap().0, "d");
        db.compact_range(..).unwrap();
        assert_eq!(iter.next_back().unwrap().unwrap().1, [b'z'; 60][..]);
        drop(db);
        let rest: Vec<(Vec<u8>, Vec<u8>)> = entries(iter);
        let keys: String = rest.iter().map(|(key, _)| key[0] as char).collect();
        assert_eq!(keys, "fhjlnprtvx", "under {}", setup.name);
        assert!(rest.iter().all(|(key, value)| *value == [key[0]; 60]));
    }
}

pub fn prefixes_end_where_they_should(engine: &Engine) {
    if !engine.kind.is_ordered() {
        return has_no_iterators(engine);
    }
    let machine = Machine::new(&Setup::tiny("prefixes", engine));
    let db = machine.open().unwrap();
    let keys: [&[u8]; 9] =
        [b"", b"a", b"a\0", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff", b"\xff\xff\x01"];
    for key in keys {
        db.put(key, b"").unwrap();
    }
    for flush in [false, true] {
        let count = |prefix: &[u8]| db.prefix(prefix).unwrap().count();
        assert_eq!(count(b""), 9);
        assert_eq!(count(b"a"), 4);
        assert_eq!(count(b"a\xff"), 2);
        assert_eq!(count(b"\xff"), 3);
        assert_eq!(count(b"\xff\xff"), 2);
        assert_eq!(count(b"c"), 0);
        assert_eq!(db.prefix(b"a").unwrap().next_back().unwrap().unwrap().0, &b"a\xff\xff"[..]);
        if !flush {
            db.flush().unwrap();
        }
    }
}

/// Where keys are in no order every kind of iterator is refused, and what is asked for by name.
fn has_no_iterators(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("no iterators", engine));
    let db = machine.open().unwrap();
    db.put(b"k", b"v").unwrap();
    let snapshot = db.snapshot();
    for refused in [
        db.iter().map(drop),
        db.range(&b"a"[..]..).map(drop),
        db.prefix(b"k").map(drop),
        snapshot.iter().map(drop),
        snapshot.prefix(b"").map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), terrace::ErrorKind::Unsupported);
        assert!(error.to_string().contains(engine.kind.name()), "{error}");
    }
    assert_eq!(db.entries().unwrap().count(), 1);
}
