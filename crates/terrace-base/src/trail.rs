//! The trail of one operation: what it touches, noted where it is touched.
//!
//! The parts note what they do in [`note`], which costs a look at a flag of the thread unless [`follow`] runs an
//! operation there. So a trail is what the operation really did, and not what somebody thinks it does.

use std::cell::{Cell, RefCell};

/// Something that an operation has touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Touch {
    /// A memtable was searched.
    Memtable {
        /// Whether it has a version of the key that the reader sees.
        found: bool,
    },
    /// An index in persistent memory was searched.
    Index {
        /// Whether it has the key.
        found: bool,
    },
    /// A list of a key's versions, kept for snapshots, was read.
    Versions {
        /// How many of them are for this reader.
        count: u64,
    },
    /// The filter of a table, of a list or of a tree was asked.
    Filter {
        /// The number of the table or the list; `None` for a tree.
        number: Option<u64>,
        /// Whether it may have the key; false is certain.
        may: bool,
    },
    /// An SSTable was searched.
    Table {
        /// Its number.
        number: u64,
        /// Whether it has a version of the key that the reader sees.
        found: bool,
    },
    /// A list in persistent memory was searched.
    List {
        /// Its number.
        number: u64,
        /// Whether it has a version of the key that the reader sees.
        found: bool,
    },
    /// The beginning and the end of an SSTable were read, since nobody had read the table before.
    Ends {
        /// The table's number.
        table: u64,
    },
    /// A block of an SSTable was used.
    Block {
        /// The table's number.
        table: u64,
        /// Its offset in the table.
        offset: u64,
        /// Its bytes, decompressed and without its header.
        bytes: u64,
        /// Where it was found.
        from: BlockFrom,
    },
    /// A record in persistent memory was read.
    Record {
        /// The bytes of its key and its value.
        bytes: u64,
    },
    /// A slot on the SSD was read.
    Slot {
        /// Its bytes.
        bytes: u64,
    },
}

/// Where a block was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockFrom {
    /// In the block cache.
    Cache,
    /// In the mapping of its file.
    Mapping,
    /// In the file, by a call of the system.
    File,
}

thread_local! {
    static IS_FOLLOWED: Cell<bool> = const { Cell::new(false) };
    static TOUCHED: RefCell<Vec<Touch>> = const { RefCell::new(Vec::new()) };
}

/// Notes what `touch` says, if an operation of this thread is followed.
#[inline]
pub fn note(touch: impl FnOnce() -> Touch) {
    if IS_FOLLOWED.get() {
        keep(touch());
    }
}

#[cold]
fn keep(touch: Touch) {
    TOUCHED.with_borrow_mut(|touched| touched.push(touch));
}

/// Runs `operation` and returns what it has touched on this thread, in that order. One that runs within another is part
/// of that one's trail, too.
///
/// ```
/// use terrace_base::trail::{Touch, follow, note};
///
/// note(|| Touch::Index { found: false }); // nobody follows
/// let (answer, trail) = follow(|| {
///     note(|| Touch::Record { bytes: 9 });
///     42
/// });
/// assert_eq!((answer, &*trail), (42, &[Touch::Record { bytes: 9 }][..]));
/// ```
pub fn follow<T>(operation: impl FnOnce() -> T) -> (T, Vec<Touch>) {
    let _until_the_end = Following { before: IS_FOLLOWED.replace(true) };
    let from = TOUCHED.with_borrow(Vec::len);
    let outcome = operation();
    let trail = TOUCHED.with_borrow(|touched| touched[from..].to_vec());
    (outcome, trail)
}

/// An operation is followed, also if it panics; the trail is forgotten with the outermost.
struct Following {
    before: bool,
}

impl Drop for Following {
    fn drop(&mut self) {
        IS_FOLLOWED.set(self.before);
        if !self.before {
            TOUCHED.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trails_nest_and_end_with_their_operation() {
        let touch = |bytes| note(|| Touch::Record { bytes });
        let ((), outer) = follow(|| {
            touch(1);
            let ((), inner) = follow(|| touch(2));
            assert_eq!(inner, [Touch::Record { bytes: 2 }]);
            touch(3);
        });
        assert_eq!(outer, [1, 2, 3].map(|bytes| Touch::Record { bytes }));
        let panicked = std::panic::catch_unwind(|| follow(|| -> () { panic!("expected by this test") }));
        assert!(panicked.is_err() && !IS_FOLLOWED.get());
        touch(4);
        assert!(follow(|| ()).1.is_empty());
    }
}
