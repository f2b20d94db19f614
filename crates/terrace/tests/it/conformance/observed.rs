//! What a database tells of itself, and the options that it is given by name.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace::{Db, Event, Listeners, OptionInfo, Options, Touch};

use crate::harness::{Engine, Machine, Setup, assert_clean, setups, spans_of};

/// Options written to a file and read back open the same database.
pub fn options_from_a_file_open_it(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let written = OptionInfo::to_toml(&machine.options().list());
        let mut read = Options::default();
        read.set_toml(&written).unwrap();
        assert_eq!(read.list(), machine.options().list(), "under {}", setup.name);
        let db = machine.open_with(read.clone()).unwrap();
        assert_eq!(db.stats().engine, engine.kind.name());
        db.put("key", "value").unwrap();
        db.close().unwrap();
        drop(db);
        assert_eq!(machine.open().unwrap().get("key").unwrap().as_deref(), Some(&b"value"[..]));
    }
}

/// What a read has touched is told, and reading it so gives what `get` gives.
pub fn a_read_tells_what_it_has_touched(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let db = machine.open().unwrap();
        let key = |i: u32| format!("key {i:04}");
        for i in 0..400u32 {
            db.put(key(i), vec![i as u8; 40 + (i % 7) as usize * 50]).unwrap();
        }
        db.delete(key(3)).unwrap();
        let snapshot = db.snapshot();
        db.put(key(5), "new").unwrap();
        db.flush().unwrap();
        let mut touched = Vec::new();
        for i in 0..420 {
            let explained = db.explain(key(i)).unwrap();
            let value = db.get(key(i)).unwrap();
            assert_eq!(explained.value_bytes, value.map(|value| value.len()), "{i} under {}", setup.name);
            assert!(!explained.steps.is_empty(), "{i} under {}", setup.name);
            let read = explained.value_bytes.unwrap_or(0) as u64;
            let in_memtable = explained.steps.contains(&Touch::Memtable { found: true });
            assert!(in_memtable || explained.bytes() >= read, "{i} under {}: {explained}", setup.name);
            assert!(explained.bytes_read() <= explained.bytes());
            touched.extend(explained.steps);
        }
        let old = snapshot.explain(key(5)).unwrap();
        assert_eq!(old.value_bytes, Some(290));
        // What each engine is made of.
        let has = |what: &dyn Fn(&Touch) -> bool| touched.iter().any(what);
        assert_eq!(
            has(&|t| matches!(t, Touch::Memtable { .. })),
            engine.kind.buffer_place() != terrace::BufferPlace::None
        );
        let lists = has(&|t| matches!(t, Touch::List { .. }));
        let blocks = has(&|t| matches!(t, Touch::Block { .. })) && has(&|t| matches!(t, Touch::Table { .. }));
        assert!(blocks || lists || engine.kind.needs_memory(), "under {}: {touched:?}", setup.name);
        assert!(!blocks || !engine.kind.keeps_all_in_memory());
        // Over-long keys are refused, as by any read.
        assert!(db.explain(vec![0; 1 << 16]).is_err());
    }
}

type Heard = Arc<Mutex<Vec<Event>>>;

fn hearing(listeners: &mut Listeners) -> Heard {
    let heard = Heard::default();
    let hears = heard.clone();
    listeners.add(move |event: &Event| hears.lock().push(event.clone()));
    heard
}

/// Events tell what the figures count, though one listener panics and another calls the database.
pub fn listeners_hear_everything_and_may_do_anything(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let mut options = machine.options();
        let handle: Arc<Mutex<Option<Db>>> = Arc::default();
        let (calls, calls_left) = (handle.clone(), Mutex::new(20));
        options.listeners.add(|_: &Event| panic!("expected by this test"));
        options.listeners.add(move |_: &Event| {
            let db = calls.lock().clone();
            let mut left = calls_left.lock();
            if let (Some(db), 1..) = (db, *left) {
                *left -= 1;
                db.put(format!("called back {left}"), [7; 90]).unwrap();
                db.flush().unwrap();
                assert_eq!(db.get(format!("called back {left}")).unwrap().as_deref(), Some(&[7; 90][..]));
            }
        });
        let heard = hearing(&mut options.listeners);
        let db = machine.open_with(options).unwrap();
        *handle.lock() = Some(db.clone());
        for i in 0..600u32 {
            db.put((i % 200).to_be_bytes(), vec![i as u8; 100]).unwrap();
        }
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        db.close().unwrap();
        *handle.lock() = None;
        let counts = db.stats().counts;
        let heard = std::mem::take(&mut *heard.lock());
        check_jobs(&heard, &setup);
        let done = |is: fn(&Event) -> bool| heard.iter().filter(|event| is(event)).count() as u64;
        let compactions = done(|e| matches!(e, Event::CompactionEnd { is_done: true, .. }));
        assert_eq!(compactions, counts.compactions, "under {}", setup.name);
        let flushes = done(|e| matches!(e, Event::FlushEnd { is_done: true, .. }));
        assert!(flushes > 0 || counts.flushes == 0, "under {}", setup.name);
        assert_eq!(done(|e| matches!(e, Event::Failed { .. } | Event::Missed { .. })), 0);
        drop(db);
        let db = machine.open().unwrap();
        for i in 400..600u32 {
            assert_eq!(db.get((i % 200).to_be_bytes()).unwrap().as_deref(), Some(&[i as u8; 100][..]));
        }
        assert_clean(&db);
    }
}

