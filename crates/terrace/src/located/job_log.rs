//! The bytes of a job's compaction log, and what the log of a job that a crash cut off says about the counts.
//!
//! Format: `docs/formats/slm.md`.

use std::collections::BTreeMap;

use terrace_base::codec::{Reader, put_bytes, put_varint};
use terrace_base::{Error, Result};
use terrace_index::PointIndex;
use terrace_table::Position;

use super::Located;
use super::moves::{Move, MoveTarget};

/// First byte of a move: the key's word changes.
const OF_WORD: u8 = 0;

/// First byte of the record that ends a chunk.
const CHUNK_END: u8 = 2;

/// First byte of a move: the position of a version in the key's chain changes. (1 was such a move without the
/// version.)
const IN_CHAIN: u8 = 3;

/// Most bytes of that record.
pub(super) const CHUNK_END_BYTES: u64 = 11;

/// Bytes after which moves go into a further record.
const RECORD_BYTES: usize = 8 << 10;

/// The first record: the job's number in the manifest, and the counts of the job's earlier logs.
pub(super) fn encode_start(id: u64, counts: &BTreeMap<u64, i64>) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, id);
    for (number, delta) in counts {
        put_varint(&mut out, *number);
        put_varint(&mut out, *delta as u64);
    }
    out
}

fn decode_start(payload: &[u8]) -> Option<(u64, BTreeMap<u64, i64>)> {
    let mut r = Reader::new(payload);
    let id = r.varint()?;
    let mut counts = BTreeMap::new();
    while !r.is_empty() {
        counts.insert(r.varint()?, r.varint()? as i64);
    }
    Some((id, counts))
}

/// The records of a chunk's moves, several to a record.
pub(super) fn encode_moves<'m, 'k: 'm>(moves: impl Iterator<Item = &'m Move<'k>>) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let mut record = Vec::with_capacity(2 * RECORD_BYTES);
    for one in moves {
        one.encode(&mut record);
        if record.len() >= RECORD_BYTES {
            records.push(std::mem::take(&mut record));
        }
    }
    if !record.is_empty() {
        records.push(record);
    }
    records
}

impl Move<'_> {
    /// Old word, new word (for a move within a chain: which version, the chain's word and the new position),
    /// the tables that gained and that lost a version, and the key.
    fn encode(&self, out: &mut Vec<u8>) {
        let new = match self.change {
            MoveTarget::Location(word) => {
                out.push(OF_WORD);
                word
            }
            MoveTarget::InChain { index, to, .. } => {
                out.push(IN_CHAIN);
                put_varint(out, index as u64);
                to.word()
            }
        };
        put_varint(out, self.old);
        put_varint(out, new);
        for numbers in [&self.born, &self.died] {
            put_varint(out, numbers.len() as u64);
            numbers.iter().for_each(|n| put_varint(out, n));
        }
        put_bytes(out, self.key);
    }
}

/// The record with the number of a chunk's moves that were applied, from the first.
pub(super) fn encode_chunk_end(applied: u64) -> Vec<u8> {
    let mut out = vec![CHUNK_END];
    put_varint(&mut out, applied);
    out
}

fn decode_chunk_end(payload: &[u8]) -> Option<u64> {
    let mut r = Reader::new(payload.strip_prefix(&[CHUNK_END])?);
    r.varint().filter(|_| r.is_empty())
}

/// A compaction log's effect on the counts, added up record by record; see invariant 2.
pub(super) struct LoggedJob<'a> {
    located: &'a Located,
    /// The job's number in the manifest, once the first record has been taken.
    id: Option<u64>,
    counts: BTreeMap<u64, i64>,
    /// Moves of the chunk that has not ended yet.
    chunk: Vec<u8>,
}

impl<'a> LoggedJob<'a> {
    pub fn new(located: &'a Located) -> Self {
        LoggedJob { located, id: None, counts: BTreeMap::new(), chunk: Vec::new() }
    }

