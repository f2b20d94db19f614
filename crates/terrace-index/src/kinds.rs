//! What the extents and slots of a pool hold, for those this crate owns: numbers 1 to 15.

use terrace_pmem::Kind;

/// Arena extents of memtable skiplists.
pub const MEMTABLE: Kind = Kind(1);
/// Arena extents of skiplist indexes.
pub const SKIP_INDEX: Kind = Kind(2);
/// Nodes and headers of FAST&FAIR trees.
pub const FASTFAIR_NODE: Kind = Kind(3);
/// Key records of FAST&FAIR trees.
pub const FASTFAIR_RECORD: Kind = Kind(4);
/// Separator keys and prefixes of FAST&FAIR trees.
pub const FASTFAIR_KEY: Kind = Kind(5);
/// Headers, directories and shards of TurboHash tables.
pub const TURBOHASH: Kind = Kind(6);
/// Pairs of TurboHash tables that are not 8 and 8 bytes long.
pub const TURBOHASH_PAIR: Kind = Kind(7);
/// Headers, directories and segments of CCEH tables.
pub const CCEH: Kind = Kind(8);
/// Pairs of CCEH tables that are not 8 and 8 bytes long.
pub const CCEH_PAIR: Kind = Kind(9);
/// Leaves of SPTrees.
pub const SPTREE_LEAF: Kind = Kind(10);
/// Key records of SPTrees.
pub const SPTREE_KEY: Kind = Kind(11);
/// Headers and log sets of SPTrees.
pub const SPTREE_HEADER: Kind = Kind(12);
/// Logs of SPTrees' write buffers.
pub const SPTREE_LOG: Kind = Kind(13);
/// Headers and sets of the logs of buffered changes.
pub const SPOT_ON: Kind = Kind(14);
/// Logs of buffered changes.
pub const SPOT_ON_LOG: Kind = Kind(15);
