//! Finding the values that merges give to keys, on the thread of the writer that leads the group.
//!
//! 1. An engine that keeps operands gets those of a deferred operator whose keys nothing else in the group is about, as
//!    long as memory has few of a key and no value. Of all other operations of a request on a key with a merge the last
//!    one is left, as a put of the value that there is after it.
//! 2. A merge stands on what there was before its group and on the operations before it in the group. Where others
//!    write past the queue, the group takes place only if that is still there (`apply.rs`).
//! 3. What fails is told before anything has happened. A request that fails is as if it were not there for others.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::Kind;

use super::Store;
use super::commit::Refusal;
use crate::batch::{Merge, Op, WriteBatch};
use crate::core::deadlines::Deadlines;
use crate::core::engine::Engine;
use crate::core::request::Request;
use crate::keyspaces::{DEADLINE_BYTES, Prefix};

/// Bytes of batches after which a group becomes smaller ones: an operand of a few bytes may stand for a large value.
const MOST_BYTES: usize = 16 << 20;

/// Operands of a key that lie in memory before they are folded: each is a lookup for a reader.
const MOST_OPERANDS: usize = 8;

/// Bytes of an operand that is kept: all those of a key go into one table.
const MOST_OPERAND_BYTES: usize = 64 << 10;

/// Values that are read side by side: each takes memory.
const TOGETHER: usize = 64;

/// The values of keys, by their places. `None`: the key does not exist.
type Values<'g> = HashMap<&'g [u8], Option<Bytes>>;

/// A group whose merges are puts.
pub(super) struct Folded<'g> {
    /// What stands for each request with merges.
    requests: Vec<Option<Request>>,
    /// What was read.
    read: Values<'g>,
}

