//! An executor without threads.

use parking_lot::Mutex;

use super::{Executor, Job, LANES, Lane, Queue};

/// Runs every job on the thread that asks for help, the most urgent first.
#[derive(Debug, Default)]
pub struct Inline {
    queue: Mutex<Queue>,
}

impl Inline {
    /// Jobs not yet run.
    pub fn pending(&self) -> usize {
        self.queue.lock().len()
    }

    /// Jobs of `lane` not yet run.
    pub fn pending_in(&self, lane: Lane) -> usize {
        self.queue.lock().lanes[lane as usize].len()
    }
}

impl Executor for Inline {
    fn spawn_in(&self, lane: Lane, job: Job) {
        self.queue.lock().lanes[lane as usize].push_back(job);
    }

    fn help(&self) -> bool {
        let Some((_, job)) = self.queue.lock().pop(LANES) else { return false };
        job();
        true
    }

    fn join(&self, first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        first();
        second();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn inline_runs_in_order_when_asked() {
        let inline = Inline::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        for i in 0..3 {
            let seen = seen.clone();
            inline.spawn(Box::new(move || seen.lock().push(i)));
        }
        assert!(seen.lock().is_empty());
        while inline.help() {}
        assert_eq!(*seen.lock(), [0, 1, 2]);
    }
}
