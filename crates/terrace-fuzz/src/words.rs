//! The records that the store keeps in logs, and the notes of repairs.

use crate::patched;

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

/// The record of a repair.
pub fn repair_record(data: &[u8]) {
    terrace::fuzzing::repair_record(&patched(&terrace::fuzzing::sound_repair_record(), data));
}

/// The note of a repair.
pub fn repair_note(data: &[u8]) {
    terrace::fuzzing::repair_note(&patched(&terrace::fuzzing::sound_repair_note(), data));
}
