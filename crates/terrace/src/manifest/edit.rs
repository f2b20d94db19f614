//! Version edits: each is one change to the manifest's state.

use std::collections::BTreeMap;
use std::fmt;

use terrace_table::TableMeta;

use crate::options::EngineKind;

/// The version of the manifest's format that this build writes and reads.
pub const FORMAT_VERSION: u64 = 1;

/// A store's permanent properties: fixed at its creation, checked at every opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Distinguishes this store from every other; the pool carries the same.
    pub uuid: [u8; 16],
    /// The engine that owns the data.
    pub engine: String,
    /// Options that must not change after creation, by name.
    pub options: BTreeMap<String, String>,
}

impl Identity {
    /// The owner as the store's files name it: the engine's number in the top byte, and
    /// [`owner`](Self::owner).
    pub fn origin(&self) -> u64 {
        let engine = EngineKind::parse(&self.engine).map_or(0, EngineKind::number);
        u64::from(engine) << 56 | self.owner()
    }

    /// The first six bytes of the identity, the first of them the highest: the owner as a pool names it.
    pub fn owner(&self) -> u64 {
        self.uuid[..6].iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }

    /// Replaces the leading bytes of a new identity, so that [`owner`](Self::owner) returns `owner`.
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
    /// A table is added. Its live count starts at entries less deletes.
    AddTable {
        /// The level it belongs to; always 0 on engines of one level.
        level: u32,
        /// The job that wrote it.
        job: u64,
        /// The table.
        meta: TableMeta,
    },
    /// A list in the pool is added: a run like a table, with its bytes in the pool instead of a file's.
    /// Tables' edits move and remove it, too.
    AddList {
        /// The level it belongs to.
        level: u32,
        /// Its place.
        place: ListPlace,
        /// Its figures.
        meta: TableMeta,
    },
    /// A table is removed, and with it its place among the candidates.
    RemoveTable {
        /// The table's file number.
        number: u64,
    },
    /// A table moves to another level unchanged; its number, and with it its file, stays.
    MoveTable {
        /// The table's file number.
        number: u64,
        /// Its new level.
        level: u32,
    },
    /// Keys of a table died (negative) or were found alive after all (positive).
    Counts {
        /// The table's file number.
        number: u64,
        /// What is added to the table's live count.
        live_delta: i64,
    },
    /// The whole list of compaction candidates, which replaces the previous one. Snapshots contain it.
    Candidates(Vec<u64>),
    /// Tables that become compaction candidates. A candidate is removed with its table.
    AddCandidates(Vec<u64>),
    /// A job starts; until it is done every open finds it again.
    JobStarted {
        /// The job's number.
        id: u64,
        /// What it does.
        kind: JobKind,
        /// The tables it reads.
        inputs: Vec<u64>,
    },
    /// A job has ended: its results are in this group, or it was given up.
    JobDone {
        /// The job's number.
        id: u64,
    },
    /// Everything up to this sequence number is in tables. Never decreases.
    FlushedSeq(u64),
    /// File numbers below this may be in use. Never decreases.
    NextFile(u64),
    /// Logs numbered below this are no longer needed.
    LogNumber(u64),
    /// The log sealed last, and its length; zeros if none was sealed. As long as it is needed it exists, with
    /// this end.
    LogEnd {
        /// Its file number.
        number: u64,
        /// Bytes in it.
        bytes: u64,
    },
    /// A log was begun in a file. As long as it is needed it exists; the needed logs before it are named by
    /// their successors.
    LogBegun(BegunLog),
    /// The pool that belongs to the store, and a session of it. Written with whatever else that session changes here,
    /// and before the pool is closed if the session has changed it.
    Pool(KnownPool),
    /// The stamp in the file of slots. Written before anything is acknowledged that a session keeps only in
    /// that file.
    Stamp(KnownStamp),
    /// A bucket begins here, or the part of its writes that is flushed has changed. The first bucket of a
    /// store begins at the empty key. Only on engines with buckets.
    SetBucket {
        /// The smallest key that may be in it.
        lower: Vec<u8>,
        /// Its writes up to this sequence number are in tables.
        flushed: u64,
    },
    /// A bucket ends: the one before it takes over its keys. The one that begins at the empty key stays.
    RemoveBucket {
        /// Where it begins.
        lower: Vec<u8>,
    },
    /// The snapshot that begins a manifest file is complete; written by the manifest itself.
    SnapshotEnd,
}

/// The place of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListPlace {
    /// Its head in the pool.
    pub head: u64,
    /// Distinguishes it from every other list in that place.
    pub id: u64,
}

/// A log in a file that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunLog {
    /// Its file number.
    pub number: u64,
    /// The page cache through which it is written, as [`Fs::epoch`](terrace_disk::Fs::epoch) names it; 0 if
    /// unknown.
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

/// What a manifest knows of its store's file of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownStamp {
    /// The slot where the stamp is.
    pub slot: u64,
    /// Its number; another stamp has another one.
    pub number: u64,
}

impl KnownPool {
    /// The pool is being made again from tables and logs: the pool in its place is useless.
    pub const BEING_MADE: KnownPool = KnownPool { uuid: [0; 16], generation: 0 };
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
            Edit::AddList { level, place, meta } => {
                write!(f, "add list {} level {level} at {:#x}: ", meta.number, place.head)?;
                describe(f, meta)
            }
            Edit::RemoveTable { number } => write!(f, "remove table {number}"),
            Edit::MoveTable { number, level } => write!(f, "table {number} moves to level {level}"),
            Edit::Counts { number, live_delta } => write!(f, "table {number} live {live_delta:+}"),
            Edit::Candidates(numbers) => write!(f, "candidates {numbers:?}"),
            Edit::AddCandidates(numbers) => write!(f, "add candidates {numbers:?}"),
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
            Edit::Stamp(known) => write!(f, "stamp {} at slot {:#x}", known.number, known.slot),
            Edit::SetBucket { lower, flushed } => {
                write!(f, "bucket from \"{}\" flushed up to {flushed}", lower.escape_ascii())
            }
            Edit::RemoveBucket { lower } => {
                write!(f, "bucket from \"{}\" goes to the one before it", lower.escape_ascii())
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
