//! Persistent indexes: ordered and hashed, each in a folder of its own.
//!
//! * [`skiplist`]: SLM-DB's persistent skiplist in an arena, a memtable that needs no log; also as an index.
//! * [`fastfair`]: the FAST&FAIR B+-tree over byte strings.
//! * [`cceh`]: extendible hashing with segments, for byte strings.
//! * [`point`]: the trait that all of them share; on it those of ordered ([`ordered`]) and of hash indexes ([`hashed`]).
//! * `guide`: where things are, in DRAM: what keeps the search for a place off PM.
//! * `pair`: the records of what does not fit into a slot of a hash table.
//! * [`sptree`]: the SPTree: inner nodes in DRAM, leaves and a copy of the top layer in PM.
//! * [`turbohash`]: the TurboHash table of pairs, sharded, with 256-byte buckets.
//! * [`limbo`]: when unlinked memory may be freed under lock-free readers; [`pins`]: readers counted without fences.
//! * `overflow`: pairs for which a hash table has no place, whatever their keys' hashes.
//! * `reserved`: what a structure that is being made gives back if that fails.
//! * [`spot_on`]: write buffers, out-of-place merges and cached inner parts for three of them.

pub mod cceh;
pub mod fastfair;
mod guide;
pub mod hashed;
pub mod kinds;
pub mod limbo;
pub mod ordered;
mod overflow;
mod pair;
pub mod pins;
pub mod point;
mod reserved;
mod scan_batch;
pub mod skiplist;
pub mod spot_on;
pub mod sptree;
mod sync;
pub mod turbohash;
mod word_cell;

pub use cceh::Cceh;
pub use fastfair::FastFair;
pub use hashed::{ByteMap, HashCursor, HashFigures, HashIndex};
pub use ordered::OrderedIndex;
pub use point::{PointIndex, Wish};
pub use scan_batch::ScanBatch;
pub use skiplist::{Found, ListCursor, Missing, Record, SkipIndex, SkipList, Staged, Staging, WeakSkipList};
pub use spot_on::{SpotOn, SpotOnOptions};
pub use sptree::{SpOptions, SpTree, Still};
pub use turbohash::{TurboHash, TurboOptions};
