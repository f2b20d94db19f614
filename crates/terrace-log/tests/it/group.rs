//! Many threads on one log.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use terrace_base::rng::Rng;
use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::{Fault, Fs, MeteredFs, SimFs};
use terrace_log::{FileSegment, GroupLog, LogWriter, Segment, create_log_file};

use crate::{ID, read};

const LOG: &str = "/log";
const THREADS: u64 = 4;
const EACH: u64 = 200;

fn payload(thread: u64, i: u64) -> Vec<u8> {
    let mut payload = vec![thread as u8; 9 + (i % 50) as usize];
    payload[..8].copy_from_slice(&i.to_le_bytes());
    payload
}

#[test]
fn every_committed_record_is_there_in_order() {
    let sim = SimFs::new();
    let fs = MeteredFs::new(Arc::new(sim.clone()));
    let log = GroupLog::new(create_log_file(&fs, Path::new(LOG), (ID, 1), 0).unwrap());
    let committed = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (log, committed, sim) = (&log, &committed, &sim);
            scope.spawn(move || {
                for i in 0..EACH {
                    let lsn = log.append(&payload(t, i)).unwrap();
                    if i % 3 == 0 {
                        log.write_out(lsn).unwrap();
                    } else {
                        log.commit(lsn).unwrap();
                        committed.lock().unwrap().insert(lsn, payload(t, i));
                    }
                    if i % 50 == 1 {
                        let sure = committed.lock().unwrap().clone();
                        let disk = sim.crash(&mut Rng::new(lsn));
                        let (records, tail) = read(&disk.read(Path::new(LOG)).unwrap());
                        tail.unwrap();
                        let found: BTreeMap<_, _> = records.into_iter().collect();
                        assert!(sure.iter().all(|(lsn, payload)| found.get(lsn) == Some(payload)));
                    }
                }
            });
        }
    });
    log.seal().unwrap();
    let (records, tail) = read(&sim.read(Path::new(LOG)).unwrap());
    tail.unwrap();
    assert_eq!(records.len() as u64, THREADS * EACH);
    assert!(records.iter().map(|r| r.0).eq(1..=THREADS * EACH));
    for t in 0..THREADS {
        let own: Vec<_> = records.iter().map(|r| r.1.clone()).filter(|p| p[8] == t as u8).collect();
        let expected: Vec<_> = (0..EACH).map(|i| payload(t, i)).collect();
        assert_eq!(own, expected, "thread {t}");
    }
    assert_eq!(log.len(), fs.stats().bytes_written);
}

/// Says when a sync has begun and waits to be told to end it.
#[derive(Debug)]
struct Slow {
    begun: Arc<Barrier>,
    end: Arc<Barrier>,
    syncs: Arc<AtomicUsize>,
    inner: Box<dyn Segment>,
}

impl Segment for Slow {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.inner.append(data)
    }

    fn sync(&mut self) -> Result<()> {
        // The first is the header's; in the second the leader lets the others queue.
        if self.syncs.fetch_add(1, Ordering::SeqCst) == 1 {
            self.begun.wait();
            self.end.wait();
        }
        self.inner.sync()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

/// Starts a leader and, while it syncs, four more commits; `meanwhile` runs before it may end.
fn led(fs: &SimFs, meanwhile: impl Fn()) -> (Vec<Result<()>>, usize) {
    let (begun, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let syncs = Arc::new(AtomicUsize::new(0));
    let inner = Box::new(FileSegment(fs.create(Path::new(LOG)).unwrap()));
    let slow = Slow { begun: begun.clone(), end: end.clone(), syncs: syncs.clone(), inner };
    let log = GroupLog::new(LogWriter::create(slow, ID).unwrap());
    let outcomes = std::thread::scope(|scope| {
        let log = &log;
        let commit = move |payload: &'static [u8]| log.commit(log.append(payload)?);
        let mut waiters = vec![scope.spawn(move || commit(b"leader"))];
        begun.wait();
        let lsns: Vec<u64> = (0..4).map(|_| log.append(b"waiter").unwrap()).collect();
        waiters.extend(lsns.into_iter().map(|lsn| scope.spawn(move || log.commit(lsn))));
        meanwhile();
        end.wait();
        waiters.into_iter().map(|w| w.join().unwrap()).collect()
    });
    (outcomes, syncs.load(Ordering::SeqCst))
}

#[test]
fn one_sync_serves_all_who_wait() {
    let fs = SimFs::new();
    let (outcomes, syncs) = led(&fs, || ());
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(syncs, 3, "header, leader, everyone else");
    assert_eq!(read(&fs.read(Path::new(LOG)).unwrap()).0.len(), 5);
}

#[test]
fn an_error_reaches_everyone_who_waits() {
    let fs = SimFs::new();
    let (outcomes, syncs) =
        led(&fs, || fs.inject(Some(Fault { after: 0, only_changes: true, sticky: false })));
    for outcome in outcomes {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Io);
    }
    assert_eq!(syncs, 2);
}

/// Panics at its second sync.
#[derive(Debug)]
struct Panics(FileSegment, u32);

impl Segment for Panics {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.0.append(data)
    }

    fn sync(&mut self) -> Result<()> {
        self.1 += 1;
        assert!(self.1 < 2, "expected by this test");
        self.0.sync()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn a_leader_that_panics_fails_the_log() {
    let fs = SimFs::new();
    let segment = Panics(FileSegment(fs.create(Path::new(LOG)).unwrap()), 0);
    let log = GroupLog::new(LogWriter::create(segment, ID).unwrap());
    let lsn = log.append(b"x").unwrap();
    std::thread::scope(|scope| {
        assert!(scope.spawn(|| log.commit(lsn)).join().is_err());
    });
    assert!(matches!(log.commit(lsn), Err(Error::Poisoned { .. })));
    assert!(matches!(log.append(b"y"), Err(Error::Poisoned { .. })));
}
