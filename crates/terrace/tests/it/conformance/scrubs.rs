//! Tables are compared with their checksums, whether anybody reads them or not.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use terrace::{Db, Env, ErrorKind, Event, Options, ScrubReport};
use terrace_base::clock::ManualClock;
use terrace_disk::{Fault, Fs};

use crate::harness::{Deferred, Engine, Machine, Setup, assert_clean, setups};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long after its opening a database begins.
const FIRST: Duration = Duration::from_secs(600);

const KEYS: u32 = 400;

type Heard = Arc<Mutex<Vec<Event>>>;

/// A database whose background work waits to be asked for, and what its listeners hear.
struct Bed {
    machine: Machine,
    tidying: Arc<Deferred>,
    clock: Arc<ManualClock>,
    heard: Heard,
    db: Db,
}

impl Bed {
    fn new(engine: &Engine, change: impl FnOnce(&mut Options)) -> Bed {
        Bed::on(Machine::new(&Setup::tiny("scrub", engine)), change)
    }

    fn on(machine: Machine, change: impl FnOnce(&mut Options)) -> Bed {
        let (tidying, clock, heard) =
            (Arc::new(Deferred::default()), Arc::<ManualClock>::default(), Heard::default());
        let mut options = machine.options();
        change(&mut options);
        let hears = heard.clone();
        options.listeners.add(move |event: &Event| hears.lock().push(event.clone()));
        let env = Env { clock: clock.clone(), ..machine.env_on(tidying.clone()) };
        let db = Db::open_in(env, machine.dir(), options).unwrap();
        Bed { machine, tidying, clock, heard, db }
    }

    /// Moves the clock ahead in small steps; at each an operation looks at it, and what there is to do is done.
    fn pass(&self, time: Duration) {
        for _ in 0..100 {
            self.clock.advance(time / 100);
            self.db.stats();
            while self.tidying.tidy() {}
        }
    }

    fn passes(&self) -> u64 {
        self.db.stats().scrub.passes
    }

    /// Closes it, so that everything was heard; returns the damages and the failures among that.
    fn close(self) -> (usize, usize) {
        self.db.close().unwrap();
        let heard = self.heard.lock();
        let count = |is: fn(&Event) -> bool| heard.iter().filter(|event| is(event)).count();
        let failed = count(|e| matches!(e, Event::Failed { stands: false, .. }));
        assert_eq!(count(|e| matches!(e, Event::Failed { stands: true, .. })), 0);
        (count(|e| matches!(e, Event::Damaged { .. })), failed)
    }
}

fn value(i: u32, round: u8) -> Vec<u8> {
    vec![round ^ i as u8; 60 + i as usize % 7 * 30]
}

fn fill(db: &Db, round: u8) {
    (0..KEYS).for_each(|i| db.put(i.to_be_bytes(), value(i, round)).unwrap());
    db.flush().unwrap();
    db.compact_range(..).unwrap();
    // Waits for what the background does with them.
    assert_clean(db);
}

fn read_all(db: &Db, round: u8) {
    for i in 0..KEYS {
        assert_eq!(db.get(i.to_be_bytes()).unwrap(), Some(value(i, round).into()), "{i}");
    }
}

fn tables(machine: &Machine) -> Vec<PathBuf> {
    let files = machine.fs().list(machine.dir()).unwrap().into_iter();
    files.filter(|path| path.extension().is_some_and(|e| e == "sst")).collect()
}

/// Whether the engine is to be asked for more than that it has no tables.
fn has_tables(engine: &Engine) -> bool {
    if engine.kind.keeps_all_in_memory() {
        let db = Machine::new(&Setup::tiny("scrub", engine)).open().unwrap();
        db.put("key", "value").unwrap();
        assert_eq!(db.scrub().unwrap(), ScrubReport::default());
        return false;
    }
    true
}

