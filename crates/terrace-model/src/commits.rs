//! One leader at a time, every request applied once and answered, conditional ones alone.

use std::sync::Arc;

use shuttle::thread;

use crate::batch::WriteBatch;
use crate::check;
use crate::commit::CommitQueue;
use crate::core::request::Request;
use crate::sync::{AtomicUsize, Ordering};

struct Shared {
    queue: CommitQueue,
    leaders: AtomicUsize,
    applied: [AtomicUsize; 8],
}

impl Shared {
    fn commit(&self, id: u8, alone: bool) {
        let request = Request { batch: WriteBatch(vec![id]), alone, sync: id == 5 };
        let before = self.applied[id as usize].load(Ordering::SeqCst);
        let outcome = self.queue.commit(request, |group| {
            assert_eq!(self.leaders.fetch_add(1, Ordering::SeqCst), 0, "two lead");
            let has_none = group.iter().all(|r| !r.alone) || group.len() == 1;
            assert!(has_none, "a conditional write has company");
            let is_own = |request: &&Request| request.batch.0[0] == id;
            assert!(group.iter().filter(|r| r.alone).all(is_own), "somebody else judges a condition");
            assert!(!alone || group.len() == 1 && is_own(&group[0]), "a condition judges somebody else");
            for request in group {
                self.applied[request.batch.0[0] as usize].fetch_add(1, Ordering::SeqCst);
            }
            self.leaders.fetch_sub(1, Ordering::SeqCst);
            Ok(true)
        });
        assert!(outcome.unwrap());
        assert_eq!(
            self.applied[id as usize].load(Ordering::SeqCst),
            before + 1,
            "applied when it is answered"
        );
    }
}

#[test]
fn every_request_is_applied_once_by_one_leader() {
    check(|| {
        let applied = std::array::from_fn(|_| AtomicUsize::new(0));
        let shared =
            Arc::new(Shared { queue: CommitQueue::default(), leaders: AtomicUsize::new(0), applied });
        let threads: Vec<_> = [false, true, false, true]
            .into_iter()
            .enumerate()
            .map(|(thread, alone)| {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.commit(2 * thread as u8, alone);
                    shared.commit(2 * thread as u8 + 1, false);
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert!(shared.applied.iter().all(|a| a.load(Ordering::SeqCst) == 1));
    });
}
