//! The one ordered list of events of a world, and the callback that is told of each before it happens.
//!
//! Invariants:
//! 1. Every change to durable state, on either medium, passes the gate first and gets the next number.
//! 2. The callback runs with no lock of the media or of the file system held. Events that it causes itself
//!    in its own world are numbered but not reported (the callback is busy); events of other worlds have
//!    their own gates.
//! 3. While a callback runs, other threads' events wait.

use std::cell::RefCell;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, ReentrantMutex};
use terrace_base::Error;

use crate::World;

/// A change of durable state that is about to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its place in the world's history, from 0.
    pub index: u64,
    /// The change.
    pub kind: EventKind,
}

/// The change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A drain of persistent memory; publishing is one.
    Drain,
    /// A sync of the whole of persistent memory.
    PmSync,
    /// Persistent memory grows to this many bytes.
    PmGrow(u64),
    /// A file is created.
    Create(PathBuf),
    /// Bytes are appended to a file.
    Write(PathBuf, u64),
    /// A file's bytes are made durable.
    Sync(PathBuf),
    /// A file is renamed, from the first path to the second.
    Rename(PathBuf, PathBuf),
    /// A file is removed.
    Remove(PathBuf),
    /// The names of a directory are made durable.
    SyncDir(PathBuf),
    /// A file is locked, and made if it is not there.
    Lock(PathBuf),
    /// A directory and its parents are made.
    CreateDir(PathBuf),
    /// The scenario is over; nothing more happens.
    End,
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventKind::Drain => write!(f, "drain"),
            EventKind::PmSync => write!(f, "sync persistent memory"),
            EventKind::PmGrow(to) => write!(f, "grow persistent memory to {to} bytes"),
            EventKind::Create(path) => write!(f, "create {}", path.display()),
            EventKind::Write(path, bytes) => write!(f, "write {bytes} bytes to {}", path.display()),
            EventKind::Sync(path) => write!(f, "sync {}", path.display()),
            EventKind::Rename(from, to) => write!(f, "rename {} to {}", from.display(), to.display()),
            EventKind::Remove(path) => write!(f, "remove {}", path.display()),
            EventKind::SyncDir(path) => write!(f, "sync directory {}", path.display()),
            EventKind::Lock(path) => write!(f, "lock {}", path.display()),
            EventKind::CreateDir(path) => write!(f, "create directory {}", path.display()),
            EventKind::End => write!(f, "end"),
        }
    }
}

/// Told of each event before it takes effect.
pub type Callback = Box<dyn FnMut(Event, &World) + Send>;

/// Numbers events and reports them.
#[derive(Default)]
pub(crate) struct Gate {
    next: AtomicU64,
    callback: ReentrantMutex<RefCell<Option<Callback>>>,
    faults: Mutex<Faults>,
}

/// Which operations that can fail are to.
#[derive(Debug, Default, Clone, Copy)]
struct Faults {
    /// Operations that can fail, so far.
    seen: u64,
    first: Option<u64>,
    lasting: bool,
    /// Events up to and with the first operation that failed.
    met: Option<u64>,
}

impl Gate {
    /// Events so far.
    pub(crate) fn events(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    pub(crate) fn set_callback(&self, callback: Option<Callback>) {
        let old = std::mem::replace(&mut *self.callback.lock().borrow_mut(), callback);
        // Dropped while nothing is borrowed: it may own a world whose drop calls this gate again.
        drop(old);
    }

    /// Numbers an event and reports it. The event takes effect after this returns.
    pub(crate) fn pass(&self, kind: EventKind, world: &World) {
        let cell = self.callback.lock();
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(callback) = cell.borrow_mut().take() else { return };
        // Put back after the call, even after a panic, unless the call itself set another one.
        let mut lent = Lent { cell: &cell, callback: Some(callback) };
        if let Some(callback) = &mut lent.callback {
            callback(Event { index, kind }, world);
        }
    }

    /// Plans a fault: the `nth` operation from now that can fail does, and all later ones if `lasting`.
    pub(crate) fn fail(&self, nth: u64, lasting: bool) {
        let mut faults = self.faults.lock();
        *faults = Faults { first: Some(faults.seen + nth), lasting, ..*faults };
    }

    pub(crate) fn no_faults(&self) {
        self.faults.lock().first = None;
    }

    /// Operations so far that could have failed.
    pub(crate) fn fallible(&self) -> u64 {
        self.faults.lock().seen
    }

    /// Counts an operation that can fail; whether it is to fail.
    pub(crate) fn fault(&self) -> bool {
        let mut faults = self.faults.lock();
        let this = faults.seen;
        faults.seen += 1;
        let fails = faults.first.is_some_and(|first| this == first || (faults.lasting && this > first));
        if fails {
            faults.met.get_or_insert(self.events());
        }
        fails
    }

    /// Events up to and with the first operation that was made to fail.
    pub(crate) fn fault_met(&self) -> Option<u64> {
        self.faults.lock().met
    }
}

/// A callback taken out of its cell for the time of a call.
struct Lent<'a> {
    cell: &'a RefCell<Option<Callback>>,
    callback: Option<Callback>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut cell = self.cell.borrow_mut();
        if cell.is_none() {
            *cell = self.callback.take();
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("events", &self.events()).finish_non_exhaustive()
    }
}

/// The error of an injected fault.
pub(crate) fn injected(path: &std::path::Path, operation: &'static str) -> Error {
    Error::io(path, operation, std::io::Error::other("injected fault"))
}
