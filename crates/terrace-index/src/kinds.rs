//! The kinds of extents and slots of a pool: the only registry of their numbers, for the indexes and for the engines
//! that share a pool with them. A number never changes its meaning. Two owners with one number would reclaim each
//! other's memory, so a number that is used twice does not compile.

use terrace_pmem::Kind;

macro_rules! registry {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $what:literal;)*) => {
        $($(#[$doc])* pub const $name: Kind = Kind($number);)*

        /// Every kind, with its name.
        pub const ALL: &[(Kind, &str)] = &[$(($name, $what)),*];
    };
}

registry! {
    /// Arena extents of skiplists outside the store.
    MEMTABLE = 1, "skiplist";
    /// Arena extents of skiplist indexes.
    SKIP_INDEX = 2, "skiplist index";
    /// Nodes and headers of FAST&FAIR trees.
    FASTFAIR_NODE = 3, "node";
    /// Key records of FAST&FAIR trees.
    FASTFAIR_RECORD = 4, "record";
    /// Separator keys and prefixes of FAST&FAIR trees.
    FASTFAIR_KEY = 5, "key";
    /// Headers, directories and shards of TurboHash tables.
    TURBOHASH = 6, "turbohash";
    /// Pairs of TurboHash tables that are not 8 and 8 bytes long.
    TURBOHASH_PAIR = 7, "turbohash pair";
    /// Headers, directories and segments of CCEH tables.
    CCEH = 8, "cceh";
    /// Memtables of the engine `slm`.
    SLM_MEMTABLE = 9, "memtable";
    /// Chains of versions of a key (`located`).
    VERSION_CHAIN = 10, "chain";
    /// Logs of the jobs that move keys (`located`).
    JOB_LOG = 11, "compaction log";
    /// Commit logs of the engine `lsm`.
    LSM_LOG = 12, "commit log";
    /// Logs of SPTrees' write buffers.
    SPTREE_LOG = 13, "sptree log";
    /// Headers and sets of the logs of buffered changes.
    SPOT_ON = 14, "buffer header";
    /// Logs of buffered changes.
    SPOT_ON_LOG = 15, "buffer log";
    /// Pairs of CCEH tables that are not 8 and 8 bytes long.
    CCEH_PAIR = 16, "cceh pair";
    /// Leaves of SPTrees.
    SPTREE_LEAF = 17, "sptree leaf";
    /// Key records of SPTrees.
    SPTREE_KEY = 18, "sptree key";
    /// Headers and log sets of SPTrees.
    SPTREE_HEADER = 19, "sptree header";
    /// Headers of the records of engines that keep everything in PM.
    VERSION_HEADER = 20, "versions header";
    /// Records of versions that name no older one.
    VERSION = 21, "version";
    /// Records of versions with a link to an older one.
    VERSION_LINKED = 22, "linked version";
    /// Undo lists of groups that are being applied.
    VERSION_UNDO = 23, "undo list";
    /// Sorted lists of places of records (`pmlist`).
    PM_LIST = 24, "list";
    /// Buffers of records that such lists lead to.
    PM_BUFFER = 25, "list buffer";
}

/// The name of a kind, if it is known.
pub fn name(kind: Kind) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name)
}

const _: () = {
    let mut i = 0;
    while i < ALL.len() {
        // Zero is the pool's own.
        assert!(ALL[i].0.0 != 0);
        let mut j = 0;
        while j < i {
            assert!(ALL[i].0.0 != ALL[j].0.0, "two kinds have one number");
            j += 1;
        }
        i += 1;
    }
};
