//! A batch of writes: applied whole or not at all.
//!
//! A batch has the encoding of the commit log: for each operation the kind (0 delete, 1 put, 3 merge operand), the
//! key and, but for a delete, the value, both with a varint length before them.

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Bound;
use std::sync::Arc;

use terrace_base::codec::{Reader, put_bytes};
use terrace_base::{Error, Result};
use terrace_table::Kind;

use crate::keyspaces::{OpenKeyspace, Space, Spans, is_high};

/// Longest key in bytes.
pub const MAX_KEY_BYTES: usize = 65_535;

/// Longest value in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// Operations that take effect together, in order.
///
/// ```
/// let mut batch = terrace::WriteBatch::new();
/// batch.put(b"a", b"1");
/// batch.delete(b"b");
/// assert_eq!(batch.len(), 2);
/// assert!(batch.bytes() > 3);
/// ```
#[derive(Debug, Clone, Default)]
pub struct WriteBatch {
    encoded: Vec<u8>,
    len: u32,
    /// Whether it has a key of the default keyspace that begins with byte 255.
    has_high: bool,
    /// What it puts is there to delete more: it may take room that is kept back for deletions.
    pub(crate) counts_as_deletion: bool,
    /// What few batches have, apart: a batch moves several times on its way to the engine.
    rare: Option<Box<Rare>>,
}

/// What few batches have.
#[derive(Debug, Clone, Default)]
struct Rare {
    /// The first refused argument.
    error: Option<Error>,
    /// The keyspaces with operations in it, but for the default one; and which operations these are.
    keyspaces: Vec<Arc<OpenKeyspace>>,
    placed: Vec<u32>,
    /// Deletions of ranges, in order, as long as they are not made one range tombstone.
    range_deletes: Vec<RangeDelete>,
    range_tombstone: Option<NewRangeTombstone>,
    /// Which puts are merges, in order: their value is an operand, until the values are known.
    merges: Vec<Merge>,
}

/// A put that is a merge.
#[derive(Debug, Clone)]
pub(crate) struct Merge {
    /// Operations on single keys before it.
    pub after: u32,
    pub keyspace: Arc<OpenKeyspace>,
}

/// A range tombstone that is about to be written: what the batch deletes of ranges.
#[derive(Debug, Clone)]
pub(crate) struct NewRangeTombstone {
    /// Its own number in the catalogue.
    pub id: u64,
    /// The place of its record.
    pub place: Vec<u8>,
    pub spans: Spans,
}

/// A deletion of a range of keys in a batch.
#[derive(Debug, Clone)]
pub(crate) struct RangeDelete {
    /// Operations on single keys before it.
    pub after: u32,
    /// `None`: the default one.
    pub keyspace: Option<Arc<OpenKeyspace>>,
    pub from: Bound<Vec<u8>>,
    pub to: Bound<Vec<u8>>,
}

/// One operation of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op<'a> {
    pub kind: Kind,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

