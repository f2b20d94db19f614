//! The model: a sorted map, and reading ranges of it as the store does.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrace::{Bytes, Db, DbIter, Snapshot};

/// What a database holds.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Entries in key order.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// A range of keys; may be empty or the wrong way round.
pub type Span = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Whether `key` lies in `span`.
pub fn in_span(key: &[u8], span: &Span) -> bool {
    let after = match &span.0 {
        Bound::Included(from) => key >= &from[..],
        Bound::Excluded(from) => key > &from[..],
        Bound::Unbounded => true,
    };
    let before = match &span.1 {
        Bound::Included(to) => key <= &to[..],
        Bound::Excluded(to) => key < &to[..],
        Bound::Unbounded => true,
    };
    after && before
}

/// Everything that an iterator gives, forward.
pub fn entries(iter: DbIter) -> Entries {
    iter.map(|item| item.map(|(key, value)| (key.to_vec(), value.to_vec())).expect("a readable entry"))
        .collect()
}

/// One value of a snapshot, in the model's type.
pub fn get(snapshot: &Snapshot, key: &[u8]) -> Option<Vec<u8>> {
    snapshot.get(key).expect("a readable value").map(|value: Bytes| value.to_vec())
}

/// The store finds nothing wrong with itself.
#[track_caller]
pub fn assert_clean(db: &Db) {
    let report = db.check().expect("a check");
    assert!(report.is_clean(), "{:#?}", report.problems);
}
