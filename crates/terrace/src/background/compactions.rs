//! Compactions in the background: one after the other in each slot; between two of them they give way to more
//! urgent jobs and to other databases' compactions on the same threads.

use std::sync::{Arc, Weak};

use terrace_base::exec::Lane;
use terrace_base::{Error, Result};

use super::queue::Needs;
use super::{Background, Slot};

/// Whether a compaction continues when the database is closing: one that somebody waits for does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    UntilClosing,
    ToTheEnd,
}

/// How an engine compacts.
pub(crate) struct Compacting<E> {
    /// What a job does before its first compaction.
    pub begin: fn(&E) -> Result<()>,
    /// Does the most worthwhile compaction; false if there is none, or no time.
    pub next: fn(&E, &Slot) -> Result<bool>,
    /// Whether a compaction is due that nobody will request: one that was chosen and not done, because
    /// another job was using its inputs.
    pub is_due: fn(&E) -> bool,
    /// Removes files that could not be removed before.
    pub sweep: fn(&E),
}

impl<E> Compacting<E> {
    /// Runs one after the other; returns whether to continue later.
    fn run(&self, jobs: &Background, engine: &E, slot: &Slot) -> Result<bool> {
        (self.begin)(engine)?;
        while !jobs.is_closing() {
            jobs.core.health.uncut()?;
            if !(self.next)(engine, slot)? {
                return Ok(false);
            }
            if jobs.others_wait() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Background {
    /// Runs compactions in the background until none is left. If every slot is taken, or will be by jobs that
    /// wait for a thread, they begin when one is released.
    pub fn compact<E>(self: &Arc<Self>, engine: &Weak<E>, how: Compacting<E>)
    where
        E: Send + Sync + 'static,
    {
        let again = engine.clone();
        self.send(Lane::Compaction, Needs::Slot, engine, move |jobs, engine, slot| {
            let Some(slot) = slot else { return };
            let outcome = how.run(jobs, engine, &slot);
            (how.sweep)(engine);
            drop(slot);
            match outcome {
                Err(e) => jobs.core.health.fail(e),
                Ok(false) if !(how.is_due)(engine) => {}
                Ok(_) => jobs.compact(&again, how),
            }
        });
    }

    /// Has `job` help with a compaction; false if no slot is left for it. If no slot is free when it begins,
    /// it does nothing. The caller of a patient compaction has all slots, and its helpers need none.
    pub fn assist<E>(
        self: &Arc<Self>,
        engine: &Weak<E>,
        patience: Patience,
        job: impl FnOnce(&E) + Send + 'static,
    ) -> bool
    where
        E: Send + Sync + 'static,
    {
        let needs = match patience {
            Patience::UntilClosing => Needs::SlotOrGoes,
            Patience::ToTheEnd => Needs::Nothing,
        };
        self.send(Lane::Compaction, needs, engine, move |_, engine, _slot| job(engine))
    }

    /// Whether another compaction, or something more urgent, waits for a thread.
    pub fn others_wait(&self) -> bool {
        self.core.env.executor.others_wait(Lane::Compaction)
    }

    /// Lets more urgent jobs than a compaction run first. An error if the compaction is no longer wanted.
    pub fn look_up(&self, patience: Patience) -> Result<()> {
        self.give_way(Lane::Compaction);
        self.core.health.uncut()?;
        match patience {
            Patience::UntilClosing if self.is_closing() => Err(Error::invalid("the database is closing")),
            _ => Ok(()),
        }
    }
}
