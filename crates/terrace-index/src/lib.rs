//! Persistent indexes: ordered and hashed, each in a folder of its own. Those that no engine uses are in
//! `terrace-index-extra`.
//!
//! * [`skiplist`]: SLM-DB's persistent skiplist in an arena, a memtable that needs no log; also as an index.
//! * [`fastfair`]: the FAST&FAIR B+-tree over byte strings.
//! * [`point`]: the trait that all of them share; on it those of ordered ([`ordered`]) and of hash indexes
//!   ([`hashed`]).
//! * [`pmlist`]: TLSM's persistent skiplists that are built in one go: lists of places of records, and the buffers that
//!   hold them.
//! * `btree`: a B-tree in DRAM that finds places, so that searches need not touch PM.
//! * `pair`: the records of pairs that do not fit into a slot of a hash table.
//! * [`sptree`]: the SPTree: inner nodes in DRAM, leaves and a copy of the top layer in PM.
//! * [`turbohash`]: the TurboHash table of pairs, sharded, with 256-byte buckets.
//! * `key_object`: keys that lie in the pool by themselves, bound to their place.
//! * [`limbo`]: when unlinked memory may be freed under lock-free readers; [`pins`]: readers counted without fences.
//! * `overflow`: pairs for which a hash table has no place, whatever their keys' hashes.
//! * `totals`: how many keys and bytes an index has, kept from session to session.
//! * `reserved`: the reservations of a structure that is being made, which are given back on failure.

mod btree;
mod change;
pub mod fastfair;
pub mod hashed;
mod key_object;
pub mod kinds;
pub mod limbo;
pub mod ordered;
mod overflow;
mod pair;
pub mod pins;
pub mod pmlist;
pub mod point;
mod reserved;
mod scan_batch;
pub mod skiplist;
pub mod sptree;
mod sync;
mod totals;
pub mod turbohash;
mod word_cell;

pub use change::Change;
pub use fastfair::FastFair;
pub use hashed::{ByteMap, HashFigures, HashIndex, ScanPosition};
pub use ordered::OrderedIndex;
pub use point::{PointIndex, Wish};
pub use scan_batch::ScanBatch;
pub use skiplist::{Found, ListCursor, Missing, Record, SkipIndex, SkipList, Staged, Staging, WeakSkipList};
pub use sptree::{SpOptions, SpTree, Still};
pub use turbohash::{TurboHash, TurboHashOptions};

/// The parts of indexes, for this crate and its sister `terrace-index-extra`. They change with the indexes, and other
/// code should not rely on them. [`limbo`], [`pins`] and [`kinds`] are parts, too.
pub mod parts {
    pub use crate::hashed::{admit_pair, hash_key};
    pub use crate::ordered::leads_on;
    pub use crate::overflow::{Overflow, Unlinked, empty_head};
    pub use crate::pair::{NewPair, Pair, record_bytes, word_of};
    pub use crate::point::admit_key;
    pub use crate::reserved::Reserved;
    pub use crate::totals::{SavedTotals, Totals};
}
