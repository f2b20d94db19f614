//! When compactions get their slots, and what waiting threads do while the executor's threads are busy.

use std::sync::atomic::{AtomicUsize, Ordering};

use terrace_base::exec::Job;

use super::*;

/// Threads that are busy for other databases: jobs are kept, and no thread takes them.
#[derive(Default)]
struct Busy {
    jobs: Mutex<Vec<Job>>,
    asked: AtomicUsize,
}

impl std::fmt::Debug for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Busy")
    }
}

impl Executor for Busy {
    fn spawn_in(&self, _lane: Lane, job: Job) {
        self.jobs.lock().push(job);
    }

    fn help(&self) -> bool {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        assert!(asked < 20, "somebody waits for a thread that does not come");
        false
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        first();
        second();
    }
}

#[test]
fn whoever_waits_until_nothing_is_left_does_it_while_the_threads_are_busy() {
    let busy = Arc::new(Busy::default());
    let jobs = Background::new(Bench::with(&[], busy.clone()).core, 1);
    let engine = Arc::new(Seen::default());
    for (number, lane) in [(3, Lane::Tidying), (2, Lane::Compaction), (1, Lane::Flush)] {
        jobs.spawn(lane, &Arc::downgrade(&engine), move |seen: &Seen| seen.lock().push(number));
    }
    jobs.wait_idle();
    assert_eq!(*engine.lock(), [1, 2, 3]);
    let late = std::mem::take(&mut *busy.jobs.lock());
    late.into_iter().for_each(|job| job());
    assert_eq!(*engine.lock(), [1, 2, 3], "a thread that comes late does nothing again");
}

/// Writers compact themselves, and a caller that wants all slots need not wait for a thread.
#[test]
fn a_compaction_that_waits_for_a_thread_has_no_slot() {
    let jobs = Background::new(Bench::with(&[], Arc::new(Busy::default())).core, 1);
    let engine = Arc::new(Tables::default());
    engine.due.lock().extend([Ok(()), Ok(())]);
    jobs.compact(&Arc::downgrade(&engine), Tables::HOW);
    let next = || Ok(engine.due.lock().pop().is_some());
    jobs.work_until(|| engine.due.lock().len() == 1, next).unwrap();
    assert_eq!(jobs.all_slots().len(), 1);
    jobs.wait_idle();
    assert!(engine.due.lock().is_empty());
}

#[test]
fn what_was_asked_for_while_all_slots_were_taken_is_done_when_they_are_given_back() {
    let core = Bench::new(&[]).core;
    let (jobs, engine) = (Background::new(core.clone(), 2), Arc::new(Tables::default()));
    engine.due.lock().extend([Ok(()), Ok(())]);
    let all = jobs.all_slots();
    jobs.compact(&Arc::downgrade(&engine), Tables::HOW);
    assert!(!core.env.executor.help(), "no slot is free");
    drop(all);
    while core.env.executor.help() {}
    assert!(engine.due.lock().is_empty());
}

/// So is one that was queued before, and finds the slots taken when it begins.
#[test]
fn a_compaction_that_finds_no_slot_when_it_begins_is_done_later() {
    let core = Bench::new(&[]).core;
    let (jobs, engine) = (Background::new(core.clone(), 1), Arc::new(Tables::default()));
    engine.due.lock().extend([Ok(())]);
    jobs.compact(&Arc::downgrade(&engine), Tables::HOW);
    let slot = jobs.free_slot().unwrap();
    while core.env.executor.help() {}
    assert_eq!(engine.due.lock().len(), 1);
    drop(slot);
    while core.env.executor.help() {}
    assert!(engine.due.lock().is_empty());
}

#[test]
fn no_more_compactions_wait_for_a_thread_than_there_are_slots() {
    let executor = Arc::new(Inline::default());
    let jobs = Background::new(Bench::with(&[], executor.clone()).core, 2);
    let engine = Arc::new(Tables::default());
    let flood = || (0..100).for_each(|_| jobs.compact(&Arc::downgrade(&engine), Tables::HOW));
    flood();
    assert_eq!(executor.pending(), 2);
    jobs.wait_idle();
    let slots = jobs.all_slots();
    flood();
    assert_eq!(executor.pending(), 0);
    drop(slots);
    assert_eq!(executor.pending(), 2, "as many as can begin");
    jobs.close();
    let _slots = jobs.all_slots();
    flood();
    assert!(!executor.help(), "nothing begins once the database is closed");
}

/// The executor may keep its ticket as long as it likes.
#[test]
fn a_close_lets_go_of_what_waits_for_a_thread() {
    let jobs = Background::new(Bench::with(&[], Arc::new(Busy::default())).core, 1);
    let (engine, held) = (Arc::new(()), Arc::new(()));
    let keeps = held.clone();
    assert!(jobs.spawn(Lane::Tidying, &Arc::downgrade(&engine), move |()| drop(keeps)));
    assert_eq!(Arc::strong_count(&held), 2);
    jobs.close();
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_helper_takes_its_slot_when_it_begins_or_goes() {
    let core = Bench::new(&[]).core;
    let (jobs, engine) = (Background::new(core.clone(), 2), Arc::new(Seen::default()));
    let _compaction = jobs.free_slot();
    let assist = |number: u64, patience| {
        jobs.assist(&Arc::downgrade(&engine), patience, move |seen: &Seen| seen.lock().push(number))
    };
    assert!(assist(1, Patience::UntilClosing) && !assist(2, Patience::UntilClosing));
    let slot = jobs.free_slot();
    assert!(slot.is_some(), "a helper that waits for a thread has none");
    assert!(assist(3, Patience::ToTheEnd));
    while core.env.executor.help() {}
    assert_eq!(*engine.lock(), [3], "no slot was left for the first");
    drop(slot);
    assert!(assist(4, Patience::UntilClosing));
    while core.env.executor.help() {}
    assert_eq!(*engine.lock(), [3, 4]);
}

/// Others do the compactions: a stopped writer waits for them.
#[test]
fn whoever_is_stopped_waits_for_what_others_compact() {
    let jobs = Background::new(Bench::with(&[], Arc::new(Busy::default())).core, 2);
    let (others, looks) = (Mutex::new(jobs.free_slot()), AtomicUsize::new(0));
    let enough = || {
        // They end during the wait.
        if looks.fetch_add(1, Ordering::Relaxed) == 2 {
            others.lock().take();
        }
        false
    };
    jobs.work_until(enough, || Ok(false)).unwrap();
    assert!(others.lock().is_none() && looks.load(Ordering::Relaxed) >= 3);
}

/// Tickets whose jobs were done by others do not accumulate: the next jobs use them.
#[test]
fn a_lane_has_no_more_tickets_than_it_had_jobs_at_once() {
    let busy = Arc::new(Busy::default());
    let jobs = Background::new(Bench::with(&[], busy.clone()).core, 1);
    let engine = Arc::new(Seen::default());
    for round in 0..5 {
        for number in 2 * round..2 * round + 2 {
            jobs.spawn(Lane::Tidying, &Arc::downgrade(&engine), move |seen: &Seen| seen.lock().push(number));
        }
        jobs.wait_idle();
    }
    assert_eq!((engine.lock().len(), busy.jobs.lock().len()), (10, 2));
    jobs.spawn(Lane::Tidying, &Arc::downgrade(&engine), |seen: &Seen| seen.lock().push(10));
    let late = std::mem::take(&mut *busy.jobs.lock());
    late.into_iter().for_each(|job| job());
    assert_eq!(*engine.lock(), (0..11).collect::<Vec<_>>());
}