thread_local! {
    /// The memory of a batch that this thread has written, for its next batch of one operation.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A thread keeps no more.
const SPARE_BYTES: usize = 16 << 10;

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// A batch of one operation, on a key that is in its place.
    pub(crate) fn of_one(op: Op<'_>) -> Self {
        // The thread may be at its end.
        let mut encoded = SPARE.try_with(Cell::take).unwrap_or_default();
        encoded.clear();
        let mut batch = WriteBatch { encoded, ..WriteBatch::default() };
        batch.push(op);
        batch
    }

    /// Keeps the memory for the thread's next batch of one operation.
    pub(crate) fn give_back(self) {
        if self.encoded.capacity() <= SPARE_BYTES {
            // Otherwise it is dropped with the closure.
            let _ = SPARE.try_with(|spare| spare.set(self.encoded));
        }
    }

    /// Whether nothing is added.
    pub(crate) fn is_deletion(&self) -> bool {
        self.counts_as_deletion || self.ops().all(|op| op.kind == Kind::Delete)
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// A list of what few batches have.
    fn rare_list<T>(&self, list: impl FnOnce(&Rare) -> &Vec<T>) -> &[T] {
        self.rare.as_deref().map_or(&[], |rare| list(rare))
    }

    /// Adds a put. A key or value over its limit makes the whole batch fail when it is written.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.has_high |= is_high(key);
        self.push(Op { kind: Kind::Put, key, value });
    }

    /// Adds a delete. A key over its limit makes the whole batch fail when it is written.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        self.has_high |= is_high(key);
        self.push(Op { kind: Kind::Delete, key, value: &[] });
    }

    /// Adds an operation on a key of `keyspace`.
    pub(crate) fn push_in(&mut self, keyspace: &Arc<OpenKeyspace>, op: Op<'_>) {
        match keyspace.space().place(op.key) {
            Ok(place) => {
                let number = self.len;
                self.rare().placed.push(number);
                self.push(Op { key: &place, ..op });
            }
            Err(error) => self.refuse(error),
        }
        self.note_keyspace(keyspace);
    }

    /// Adds a merge of `operand` into the value of a key of `keyspace`.
    pub(crate) fn push_merge_in(&mut self, keyspace: &Arc<OpenKeyspace>, key: &[u8], operand: &[u8]) {
        let merge = Merge { after: self.len, keyspace: keyspace.clone() };
        self.rare().merges.push(merge);
        self.push_in(keyspace, Op { kind: Kind::Put, key, value: operand });
    }

    /// Adds an operation on a key that is in its place, which is a merge if the operation was one.
    pub(crate) fn push_as(&mut self, op: Op<'_>, merge: Option<&Merge>) {
        if let Some(Merge { keyspace, .. }) = merge {
            let merge = Merge { after: self.len, keyspace: keyspace.clone() };
            self.rare().merges.push(merge);
        }
        self.push(op);
    }

    /// Whether it has merges.
    pub(crate) fn has_merges(&self) -> bool {
        self.rare.as_deref().is_some_and(|rare| !rare.merges.is_empty())
    }

    /// The operations, in order, and which of them are merges.
    pub(crate) fn ops_and_merges(&self) -> impl Iterator<Item = (Op<'_>, Option<&Merge>)> {
        let mut merges = self.rare_list(|rare| &rare.merges).iter().peekable();
        (0..).zip(self.ops()).map(move |(number, op)| (op, merges.next_if(|merge| merge.after == number)))
    }

    fn note_keyspace(&mut self, keyspace: &Arc<OpenKeyspace>) {
        let keyspaces = &mut self.rare().keyspaces;
        if !keyspaces.iter().any(|other| Arc::ptr_eq(other, keyspace)) {
            keyspaces.push(keyspace.clone());
        }
    }

    /// Adds a deletion of the keys in a range, of `keyspace` or of the default one.
    pub(crate) fn push_range(
        &mut self,
        keyspace: Option<&Arc<OpenKeyspace>>,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
    ) {
        if let Some(keyspace) = keyspace {
            self.note_keyspace(keyspace);
        }
        let too_long = [from, to].into_iter().find_map(|bound| match bound {
            Bound::Included(key) | Bound::Excluded(key) if key.len() > MAX_KEY_BYTES => Some(key.len()),
            _ => None,
        });
        if let Some(len) = too_long {
            return self.refuse(Error::invalid(format!(
                "a bound of {len} bytes is over the limit of {MAX_KEY_BYTES}"
            )));
        }
        let [from, to] = [from, to].map(|bound| bound.map(<[u8]>::to_vec));
        let deletion = RangeDelete { after: self.len, keyspace: keyspace.cloned(), from, to };
        self.rare().range_deletes.push(deletion);
    }

    /// The deletions of ranges in it, in order.
    pub(crate) fn range_deletes(&self) -> &[RangeDelete] {
        self.rare_list(|rare| &rare.range_deletes)
    }

    /// The same without deletions of ranges.
    pub(crate) fn without_ranges(mut self) -> WriteBatch {
        if let Some(rare) = &mut self.rare {
            rare.range_deletes.clear();
        }
        self
    }

    /// The range tombstone that is written with it.
    pub(crate) fn range_tombstone(&self) -> Option<&NewRangeTombstone> {
        self.rare.as_deref()?.range_tombstone.as_ref()
    }

    /// Writes a range tombstone with it.
    pub(crate) fn set_range_tombstone(&mut self, tombstone: NewRangeTombstone) {
        self.rare().range_tombstone = Some(tombstone);
    }

    /// The keyspaces with operations in it, but for the default one.
    pub(crate) fn keyspaces(&self) -> &[Arc<OpenKeyspace>] {
        self.rare_list(|rare| &rare.keyspaces)
    }

    /// Whether it has a key of the default keyspace that begins with byte 255.
    pub(crate) fn has_high(&self) -> bool {
        self.has_high
    }

    /// The operations on keys of the default keyspace.
    pub(crate) fn ops_of_default(&self) -> impl Iterator<Item = Op<'_>> {
        let placed = self.rare_list(|rare| &rare.placed);
        let is_placed = |number: usize| placed.binary_search(&(number as u32)).is_ok();
        self.ops().enumerate().filter(move |&(number, _)| !is_placed(number)).map(|(_, op)| op)
    }

    /// The same operations with every key in its place, where `default` has those of the default keyspace.
    pub(crate) fn into_places(self, default: Space) -> Result<WriteBatch> {
        if !self.has_high || default == Space::Alone {
            return Ok(self);
        }
        let placed = self.rare_list(|rare| &rare.placed);
        let mut batch = WriteBatch::new();
        for (number, op) in self.ops().enumerate() {
            let is_placed = placed.binary_search(&(number as u32)).is_ok();
            let key = if is_placed { Cow::Borrowed(op.key) } else { default.place(op.key)? };
            batch.push(Op { key: &key, ..op });
        }
        if let Some(Rare { keyspaces, range_deletes, merges, .. }) = self.rare.map(|rare| *rare) {
            let rare = batch.rare();
            (rare.keyspaces, rare.range_deletes, rare.merges) = (keyspaces, range_deletes, merges);
        }
        Ok(batch)
    }

    /// Adds the operations of `other`, which was decoded.
    pub(crate) fn append(&mut self, other: &WriteBatch) {
        self.encoded.extend_from_slice(&other.encoded);
        self.len += other.len;
    }

    /// Operations in the batch.
    pub fn len(&self) -> usize {
        self.len as usize + self.range_deletes().len()
    }

    /// Bytes of the batch in memory and in the log: keys and values, and a few for each operation.
    pub fn bytes(&self) -> usize {
        self.encoded.len()
    }

    /// Whether the batch does nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        // Each is named, so that no further one is forgotten.
        let WriteBatch { encoded, len, has_high, counts_as_deletion, rare } = self;
        encoded.clear();
        (*len, *has_high, *counts_as_deletion) = (0, false, false);
        if let Some(rare) = rare {
            let Rare { error, keyspaces, placed, range_deletes, range_tombstone, merges } = &mut **rare;
            keyspaces.clear();
            placed.clear();
            range_deletes.clear();
            merges.clear();
            (*error, *range_tombstone) = (None, None);
        }
    }

    /// Adds an operation on a key that is in its place.
    pub(crate) fn push(&mut self, op: Op<'_>) {
        let Op { kind, key, value } = op;
        if value.len() > MAX_VALUE_BYTES {
            let len = value.len();
            let what = format!("a value of {len} bytes is over the limit of {MAX_VALUE_BYTES}");
            return self.refuse(Error::invalid(what));
        }
        if key.len() > MAX_KEY_BYTES {
            let what = format!("a key of {} bytes is over the limit of {MAX_KEY_BYTES}", key.len());
            return self.refuse(Error::invalid(what));
        }
        let Some(len) = self.len.checked_add(1) else {
            return self.refuse(Error::invalid(format!("a batch has {} operations at most", u32::MAX)));
        };
        self.encoded.reserve(key.len() + value.len() + 16);
        self.encoded.push(kind as u8);
        put_bytes(&mut self.encoded, key);
        if kind != Kind::Delete {
            put_bytes(&mut self.encoded, value);
        }
        self.len = len;
    }

    /// Has the whole batch fail when it is written.
    pub(crate) fn refuse(&mut self, error: Error) {
        self.rare().error.get_or_insert(error);
    }

    /// The first refused argument, if there was one.
    pub(crate) fn validate(&self) -> Result<()> {
        self.rare.as_deref().and_then(|rare| rare.error.clone()).map_or(Ok(()), Err)
    }

    pub(crate) fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// The operations, in order.
    pub(crate) fn ops(&self) -> impl Iterator<Item = Op<'_>> + Clone {
        let mut reader = Reader::new(&self.encoded);
        // The encoding is our own, so it decodes to its end.
        std::iter::from_fn(move || next_op(&mut reader))
    }

    /// Decodes a batch from a log record; `None` if it does not decode to its end.
    pub(crate) fn decode(encoded: &[u8]) -> Option<WriteBatch> {
        let mut reader = Reader::new(encoded);
        let mut len = 0;
        while !reader.is_empty() {
            let op = next_op(&mut reader)?;
            if op.key.len() > MAX_KEY_BYTES || op.value.len() > MAX_VALUE_BYTES {
                return None;
            }
            len += 1;
        }
        Some(WriteBatch { encoded: encoded.to_vec(), len, ..WriteBatch::new() })
    }

    /// The item that only a later version knows in a batch that does not [`decode`](Self::decode), if that is
    /// the reason.
    pub(crate) fn reserved(encoded: &[u8]) -> Option<&'static str> {
        let mut reader = Reader::new(encoded);
        loop {
            let mut next = reader.clone();
            match next_op(&mut next) {
                Some(_) => reader = next,
                None => return reader.u8().and_then(Kind::reserved),
            }
        }
    }
}

