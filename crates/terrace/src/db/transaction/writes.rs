//! What a transaction has written and nobody else sees: the newest of its writes for each key, in key order.
//!
//! Iterators share the map as it was when they were made; a write copies it if one still has it. While there
//! are savepoints a journal has what each write has replaced, so that a savepoint costs nothing, and rolling
//! back to it as much as was written since.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_table::Kind;

use crate::batch::{Op, WriteBatch};
use crate::keyspaces::is_high;

/// A value, or a deletion.
pub(super) type Written = Option<Bytes>;

/// The newest write of each key.
pub(super) type Overlay = BTreeMap<Bytes, Written>;

/// Tells the savepoints of one transaction from those of another.
static TRANSACTIONS: AtomicU64 = AtomicU64::new(0);

/// A moment of a transaction to which its writes can be rolled back: see
/// [`Transaction::savepoint`](super::Transaction::savepoint).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Savepoint {
    transaction: u64,
    number: u64,
}

/// The newest writes. Most transactions make no iterator, and need no count of those that share the map.
#[derive(Debug)]
enum Newest {
    Own(Overlay),
    Shared(Arc<Overlay>),
}

impl Default for Newest {
    fn default() -> Self {
        Newest::Own(Overlay::new())
    }
}

impl Newest {
    fn get(&self) -> &Overlay {
        match self {
            Newest::Own(overlay) => overlay,
            Newest::Shared(overlay) => overlay,
        }
    }

    /// It is copied if an iterator has it.
    fn get_mut(&mut self) -> &mut Overlay {
        match self {
            Newest::Own(overlay) => overlay,
            Newest::Shared(overlay) => Arc::make_mut(overlay),
        }
    }

    fn share(&mut self) -> Arc<Overlay> {
        let shared = match std::mem::take(self) {
            Newest::Own(overlay) => Arc::new(overlay),
            Newest::Shared(overlay) => overlay,
        };
        *self = Newest::Shared(shared.clone());
        shared
    }
}

#[derive(Debug, Default)]
pub(super) struct Writes {
    newest: Newest,
    /// What each write since the oldest savepoint has replaced; `None`: the key was not among the writes.
    journal: Vec<(Bytes, Option<Written>)>,
    /// The savepoints that can be rolled back to, by number, each with the journal's length at its moment.
    savepoints: Vec<(u64, usize)>,
    /// Known since the first savepoint.
    transaction: Option<u64>,
    next_savepoint: u64,
}

impl Writes {
    pub fn newest(&self) -> &Overlay {
        self.newest.get()
    }

    /// Whether one of their keys lies elsewhere once there are keyspaces.
    pub fn may_be_moved(&self) -> bool {
        self.newest().last_key_value().is_some_and(|(key, _)| is_high(key))
    }

    /// The newest writes as they are, for an iterator.
    pub fn share(&mut self) -> Arc<Overlay> {
        self.newest.share()
    }

    pub fn write(&mut self, key: Bytes, written: Written) {
        let newest = self.newest.get_mut();
        if self.savepoints.is_empty() {
            newest.insert(key, written);
        } else {
            let replaced = newest.insert(key.clone(), written);
            self.journal.push((key, replaced));
        }
    }

    pub fn savepoint(&mut self) -> Savepoint {
        let number = self.next_savepoint;
        self.next_savepoint += 1;
        self.savepoints.push((number, self.journal.len()));
        let begin = || TRANSACTIONS.fetch_add(1, Ordering::Relaxed);
        Savepoint { transaction: *self.transaction.get_or_insert_with(begin), number }
    }

    /// Takes back what was written since `savepoint`, which stays; later ones are gone.
    pub fn roll_back(&mut self, savepoint: Savepoint) -> Result<()> {
        let at = self.savepoints.binary_search_by_key(&savepoint.number, |(number, _)| *number);
        let Some(at) = at.ok().filter(|_| Some(savepoint.transaction) == self.transaction) else {
            return Err(Error::invalid("the savepoint is another transaction's, or was rolled back past"));
        };
        let length = self.savepoints[at].1;
        self.savepoints.truncate(at + 1);
        let newest = self.newest.get_mut();
        for (key, replaced) in self.journal.drain(length..).rev() {
            match replaced {
                Some(written) => newest.insert(key, written),
                None => newest.remove(&key),
            };
        }
        Ok(())
    }

