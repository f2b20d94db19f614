//! Persistent indexes: ordered and hashed, each in a folder of its own.
//!
//! * [`skiplist`]: SLM-DB's persistent skiplist in an arena, a memtable that needs no log; also as an index.
//! * [`fastfair`]: the FAST&FAIR B+-tree over byte strings.
//! * [`ordered`]: the trait that ordered indexes share.
//! * `guide`: where things are, in DRAM: what keeps the search for a place off PM.
//! * [`limbo`]: when unlinked memory may be freed under lock-free readers.

pub mod fastfair;
mod guide;
pub mod kinds;
pub mod limbo;
pub mod ordered;
pub mod skiplist;
mod sync;
mod word_cell;

pub use fastfair::FastFair;
pub use ordered::{OrderedIndex, ScanBatch};
pub use skiplist::{Found, ListCursor, Record, SkipIndex, SkipList, Staged, WeakSkipList};