fn next_op<'a>(reader: &mut Reader<'a>) -> Option<Op<'a>> {
    let (kind, key) = (Kind::from_u8(reader.u8()?)?, reader.bytes()?);
    let value = match kind {
        Kind::Put | Kind::Operand => reader.bytes()?,
        Kind::Delete => &[],
    };
    Some(Op { kind, key, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_back_in_order() {
        let mut batch = WriteBatch::new();
        batch.put(b"k", b"v");
        batch.delete(b"");
        batch.put(b"", b"");
        batch.push(Op { kind: Kind::Operand, key: b"k", value: b"+" });
        let again = WriteBatch::decode(batch.encoded()).unwrap();
        let ops: Vec<_> = again.ops().collect();
        assert_eq!(ops.len(), 4);
        assert_eq!(ops[0], Op { kind: Kind::Put, key: b"k", value: b"v" });
        assert_eq!(ops[1], Op { kind: Kind::Delete, key: b"", value: b"" });
        assert_eq!(ops[3], Op { kind: Kind::Operand, key: b"k", value: b"+" });
        assert_eq!(batch.encoded(), [1, 1, b'k', 1, b'v', 0, 0, 1, 0, 0, 3, 1, b'k', 1, b'+']);
    }

    #[test]
    fn a_damaged_encoding_is_refused() {
        assert!(WriteBatch::decode(&[7]).is_none());
        assert!(WriteBatch::decode(&[1, 5, b'k']).is_none());
        assert_eq!(WriteBatch::reserved(&[1, 5, b'k']), None);
    }

    #[test]
    fn what_a_later_version_writes_is_named() {
        for byte in (2..=255).filter(|byte| Kind::from_u8(*byte).is_none()) {
            let encoded = [1, 1, b'k', 1, b'v', byte, 1, b'k'];
            assert!(WriteBatch::decode(&encoded).is_none());
            assert_eq!(WriteBatch::reserved(&encoded), Kind::reserved(byte));
        }
    }

    #[test]
    fn an_over_long_key_spoils_the_batch() {
        let mut batch = WriteBatch::new();
        batch.put(&vec![0; MAX_KEY_BYTES + 1], b"");
        assert!(batch.validate().is_err());
        batch.clear();
        assert!(batch.validate().is_ok());
    }
}
