//! Background work in which tidying waits until it is asked for.

use std::collections::VecDeque;

use parking_lot::Mutex;
use terrace_base::exec::{Executor, Inline, Job, Lane};

/// Whoever waits for background work does it; tidying, for which nobody waits, is done by [`tidy`](Self::tidy) alone.
#[derive(Default)]
pub struct Deferred {
    inline: Inline,
    tidying: Mutex<VecDeque<Job>>,
}

impl Deferred {
    /// Does one piece of tidying; false if there was none.
    pub fn tidy(&self) -> bool {
        let job = self.tidying.lock().pop_front();
        job.map(|job| job()).is_some()
    }
}

impl std::fmt::Debug for Deferred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deferred").field("waiting", &self.tidying.lock().len()).finish_non_exhaustive()
    }
}

impl Executor for Deferred {
    fn spawn_in(&self, lane: Lane, job: Job) {
        match lane {
            Lane::Tidying => self.tidying.lock().push_back(job),
            _ => self.inline.spawn_in(lane, job),
        }
    }

    fn runs_beside(&self) -> bool {
        true
    }

    fn help(&self) -> bool {
        self.inline.help()
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        self.inline.join(first, second);
    }
}