/// A byte that changes in a block that was read and verified is found, wherever it is; other reads go on.
pub fn damage_that_nobody_reads_is_found(engine: &Engine) {
    if !has_tables(engine) {
        return;
    }
    let mut looked_at = 0;
    for setup in setups(engine) {
        let bed = Bed::on(Machine::new(&setup), |_| {});
        fill(&bed.db, 1);
        read_all(&bed.db, 1);
        if bed.db.stats().ssd.tables == 0 {
            continue;
        }
        looked_at += 1;
        let (report, stats) = (bed.db.scrub().unwrap(), bed.db.stats());
        assert!(report.is_clean() && report.tables > 0, "under {}: {report:?}", setup.name);
        assert_eq!((report.tables, report.bytes), (stats.ssd.tables, stats.ssd.table_bytes));
        assert_eq!((stats.scrub.passes, stats.scrub.tables), (1, report.tables));
        let table = tables(&bed.machine).pop().unwrap();
        let len = bed.machine.fs().open(&table, terrace_disk::Access::Random).unwrap().len() as usize;
        // The head, a header, data, what lies behind data, the footer.
        let places = [3, 20, 50, len / 3, len - 200, len - 100, len - 70, len - 40, len - 1];
        let mut damages = 0;
        for at in places {
            let flip = |data: &mut Vec<u8>| data[at] ^= 4;
            bed.machine.fs().damage(&table, flip).unwrap();
            let report = bed.db.scrub().unwrap();
            let name = table.file_name().unwrap().to_str().unwrap();
            assert!(report.problems.len() == 1, "byte {at} under {}: {report:?}", setup.name);
            assert!(report.problems[0].contains(name), "{report:?}");
            damages += 1;
            let stats = bed.db.stats();
            assert_eq!((stats.scrub.damaged, &stats.failure), (damages, &None));
            bed.db.put("beside", "it").unwrap();
            for i in 0..KEYS {
                match bed.db.get(i.to_be_bytes()) {
                    Ok(found) => assert_eq!(found, Some(value(i, 1).into())),
                    Err(error) => assert_ne!(error.kind(), ErrorKind::Poisoned, "{error}"),
                }
            }
            bed.machine.fs().damage(&table, flip).unwrap();
        }
        assert!(bed.db.scrub().unwrap().is_clean());
        read_all(&bed.db, 1);
        assert_clean(&bed.db);
        assert_eq!(bed.close(), (damages as usize, 0), "under {}", setup.name);
    }
    assert!(looked_at > 0);
}

/// The background goes over all tables once in its time, by the clock alone.
pub fn the_background_scrubs_by_the_clock(engine: &Engine) {
    if !has_tables(engine) {
        return;
    }
    let bed = Bed::new(engine, |options| options.scrub_days = 2);
    fill(&bed.db, 1);
    bed.pass(FIRST - Duration::from_secs(1));
    assert_eq!(bed.db.stats().scrub.bytes, 0, "it is not time yet");
    bed.pass(Duration::from_secs(1));
    let (first, all) = (bed.db.stats().scrub.bytes, bed.db.stats().ssd.table_bytes);
    assert!(first > 0 && first < all, "{first} of {all}");
    // Nothing happens as long as nobody has looked at the clock; a few reads do.
    bed.clock.advance(DAY / 4);
    assert!(!bed.tidying.tidy());
    (0..2000u32).for_each(|i| drop(bed.db.get((i % KEYS).to_be_bytes()).unwrap()));
    assert!(bed.tidying.tidy());
    (0..49).for_each(|_| bed.pass(DAY / 24));
    let stats = bed.db.stats();
    assert_eq!((stats.scrub.passes, stats.scrub.damaged), (1, 0));
    assert!(stats.scrub.bytes >= all && stats.scrub.tables >= stats.ssd.tables, "{:?}", stats.scrub);
    assert!(stats.scrub.last_pass.is_some_and(|at| at > DAY && at <= 3 * DAY), "{:?}", stats.scrub);
    let table = tables(&bed.machine).pop().unwrap();
    bed.machine.fs().damage(&table, |data| data[50] ^= 1).unwrap();
    (0..49).for_each(|_| bed.pass(DAY / 24));
    assert_eq!(bed.db.stats().scrub.damaged, 1);
    bed.machine.fs().damage(&table, |data| data[50] ^= 1).unwrap();
    // Who is late makes up for one pass, and for no more.
    let before = bed.passes();
    bed.clock.advance(40 * DAY);
    (0..5).for_each(|_| bed.pass(Duration::from_secs(1)));
    assert!((1..=2).contains(&(bed.passes() - before)), "{} passes", bed.passes() - before);
    assert_eq!(bed.close(), (1, 0));
}

