//! [`choose`] is SLM-DB's selective compaction (section 3.3 of the paper) for an engine with one
//! level of overlapping tables. A table is a candidate
//!
//! * for **garbage**, if the entries that a compaction would have to keep are less than `live_key_threshold`
//!   of all its entries. Live keys must be kept; tombstones, until they are droppable; and versions that only
//!   a snapshot still needs. A table's tombstones are droppable when no other table that overlaps it holds
//!   anything older than its newest entry: there is then nothing left for them to hide;
//! * if a [leaf scan](LeafScan) or a [range query](RangeScan) made it a **candidate**, because adjacent keys
//!   lie scattered over many tables.
//!
//! For each candidate the overlap ratios with all the others are added up. The candidate with the largest sum
//! is merged with those that overlap it, the most overlapping first, at most `max_merge_files`.
//!
//! # Why this ends
//!
//! A choice that left everything as it was would be repeated for ever. That cannot happen if the engine keeps
//! the contract below. Let E be the number of entries in all tables; D the sum, over all distinct keys in
//! tables, of the number of tables whose range holds the key; X the sum, over all tables, of entries that are
//! neither live nor known to be pinned. While nothing is written and no snapshot is taken or released, every
//! executed choice makes the pair (E + D, X) smaller in lexical order:
//!
//! * The inputs are one table and others that overlap it, so their ranges form one interval without
//!   a gap, and the outputs lie in that interval, apart from one another. No key is in more outputs'
//!   ranges than it was in inputs' ranges; so D does not grow. Nor does E.
//! * If there are two inputs or more, they share some stored key's place, where two ranges become
//!   one: where two ranges overlap, the greater of their smallest keys lies in both. So D shrinks, or
//!   that key itself was dropped, and then E does.
//! * If there is one input, it was chosen for garbage: some entry of it is not live, not a tombstone
//!   that must stay, and not known to be pinned. Either an entry is dropped and E shrinks, or all such
//!   entries turned out to be pinned. They are known to be from then on, and X shrinks.
//!
//! For the same reason a candidate without a partner is not chosen, but stays a candidate.
//!
//! # Contract with the engine
//!
//! 1. Outputs are cut between keys, never between versions of one key, so they do not overlap.
//! 2. Outputs hold only live entries, tombstones that [`Tombstones::droppable`] refused, and entries that a
//!    snapshot needs (including tombstones above those).
//! 3. The live count of an output counts its live entries alone, and what was kept for snapshots
//!    is reported to [`PinnedEntries::note`].

mod choice;
mod overdue;
mod pins;
#[cfg(test)]
mod progress;
mod scan;
mod tombstones;
mod view;

pub use choice::{Choice, choose};
pub use overdue::overdue_garbage;
pub use pins::PinnedEntries;
pub use scan::{LeafScan, RangeScan};
pub use tombstones::Tombstones;
pub use view::View;

/// The options of selective compaction; the defaults are the paper's.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectiveOptions {
    /// A table is a candidate when less than this share of its entries must be kept. At most 1.
    pub live_key_threshold: f64,
    /// Tables are candidates for their garbage only when at least this share of all entries is garbage.
    pub garbage_share: f64,
    /// A leaf scan that meets more tables than this notes them.
    pub leaf_scan_files: usize,
    /// A leaf scan visits as many keys as this many average tables hold.
    pub leaf_scan_tables: u64,
    /// Keys in a sub-range of a range query.
    pub sequentiality_keys: usize,
    /// A range query with a sub-range that meets more tables than this notes them.
    pub sequentiality_files: usize,
    /// Most tables merged at once. The paper names no figure.
    pub max_merge_files: usize,
}

impl Default for SelectiveOptions {
    fn default() -> Self {
        SelectiveOptions {
            live_key_threshold: 0.7,
            garbage_share: 0.0,
            leaf_scan_files: 10,
            leaf_scan_tables: 2,
            sequentiality_keys: 30,
            sequentiality_files: 8,
            max_merge_files: 8,
        }
    }
}
