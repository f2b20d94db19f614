//! What two threads once did to each other, each with what it was; where it can be done, at exactly the moment
//! that it needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Db, EngineKind};
use terrace_base::ErrorKind;
use terrace_base::exec::{Executor, Inline, Lane};
use terrace_sim::EventKind;

use crate::harness::{Engine, Machine, Setup, assert_clean, entries};

const SLM: Engine = Engine::of(EngineKind::Slm);

/// Opens the database with background work that waits for `Inline::help`.
fn open_held(machine: &Machine) -> (Db, Arc<Inline>) {
    let held = Arc::new(Inline::default());
    let db = Db::open_in(machine.env_on(held.clone()), machine.dir(), machine.options()).unwrap();
    (db, held)
}

/// What looks for leftovers of a crash asked first which memtables readers keep and then, after a walk over the
/// index, which memtables there are. One that was flushed in between was in neither answer, and its memory was
/// given out again under its readers.
#[test]
fn a_memtable_flushed_while_leftovers_are_looked_for_stays_readable() {
    let machine = Machine::new(&Setup::tiny("leftovers", &SLM));
    let key = |i: u32| i.to_be_bytes();
    {
        let (db, held) = open_held(&machine);
        (0..300).for_each(|i| db.put(&key(i), &[1; 40]).unwrap());
        db.flush().unwrap();
        // Until a memtable waits for a flush that nobody does.
        while held.help() {}
        let mut i = 0;
        while held.pending_in(Lane::Flush) == 0 {
            db.put(&key(i), &[2; 40]).unwrap();
            i += 1;
        }
        let killed = machine.kill();
        let (db, held) = open_held(&killed);
        let mut iter = db.iter().unwrap();
        assert_eq!(iter.next().unwrap().unwrap().1, [2; 40][..]);
        let during = held.clone();
        let flushed = Arc::new(AtomicBool::new(false));
        let once = flushed.clone();
        killed.world().on_event(Box::new(move |event, _| {
            if event.kind == EventKind::Drain && !once.swap(true, Ordering::Relaxed) {
                assert!(during.help(), "the flush is the next job");
            }
        }));
        while !flushed.load(Ordering::Relaxed) {
            assert!(held.help(), "leftovers are looked for before the flush");
        }
        killed.world().ignore_events();
        assert_eq!(db.stats().counts.flushes, 1);
        (300..2000).for_each(|i| db.put(&key(i), &[3; 40]).unwrap());
        db.flush().unwrap();
        assert_clean(&db);
        let rest = entries(iter);
        assert_eq!(rest.len(), 299);
        for (n, (found, value)) in rest.iter().enumerate() {
            let n = n as u32 + 1;
            assert_eq!((&found[..], &value[..]), (&key(n)[..], &[if n < i { 2 } else { 1 }; 40][..]));
        }
        assert_clean(&db);
    }
}

/// A close did not wait for a compaction that another thread had asked for: that one went on to write to a
/// manifest and a pool that were closed.
#[test]
fn closing_waits_for_what_other_threads_have_begun() {
    let machine = Machine::new(&Setup::tiny("closing", &SLM).threaded(2));
    let db = machine.open().unwrap();
    for round in 0..3u8 {
        (0..400u32).for_each(|i| db.put(&i.to_be_bytes(), &[round; 60]).unwrap());
    }
    db.flush().unwrap();
    let started = Arc::new(AtomicBool::new(false));
    let tell = started.clone();
    std::thread::scope(|scope| {
        let compaction = scope.spawn(|| {
            machine.world().on_event(Box::new(move |event, _| {
                if matches!(event.kind, EventKind::Create(_)) && !tell.swap(true, Ordering::Relaxed) {
                    // The more of the compaction is still to come when the close begins, the better.
                    (0..200).for_each(|_| std::thread::yield_now());
                }
            }));
            db.compact_range(..)
        });
        while !started.load(Ordering::Relaxed) && !compaction.is_finished() {
            std::thread::yield_now();
        }
        db.close().unwrap();
        let events = machine.world().events();
        // Whether it began before the close or came too late.
        let _ = compaction.join().unwrap();
        assert_eq!(machine.world().events(), events, "something was written after the close");
    });
    drop(db);
    assert_clean(&machine.open().unwrap());
}

/// The pool of a database that had been dropped could be opened, and changed, under an iterator that was still
/// reading it.
#[test]
fn an_iterator_keeps_others_out() {
    let machine = Machine::new(&Setup::tiny("kept out", &SLM));
    let db = machine.open().unwrap();
    (0..100u32).for_each(|i| db.put(&i.to_be_bytes(), &[1; 60]).unwrap());
    let mut iter = db.iter().unwrap();
    assert!(iter.next().is_some());
    drop(db);
    assert_eq!(machine.open().map(drop).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(entries(iter).len(), 99);
    assert_eq!(machine.open().unwrap().iter().unwrap().count(), 100);
}

/// A flushed memtable that a reader kept at the close belonged to nobody afterwards, for ever.
#[test]
fn what_a_reader_keeps_at_the_close_is_found_later() {
    let machine = Machine::new(&Setup::tiny("kept", &SLM));
    let db = machine.open().unwrap();
    (0..20u32).for_each(|i| db.put(&i.to_be_bytes(), &[1; 60]).unwrap());
    let mut iter = db.iter().unwrap();
    assert!(iter.next().is_some());
    db.flush().unwrap();
    db.close().unwrap();
    let killed = machine.kill();
    assert_eq!(entries(iter).len(), 19);
    for machine in [machine, killed] {
        let again = machine.kill().open().unwrap();
        assert_eq!(again.stats().opened, "attached the pool of a clean shutdown");
        assert_clean(&again);
    }
}
