//! The encoding of edits.
//!
//! A group of edits is one log record. In it each edit is a tag byte, a varint length and a body of
//! that length; `docs/formats/manifest.md` has the byte table. Decoding never reads past a body, refuses
//! leftover bytes, and reports an unknown tag as a foreign format rather than as damage: the record's
//! checksum has already vouched for the bytes.

use std::collections::BTreeMap;

use terrace_base::codec::{Reader, put_bytes, put_varint};
use terrace_table::{MAX_KEY_BYTES, TableMeta};

use super::edit::{BegunLog, Edit, FORMAT_VERSION, Identity, JobKind, KnownPool, KnownStamp, ListPlace};

/// Why a record could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Byte offset within the record's payload.
    pub at: usize,
    /// What was wrong.
    pub kind: FaultKind,
}

/// The two ways for a checksummed record to be unreadable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// No version writes this.
    Malformed(&'static str),
    /// Written by another version.
    Foreign {
        /// What was found.
        found: String,
        /// What this build reads.
        supported: String,
        /// Whether that is a version.
        is_version: bool,
    },
}

mod tag {
    pub const IDENTITY: u8 = 1;
    pub const ADD_TABLE: u8 = 2;
    pub const REMOVE_TABLE: u8 = 3;
    pub const COUNTS: u8 = 4;
    pub const CANDIDATES: u8 = 5;
    pub const JOB_STARTED: u8 = 6;
    pub const JOB_DONE: u8 = 7;
    pub const FLUSHED_SEQ: u8 = 8;
    pub const NEXT_FILE: u8 = 9;
    pub const LOG_NUMBER: u8 = 10;
    pub const SNAPSHOT_END: u8 = 11;
    pub const MOVE_TABLE: u8 = 12;
    pub const LOG_END: u8 = 13;
    pub const POOL: u8 = 14;
    pub const LOG_BEGUN: u8 = 15;
    pub const SET_BUCKET: u8 = 16;
    pub const REMOVE_BUCKET: u8 = 17;
    pub const ADD_LIST: u8 = 18;
    pub const STAMP: u8 = 19;
    pub const ADD_CANDIDATES: u8 = 20;
}

/// The payload of the record that holds `edits`.
pub(crate) fn encode_group(edits: &[Edit]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut body = Vec::new();
    for edit in edits {
        body.clear();
        out.push(edit.encode_body(&mut body));
        put_bytes(&mut out, &body);
    }
    out
}

/// The edits of one record.
pub(crate) fn decode_group(payload: &[u8]) -> Result<Vec<Edit>, Fault> {
    let mut reader = Reader::new(payload);
    let mut edits = Vec::new();
    while !reader.is_empty() {
        let at = reader.position();
        let edit = decode_edit(&mut reader).map_err(|kind| Fault { at, kind })?;
        edits.push(edit);
    }
    Ok(edits)
}

fn decode_edit(reader: &mut Reader<'_>) -> Result<Edit, FaultKind> {
    let tag = reader.u8().ok_or(FaultKind::Malformed("an edit's tag"))?;
    let body = reader.bytes().ok_or(FaultKind::Malformed("an edit's length and body"))?;
    decode_body(tag, Reader::new(body))
}

