use crate::batch::WriteBatch;
use crate::commit_log::LogRecord;
use crate::located::read_compaction_record;
use crate::repair;

/// A batch as a commit log holds it: a decoded batch consists of operations whose encoding is the same.
pub fn batch(data: &[u8]) {
    let Some(batch) = WriteBatch::decode(data) else { return };
    let mut again = WriteBatch::new();
    let mut count = 0;
    for op in batch.ops() {
        match op.kind {
            terrace_table::Kind::Put => again.put(op.key, op.value),
            terrace_table::Kind::Delete => again.delete(op.key),
            terrace_table::Kind::Operand => again.push(op),
        }
        count += 1;
    }
    assert_eq!((count, again.len()), (batch.len(), batch.len()));
    // Only the input may have lengths in more bytes than they need.
    let third = WriteBatch::decode(again.encoded()).map(|third| third.encoded().to_vec());
    assert_eq!(third.as_deref(), Some(again.encoded()));
}

/// A record of the commit log: encoding what was decoded must decode to the same.
pub fn commit_record(data: &[u8]) {
    let Some(record) = LogRecord::decode(data) else { return };
    let bytes = record.bytes();
    // Only the input may have numbers in more bytes than they need.
    assert!(bytes.len() <= data.len());
    assert_eq!(LogRecord::decode(&bytes).map(|again| again.bytes()), Some(bytes));
}

/// A record of a compaction log.
pub fn compaction_record(data: &[u8]) {
    read_compaction_record(data);
}

/// The record of a repair: encoding what was decoded gives the same bytes.
pub fn repair_record(data: &[u8]) {
    repair::decode_record(data);
}

/// A record of a repair.
pub fn sound_repair_record() -> Vec<u8> {
    repair::sound_record()
}

/// The note of a repair: encoding what was decoded gives the same bytes.
pub fn repair_note(data: &[u8]) {
    repair::decode_note(data);
}

/// A note of a repair.
pub fn sound_repair_note() -> Vec<u8> {
    repair::sound_note()
}

/// The beginning of a sector of a file of slots: encoding what was decoded gives the same bytes.
pub fn slots(data: &[u8]) {
    crate::engine::decode_slots(data);
}

/// A file of slots with a stamp and a few items.
pub fn sound_slots() -> Vec<u8> {
    crate::engine::sound_slots()
}
