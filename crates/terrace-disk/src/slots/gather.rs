//! Items of several writers, written together.
//!
//! A writer that finds no leader becomes the leader: it takes waiting items in order of arrival, as many as one
//! submission should have, writes them and tells their writers. Meanwhile further items come to wait. Two leaders at a
//! time would write smaller submissions, with a sync for each and fewer items that share blocks; that was measured to
//! be slower (`docs/results/media.md`).
//!
//! 1. Waiting items always have a leader: a waiting writer becomes one if there is none.
//! 2. A submission that fails for want of space is made again for each writer alone: so a large item that does not fit
//!    does not block small ones.

use std::collections::{HashMap, VecDeque};

use parking_lot::{Condvar, Mutex};
use terrace_base::Result;

use super::{Slot, Slots};
use crate::block::BlockBuf;

/// Bytes of one submission, at most, where it has several writers' items.
const SUBMISSION_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct Gather {
    state: Mutex<State>,
    /// A leader is done.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    finished: HashMap<u64, Result<Vec<Slot>>>,
    is_led: bool,
    tickets: u64,
}

/// How items are to be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub is_durable: bool,
    /// In one run, and alone: others' items would be freed at other times.
    pub is_packed: bool,
}

/// A writer's items.
#[derive(Debug)]
struct Waiting {
    ticket: u64,
    items: Vec<BlockBuf>,
    how: How,
}

