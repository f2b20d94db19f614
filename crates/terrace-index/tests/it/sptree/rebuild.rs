//! Rebuilding the layers in DRAM beside writers.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::Result;
use terrace_index::{OrderedIndex, SpTree};
use terrace_pmem::{Granularity, Media, MemMedia, Pool};

use super::{Lagging, Sp, all, check, long_key};
use crate::bed::options;
use crate::conformance::Constructor;

/// What is to be done at a moment, and how many moments come before.
type Due = Option<(usize, Box<dyn FnOnce() + Send>)>;

/// Memory that does something in the middle of what is stored to it.
struct Hooked {
    memory: MemMedia,
    due: Mutex<Due>,
}

impl Hooked {
    fn moment(&self) {
        let mut due = self.due.lock();
        match due.take() {
            Some((0, act)) => {
                drop(due);
                act();
            }
            Some((left, act)) => *due = Some((left - 1, act)),
            None => {}
        }
    }
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.memory.fmt(f)
    }
}

impl Media for Hooked {
    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.memory.grow(len)
    }

    fn granularity(&self) -> Granularity {
        self.memory.granularity()
    }

    fn flush(&self, offset: u64, len: u64) {
        self.memory.flush(offset, len);
    }

    fn drain(&self) {
        self.moment();
        self.memory.drain();
    }

    fn order(&self, offset: u64) {
        self.memory.order(offset);
    }

    fn charge_read(&self, offset: u64, len: u64) {
        self.memory.charge_read(offset, len);
    }

    fn sync(&self) -> Result<()> {
        self.memory.sync()
    }

    fn describe(&self) -> String {
        self.memory.describe()
    }
}

/// Whoever rebuilds finds a leaf in the chain as soon as a split has stored the link to it. It must not make a node for it
/// beside the one that the split makes: writers would follow the one, scans the other.
#[test]
fn a_leaf_that_is_being_split_off_has_one_node() {
    for moment in 0..40 {
        let memory = MemMedia::new(1 << 20, 16 << 20, Granularity::CacheLine).unwrap();
        let media = Arc::new(Hooked { memory, due: Mutex::new(None) });
        let pool = Pool::create_on(media.clone(), Path::new("memory"), &options()).unwrap();
        drop(Sp::<6, false, 0>::create(&pool).unwrap());
        let tree = Arc::new(Lagging::<6, 0>::open(&pool).unwrap());
        let other: Arc<SpTree> = tree.clone();
        *media.due.lock() = Some((moment, Box::new(move || other.rebuild().unwrap())));
        for i in 0..60 {
            tree.insert(&long_key(i), i + 1).unwrap();
        }
        assert!(media.due.lock().is_none(), "moment {moment} is one within the writes");
        assert_eq!(all(&tree).len(), 60, "rebuilt at moment {moment}");
        check(&tree);
    }
}
