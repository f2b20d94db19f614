//! Transactions that ask what was written since they began, beside a leader that writes: nobody is told that a key is
//! untouched that was written in between.

use std::sync::Arc;

use shuttle::thread;

use crate::check;
use crate::core::recent_writes::RecentWrites;
use crate::sync::{AtomicU64, Ordering};

const KEYS: [&[u8]; 2] = [b"a", b"b"];

#[derive(Default)]
struct Shared {
    recent: RecentWrites,
    visible: AtomicU64,
    /// Of each key, the number of its last write.
    written: [AtomicU64; 2],
}

impl Shared {
    /// Writes the keys by turns, and at times takes a number for something that is not noted.
    fn lead(&self) {
        for number in 1..=5 {
            let key = number as usize % 2;
            if number != 3 {
                self.recent.note((number, number), [KEYS[key]].into_iter(), false);
            }
            self.written[key].store(number, Ordering::SeqCst);
            self.visible.store(number, Ordering::SeqCst);
        }
    }

    /// Begins, and looks whether each key was written since.
    fn transact(&self) {
        self.recent.watch(self.visible.load(Ordering::SeqCst));
        let then = self.visible.load(Ordering::SeqCst);
        for (key, written) in KEYS.iter().zip(&self.written) {
            let now = self.visible.load(Ordering::SeqCst);
            let last = written.load(Ordering::SeqCst);
            let noted = self.recent.between(then, now);
            if noted.is_some_and(|noted| noted.is_untouched(key)) {
                assert!(
                    last <= then || last > now,
                    "{key:?} was written as {last}, between {then} and {now}"
                );
            }
        }
    }
}

#[test]
fn nobody_is_told_that_a_written_key_is_untouched() {
    check(|| {
        let shared = Arc::new(Shared::default());
        let transactions = |shared: &Arc<Shared>| {
            let shared = shared.clone();
            thread::spawn(move || (0..2).for_each(|_| shared.transact()))
        };
        let others = [transactions(&shared), transactions(&shared)];
        shared.lead();
        others.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
