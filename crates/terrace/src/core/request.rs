//! Writers' requests, and the groups in which engines receive them.

use terrace_table::Kind;

use crate::batch::WriteBatch;

/// The condition for a write to take place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    None,
    /// The batch's only key does not exist.
    IfAbsent,
    /// The batch's only key exists.
    IfExists,
    /// None; but nothing else may be in the group.
    Alone,
}

impl Condition {
    /// Whether the key must exist, if that matters.
    pub fn wants_key(self) -> Option<bool> {
        match self {
            Condition::IfAbsent => Some(false),
            Condition::IfExists => Some(true),
            Condition::None | Condition::Alone => None,
        }
    }
}

/// One writer's request.
#[derive(Debug)]
pub(crate) struct Request {
    pub batch: WriteBatch,
    pub condition: Condition,
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
    /// Operations in all batches.
    pub fn ops(&self) -> u64 {
        self.requests.iter().map(|r| r.batch.len() as u64).sum()
    }

    /// Whether nothing is added.
    pub fn only_deletes(&self) -> bool {
        self.requests.iter().flat_map(|r| r.batch.ops()).all(|op| op.kind == Kind::Delete)
    }

    /// Encoded bytes of all batches.
    pub fn bytes(&self) -> u64 {
        self.requests.iter().map(|r| r.batch.encoded().len() as u64).sum()
    }
}
