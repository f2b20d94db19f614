//! Telling listeners what happens, on a thread of their own.
//!
//! 1. Nothing of the database waits for a listener but [`Events::settle`], which the close calls when it holds nothing.
//! 2. Events are delivered in the order in which they were posted; at most [`MOST_WAITING`] wait.
//! 3. A panic of a listener ends with its call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use terrace_base::Error;
use terrace_base::exec::{Executor, ThreadPool};
use tracing::field::Empty;
use tracing::span::EnteredSpan;

use super::Core;
use crate::events::{Event, Listeners};
use crate::keyspaces::callbacks;

/// Events that wait for listeners, at most.
const MOST_WAITING: usize = 4096;

/// How often who waits looks whether there is still a thread.
const POLL: Duration = Duration::from_millis(50);

/// Delays of writers that listeners do not hear of.
const UNHEARD: Duration = Duration::from_millis(1);

/// The listeners of an open database.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// None without listeners.
    post: Option<Post>,
    /// Jobs so far.
    jobs: AtomicU64,
}

#[derive(Debug)]
struct Post {
    listeners: Listeners,
    thread: Box<dyn Executor>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    delivered: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    /// Events dropped since the last one that was posted.
    missed: u64,
    /// The threads that deliver just now: the worker, or without one whoever settles.
    deliverers: Vec<ThreadId>,
}

impl Events {
    /// For `listeners`.
    pub fn new(listeners: &Listeners) -> Arc<Events> {
        Self::on(|| Box::new(ThreadPool::new("terrace-events", 1)), listeners)
    }

    /// For `listeners`, on one thread.
    fn on(thread: impl FnOnce() -> Box<dyn Executor>, listeners: &Listeners) -> Arc<Events> {
        let post = (!listeners.is_empty()).then(|| Post {
            listeners: listeners.clone(),
            thread: thread(),
            shared: Arc::default(),
        });
        Arc::new(Events { post, jobs: AtomicU64::new(0) })
    }

    /// Tells of an event; it is delivered later.
    #[inline]
    pub fn tell(&self, event: impl FnOnce() -> Event) {
        if let Some(post) = &self.post {
            post.tell(event());
        }
    }

    /// Waits until everything that was told is delivered, unless a listener asks.
    pub fn settle(&self) {
        if let Some(post) = &self.post {
            post.settle();
        }
    }
}

impl Post {
    fn tell(&self, event: Event) {
        // Held while the event is queued, so that the order is that of the posting.
        let mut state = self.shared.state.lock();
        if state.waiting >= MOST_WAITING {
            state.missed += 1;
            return;
        }
        state.waiting += 1;
        let missed = std::mem::take(&mut state.missed);
        let (listeners, shared) = (self.listeners.clone(), self.shared.clone());
        self.thread.spawn(Box::new(move || {
            let _delivering = Delivering::begin(&shared);
            if missed > 0 {
                deliver(&listeners, &Event::Missed { events: missed });
            }
            deliver(&listeners, &event);
            // They may hold handles of databases: dropped before anybody goes on.
            drop((listeners, event));
        }));
    }

    fn settle(&self) {
        let mut state = self.shared.state.lock();
        while !state.deliverers.contains(&std::thread::current().id()) {
            if state.waiting == 0 {
                let events = std::mem::take(&mut state.missed);
                if events == 0 {
                    return;
                }
                // Nothing came since that could have told of them.
                drop(state);
                self.tell(Event::Missed { events });
                state = self.shared.state.lock();
                continue;
            }
            drop(state);
            // Where the system has refused a thread, this one delivers.
            let has_helped = self.thread.help();
            state = self.shared.state.lock();
            if !has_helped && state.waiting > 0 {
                self.shared.delivered.wait_for(&mut state, POLL);
            }
        }
    }
}

/// One event is being delivered, by this thread. Dropped, it is delivered, however that has ended.
struct Delivering<'a>(&'a Shared);

impl<'a> Delivering<'a> {
    fn begin(shared: &'a Shared) -> Delivering<'a> {
        shared.state.lock().deliverers.push(std::thread::current().id());
        Delivering(shared)
    }
}

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        let this = std::thread::current().id();
        // It is there once: who delivers does not settle.
        state.deliverers.retain(|thread| *thread != this);
        state.waiting -= 1;
        self.0.delivered.notify_all();
    }
}

fn deliver(listeners: &Listeners, event: &Event) {
    for listener in listeners.iter() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| listener.event(event))) {
            callbacks::forget(panic);
            tracing::warn!(?event, "a listener has panicked");
        }
    }
}

/// The kinds of jobs that listeners hear of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Flush,
    Compaction,
}

/// A job of which listeners have heard that it began. Dropped before its end, it has failed.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    core: &'a Core,
    kind: Kind,
    job: u64,
    start: Duration,
    /// What it has written, once it is done.
    written: Option<u64>,
    span: EnteredSpan,
}

impl Running<'_> {
    /// It is done, and has written so many bytes.
    pub fn done(mut self, bytes: u64) {
        self.written = Some(bytes);
        self.span.record("bytes", bytes);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let (job, took) = (self.job, self.core.env.clock.now() - self.start);
        let (bytes, is_done) = (self.written.unwrap_or(0), self.written.is_some());
        self.core.events.tell(|| match self.kind {
            Kind::Flush => Event::FlushEnd { job, bytes, took, is_done },
            Kind::Compaction => Event::CompactionEnd { job, bytes, took, is_done },
        });
    }
}

