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
