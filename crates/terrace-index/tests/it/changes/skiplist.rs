//! The bare skiplist: nodes that are linked, emptied and revived, and an arena that grows.

use terrace_index::PointIndex;

use crate::conformance::{StructureChange, crash_in_each_event_of, inserts, long, removes, rises};
use crate::subjects::Skip;

/// A key of which few fill the arena's first extent.
fn huge(i: u64) -> Vec<u8> {
    let mut key = long(i);
    key.resize(60_000, b'x');
    key
}

/// Must catch an extent of the arena that is used before the list names it durably.
#[test]
fn an_arena_that_grows_keeps_what_was_linked() {
    crash_in_each_event_of::<Skip, _>(StructureChange {
        seed: 1,
        before: inserts(1, (0..15).map(huge)),
        change: [inserts(20, (15..19).map(huge)), removes([huge(3)]), inserts(40, [huge(3), huge(4)])]
            .concat(),
        sight: |index, _| index.pm_bytes(),
        proof: |seen| rises(seen.iter().copied()),
    });
}
