//! Version edits: one change to the manifest's state each, and how they are written.
//!
//! A group of edits is one log record. In it each edit is a tag byte, a varint length and a body of
//! that length; `docs/formats/manifest.md` has the byte table. Decoding never reads past a body,
//! refuses what is left over, and says of a tag it does not know that the format is not its own
//! rather than that the bytes are damaged: the record's checksum has already vouched for them.

use std::collections::BTreeMap;
use std::fmt;

use terrace_base::codec::{Reader, put_bytes, put_varint};
use terrace_table::TableMeta;

use crate::options::EngineKind;

/// The version of the manifest's format that this build writes and reads.
pub const FORMAT_VERSION: u64 = 1;

/// What a store is for good: fixed when it is created, checked whenever it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Tells this store from every other; the pool carries the same.
    pub uuid: [u8; 16],
    /// The engine that owns the data.
    pub engine: String,
    /// Options that must not change after creation, by name.
    pub options: BTreeMap<String, String>,
}

impl Identity {
    /// What the store's files say of whose they are: the engine's number in the top byte, and [`owner`](Self::owner).
    pub fn origin(&self) -> u64 {
        let engine = EngineKind::parse(&self.engine).map_or(0, EngineKind::number);
        u64::from(engine) << 56 | self.owner()
    }

    /// The first six bytes of the identity, the first of them the highest: what a pool says of whose it is.
    pub fn owner(&self) -> u64 {
        self.uuid[..6].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }

    /// A new identity's bytes with those in front that [`owner`](Self::owner) is to give.
    pub fn with_owner(mut self, owner: u64) -> Identity {
        self.uuid[..6].copy_from_slice(&owner.to_be_bytes()[2..]);
        self
    }
}

/// What a background job does with its inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKind {
    /// Writes a memtable out; it has no input tables.
    Flush = 0,
    /// Merges tables into new ones.
    Compaction = 1,
}

/// One change to the manifest's state.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// The store's identity; first in every manifest file and nowhere else.
    Identity(Identity),
    /// A table joins. Its live count starts at entries less deletes.
    AddTable {
        /// The level it belongs to; always 0 on engines of one level.
        level: u32,
        /// The job that wrote it.
        job: u64,
        /// The table.
        meta: TableMeta,
    },
    /// A table leaves, and with it its place among the candidates.
    RemoveTable {
        /// The table's file number.
        number: u64,
    },
    /// A table goes to another level as it is; its number, and with it its file, stays.
    MoveTable {
        /// The table's file number.
        number: u64,
        /// The level it belongs to from now on.
        level: u32,
    },
    /// Keys of a table died (negative) or were found alive after all (positive).
    Counts {
        /// The table's file number.
        number: u64,
        /// What is added to the table's live count.
        live_delta: i64,
    },
    /// The whole list of compaction candidates, replacing the one before it.
    Candidates(Vec<u64>),
    /// A job starts; until it is done it is found again at every open.
    JobStarted {
        /// The job's number.
        id: u64,
        /// What it does.
        kind: JobKind,
        /// The tables it reads.
        inputs: Vec<u64>,
    },
    /// A job has ended, with its results in this group or given up.
    JobDone {
        /// The job's number.
        id: u64,
    },
    /// Everything up to this sequence number is in tables. Never goes back.
    FlushedSeq(u64),
    /// File numbers below this may be in use. Never goes back.
    NextFile(u64),
    /// Logs numbered below this are no longer needed.
    LogNumber(u64),
    /// The log that was sealed last, and how long it is; zeros if none was. As long as it is needed it is there, with this
    /// end.
    LogEnd {
        /// Its file number.
        number: u64,
        /// Bytes in it.
        bytes: u64,
    },
    /// A log was begun, in a file. As long as it is needed it is there; those between it and the first that is needed are
    /// named by the ones after them.
    LogBegun(BegunLog),
    /// The pool that belongs to the store, and a session of it. Written with whatever else that session changes here, and
    /// before it is closed if it has changed the pool.
    Pool(KnownPool),
    /// The snapshot that begins a manifest file is complete; written by the manifest itself.
    SnapshotEnd,
}

/// The log in a file that was begun last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunLog {
    /// Its file number.
    pub number: u64,
    /// The page cache that it is written through, as [`Fs::epoch`](terrace_disk::Fs::epoch) names it; 0 if that is not
    /// known.
    pub epoch: u64,
}

/// What a manifest knows of its store's pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownPool {
    /// The pool's identity; another pool has another one.
    pub uuid: [u8; 16],
    /// The pool's session, by its number.
    pub generation: u64,
}