impl Folded<'_> {
    /// The requests of `group`, with those of this for what they stand for.
    pub fn in_place_of<'r>(&'r self, group: &[&'r Request]) -> Vec<&'r Request> {
        group.iter().zip(&self.requests).map(|(given, folded)| folded.as_ref().unwrap_or(given)).collect()
    }

    /// Whether any of what was read can come to be due.
    pub fn can_be_due(&self, deadlines: &Deadlines) -> bool {
        self.read.keys().any(|place| deadlines.is_dated(place, None))
    }

    /// Whether what was read is still there.
    pub fn is_as_read(&self, engine: &dyn Engine) -> Result<bool> {
        for (place, value) in &self.read {
            if engine.get(place, None)? != *value {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Store {
    /// `group` with every merge as a put.
    ///
    /// # Errors
    ///
    /// Of those whose operators fail, or whose values cannot be read.
    pub(super) fn fold<'g>(&self, group: &[&'g Request]) -> Result<Folded<'g>, Refusal> {
        let fold = || {
            let mut folding = Folding::of(self, group);
            let requests = folding.fold(group);
            (folding, requests)
        };
        let (folding, requests) = self.core.table_reader.soundly(fold);
        Ok(Folded { requests: requests?, read: folding.read })
    }
}

struct Folding<'s, 'g> {
    store: &'s Store,
    /// The places of keys with merges of which the value is found now.
    merged: HashSet<&'g [u8]>,
    /// Those of which the operands are kept.
    kept: HashSet<&'g [u8]>,
    read: Values<'g>,
    /// The values after the requests so far.
    now: Values<'g>,
}

impl<'s, 'g> Folding<'s, 'g> {
    fn of(store: &'s Store, group: &[&'g Request]) -> Self {
        let ops = || group.iter().flat_map(|request| request.batch.ops_and_merges());
        let mut merged: HashSet<&[u8]> =
            ops().filter(|(_, merge)| merge.is_some()).map(|(op, _)| op.key).collect();
        let has_ranges = group.iter().any(|request| request.batch.range_tombstone().is_some());
        let kept = match store.core.merging.may_have_any() && !has_ranges {
            true => kept_of(store, &merged, ops()),
            false => HashSet::new(),
        };
        merged.retain(|place| !kept.contains(place));
        let read = read_together(store, &merged);
        Folding { store, merged, kept, read, now: Values::new() }
    }

    /// What stands for each request with merges.
    fn fold(&mut self, group: &[&'g Request]) -> Result<Vec<Option<Request>>, Refusal> {
        let (mut requests, mut failed) = (Vec::with_capacity(group.len()), Vec::new());
        let mut bytes = 0;
        for (number, request) in group.iter().enumerate() {
            match self.request(request) {
                Ok(folded) => {
                    bytes += folded.as_ref().unwrap_or(request).batch.bytes();
                    requests.push(folded);
                }
                Err(error) => failed.push((number, error)),
            }
            if bytes > MOST_BYTES && group.len() > 1 {
                return Err(Refusal::TooLarge);
            }
        }
        if !failed.is_empty() {
            return Err(Refusal::OfSome(failed));
        }
        Ok(requests)
    }

    /// What stands for `request` if it has merges.
    fn request(&mut self, request: &'g Request) -> Result<Option<Request>> {
        let (mut values, mut last) = (Values::new(), HashMap::new());
        for (number, (op, merge)) in request.batch.ops_and_merges().enumerate() {
            if self.merged.contains(op.key) {
                let value = match merge {
                    Some(merge) => Some(self.merged(op, merge, &values)?),
                    None => self.value_of(op),
                };
                values.insert(op.key, value);
                last.insert(op.key, number);
            }
        }
        let folded =
            request.batch.has_merges().then(|| self.batch_of(request, &values, &last)).transpose()?;
        self.now.extend(values);
        Ok(folded.map(|batch| Request { batch, ..*request }))
    }

    /// The batch of `request` with what is last on each key: `values` has what there is then.
    fn batch_of(
        &self,
        request: &Request,
        values: &Values<'g>,
        last: &HashMap<&[u8], usize>,
    ) -> Result<WriteBatch> {
        let mut batch = WriteBatch::new();
        for (number, (op, merge)) in request.batch.ops_and_merges().enumerate() {
            if last.get(op.key).is_some_and(|last| *last != number) {
                continue;
            }
            match (merge, values.get(op.key)) {
                (Some(_), _) if self.kept.contains(op.key) => batch.push(Op { kind: Kind::Operand, ..op }),
                (Some(merge), Some(Some(value))) => {
                    let stored = self.store.core.deadlines.stored(&merge.keyspace, value, None)?;
                    batch.push(Op { value: &stored, ..op });
                }
                _ => batch.push(op),
            }
        }
        if let Some(tombstone) = request.batch.range_tombstone() {
            batch.set_range_tombstone(tombstone.clone());
        }
        // A new value may be too long.
        batch.validate().map(|()| batch)
    }

    /// The value that a merge gives to its key; `values` has those of the same request.
    fn merged(&mut self, op: Op<'g>, merge: &Merge, values: &Values<'g>) -> Result<Bytes> {
        let operator = merge.keyspace.operator()?;
        let key = op.key.strip_prefix(Prefix::of(merge.keyspace.number).as_slice()).unwrap_or(op.key);
        let before = match values.get(op.key).or_else(|| self.now.get(op.key)) {
            Some(value) => value.clone(),
            None => self.before(op.key)?,
        };
        operator.merge(key, before.as_deref(), op.value).map(Bytes::from)
    }

    /// The value that a key had before the group.
    fn before(&mut self, place: &'g [u8]) -> Result<Option<Bytes>> {
        if let Some(value) = self.read.get(place) {
            return Ok(value.clone());
        }
        let value = self.store.engine.get(place, None)?;
        self.store.engine.intact()?;
        self.read.insert(place, value.clone());
        Ok(value)
    }

    /// The value that a key has after `op`, which is no merge.
    fn value_of(&self, op: Op<'_>) -> Option<Bytes> {
        let deadlines = &self.store.core.deadlines;
        match op.kind {
            Kind::Delete | Kind::Operand => None,
            Kind::Put if !deadlines.is_dated(op.key, None) => Some(Bytes::copy_from_slice(op.value)),
            Kind::Put if deadlines.is_due(op.value) => None,
            Kind::Put => op.value.get(DEADLINE_BYTES..).map(Bytes::copy_from_slice),
        }
    }
}

/// Those of the places in `merged` whose operands are kept. `ops` are all of the group.
fn kept_of<'g>(
    store: &Store,
    merged: &HashSet<&'g [u8]>,
    ops: impl Iterator<Item = (Op<'g>, Option<&'g Merge>)>,
) -> HashSet<&'g [u8]> {
    // How many operands a place gets; `None` if it gets something else.
    let mut gets: HashMap<&[u8], Option<usize>> = HashMap::new();
    for (op, merge) in ops.filter(|(op, _)| merged.contains(op.key)) {
        let is_short = op.value.len() <= MOST_OPERAND_BYTES;
        let is_kept = is_short && merge.is_some_and(|merge| merge.keyspace.is_deferred());
        let count = gets.entry(op.key).or_insert(Some(0));
        *count = count.filter(|_| is_kept).map(|count| count + 1);
    }
    let fits = |place: &[u8], count: usize| {
        store.engine.operands_in_memory(place).is_some_and(|there| there + count <= MOST_OPERANDS)
    };
    let kept = gets.into_iter().filter(|(place, count)| count.is_some_and(|count| fits(place, count)));
    kept.map(|(place, _)| place).collect()
}

/// The values of several keys, if they can be read side by side, as long as they are small. What cannot be read is read
/// again alone, so that nobody else is told.
fn read_together<'g>(store: &Store, places: &HashSet<&'g [u8]>) -> Values<'g> {
    if places.len() < 2 || !store.engine.writes_by_groups() {
        return Values::new();
    }
    let places: Vec<&[u8]> = places.iter().copied().collect();
    let held = store.engine.hold(&store.core.snapshots);
    let (mut read, mut bytes) = (Values::new(), 0);
    let (mut rest, mut together) = (&places[..], 2);
    while !rest.is_empty() && bytes <= MOST_BYTES {
        let (places, others) = rest.split_at(together.min(rest.len()));
        let found = store.engine.get_many(places, held.seq());
        let Ok(found) = found.and_then(|found| store.engine.intact().map(|()| found)) else { break };
        let found_bytes = found.iter().flatten().map(Bytes::len).sum::<usize>();
        bytes += found_bytes;
        read.extend(places.iter().copied().zip(found));
        rest = others;
        // Nobody knows how large the next ones are.
        together = if found_bytes <= MOST_BYTES / TOGETHER { (2 * together).min(TOGETHER) } else { 1 };
    }
    drop(held);
    store.engine.released();
    read
}