    /// Takes back everything; no savepoint is left.
    pub fn clear(&mut self) {
        self.newest = Newest::default();
        self.journal.clear();
        self.savepoints.clear();
    }

    /// The newest writes, in key order.
    pub fn ops(&self) -> impl Iterator<Item = Op<'_>> {
        self.newest().iter().map(|(key, written)| {
            let kind = if written.is_some() { Kind::Put } else { Kind::Delete };
            Op { kind, key, value: written.as_deref().unwrap_or_default() }
        })
    }

    /// The one write, if there is one.
    pub fn only(&self) -> Option<Op<'_>> {
        self.ops().next().filter(|_| self.newest().len() == 1)
    }

    /// One batch of all writes, in key order.
    pub fn batch(&self) -> WriteBatch {
        let mut batch = WriteBatch::new();
        self.ops().for_each(|op| batch.push(op));
        batch
    }
}

/// The first or the last write within bounds that need not be in order.
pub(super) fn end_of<'a>(
    overlay: &'a Overlay,
    lower: Bound<&[u8]>,
    upper: Bound<&[u8]>,
    last: bool,
) -> Option<(&'a Bytes, &'a Written)> {
    if is_empty(lower, upper) {
        return None;
    }
    let mut within = overlay.range::<[u8], _>((lower, upper));
    if last { within.next_back() } else { within.next() }
}

/// Whether no key lies within the bounds. A map would panic on most of these.
fn is_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    match (lower, upper) {
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (
            Bound::Included(lower) | Bound::Excluded(lower),
            Bound::Included(upper) | Bound::Excluded(upper),
        ) => lower >= upper,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(writes: &Writes) -> String {
        let shown = writes.newest().iter().map(|(key, written)| {
            let value = written.as_ref().map_or("-".into(), |value| value.escape_ascii().to_string());
            format!("{}={value}", key.escape_ascii())
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    fn put(writes: &mut Writes, key: &str, value: &str) {
        let copy = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        writes.write(copy(key), Some(copy(value)));
    }

    #[test]
    fn savepoints_bring_back_what_was_written_before() {
        let mut writes = Writes::default();
        put(&mut writes, "a", "1");
        let first = writes.savepoint();
        put(&mut writes, "a", "2");
        put(&mut writes, "b", "3");
        let second = writes.savepoint();
        writes.write(Bytes::from_static(b"a"), None);
        put(&mut writes, "a", "4");
        put(&mut writes, "c", "5");
        assert_eq!(text(&writes), "a=4 b=3 c=5");
        writes.roll_back(second).unwrap();
        assert_eq!(text(&writes), "a=2 b=3");
        put(&mut writes, "b", "6");
        writes.roll_back(second).unwrap();
        assert_eq!(text(&writes), "a=2 b=3", "a savepoint can be used again");
        writes.roll_back(first).unwrap();
        assert_eq!(text(&writes), "a=1");
        assert!(writes.roll_back(second).is_err(), "it was rolled back past");
        let third = writes.savepoint();
        put(&mut writes, "d", "7");
        assert!(Writes::default().roll_back(third).is_err(), "it is another transaction's");
        writes.roll_back(third).unwrap();
        writes.clear();
        assert!(text(&writes).is_empty() && writes.roll_back(first).is_err());
    }

    #[test]
    fn an_iterators_map_stays_as_it_is() {
        let mut writes = Writes::default();
        put(&mut writes, "a", "1");
        let before = writes.share();
        put(&mut writes, "a", "2");
        assert_eq!(before[&b"a"[..]].as_deref(), Some(&b"1"[..]));
        assert_eq!(text(&writes), "a=2");
    }

    #[test]
    fn bounds_in_any_order_are_taken() {
        let mut writes = Writes::default();
        put(&mut writes, "b", "1");
        let (a, b, c) = (&b"a"[..], &b"b"[..], &b"c"[..]);
        let has = |lower, upper| end_of(writes.newest(), lower, upper, false).is_some();
        assert!(has(Bound::Included(b), Bound::Included(b)) && has(Bound::Excluded(a), Bound::Excluded(c)));
        assert!(!has(Bound::Excluded(b), Bound::Excluded(b)) && !has(Bound::Included(c), Bound::Included(a)));
        assert!(!has(Bound::Excluded(b), Bound::Included(b)) && !has(Bound::Included(b), Bound::Excluded(b)));
    }
}