impl KnownPool {
    /// The pool is being made anew from tables and logs: what lies in its place is of no use.
    pub const BEING_MADE: KnownPool = KnownPool { uuid: [0; 16], generation: 0 };
}

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
    /// Not what any version writes.
    Malformed(&'static str),
    /// Written by another version.
    Foreign {
        /// What was found.
        found: String,
        /// What this build reads.
        supported: String,
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
            Edit::RemoveTable { number } => number_body(out, *number, tag::REMOVE_TABLE),
            Edit::MoveTable { number, level } => {
                put_varint(out, *number);
                put_varint(out, u64::from(*level));
                tag::MOVE_TABLE
            }
            Edit::Counts { number, live_delta } => {
                put_varint(out, *number);
                put_varint(out, zigzag(*live_delta));
                tag::COUNTS
            }
            Edit::Candidates(numbers) => {
                numbers.iter().for_each(|n| put_varint(out, *n));
                tag::CANDIDATES
            }
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
            Edit::LogEnd { number, bytes } => {
                put_varint(out, *number);
                put_varint(out, *bytes);
                tag::LOG_END
            }
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
            Edit::SnapshotEnd => tag::SNAPSHOT_END,
        }
    }
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
        tag::REMOVE_TABLE => Edit::RemoveTable { number: number(&mut body)? },
        tag::MOVE_TABLE => Edit::MoveTable { number: number(&mut body)?, level: level(&mut body)? },
        tag::COUNTS => {
            let table = number(&mut body)?;
            Edit::Counts { number: table, live_delta: unzigzag(number(&mut body)?) }
        }
        tag::CANDIDATES => Edit::Candidates(numbers(&mut body)?),
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
        tag::SNAPSHOT_END => Edit::SnapshotEnd,
        other => return Err(foreign(format!("edit tag {other}"), "edit tags 1 to 15")),
    };
    if !body.is_empty() {
        return Err(FaultKind::Malformed("the end of the edit's body"));
    }
    Ok(edit)
}

fn decode_identity(mut body: Reader<'_>) -> Result<Edit, FaultKind> {
    let version = number(&mut body)?;
    if version != FORMAT_VERSION {
        return Err(foreign(format!("version {version}"), format!("version {FORMAT_VERSION}")));
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

fn foreign(found: impl Into<String>, supported: impl Into<String>) -> FaultKind {
    FaultKind::Foreign { found: found.into(), supported: supported.into() }
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

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JobKind::Flush => "flush",
            JobKind::Compaction => "compaction",
        })
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Edit::Identity(identity) => write!(f, "identity {identity}"),
            Edit::AddTable { level, job, meta } => {
                write!(f, "add table {} level {level} by job {job}: ", meta.number)?;
                describe(f, meta)
            }
            Edit::RemoveTable { number } => write!(f, "remove table {number}"),
            Edit::MoveTable { number, level } => write!(f, "table {number} moves to level {level}"),
            Edit::Counts { number, live_delta } => write!(f, "table {number} live {live_delta:+}"),
            Edit::Candidates(numbers) => write!(f, "candidates {numbers:?}"),
            Edit::JobStarted { id, kind, inputs } => write!(f, "job {id} started: {kind} of {inputs:?}"),
            Edit::JobDone { id } => write!(f, "job {id} done"),
            Edit::FlushedSeq(seq) => write!(f, "flushed up to sequence number {seq}"),
            Edit::NextFile(number) => write!(f, "next file {number}"),
            Edit::LogNumber(number) => write!(f, "logs from {number}"),
            Edit::LogEnd { number, bytes } => write!(f, "log {number} was sealed at byte {bytes}"),
            Edit::LogBegun(begun) => write!(f, "log {} begun", begun.number),
            Edit::Pool(known) => {
                f.write_str("pool ")?;
                known.uuid.iter().try_for_each(|b| write!(f, "{b:02x}"))?;
                write!(f, " in session {}", known.generation)
            }
            Edit::SnapshotEnd => f.write_str("end of snapshot"),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uuid.iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        write!(f, " engine {}", self.engine)?;
        self.options.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// One line about a table.
pub(crate) fn describe(f: &mut dyn fmt::Write, meta: &TableMeta) -> fmt::Result {
    write!(
        f,
        "{} entries, {} deletes, {} bytes, seq {}..={}, keys \"{}\"..=\"{}\"",
        meta.entries,
        meta.deletes,
        meta.file_bytes,
        meta.min_seq,
        meta.max_seq,
        meta.smallest.escape_ascii(),
        meta.largest.escape_ascii(),
    )
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
        let payload = [&good[..], &[16, 0]].concat();
        let fault = decode_group(&payload).unwrap_err();
        assert_eq!(fault.at, good.len());
        assert!(matches!(fault.kind, FaultKind::Foreign { found, .. } if found == "edit tag 16"));
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
        ] {
            let fault = decode_group(bytes).unwrap_err();
            assert!(matches!(fault.kind, FaultKind::Malformed(_)), "{bytes:?}");
        }
    }
}
