//! What two threads once did to each other, each with what it was; where it can be done, at exactly the moment
//! that it needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Db, EngineKind};
use terrace_base::exec::{Executor, Inline};
use terrace_sim::EventKind;

use crate::harness::{Engine, Machine, Setup, assert_clean, entries};

const SLM: Engine = Engine { kind: EngineKind::Slm, drains_per_group: None };

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
        while held.pending() == 0 {
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
        assert!(held.help(), "leftovers are looked for by the first job");
        assert!(flushed.load(Ordering::Relaxed));
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