    /// Takes the next record.
    ///
    /// # Errors
    ///
    /// `Corruption` if it is no record: it is whole, so another version may have written it.
    pub fn take(&mut self, payload: &[u8]) -> Result<()> {
        if self.id.is_none() {
            let (id, counts) =
                decode_start(payload).ok_or_else(|| self.damaged("a job's number", payload))?;
            (self.id, self.counts) = (Some(id), counts);
        } else if let Some(applied) = decode_chunk_end(payload) {
            self.end_chunk(usize::try_from(applied).unwrap_or(usize::MAX));
        } else if are_moves(payload) {
            self.chunk.extend_from_slice(payload);
        } else {
            return Err(self.damaged("moves, or the end of a chunk of them,", payload));
        }
        Ok(())
    }

    fn damaged(&self, expected: &str, payload: &[u8]) -> Error {
        let found = match payload.first() {
            Some(form) => format!("{} bytes of form {form}", payload.len()),
            None => "nothing".into(),
        };
        Error::corruption(self.located.pool.path(), 0, format!("{expected} in a compaction log"), found)
    }

    fn end_chunk(&mut self, applied: usize) {
        for moved in moves_in(&self.chunk).take(applied) {
            moved.count(&mut self.counts);
        }
        self.chunk.clear();
    }

    /// The job's number and, by table, the balance of live versions gained and lost.
    pub fn finish(mut self) -> Result<(u64, BTreeMap<u64, i64>)> {
        for moved in moves_in(&self.chunk) {
            if moved.was_applied(self.located)? {
                moved.count(&mut self.counts);
            }
        }
        let id = self.id.ok_or_else(|| self.damaged("a job's number", &[]))?;
        Ok((id, self.counts))
    }
}

/// Whether a record holds only moves.
fn are_moves(payload: &[u8]) -> bool {
    let mut r = Reader::new(payload);
    let mut moved = !payload.is_empty();
    while moved && !r.is_empty() {
        moved = LoggedMove::decode(&mut r).is_some();
    }
    moved
}

/// The moves of a chunk, or of a record, up to the first that is invalid.
fn moves_in(chunk: &[u8]) -> impl Iterator<Item = LoggedMove<'_>> {
    let mut r = Reader::new(chunk);
    std::iter::from_fn(move || if r.is_empty() { None } else { LoggedMove::decode(&mut r) })
}

/// A move in a compaction log, read back.
#[derive(Debug, PartialEq, Eq)]
struct LoggedMove<'r> {
    /// The version that moved, in a chain that stayed the key's.
    in_chain: Option<u64>,
    old: u64,
    new: u64,
    born: Numbers<'r>,
    died: Numbers<'r>,
    key: &'r [u8],
}

/// Table numbers in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Numbers<'r>(&'r [u8]);

impl<'r> Numbers<'r> {
    /// Reads a count and that many numbers.
    fn decode(r: &mut Reader<'r>) -> Option<Self> {
        let count = r.varint()?;
        let all = r.rest();
        for _ in 0..count {
            r.varint()?;
        }
        all.get(..all.len() - r.rest().len()).map(Numbers)
    }

    fn iter(self) -> impl Iterator<Item = u64> {
        let mut r = Reader::new(self.0);
        std::iter::from_fn(move || r.varint())
    }
}

impl<'r> LoggedMove<'r> {
    fn decode(r: &mut Reader<'r>) -> Option<Self> {
        let in_chain = match r.u8()? {
            OF_WORD => None,
            IN_CHAIN => Some(r.varint()?),
            _ => return None,
        };
        let (old, new) = (r.varint()?, r.varint()?);
        let (born, died) = (Numbers::decode(r)?, Numbers::decode(r)?);
        let key = r.bytes()?;
        Some(LoggedMove { in_chain, old, new, born, died, key })
    }

    fn count(&self, counts: &mut BTreeMap<u64, i64>) {
        self.born.iter().for_each(|n| *counts.entry(n).or_default() += 1);
        self.died.iter().for_each(|n| *counts.entry(n).or_default() -= 1);
    }

