//! Writers' requests, and the groups in which engines receive them.

use crate::batch::{NewRangeTombstone, WriteBatch};

/// One writer's request.
#[derive(Debug)]
pub(crate) struct Request {
    pub batch: WriteBatch,
    /// Nothing else may be in its group.
    pub alone: bool,
    pub sync: bool,
}

/// A group of batches to be applied together; each batch is atomic by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group<'a> {
    pub requests: &'a [&'a Request],
    /// The sequence number of the first operation; the others count on from it.
    pub first_seq: u64,
    /// Whether the group must survive a power cut on return, whatever the medium.
    pub sync: bool,
}

impl Group<'_> {
    /// The range tombstone that the group writes; then it has one batch.
    pub fn range_tombstone(&self) -> Option<&NewRangeTombstone> {
        self.requests.first()?.batch.range_tombstone()
    }

    /// Operations in all batches.
    pub fn ops(&self) -> u64 {
        self.requests.iter().map(|r| r.batch.len() as u64).sum()
    }

    /// Whether nothing is added.
    pub fn only_deletes(&self) -> bool {
        self.requests.iter().all(|request| request.batch.is_deletion())
    }

    /// Encoded bytes of all batches.
    pub fn bytes(&self) -> u64 {
        self.requests.iter().map(|r| r.batch.encoded().len() as u64).sum()
    }
}