impl Edit {
    /// Appends the body to `out`; returns the tag.
    fn encode_body(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            Edit::Identity(identity) => {
                encode_identity(identity, out);
                tag::IDENTITY
            }
            Edit::AddTable { level, job, meta } => {
                put_varint(out, u64::from(*level));
                put_varint(out, *job);
                meta.encode(out);
                tag::ADD_TABLE
            }
            Edit::AddList { level, place, meta } => {
                put_varint(out, u64::from(*level));
                put_varint(out, place.head);
                out.extend_from_slice(&place.id.to_le_bytes());
                meta.encode(out);
                tag::ADD_LIST
            }
            Edit::RemoveTable { number } => number_body(out, *number, tag::REMOVE_TABLE),
            Edit::MoveTable { number, level } => {
                numbers_body(out, &[*number, u64::from(*level)], tag::MOVE_TABLE)
            }
            Edit::Counts { number, live_delta } => {
                put_varint(out, *number);
                put_varint(out, zigzag(*live_delta));
                tag::COUNTS
            }
            Edit::Candidates(numbers) => numbers_body(out, numbers, tag::CANDIDATES),
            Edit::AddCandidates(numbers) => numbers_body(out, numbers, tag::ADD_CANDIDATES),
            Edit::JobStarted { id, kind, inputs } => {
                put_varint(out, *id);
                out.push(*kind as u8);
                inputs.iter().for_each(|n| put_varint(out, *n));
                tag::JOB_STARTED
            }
            Edit::JobDone { id } => number_body(out, *id, tag::JOB_DONE),
            Edit::FlushedSeq(seq) => number_body(out, *seq, tag::FLUSHED_SEQ),
            Edit::NextFile(number) => number_body(out, *number, tag::NEXT_FILE),
            Edit::LogNumber(number) => number_body(out, *number, tag::LOG_NUMBER),
            Edit::LogEnd { number, bytes } => numbers_body(out, &[*number, *bytes], tag::LOG_END),
            Edit::LogBegun(begun) => {
                put_varint(out, begun.number);
                out.extend_from_slice(&begun.epoch.to_le_bytes());
                tag::LOG_BEGUN
            }
            Edit::Pool(known) => {
                out.extend_from_slice(&known.uuid);
                put_varint(out, known.generation);
                tag::POOL
            }
            Edit::Stamp(known) => numbers_body(out, &[known.slot, known.number], tag::STAMP),
            Edit::SetBucket { lower, flushed } => {
                put_bytes(out, lower);
                put_varint(out, *flushed);
                tag::SET_BUCKET
            }
            Edit::RemoveBucket { lower } => bytes_body(out, lower, tag::REMOVE_BUCKET),
            Edit::SnapshotEnd => tag::SNAPSHOT_END,
        }
    }
}

fn bytes_body(out: &mut Vec<u8>, bytes: &[u8], tag: u8) -> u8 {
    put_bytes(out, bytes);
    tag
}

fn numbers_body<'a>(out: &mut Vec<u8>, numbers: impl IntoIterator<Item = &'a u64>, tag: u8) -> u8 {
    numbers.into_iter().for_each(|n| put_varint(out, *n));
    tag
}

fn number_body(out: &mut Vec<u8>, number: u64, tag: u8) -> u8 {
    put_varint(out, number);
    tag
}

fn encode_identity(identity: &Identity, out: &mut Vec<u8>) {
    // The version comes first: whatever else another version changes, it is found here.
    put_varint(out, FORMAT_VERSION);
    out.extend_from_slice(&identity.uuid);
    put_bytes(out, identity.engine.as_bytes());
    for (name, value) in &identity.options {
        put_bytes(out, name.as_bytes());
        put_bytes(out, value.as_bytes());
    }
}

fn decode_body(tag: u8, mut body: Reader<'_>) -> Result<Edit, FaultKind> {
    let edit = match tag {
        tag::IDENTITY => return decode_identity(body),
        tag::ADD_TABLE => return decode_add_table(body),
        tag::ADD_LIST => return decode_add_list(body),
        tag::REMOVE_TABLE => Edit::RemoveTable { number: number(&mut body)? },
        tag::MOVE_TABLE => Edit::MoveTable { number: number(&mut body)?, level: level(&mut body)? },
        tag::COUNTS => {
            let table = number(&mut body)?;
            Edit::Counts { number: table, live_delta: unzigzag(number(&mut body)?) }
        }
        tag::CANDIDATES => Edit::Candidates(numbers(&mut body)?),
        tag::ADD_CANDIDATES => Edit::AddCandidates(numbers(&mut body)?),
        tag::JOB_STARTED => Edit::JobStarted {
            id: number(&mut body)?,
            kind: job_kind(&mut body)?,
            inputs: numbers(&mut body)?,
        },
        tag::JOB_DONE => Edit::JobDone { id: number(&mut body)? },
        tag::FLUSHED_SEQ => Edit::FlushedSeq(number(&mut body)?),
        tag::NEXT_FILE => Edit::NextFile(number(&mut body)?),
        tag::LOG_NUMBER => Edit::LogNumber(number(&mut body)?),
        tag::LOG_END => Edit::LogEnd { number: number(&mut body)?, bytes: number(&mut body)? },
        tag::LOG_BEGUN => {
            let number = number(&mut body)?;
            let epoch = body.u64().ok_or(FaultKind::Malformed("the epoch of a log"))?;
            Edit::LogBegun(BegunLog { number, epoch })
        }
        tag::POOL => {
            let uuid = uuid(&mut body)?;
            Edit::Pool(KnownPool { uuid, generation: number(&mut body)? })
        }
        tag::STAMP => Edit::Stamp(KnownStamp { slot: number(&mut body)?, number: number(&mut body)? }),
        tag::SNAPSHOT_END => Edit::SnapshotEnd,
        tag::SET_BUCKET => Edit::SetBucket { lower: key(&mut body)?, flushed: number(&mut body)? },
        tag::REMOVE_BUCKET => Edit::RemoveBucket { lower: key(&mut body)? },
        other => return Err(foreign(format!("edit tag {other}"), "edit tags 1 to 20")),
    };
    if !body.is_empty() {
        return Err(FaultKind::Malformed("the end of the edit's body"));
    }
    Ok(edit)
}