    /// Whether the move, of a chunk without an end, was published before the crash; see invariant 2.
    fn was_applied(&self, located: &Located) -> Result<bool> {
        let now = located.index.get(self.key)?.unwrap_or(0);
        match self.in_chain {
            // Another version's position says nothing: two may have moved into one block.
            Some(index) if now == self.old => {
                let versions = located.versions_of(now)?;
                let version = usize::try_from(index).ok().and_then(|index| versions.get(index));
                Ok(version.is_some_and(|v| v.position == Position::from_word(self.new)))
            }
            _ => Ok(now != self.old),
        }
    }
}

/// Reads any record of a compaction log; returns whether it is one after the first.
pub(crate) fn read_compaction_record(payload: &[u8]) -> bool {
    if let Some((id, counts)) = decode_start(payload) {
        assert_eq!(decode_start(&encode_start(id, &counts)), Some((id, counts)));
    }
    let (end, moved) = (decode_chunk_end(payload).is_some(), are_moves(payload));
    assert!(!(end && moved), "a record is the one or the other");
    end || moved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::located::moves::Numbers;

    #[test]
    fn records_are_the_documented_bytes_and_come_back() {
        let to = Position::new(2, 16, 512).unwrap();
        let change = MoveTarget::InChain { chain: 4096, index: 1, to };
        let numbers = |of: &[u64]| of.iter().copied().collect::<Numbers>();
        let moved = Move { key: b"key", old: 300, change, born: numbers(&[2]), died: numbers(&[1, 130]) };
        let new = [0x81, 0x82, 0x80, 0x80, 0x80, 0x04];
        let bytes = [&[3, 1, 0xac, 0x02][..], &new, &[1, 2, 2, 1, 0x82, 0x01, 3], b"key"].concat();
        assert_eq!(encode_moves([&moved, &moved].into_iter()), [[&bytes[..], &bytes[..]].concat()]);
        let logged = LoggedMove::decode(&mut Reader::new(&bytes)).unwrap();
        assert_eq!((logged.in_chain, logged.old, logged.new), (Some(1), 300, to.word()));
        assert_eq!((logged.born.iter().collect::<Vec<_>>(), logged.key), (vec![2], &b"key"[..]));
        assert_eq!(logged.died.iter().collect::<Vec<_>>(), [1, 130]);
        for cut in 0..bytes.len() {
            assert_eq!(LoggedMove::decode(&mut Reader::new(&bytes[..cut])), None);
            assert!(!read_compaction_record(&bytes[..cut]));
        }
        assert!(read_compaction_record(&[&bytes[..], &bytes[..]].concat()));
        assert!(!read_compaction_record(&[&bytes[..], &[0]].concat()));
    }

    #[test]
    fn the_first_record_is_the_documented_bytes_and_comes_back() {
        let counts = BTreeMap::from([(3, 200), (300, -1)]);
        let minus_one = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        let bytes = [&[7, 3, 0xc8, 0x01, 0xac, 0x02][..], &minus_one].concat();
        assert_eq!(encode_start(7, &counts), bytes);
        assert_eq!(decode_start(&bytes), Some((7, counts)));
        assert_eq!(decode_start(&[7]), Some((7, BTreeMap::new())));
        assert_eq!(decode_start(&[]), None);
        assert_eq!(decode_start(&[7, 3]), None);
    }

    #[test]
    fn many_moves_take_several_records() {
        let key = vec![7; 3000];
        let moves: Vec<_> = (0..10)
            .map(|old| Move {
                key: &key,
                old,
                change: MoveTarget::Location(old + 1),
                born: Numbers::default(),
                died: Numbers::default(),
            })
            .collect();
        let records = encode_moves(moves.iter());
        assert_eq!(records.len(), 4);
        let olds: Vec<u64> = records.iter().flat_map(|r| moves_in(r)).map(|m| m.old).collect();
        assert_eq!(olds, (0..10).collect::<Vec<_>>());
        assert_eq!(encode_moves([].into_iter()), Vec::<Vec<u8>>::new());
    }
}
