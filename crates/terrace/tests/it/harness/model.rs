//! The model: a sorted map, and reading ranges of it as the store does.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrace::{Bytes, Db, DbIter, ErrorKind, Result, Snapshot};

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

/// What holds entries, whether its engine has an order of keys or none.
pub trait Contents {
    /// All entries by an iterator, or `Unsupported`.
    fn in_order(&self) -> Result<DbIter>;

    /// All entries in whatever order.
    fn in_any_order(&self) -> Result<terrace::Entries>;

    /// All entries, in key order; an error if reading them is one, or if one comes twice.
    fn try_all(&self) -> Result<Entries> {
        let owned = |(k, v): (Bytes, Bytes)| (k.to_vec(), v.to_vec());
        match self.in_order() {
            Ok(iter) => iter.map(|item| item.map(owned)).collect(),
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                let mut all: Entries =
                    self.in_any_order()?.map(|item| item.map(owned)).collect::<Result<_>>()?;
                all.sort();
                match all.windows(2).any(|two| two[0].0 == two[1].0) {
                    true => Err(terrace::Error::invalid("a key was given twice")),
                    false => Ok(all),
                }
            }
            Err(e) => Err(e),
        }
    }

    /// All entries, in key order.
    fn all(&self) -> Entries {
        self.try_all().expect("readable entries")
    }

    /// The entries of a span, in key order.
    fn within(&self, span: &Span) -> Entries;
}

impl Contents for Db {
    fn in_order(&self) -> Result<DbIter> {
        self.iter()
    }

    fn in_any_order(&self) -> Result<terrace::Entries> {
        self.entries()
    }

    fn within(&self, span: &Span) -> Entries {
        self.snapshot().within(span)
    }
}

impl Contents for Snapshot {
    fn in_order(&self) -> Result<DbIter> {
        self.iter()
    }

    fn in_any_order(&self) -> Result<terrace::Entries> {
        self.entries()
    }

    fn within(&self, span: &Span) -> Entries {
        match self.range(span.clone()) {
            Ok(iter) => entries(iter),
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                self.all().into_iter().filter(|(key, _)| in_span(key, span)).collect()
            }
            Err(e) => panic!("{e}"),
        }
    }
}

/// The next entry of `iter`, from either end, given or shown.
pub fn stepped(iter: &mut DbIter, from_back: bool, is_shown: bool) -> Option<Result<(Bytes, Bytes)>> {
    let copied = |key: &[u8], value: &[u8]| (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
    match (from_back, is_shown) {
        (false, false) => iter.next(),
        (true, false) => iter.next_back(),
        (false, true) => iter.next_with(copied),
        (true, true) => iter.next_back_with(copied),
    }
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
