//! Creations that fail: an error, and the pool as it was.

use terrace_index_extra::Cceh;

use crate::conformance::{Creation, finding_no_room_leaves_nothing, finding_no_root_leaves_nothing};

const CREATIONS: [Creation; 2] = [
    ("cceh", |pool| Cceh::<256, 4>::create(pool, "index").map(drop)),
    ("cceh, many segments", |pool| Cceh::<16, 2>::create_for(pool, "index", 1 << 13).map(drop)),
];

#[test]
fn what_finds_no_room_leaves_nothing() {
    finding_no_room_leaves_nothing(&CREATIONS);
}

#[test]
fn what_can_not_be_named_leaves_nothing() {
    finding_no_root_leaves_nothing(&CREATIONS);
}
