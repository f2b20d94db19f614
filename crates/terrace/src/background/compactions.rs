//! Compactions in the background: one after the other in each slot, giving way to what is more urgent, and between two of
//! them to what others have to compact that share the threads.

use std::sync::{Arc, Weak};

use terrace_base::exec::Lane;
use terrace_base::{Error, Result};

use super::Background;

/// Whether a compaction goes on when the database is closing: one that somebody waits for does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    UntilClosing,
    ToTheEnd,
}

/// How an engine compacts.
pub(crate) struct Compacting<E> {
    /// Does the most worthwhile compaction; false if there is none, or no time.
    pub next: fn(&E) -> Result<bool>,
    /// Whether there is one.
    pub is_due: fn(&E) -> bool,
    /// Removes files that could not be removed before.
    pub sweep: fn(&E),
}

impl Background {
    /// Has compactions done in the background if a slot is free, until there is none; those that run go on by themselves.
    pub fn compact<E>(self: &Arc<Self>, engine: &Weak<E>, how: Compacting<E>)
    where
        E: Send + Sync + 'static,
    {
        let Some(slot) = self.free_slot() else { return };
        let (jobs, again) = (self.clone(), engine.clone());
        self.spawn(Lane::Compaction, engine, move |engine| {
            let mut outcome = (how.next)(engine);
            while matches!(outcome, Ok(true)) && !jobs.is_closing() && !jobs.others_wait() {
                outcome = (how.next)(engine);
            }
            (how.sweep)(engine);
            drop(slot);
            match outcome {
                Err(e) => jobs.core.health.fail(e),
                // What became due after the last look found the slot taken.
                Ok(false) if !(how.is_due)(engine) => {}
                Ok(_) => jobs.compact(&again, how),
            }
        });
    }

    /// Whether somebody else's compaction, or something more urgent, waits for a thread.
    pub fn others_wait(&self) -> bool {
        self.core.env.executor.others_wait(Lane::Compaction)
    }

    /// Lets what is more urgent than a compaction go first. An error where that is no longer wanted.
    pub fn look_up(&self, patience: Patience) -> Result<()> {
        self.give_way(Lane::Compaction);
        match patience {
            Patience::UntilClosing if self.is_closing() => Err(Error::invalid("the database is closing")),
            _ => Ok(()),
        }
    }
}
