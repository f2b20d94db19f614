//! Jobs and flushes without an engine.

mod slots;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use parking_lot::Mutex;
use terrace_base::clock::ManualClock;
use terrace_base::exec::{Executor, Inline, Lane, ThreadPool};
use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::{Fs, SimFs};

use super::{Background, Compacting, Flushes, Patience};
use crate::core::Core;
use crate::env::{Env, RealPm};
use crate::manifest::Manifest;
use crate::options::{EngineKind, Options};
use crate::pool;

/// Memtables that wait for their flush, by number.
struct Bench {
    core: Arc<Core>,
    manifest: Manifest,
    flushes: Flushes,
    waiting: Mutex<Vec<u32>>,
}

impl Bench {
    fn new(waiting: &[u32]) -> Bench {
        Bench::with(waiting, Arc::new(Inline::default()))
    }

    fn with(waiting: &[u32], executor: Arc<dyn Executor>) -> Bench {
        let fs = Arc::new(SimFs::new());
        let dir = Path::new("/db");
        fs.create_dir_all(dir).unwrap();
        let (pm, clock) = (Arc::new(RealPm::with_copies()), Arc::new(ManualClock::default()));
        let env = Env { fs, pm, executor, clock, hash_seed: None };
        let core = Core::new(dir.into(), Options::default(), env).unwrap();
        let identity = pool::new_identity(&core.dir, &core.options, EngineKind::Lsm).unwrap();
        let manifest = Manifest::create(core.fs.clone(), dir, identity).unwrap();
        Bench { core, manifest, flushes: Flushes::default(), waiting: Mutex::new(waiting.to_vec()) }
    }

    fn run(&self, flush: impl Fn(&u32) -> Result<()>) -> Result<()> {
        let next = || Ok(self.waiting.lock().first().copied());
        let done = |number: &u32| {
            flush(number)?;
            self.waiting.lock().remove(0);
            Ok(())
        };
        self.flushes.run(&self.core, &self.manifest, next, done)
    }

    fn errors(&self) -> u64 {
        self.core.counters.snapshot().background_errors
    }
}

fn broken() -> Error {
    Error::io(Path::new("/db"), "write", std::io::Error::other("broken"))
}

#[test]
fn everything_is_flushed_in_order_until_one_fails() {
    let bench = Bench::new(&[1, 2, 3, 4]);
    let seen = Mutex::new(Vec::new());
    let flush = |number: &u32| {
        seen.lock().push(*number);
        if *number == 3 && seen.lock().len() == 3 { Err(broken()) } else { Ok(()) }
    };
    assert_eq!(bench.run(flush).unwrap_err().kind(), ErrorKind::Io);
    assert!(bench.errors() == 1 && bench.core.health.failure().is_some());
    bench.run(flush).unwrap();
    assert_eq!(*seen.lock(), [1, 2, 3, 3, 4]);
    assert!(bench.core.health.failure().is_none(), "a flush that succeeds heals it");
}

#[test]
fn what_cannot_be_named_is_not_flushed() {
    let bench = Bench::new(&[]);
    let outcome =
        bench.flushes.run::<u32>(&bench.core, &bench.manifest, || Err(broken()), |_| unreachable!());
    assert!(outcome.is_err() && bench.errors() == 0);
}

