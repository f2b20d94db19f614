//! Finding the values that merges give to keys, on the thread of the writer that leads the group.
//!
//! 1. An engine gets no operand: a merge becomes a put of the value that there is after it.
//! 2. A merge stands on what there was before its group and on the operations before it in the group. Where others
//!    write past the queue, the group takes place only if that is still there (`apply.rs`).
//! 3. What fails is told before anything has happened.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::Kind;

use super::Store;
use crate::batch::{Merge, Op, WriteBatch};
use crate::core::engine::Engine;
use crate::core::request::Request;
use crate::keyspaces::{DEADLINE_BYTES, Prefix};

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
    /// Those of the operators and of [`get`](crate::Db::get).
    pub(super) fn fold<'g>(&self, group: &[&'g Request]) -> Result<Folded<'g>> {
        let ops = group.iter().flat_map(|request| request.batch.ops_and_merges());
        let merged: HashSet<&[u8]> = ops.filter(|(_, merge)| merge.is_some()).map(|(op, _)| op.key).collect();
        let (mut now, mut read) = (Values::new(), Values::new());
        let mut requests = Vec::with_capacity(group.len());
        for request in group {
            let mut batch = WriteBatch::new();
            for (op, merge) in request.batch.ops_and_merges() {
                let Some(merge) = merge else {
                    if merged.contains(op.key) {
                        now.insert(op.key, self.value_of(op));
                    }
                    batch.push(op);
                    continue;
                };
                let before = match now.get(op.key) {
                    Some(value) => value.clone(),
                    None => {
                        let found = self.engine.get(op.key, None)?;
                        self.engine.intact()?;
                        read.insert(op.key, found.clone());
                        found
                    }
                };
                let value = self.merged(op, merge, before.as_deref(), &mut batch)?;
                now.insert(op.key, Some(value));
            }
            requests.push(request.batch.has_merges().then(|| {
                if let Some(tombstone) = request.batch.range_tombstone() {
                    batch.set_range_tombstone(tombstone.clone());
                }
                Request { batch, ..**request }
            }));
        }
        Ok(Folded { requests, read })
    }

    /// Adds the put to `batch` that `op` is if the key has the value `before`; returns the new value.
    fn merged(
        &self,
        op: Op<'_>,
        merge: &Merge,
        before: Option<&[u8]>,
        batch: &mut WriteBatch,
    ) -> Result<Bytes> {
        let keyspace = &merge.keyspace;
        let prefix = Prefix::of(keyspace.number);
        let key = op.key.strip_prefix(prefix.as_slice()).unwrap_or(op.key);
        let value = keyspace.operator()?.merge(key, before, op.value)?;
        batch.push(Op { value: &self.core.deadlines.stored(keyspace, &value, None)?, ..op });
        // The new value may be too long.
        batch.validate()?;
        Ok(value.into())
    }

    /// The value that a key has after `op`, which is no merge.
    fn value_of(&self, op: Op<'_>) -> Option<Bytes> {
        let deadlines = &self.core.deadlines;
        match op.kind {
            Kind::Delete => None,
            Kind::Put if !deadlines.is_dated(op.key, None) => Some(Bytes::copy_from_slice(op.value)),
            Kind::Put if deadlines.is_due(op.value) => None,
            Kind::Put => op.value.get(DEADLINE_BYTES..).map(Bytes::copy_from_slice),
        }
    }
}
