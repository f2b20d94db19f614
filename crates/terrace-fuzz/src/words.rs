//! What the store keeps in logs.

/// A batch as a commit log holds it.
pub fn batch(data: &[u8]) {
    terrace::fuzzing::batch(data);
}

/// A record of the commit log.
pub fn commit_record(data: &[u8]) {
    terrace::fuzzing::commit_record(data);
}

/// A record of a compaction log.
pub fn compaction_record(data: &[u8]) {
    terrace::fuzzing::compaction_record(data);
}