/// A thread that waits beside a failing flush is woken, and flushes itself.
#[test]
fn a_failed_flush_is_done_by_whoever_waits_for_it() {
    let bench = Bench::new(&[1]);
    let ((begun, has_begun), (go, may_go)) = (channel(), channel());
    std::thread::scope(|scope| {
        let bench = &bench;
        let flusher = scope.spawn(move || {
            bench.run(|_| {
                begun.send(()).unwrap();
                may_go.recv().unwrap();
                Err(broken())
            })
        });
        has_begun.recv().unwrap();
        let waiter = scope.spawn(move || {
            let gone = || bench.waiting.lock().is_empty();
            bench.flushes.wait_until(&bench.core, gone, || bench.run(|_| Ok(())))
        });
        go.send(()).unwrap();
        assert!(flusher.join().unwrap().is_err());
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(bench.errors(), 1);
}

/// A thread that waits beside a successful flush does nothing.
#[test]
fn a_flush_is_not_done_twice() {
    let bench = Bench::new(&[1]);
    let ((begun, has_begun), (go, may_go)) = (channel(), channel());
    std::thread::scope(|scope| {
        let bench = &bench;
        scope.spawn(move || {
            bench.run(|_| {
                begun.send(()).unwrap();
                may_go.recv().unwrap();
                Ok(())
            })
        });
        has_begun.recv().unwrap();
        let waiter = scope.spawn(move || {
            let gone = || bench.waiting.lock().is_empty();
            // The check may have come too late to find anything.
            bench.flushes.wait_until(&bench.core, gone, || bench.run(|_| Err(broken())))
        });
        go.send(()).unwrap();
        assert!(waiter.join().unwrap().is_ok(), "it did not flush");
    });
}

/// The numbers that jobs have recorded.
type Seen = Mutex<Vec<u64>>;

#[test]
fn what_tidies_up_in_pieces_goes_on_until_the_last() {
    let core = Bench::new(&[]).core;
    let (jobs, engine) = (Background::new(core.clone(), 1), Arc::new(Seen::default()));
    jobs.tidy_in_pieces(&Arc::downgrade(&engine), |seen, from| {
        seen.lock().push(from);
        (from < 30).then_some(from + 10)
    });
    while core.env.executor.help() {}
    assert_eq!(*engine.lock(), [0, 10, 20, 30]);
}

#[test]
fn a_close_ends_what_tidies_up_in_pieces() {
    let core = Bench::new(&[]).core;
    let (jobs, engine) = (Background::new(core.clone(), 1), Arc::new(Seen::default()));
    jobs.tidy_in_pieces(&Arc::downgrade(&engine), |seen, from| {
        seen.lock().push(from);
        Some(from + 1)
    });
    assert!(jobs.close());
    assert_eq!(*engine.lock(), [0]);
}

#[test]
fn what_fails_to_tidy_up_is_told() {
    let core = Bench::new(&[]).core;
    let (jobs, engine) = (Background::new(core.clone(), 1), Arc::new(()));
    assert!(jobs.tidy(&Arc::downgrade(&engine), |()| Err(broken())));
    while core.env.executor.help() {}
    assert_eq!(core.health.failure().unwrap().kind(), ErrorKind::Io);
}

#[test]
fn once_it_is_closed_only_work_that_is_left_is_an_error() {
    let jobs = Background::new(Bench::new(&[]).core, 1);
    let not_asked = || -> bool { panic!("what work there is matters only once it is closed") };
    assert!(jobs.unless_closed(not_asked, || Err(broken())).is_err());
    jobs.unless_closed(not_asked, || Ok(())).unwrap();
    jobs.close();
    let not_done = || -> Result<()> { panic!("nothing is done once it is closed") };
    jobs.unless_closed(|| false, not_done).unwrap();
    assert_eq!(jobs.unless_closed(|| true, not_done).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn an_opening_that_failed_leaves_no_jobs() {
    let core = Bench::new(&[]).core;
    let (jobs, engine) = (Background::new(core.clone(), 1), Arc::new(Seen::default()));
    assert!(jobs.closed_unless(Ok(7)).is_ok_and(|seven| seven == 7) && !jobs.is_closing());
    jobs.tidy(&Arc::downgrade(&engine), |seen| {
        seen.lock().push(1);
        Ok(())
    });
    assert_eq!(jobs.closed_unless::<()>(Err(broken())).unwrap_err().kind(), ErrorKind::Io);
    assert!(jobs.is_closing() && !core.env.executor.help());
    assert_eq!(*engine.lock(), [1], "the job that there was has come to its end");
}

/// Two databases share one thread, which the first of them keeps busy.
#[test]
fn a_close_does_not_wait_for_a_thread_that_others_keep() {
    let threads = Arc::new(ThreadPool::new("t", 1));
    let [one, other] = [0, 1].map(|_| Background::new(Bench::with(&[], threads.clone()).core, 1));
    let ((begins, begun), (end, ended)) = (channel(), channel());
    let engine = Arc::new(());
    assert!(one.spawn(Lane::Compaction, &Arc::downgrade(&engine), move |()| {
        begins.send(()).unwrap();
        ended.recv().unwrap();
    }));
    begun.recv().unwrap();
    let (jobs, seen) = (other.clone(), Arc::new(Seen::default()));
    other.tidy(&Arc::downgrade(&seen), |seen| {
        seen.lock().push(1);
        Ok(())
    });
    assert!(jobs.close(), "the job has not begun, and is not waited for");
    end.send(()).unwrap();
    assert!(one.close());
    drop((one, other, jobs));
    drop(threads);
    assert!(seen.lock().is_empty(), "nor does it begin once the database is closed");
}

/// A database that always has something to compact lets others compact in between.
#[test]
fn compactions_of_databases_that_share_a_thread_take_turns() {
    static ORDER: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    static QUEUED: Mutex<Option<Receiver<()>>> = Mutex::new(None);
    let threads = Arc::new(ThreadPool::new("t", 1));
    let [one, other] = [0, 1].map(|_| Background::new(Bench::with(&[], threads.clone()).core, 1));
    let (queued, wait) = channel();
    *QUEUED.lock() = Some(wait);
    let busy = Compacting {
        begin: |_| Ok(()),
        next: |_: &(), _| {
            if let Some(queued) = QUEUED.lock().take() {
                queued.recv().unwrap();
            }
            ORDER.lock().push("one");
            Ok(ORDER.lock().len() < 6)
        },
        is_due: |()| false,
        sweep: |()| {},
    };
    let short = Compacting {
        next: |_, _| {
            ORDER.lock().push("other");
            Ok(false)
        },
        ..busy
    };
    let engine = Arc::new(());
    one.compact(&Arc::downgrade(&engine), busy);
    other.compact(&Arc::downgrade(&engine), short);
    queued.send(()).unwrap();
    // Waiting until idle would do it on the waiting thread.
    one.wait_until(|| ORDER.lock().len() == 6);
    assert_eq!(ORDER.lock()[..3], ["one", "other", "one"]);
    assert!(one.close() && other.close());
}

/// The remaining compactions, and how often files were swept.
#[derive(Debug, Default)]
struct Tables {
    due: Mutex<Vec<Result<()>>>,
    swept: Mutex<u32>,
}

impl Tables {
    const HOW: Compacting<Tables> = Compacting {
        begin: |_| Ok(()),
        next: |tables, _| tables.due.lock().pop().map_or(Ok(false), |outcome| outcome.map(|()| true)),
        is_due: |tables| !tables.due.lock().is_empty(),
        sweep: |tables| *tables.swept.lock() += 1,
    };
}

#[test]
fn compactions_are_done_one_after_the_other_until_one_fails() {
    let core = Bench::new(&[]).core;
    let (jobs, engine) = (Background::new(core.clone(), 1), Arc::new(Tables::default()));
    engine.due.lock().extend([Ok(()), Err(broken()), Ok(()), Ok(())]);
    let slot = jobs.free_slot();
    jobs.compact(&Arc::downgrade(&engine), Tables::HOW);
    assert!(!core.env.executor.help(), "no slot is free");
    drop(slot);
    jobs.compact(&Arc::downgrade(&engine), Tables::HOW);
    while core.env.executor.help() {}
    assert_eq!((engine.due.lock().len(), *engine.swept.lock()), (1, 1));
    assert!(core.health.failure().is_some() && jobs.free_slot().is_some());
}

#[test]
fn a_compaction_that_somebody_waits_for_goes_on_when_the_database_closes() {
    let jobs = Background::new(Bench::new(&[]).core, 1);
    assert!(jobs.look_up(Patience::UntilClosing).is_ok());
    jobs.close();
    assert!(jobs.look_up(Patience::UntilClosing).is_err() && jobs.look_up(Patience::ToTheEnd).is_ok());
}