impl State {
    /// The items that are to be written together.
    fn take(&mut self) -> Vec<Waiting> {
        let (mut group, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.waiting.front() {
            bytes += next.items.iter().map(|item| item.len()).sum::<usize>();
            let is_alone = next.how.is_packed;
            if (bytes > SUBMISSION_BYTES || is_alone) && !group.is_empty() {
                break;
            }
            group.extend(self.waiting.pop_front());
            if is_alone {
                break;
            }
        }
        group
    }
}

impl Gather {
    /// Writes `items` to `slots`, with those of others.
    pub(super) fn write(&self, slots: &Slots, items: Vec<BlockBuf>, how: How) -> Result<Vec<Slot>> {
        let mut state = self.state.lock();
        let ticket = state.tickets;
        state.tickets += 1;
        state.waiting.push_back(Waiting { ticket, items, how });
        loop {
            if let Some(outcome) = state.finished.remove(&ticket) {
                return outcome;
            }
            if state.is_led {
                self.done.wait(&mut state);
                continue;
            }
            state.is_led = true;
            let group = state.take();
            drop(state);
            let outcomes = submit(slots, &group);
            state = self.state.lock();
            state.finished.extend(group.iter().map(|waiting| waiting.ticket).zip(outcomes));
            state.is_led = false;
            self.done.notify_all();
        }
    }
}

/// Writes the waiting items; returns an outcome for each writer.
fn submit(slots: &Slots, group: &[Waiting]) -> Vec<Result<Vec<Slot>>> {
    let items: Vec<&BlockBuf> = group.iter().flat_map(|waiting| &waiting.items).collect();
    let how = How {
        is_durable: group.iter().any(|waiting| waiting.how.is_durable),
        is_packed: group.iter().any(|waiting| waiting.how.is_packed),
    };
    match slots.submit(&items, how) {
        Ok(written) => {
            let mut written = written.into_iter();
            group.iter().map(|waiting| Ok(written.by_ref().take(waiting.items.len()).collect())).collect()
        }
        Err(e) if e.is_out_of_space() && group.len() > 1 => {
            let alone = |waiting: &Waiting| {
                let items: Vec<&BlockBuf> = waiting.items.iter().collect();
                slots.submit(&items, waiting.how)
            };
            group.iter().map(alone).collect()
        }
        Err(e) => vec![Err(e); group.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::{BlockFile, BlockReads, BlockWrite, Geometry};
    use crate::{Fs, SimFs};
    use parking_lot::RwLock;
    use std::ops::Range;
    use std::path::Path;
    use std::sync::Arc;

    /// A file whose writes wait for as long as somebody has `gate`.
    #[derive(Debug)]
    struct Gated(Arc<dyn BlockFile>, Arc<RwLock<()>>);

    impl BlockFile for Gated {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn write_many(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
            let _open = self.1.read();
            self.0.write_many(writes)
        }

        fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
            self.0.read_many(reads)
        }

        fn begin_reads(self: Arc<Self>, reads: Vec<(u64, BlockBuf)>) -> Box<dyn BlockReads> {
            self.0.clone().begin_reads(reads)
        }

        fn sync(&self) -> Result<bool> {
            self.0.sync()
        }

        fn grow(&self, len: u64) -> Result<()> {
            self.0.grow(len)
        }

        fn discard(&self, range: Range<u64>) -> Result<bool> {
            self.0.discard(range)
        }

        fn len(&self) -> u64 {
            self.0.len()
        }

        fn path(&self) -> &Path {
            self.0.path()
        }
    }

    /// Lets four writers wait behind one whose write ends once they wait. Returns the outcome of each.
    fn four_behind_one(fs: &SimFs, sizes: [usize; 4]) -> (Slots, Vec<Result<Slot>>) {
        let gate = Arc::new(RwLock::new(()));
        let file = fs.open_blocks(Path::new("/slots"), true).unwrap();
        let slots = Slots::open(Arc::new(Gated(file, gate.clone())), 512).unwrap();
        slots.adopt([]).unwrap();
        let closed = gate.write();
        let outcomes = std::thread::scope(|scope| {
            let slots = &slots;
            let first = scope.spawn(move || slots.write(BlockBuf::zeroed(512), false));
            let wait_for = |waiting: usize, is_led: bool| {
                let is_so = || {
                    let state = slots.gather.state.lock();
                    state.waiting.len() == waiting && state.is_led == is_led
                };
                while !is_so() {
                    std::thread::yield_now();
                }
            };
            wait_for(0, true);
            let mut others = Vec::new();
            for (i, size) in sizes.into_iter().enumerate() {
                others.push(scope.spawn(move || slots.write(BlockBuf::zeroed(size), true)));
                wait_for(i + 1, true);
            }
            drop(closed);
            first.join().unwrap().unwrap();
            others.into_iter().map(|other| other.join().unwrap()).collect()
        });
        (slots, outcomes)
    }

    #[test]
    fn those_who_wait_are_written_together_with_one_sync() {
        let fs = SimFs::new();
        let (slots, outcomes) = four_behind_one(&fs, [512, 4608, 512, 9216]);
        let written: Vec<Slot> = outcomes.into_iter().map(|outcome| outcome.unwrap()).collect();
        assert!(written.windows(2).all(|pair| pair[0].end() == pair[1].first()), "one behind the other");
        let stats = slots.stats();
        assert_eq!((stats.submissions, stats.submitted, stats.syncs), (2, 5, 1));
        assert!(slots.gather.state.lock().finished.is_empty());
    }

    #[test]
    fn a_submission_has_so_many_bytes() {
        let (slots, outcomes) = four_behind_one(&SimFs::new(), [512, 10 << 20, 10 << 20, 512]);
        assert!(outcomes.iter().all(|outcome| outcome.is_ok()));
        assert_eq!((slots.stats().submissions, slots.stats().syncs), (3, 2));
    }

    #[test]
    fn one_that_does_not_fit_is_in_nobodys_way() {
        let fs = SimFs::new();
        fs.set_capacity(Some(2 << 20));
        let (slots, outcomes) = four_behind_one(&fs, [512, 4 << 20, 4096, 100_352]);
        assert!(outcomes[1].as_ref().unwrap_err().is_out_of_space());
        let others = [0, 2, 3].map(|i| outcomes[i].as_ref().unwrap());
        assert_eq!((slots.stats().items, others[2].sectors()), (4, 196));
    }
}
