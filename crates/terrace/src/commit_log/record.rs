//! The records of a log: `docs/formats/commit_log.md` has the bytes.

use terrace_base::codec::{Reader, put_varint};

use crate::batch::WriteBatch;

mod tag {
    pub const START: u8 = 0;
    pub const BATCH: u8 = 1;
    pub const RESTART: u8 = 2;
    pub const COMPLETE: u8 = 3;
    pub const CLOSED: u8 = 4;
}

/// One record of a log.
#[derive(Debug, Clone)]
pub(crate) enum LogRecord {
    /// The first of each log: its number, the last sequence number before it, and the previous log, zero if
    /// this is the first.
    Start { number: u64, before: u64, previous: u64 },
    /// A group's operations, numbered from this sequence number on.
    Batch { first_seq: u64, ops: Box<WriteBatch> },
    /// The first of a log that replaces all before it: it holds everything after `flushed`.
    Restart { number: u64, flushed: u64 },
    /// Everything that replaces the earlier logs lies before this record.
    Complete,
    /// The last of the newest log in a pool that was closed cleanly: nothing is missing at its end.
    Closed,
}

impl LogRecord {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            LogRecord::Start { number, before, previous } => {
                out.push(tag::START);
                put_varint(out, *number);
                put_varint(out, *before);
                put_varint(out, *previous);
            }
            LogRecord::Batch { first_seq, ops } => {
                put_batch_head(out, *first_seq);
                out.extend_from_slice(ops.encoded());
            }
            LogRecord::Restart { number, flushed } => {
                out.push(tag::RESTART);
                put_varint(out, *number);
                put_varint(out, *flushed);
            }
            LogRecord::Complete => out.push(tag::COMPLETE),
            LogRecord::Closed => out.push(tag::CLOSED),
        }
    }

    /// The record's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Decodes `payload`; `None` if it is no record.
    pub fn decode(payload: &[u8]) -> Option<LogRecord> {
        let mut r = Reader::new(payload);
        let record = match r.u8()? {
            tag::START => {
                LogRecord::Start { number: r.varint()?, before: r.varint()?, previous: r.varint()? }
            }
            tag::BATCH => {
                let first_seq = r.varint()?;
                let ops = WriteBatch::decode(r.rest()).filter(|ops| !ops.is_empty())?;
                return Some(LogRecord::Batch { first_seq, ops: Box::new(ops) });
            }
            tag::RESTART => LogRecord::Restart { number: r.varint()?, flushed: r.varint()? },
            tag::COMPLETE => LogRecord::Complete,
            tag::CLOSED => LogRecord::Closed,
            _ => return None,
        };
        r.is_empty().then_some(record)
    }
}

/// The item that only a later version knows in a payload that is no [`LogRecord`], if that is the reason.
pub(super) fn reserved(payload: &[u8]) -> Option<&'static str> {
    let mut r = Reader::new(payload);
    let is_batch = r.u8()? == tag::BATCH;
    r.varint()?;
    is_batch.then(|| WriteBatch::reserved(r.rest()))?
}

/// Begins a batch's record; its operations follow, encoded.
pub(super) fn put_batch_head(out: &mut Vec<u8>, first_seq: u64) {
    out.push(tag::BATCH);
    put_varint(out, first_seq);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of the worked example of `docs/formats/commit_log.md`.
    #[test]
    fn records_are_golden() {
        let mut ops = WriteBatch::new();
        ops.put(b"k", b"v");
        ops.delete(b"");
        let golden: [(LogRecord, &[u8]); 5] = [
            (LogRecord::Start { number: 7, before: 300, previous: 4 }, &[0, 7, 0xac, 0x02, 4]),
            (
                LogRecord::Batch { first_seq: 301, ops: Box::new(ops) },
                &[1, 0xad, 0x02, 1, 1, b'k', 1, b'v', 0, 0],
            ),
            (LogRecord::Restart { number: 9, flushed: 5 }, &[2, 9, 5]),
            (LogRecord::Complete, &[3]),
            (LogRecord::Closed, &[4]),
        ];
        for (record, bytes) in golden {
            assert_eq!(record.bytes(), bytes);
            assert_eq!(LogRecord::decode(bytes).unwrap().bytes(), bytes);
            for len in 0..bytes.len() {
                // A batch cut between two operations is a shorter batch; the log's framing rules that out.
                assert!(LogRecord::decode(&bytes[..len]).is_none() || bytes[0] == 1);
            }
        }
        assert!(LogRecord::decode(&[5]).is_none() && LogRecord::decode(&[3, 0]).is_none());
    }
}