/// A database that is to compare nothing by itself does not, and one that is read does so when it is asked.
pub fn a_scrub_that_is_not_wanted_does_not_happen(engine: &Engine) {
    if !has_tables(engine) {
        return;
    }
    let bed = Bed::new(engine, |options| options.scrub_days = 0);
    fill(&bed.db, 1);
    bed.pass(100 * DAY);
    assert_eq!(bed.db.stats().scrub, terrace::ScrubStats::default());
    let machine = bed.machine.clone();
    bed.close();
    let bed = Bed::on(machine, |options| options.read_only = true);
    bed.pass(100 * DAY);
    assert_eq!(bed.db.stats().scrub.bytes, 0);
    let report = bed.db.scrub().unwrap();
    assert!(report.is_clean() && report.tables > 0);
    let table = tables(&bed.machine).pop().unwrap();
    bed.machine.fs().damage(&table, |data| data[50] ^= 1).unwrap();
    assert_eq!(bed.db.scrub().unwrap().problems.len(), 1);
    assert_eq!(bed.close().0, 1);
}

/// Tables go and come while they are compared.
pub fn a_scrub_stands_beside_whatever_happens(engine: &Engine) {
    if !has_tables(engine) {
        return;
    }
    let bed = Bed::new(engine, |options| options.scrub_days = 1);
    fill(&bed.db, 0);
    for round in 1..8 {
        // A part of a pass, then none of its tables is there any more.
        (0..5).for_each(|_| bed.pass(DAY / 16));
        fill(&bed.db, round);
        read_all(&bed.db, round);
        let stats = bed.db.stats();
        assert_eq!(tables(&bed.machine).len() as u64, stats.ssd.tables, "nothing is held between two pieces");
    }
    assert!(bed.passes() > 0);
    assert_eq!(bed.close(), (0, 0));
    let machine = Machine::new(&Setup::tiny("scrub", engine).threaded(2));
    let db = machine.open().unwrap();
    std::thread::scope(|scope| {
        let reads = scope
            .spawn(|| while !db.scrub().unwrap().problems.is_empty() || !db.contains_key("end").unwrap() {});
        (0..4).for_each(|round| fill(&db, round));
        db.put("end", "").unwrap();
        reads.join().unwrap();
    });
    let stats = db.stats();
    assert_eq!((stats.scrub.damaged, stats.counts.background_errors), (0, 0));
    read_all(&db, 3);
    assert_clean(&db);
}

/// A scrub ends where the database is closed.
pub fn a_close_ends_a_scrub(engine: &Engine) {
    if !has_tables(engine) {
        return;
    }
    let bed = Bed::new(engine, |options| options.scrub_days = 30);
    fill(&bed.db, 1);
    bed.clock.advance(FIRST);
    // A piece is queued, and finds the database closed.
    let (db, tidying) = (bed.db.clone(), bed.tidying.clone());
    db.stats();
    let machine = bed.machine.clone();
    assert_eq!(bed.close(), (0, 0));
    while tidying.tidy() {}
    assert_eq!(db.stats().scrub.bytes, 0);
    assert_eq!(db.scrub().unwrap_err().kind(), ErrorKind::Closed);
    drop(db);
    let db = machine.open().unwrap();
    assert!(db.stats().ssd.tables > 0);
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| {
            loop {
                if let Err(error) = db.scrub() {
                    return error;
                }
            }
        });
        while db.stats().scrub.bytes == 0 {
            std::thread::yield_now();
        }
        db.close().unwrap();
        assert_eq!(ended.join().unwrap().kind(), ErrorKind::Closed);
    });
}

/// A disk that refuses reads is told, and nothing else comes of it.
pub fn a_table_that_cannot_be_read_is_left_out(engine: &Engine) {
    if !has_tables(engine) {
        return;
    }
    let bed = Bed::new(engine, |options| options.scrub_days = 1);
    fill(&bed.db, 1);
    bed.machine.fs().inject(Some(Fault { after: 0, only_changes: false, sticky: true }));
    assert_eq!(bed.db.scrub().unwrap_err().kind(), ErrorKind::Io);
    bed.pass(FIRST);
    bed.machine.fs().inject(None);
    let stats = bed.db.stats();
    assert_eq!((stats.scrub.unread, stats.scrub.damaged, &stats.failure), (2, 0, &None));
    assert_eq!(stats.counts.background_errors, 1);
    (0..12).for_each(|_| bed.pass(DAY / 4));
    assert!(bed.passes() > 0 && bed.db.stats().scrub.tables >= stats.ssd.tables - 1);
    bed.db.put("key", "value").unwrap();
    read_all(&bed.db, 1);
    assert_eq!(bed.close(), (0, 1));
}