/// Every job begins before it ends, and has a number of its own.
fn check_jobs(heard: &[Event], setup: &Setup) {
    let (mut begun, mut ended) = (BTreeSet::new(), BTreeSet::new());
    for event in heard {
        match *event {
            Event::FlushBegin { job } | Event::CompactionBegin { job } => assert!(begun.insert(job)),
            Event::FlushEnd { job, .. } | Event::CompactionEnd { job, .. } => {
                assert!(begun.contains(&job) && ended.insert(job), "under {}: {event:?}", setup.name);
            }
            _ => {}
        }
    }
    assert_eq!(begun, ended, "under {}", setup.name);
}

/// A disk without room is told, and so is its end.
pub fn failures_are_told(engine: &Engine) {
    if engine.kind.keeps_all_in_memory() {
        return;
    }
    let machine = Machine::new(&Setup::tiny("full disk", engine));
    let mut options = machine.options();
    let heard = hearing(&mut options.listeners);
    let db = machine.open_with(options).unwrap();
    machine.fs().set_capacity(Some(60_000));
    let refused = (0..3000u32).any(|i| db.put(i.to_be_bytes(), [i as u8; 200]).is_err());
    machine.fs().set_capacity(None);
    for i in 0..200u32 {
        db.put(i.to_be_bytes(), [i as u8; 200]).unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    let heard = heard.lock();
    let last = |is: fn(&Event) -> bool| heard.iter().rposition(is);
    let failed = last(|e| matches!(e, Event::Failed { stands: true, .. }));
    let recovered = last(|e| matches!(e, Event::Recovered));
    assert!(refused || failed.is_none());
    assert!(failed.is_none() || failed < recovered, "{heard:?}");
    let background_errors = db.stats().counts.background_errors;
    let any = heard.iter().any(|event| matches!(event, Event::Failed { .. }));
    assert!(any || background_errors == 0, "{background_errors} failures, and nobody was told");
}

/// Operations are timed unless that is turned off; what is there is told by the counts, too.
pub fn operations_are_timed(engine: &Engine) {
    for is_on in [true, false] {
        let machine = Machine::new(&Setup::tiny("timed", engine));
        let options = Options { latencies: is_on, ..machine.options() };
        let db = machine.open_with(options).unwrap();
        for i in 0..2000u32 {
            db.put((i % 300).to_be_bytes(), [i as u8; 60]).unwrap();
            db.get(i.to_be_bytes()).unwrap();
        }
        db.sync().unwrap();
        let stats = db.stats();
        let times = stats.latencies;
        assert_eq!(stats.counts.gets, 2000);
        if !is_on {
            assert_eq!(times, terrace::Latencies::default());
            continue;
        }
        // One in 64 of each, on average.
        assert!((8..120).contains(&times.gets.timed), "{times:?}");
        assert!((8..120).contains(&times.puts.timed), "{times:?}");
        assert_eq!(times.stalls.timed, stats.counts.stalls);
        assert!(times.syncs.timed >= stats.ssd.syncs);
    }
}

/// Spans enclose what the thread does; jobs say what they have written.
pub fn spans_enclose_the_work(engine: &Engine) {
    let machine = Machine::new(&Setup::tiny("spans", engine));
    let (counts, names) = spans_of(|| {
        let db = machine.open().unwrap();
        for i in 0..600u32 {
            db.put((i % 200).to_be_bytes(), [i as u8; 100]).unwrap();
        }
        db.flush().unwrap();
        db.compact_range(..).unwrap();
        db.sync().unwrap();
        db.check().unwrap();
        db.close().unwrap();
        db.stats().counts
    });
    let count = |name: &str| names.iter().filter(|(known, _)| *known == name).count() as u64;
    for name in ["open", "sync", "check", "close"] {
        assert_eq!(count(name), 1, "{name}");
    }
    assert_eq!(count("compaction"), counts.compactions);
    assert!(count("flush") > 0 || counts.flushes == 0);
    let written: u64 = names.iter().filter(|(name, _)| *name == "compaction").map(|(_, bytes)| bytes).sum();
    assert_eq!(written, counts.compaction_bytes);
}
