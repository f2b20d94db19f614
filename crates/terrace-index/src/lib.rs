//! Persistent indexes: ordered and hashed, each in a folder of its own.
//!
//! * [`skiplist`]: SLM-DB's persistent skiplist in an arena, a memtable that needs no log; also as an index.
//! * [`fastfair`]: the FAST&FAIR B+-tree over byte strings.
//! * [`ordered`]: the trait that ordered indexes share.
//! * `guide`: where things are, in DRAM: what keeps the search for a place off PM.
//! * [`hashed`]: the traits that hash indexes share; `pair`: the records of what does not fit into a slot.
//! * [`sptree`]: the SPTree: inner nodes in DRAM, leaves and a copy of the top layer in PM.
//! * [`limbo`]: when unlinked memory may be freed under lock-free readers.

pub mod fastfair;
mod guide;
#[allow(dead_code, reason = "no hash index uses it yet")]
pub mod hashed;
pub mod kinds;
pub mod limbo;
pub mod ordered;
#[allow(dead_code, reason = "no hash index uses it yet")]
mod pair;
pub mod skiplist;
pub mod sptree;
mod sync;
mod word_cell;

pub use fastfair::FastFair;
pub use hashed::{ByteMap, HashCursor, HashFigures, HashIndex};
pub use ordered::{OrderedIndex, ScanBatch};
pub use skiplist::{Found, ListCursor, Record, SkipIndex, SkipList, Staged, WeakSkipList};
pub use sptree::{SpOptions, SpTree};