fn decode_identity(mut body: Reader<'_>) -> Result<Edit, FaultKind> {
    let version = number(&mut body)?;
    if version != FORMAT_VERSION {
        return Err(FaultKind::Foreign {
            found: format!("version {version}"),
            supported: format!("version {FORMAT_VERSION}"),
            is_version: true,
        });
    }
    let uuid = uuid(&mut body)?;
    let engine = text(&mut body)?;
    let mut options = BTreeMap::new();
    while !body.is_empty() {
        let name = text(&mut body)?;
        options.insert(name, text(&mut body)?);
    }
    Ok(Edit::Identity(Identity { uuid, engine, options }))
}

fn decode_add_table(mut body: Reader<'_>) -> Result<Edit, FaultKind> {
    let level = level(&mut body)?;
    let job = number(&mut body)?;
    let meta = TableMeta::decode(&mut body).ok_or(FaultKind::Malformed("a table's description"))?;
    if !body.is_empty() {
        return Err(FaultKind::Malformed("the end of the table's description"));
    }
    Ok(Edit::AddTable { level, job, meta })
}

fn decode_add_list(mut body: Reader<'_>) -> Result<Edit, FaultKind> {
    let level = level(&mut body)?;
    let head = number(&mut body)?;
    let id = body.u64().ok_or(FaultKind::Malformed("the identity of a list"))?;
    let meta = TableMeta::decode(&mut body).ok_or(FaultKind::Malformed("a list's description"))?;
    if !body.is_empty() {
        return Err(FaultKind::Malformed("the end of the list's description"));
    }
    Ok(Edit::AddList { level, place: ListPlace { head, id }, meta })
}

fn foreign(found: impl Into<String>, supported: impl Into<String>) -> FaultKind {
    FaultKind::Foreign { found: found.into(), supported: supported.into(), is_version: false }
}

fn number(body: &mut Reader<'_>) -> Result<u64, FaultKind> {
    body.varint().ok_or(FaultKind::Malformed("a number"))
}

fn uuid(body: &mut Reader<'_>) -> Result<[u8; 16], FaultKind> {
    let bytes = body.take(16).and_then(|b| <[u8; 16]>::try_from(b).ok());
    bytes.ok_or(FaultKind::Malformed("16 bytes of identity"))
}

fn level(body: &mut Reader<'_>) -> Result<u32, FaultKind> {
    u32::try_from(number(body)?).map_err(|_| FaultKind::Malformed("a level"))
}

fn numbers(body: &mut Reader<'_>) -> Result<Vec<u64>, FaultKind> {
    let mut all = Vec::new();
    while !body.is_empty() {
        all.push(number(body)?);
    }
    Ok(all)
}

/// A key of at most the longest allowed size.
fn key(body: &mut Reader<'_>) -> Result<Vec<u8>, FaultKind> {
    let key = body.bytes().filter(|key| key.len() <= MAX_KEY_BYTES);
    key.map(<[u8]>::to_vec).ok_or(FaultKind::Malformed("a key"))
}