impl Core {
    /// A flush begins.
    pub fn begin_flush(&self) -> Running<'_> {
        self.begin(Kind::Flush)
    }

    /// A compaction begins.
    pub fn begin_compaction(&self) -> Running<'_> {
        self.begin(Kind::Compaction)
    }

    fn begin(&self, kind: Kind) -> Running<'_> {
        let job = self.events.jobs.fetch_add(1, Ordering::Relaxed);
        self.events.tell(|| match kind {
            Kind::Flush => Event::FlushBegin { job },
            Kind::Compaction => Event::CompactionBegin { job },
        });
        let span = match kind {
            Kind::Flush => tracing::info_span!("flush", job, bytes = Empty),
            Kind::Compaction => tracing::info_span!("compaction", job, bytes = Empty),
        };
        let start = self.env.clock.now();
        Running { core: self, kind, job, start, written: None, span: span.entered() }
    }

    /// Background work has failed, and nothing depends on it: it is done again later.
    pub fn put_off(&self, error: &Error) {
        self.counters.background_errors.add(1);
        self.events.tell(|| Event::Failed { error: error.clone(), stands: false });
    }

    /// A writer was stalled so long.
    pub(super) fn note_stall(&self, took: Duration, is_wait: bool) {
        self.counters.stalls.add(1);
        self.counters.stall_nanos.add(took.as_nanos() as u64);
        self.timers.stalled(took);
        if is_wait || took >= UNHEARD {
            self.events.tell(|| Event::Stall { took });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use terrace_base::exec::Inline;

    use super::*;

    fn told(add: impl FnOnce(&mut Listeners)) -> Arc<Events> {
        let mut listeners = Listeners::default();
        add(&mut listeners);
        Events::new(&listeners)
    }

    #[test]
    fn events_come_in_order_also_behind_a_panic() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = heard.clone();
        let events = told(|listeners| {
            listeners
                .add(|event: &Event| assert!(!matches!(event, Event::Recovered), "expected by this test"));
            listeners.add(move |event: &Event| hears.lock().push(format!("{event:?}")));
        });
        for job in 0..100 {
            events.tell(|| Event::FlushBegin { job });
            events.tell(|| Event::Recovered);
        }
        events.settle();
        let expected = (0..100).flat_map(|job| [format!("FlushBegin {{ job: {job} }}"), "Recovered".into()]);
        assert_eq!(*heard.lock(), expected.collect::<Vec<String>>());
    }

    #[test]
    fn who_is_too_slow_is_told_what_it_has_missed() {
        let (goes_on, heard) = (Arc::new(Barrier::new(2)), Arc::new(Mutex::new(Vec::new())));
        let (waits, hears) = (goes_on.clone(), heard.clone());
        let events = told(|listeners| {
            listeners.add(move |event: &Event| {
                if hears.lock().is_empty() {
                    waits.wait();
                }
                hears.lock().push(event.clone());
            });
        });
        for _ in 0..MOST_WAITING + 7 {
            events.tell(|| Event::BucketJoin);
        }
        goes_on.wait();
        events.settle();
        events.tell(|| Event::Recovered);
        events.settle();
        let heard = heard.lock();
        assert_eq!(heard.len(), MOST_WAITING + 2);
        assert!(matches!(heard[MOST_WAITING..], [Event::Missed { events: 7 }, Event::Recovered]));
    }

    #[test]
    fn a_listener_that_settles_does_not_wait_for_itself() {
        let back: Arc<Mutex<Option<Arc<Events>>>> = Arc::default();
        let calls = back.clone();
        let events = told(|listeners| {
            listeners.add(move |_: &Event| calls.lock().iter().for_each(|events| events.settle()));
        });
        *back.lock() = Some(events.clone());
        events.tell(|| Event::Recovered);
        events.tell(|| Event::Recovered);
        events.settle();
        *back.lock() = None;
    }

    /// What a listener panics with may panic as it goes, too.
    #[test]
    fn a_panic_within_a_panic_disturbs_nobody() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("expected by this test");
            }
        }
        let heard = Arc::new(AtomicU64::new(0));
        let hears = heard.clone();
        let events = told(|listeners| {
            listeners.add(|_: &Event| std::panic::panic_any(Bomb));
            listeners.add(move |_: &Event| {
                hears.fetch_add(1, Ordering::Relaxed);
            });
        });
        (0..3).for_each(|_| events.tell(|| Event::Recovered));
        events.settle();
        assert_eq!(heard.load(Ordering::Relaxed), 3);
    }

    /// The system has refused a thread.
    #[test]
    fn without_a_thread_whoever_settles_delivers_everything() {
        let (heard, mut listeners) = (Arc::new(AtomicU64::new(0)), Listeners::default());
        let hears = heard.clone();
        listeners.add(move |_: &Event| {
            hears.fetch_add(1, Ordering::Relaxed);
        });
        let events = Events::on(|| Box::new(Inline::default()), &listeners);
        (0..3).for_each(|_| events.tell(|| Event::Recovered));
        events.settle();
        assert_eq!(heard.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn without_listeners_nothing_is_told() {
        let events = told(|_| {});
        events.tell(|| unreachable!("nobody listens"));
        events.settle();
    }
}
