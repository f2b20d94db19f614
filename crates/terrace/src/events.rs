//! What happens in a database, for who wants to hear of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use terrace_base::Error;

/// Something that has happened in an open database; see [`Listeners`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A write buffer begins to move to tables or lists; in `split`, records begin to move to the SSD.
    FlushBegin {
        /// The number of the job, which its end repeats.
        job: u64,
    },
    /// It has moved, or failed.
    FlushEnd {
        /// The number of the job.
        job: u64,
        /// Bytes of the tables or lists that were written; 0 if it failed.
        bytes: u64,
        /// How long it took.
        took: Duration,
        /// Whether it was done. A [`Failed`](Self::Failed) says why not.
        is_done: bool,
    },
    /// Tables or lists begin to be merged or rewritten.
    CompactionBegin {
        /// The number of the job, which its end repeats.
        job: u64,
    },
    /// They are merged, or that failed.
    CompactionEnd {
        /// The number of the job.
        job: u64,
        /// Bytes of the tables or lists that were written; 0 if it failed.
        bytes: u64,
        /// How long it took.
        took: Duration,
        /// Whether it was done. One that gave way to the close of the database was not.
        is_done: bool,
    },
    /// A writer was delayed for a millisecond or more, or has waited for a flush or a compaction. Shorter delays are
    /// counted in the figures alone.
    Stall {
        /// How long.
        took: Duration,
    },
    /// Background work has failed.
    Failed {
        /// Why.
        error: Error,
        /// Whether the failure stands: writes that depend on the work are refused until it succeeds.
        stands: bool,
    },
    /// A scrub has found that a part of a table is damaged. Reads of what lies there fail with such an error, unless it
    /// is still in memory; everything else goes on. Damage that stays is told by each pass.
    Damaged {
        /// Where, and what is wrong.
        error: Error,
    },
    /// The failure that stood does no longer: the work has succeeded.
    Recovered,
    /// A bucket of `wip` was split.
    BucketSplit {
        /// Into how many.
        into: usize,
    },
    /// Two neighbouring buckets of `wip` were joined.
    BucketJoin,
    /// Events that nobody will hear of, since the listeners were too slow.
    Missed {
        /// How many.
        events: u64,
    },
}

/// Hears of events: see [`Listeners`]. Every function that takes an event is one.
pub trait EventListener: Send + Sync {
    /// Called with each event, one after the other.
    fn event(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> EventListener for F {
    fn event(&self, event: &Event) {
        self(event)
    }
}

/// Those who hear of what happens in a database: part of [`Options`](crate::Options).
///
/// They are called on a thread of their own, one event after the other, in the order in which things happened, and
/// some time later. So they may call anything of the database, also what waits for background work, and nothing of the
/// database waits for them but [`Db::close`](crate::Db::close), at its very end: when it returns, they have heard of
/// everything. Without a `close`, whoever drops the last of handles, snapshots and iterators waits. That thread must
/// therefore hold no lock that a listener needs.
/// A listener that calls `close` itself does not wait.
///
/// A listener that panics has done with that event; it and the others hear of the next. If more than 4,096 events wait
/// for slow listeners, further ones are dropped, and an [`Event::Missed`] tells how many. A database without
/// listeners has no such thread, and pays nothing.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use std::sync::mpsc;
/// use terrace::{Db, Event, Options};
///
/// let mut options = Options::default();
/// let (send, events) = mpsc::channel();
/// options.listeners.add(move |event: &Event| drop(send.send(event.clone())));
/// let db = Db::open(dir.path(), options)?;
/// db.put("apple", "red")?;
/// db.flush()?;
/// db.close()?;
/// let heard: Vec<Event> = events.try_iter().collect();
/// assert!(matches!(heard[0], Event::FlushBegin { .. }));
/// assert!(matches!(heard[1], Event::FlushEnd { is_done: true, bytes, .. } if bytes > 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Listeners(Vec<Arc<dyn EventListener>>);

impl Listeners {
    /// Adds a listener. Databases that are opened with these options call it from then on.
    pub fn add(&mut self, listener: impl EventListener + 'static) {
        self.0.push(Arc::new(listener));
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &dyn EventListener> {
        self.0.iter().map(|listener| &**listener)
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.len())
    }
}