fn text(body: &mut Reader<'_>) -> Result<String, FaultKind> {
    body.bytes()
        .and_then(|b| std::str::from_utf8(b).ok())
        .map(str::to_owned)
        .ok_or(FaultKind::Malformed("text"))
}

fn job_kind(body: &mut Reader<'_>) -> Result<JobKind, FaultKind> {
    match body.u8().ok_or(FaultKind::Malformed("a job's kind"))? {
        0 => Ok(JobKind::Flush),
        1 => Ok(JobKind::Compaction),
        other => Err(foreign(format!("job kind {other}"), "job kinds 0 and 1")),
    }
}

/// Small magnitudes of either sign become small numbers: 0, -1, 1, -2 to 0, 1, 2, 3.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zigzag_round_trips_and_keeps_small_small() {
        for value in [0, -1, 1, -2, 2, i64::MIN, i64::MAX] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
        assert_eq!([0i64, -1, 1, -2].map(zigzag), [0, 1, 2, 3]);
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let identity = Identity { uuid: [7; 16], engine: "slm".into(), options: BTreeMap::new() };
        let mut payload = encode_group(&[Edit::Identity(identity)]);
        payload[2] = 9;
        let fault = decode_group(&payload).unwrap_err();
        assert_eq!(fault.at, 0);
        assert!(matches!(fault.kind, FaultKind::Foreign { found, .. } if found == "version 9"));
    }

    #[test]
    fn an_unknown_tag_and_job_kind_are_foreign() {
        let good = encode_group(&[Edit::NextFile(5)]);
        let payload = [&good[..], &[21, 0]].concat();
        let fault = decode_group(&payload).unwrap_err();
        assert_eq!(fault.at, good.len());
        assert!(matches!(&fault.kind, FaultKind::Foreign { found, .. } if found == "edit tag 21"));
        let highest = format!("edit tags 1 to {}", tag::ADD_CANDIDATES);
        assert!(matches!(fault.kind, FaultKind::Foreign { supported, .. } if supported == highest));
        let fault = decode_group(&[tag::JOB_STARTED, 2, 1, 9]).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Foreign { .. }));
    }

    #[test]
    fn leftovers_and_cut_bodies_are_malformed() {
        for bytes in [
            &[tag::NEXT_FILE, 2, 1, 1][..],
            &[tag::NEXT_FILE, 2, 1],
            &[tag::NEXT_FILE, 0],
            &[tag::NEXT_FILE],
            &[tag::SNAPSHOT_END, 1, 0],
            &[tag::MOVE_TABLE, 1, 7],
            &[tag::MOVE_TABLE, 6, 7, 0x80, 0x80, 0x80, 0x80, 0x10],
            &[tag::IDENTITY, 3, 1, 0, 0],
            &[tag::SET_BUCKET, 2, 1, b'k'],
            &[tag::SET_BUCKET, 2, 2, b'k'],
            &[tag::SET_BUCKET, 4, 1, b'k', 5, 5],
            &[tag::REMOVE_BUCKET, 0],
            &[tag::REMOVE_BUCKET, 2, 0, 5],
        ] {
            let fault = decode_group(bytes).unwrap_err();
            assert!(matches!(fault.kind, FaultKind::Malformed(_)), "{bytes:?}");
        }
    }

    #[test]
    fn a_bucket_begins_at_a_key_that_can_be_written() {
        let bounds = |bytes| [vec![b'k'; bytes], vec![0; bytes], vec![0xff; bytes]];
        let edits = |lower: Vec<u8>| {
            [Edit::RemoveBucket { lower: lower.clone() }, Edit::SetBucket { lower, flushed: 5 }]
        };
        for lower in bounds(MAX_KEY_BYTES).into_iter().chain(bounds(0)) {
            assert_eq!(decode_group(&encode_group(&edits(lower.clone()))).unwrap(), edits(lower));
        }
        for edit in bounds(MAX_KEY_BYTES + 1).into_iter().flat_map(edits) {
            let fault = decode_group(&encode_group(&[edit])).unwrap_err();
            assert_eq!(fault.kind, FaultKind::Malformed("a key"));
        }
    }
}
