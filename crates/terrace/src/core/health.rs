//! Whether background work succeeds, and the error that writers get when it does not.
//!
//! A failure is kept until the work it stopped succeeds. Meanwhile writes that depend on that work are
//! refused with its cause, and reads continue. Damage and panics are permanent: only reopening clears them. After a panic
//! nobody knows how far the work had come: a close leaves everything to the next opening, as a killed process does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use terrace_base::{Calm, Error, ErrorKind, Result};

use super::events::Events;
use crate::events::Event;

/// The last background failure, if it still stands.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Whether a lasting failure stands: checked by every write.
    lasts: AtomicBool,
    /// Whether a panic has cut work short.
    is_cut: AtomicBool,
    failure: Mutex<Option<Arc<Error>>>,
    events: Arc<Events>,
}

impl Health {
    /// Healthy. Failures and recoveries are told to `events`.
    pub fn new(events: Arc<Events>) -> Health {
        Health { events, ..Health::default() }
    }

    /// Refuses when the store is poisoned for good.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if !self.lasts.load(Ordering::Acquire) {
            return Ok(());
        }
        match &*self.failure.lock() {
            Some(cause) if is_lasting(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            _ => Ok(()),
        }
    }

    /// The failure that stands, lasting or not.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.failure.lock().clone()
    }

    /// Records a failure; a lasting one is never replaced.
    pub fn fail(&self, error: Error) {
        let mut failure = self.failure.lock();
        if !failure.as_ref().is_some_and(|f| is_lasting(f)) {
            self.lasts.store(is_lasting(&error), Ordering::Release);
            self.events.tell(|| Event::Failed { error: error.clone(), stands: true });
            *failure = Some(Arc::new(error));
        }
    }

    /// Records that work has panicked that was `calm` when it began, if it has. Whoever has something for himself calls
    /// it before he lets go of it.
    pub fn note_panic(&self, calm: Calm) {
        if calm.is_over() {
            self.fail(Error::invalid("a thread panicked while it changed the database"));
            self.is_cut.store(true, Ordering::Release);
        }
    }

    /// A change begins on this thread. Nothing is changed after a panic on the way: half of it may be there, and would
    /// be seen, or kept by a close.
    pub fn whole(&self) -> Whole<'_> {
        Whole { health: self, calm: Calm::now() }
    }

    /// Whether a panic has cut work short.
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Acquire)
    }

    /// Refuses where a panic has cut work short.
    pub fn uncut(&self) -> Result<()> {
        if self.is_cut() { self.check() } else { Ok(()) }
    }

    /// The work that failed has succeeded.
    pub fn recover(&self) {
        let mut failure = self.failure.lock();
        if failure.as_ref().is_some_and(|f| !is_lasting(f)) {
            self.events.tell(|| Event::Recovered);
            *failure = None;
        }
    }
}

/// A change that is being made.
#[derive(Debug)]
pub(crate) struct Whole<'h> {
    health: &'h Health,
    calm: Calm,
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        self.health.note_panic(self.calm);
    }
}

/// Whether retrying the same work cannot help.
fn is_lasting(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::PoolFull | ErrorKind::Io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_full_disk_passes_and_damage_stays() {
        let health = Health::default();
        health.fail(Error::NoSpace { path: "x".into() });
        assert!(health.check().is_ok() && health.failure().is_some());
        health.recover();
        assert!(health.failure().is_none());
        health.fail(Error::corruption(Path::new("x"), 0, "a", "b"));
        health.fail(Error::NoSpace { path: "x".into() });
        health.recover();
        assert_eq!(health.check().unwrap_err().kind(), ErrorKind::Poisoned);
        assert!(health.uncut().is_ok());
        struct Works<'h>(&'h Health);
        impl Drop for Works<'_> {
            fn drop(&mut self) {
                drop(self.0.whole());
            }
        }
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _works = Works(&health);
            panic!("of somebody who changes nothing");
        }));
        assert!(unwound.is_err() && !health.is_cut(), "what a destructor does is whole");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _whole = health.whole();
            panic!("on the way");
        }));
        assert!(panicked.is_err());
        assert_eq!(health.uncut().unwrap_err().kind(), ErrorKind::Poisoned);
    }
}
