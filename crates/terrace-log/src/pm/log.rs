//! A log on PM that outlives its process and can be continued.

use terrace_base::{Error, Result};
use terrace_pmem::{Kind, Marks, Pool};

use super::segment::PmSegment;
use crate::frame::{Origin, RECORD_HEADER_BYTES, SegmentHeader};
use crate::reader::{LogReader, Outline, Visit};
use crate::segment::Segment;
use crate::writer::LogWriter;

/// Entries on PM, each of them wholly there or not at all.
///
/// 1. An entry is durable once a [`persist`](Self::persist) after its `append` has returned, which is
///    one drain for however many entries. A crash leaves all persisted entries and, of the others, a
///    first few.
/// 2. An opened log continues behind its last whole entry; later entries never come back.
///
/// ```
/// use terrace_log::PmLog;
/// use terrace_pmem::{Kind, Pool, PoolOptions};
/// let dir = tempfile::tempdir().unwrap();
/// let options = PoolOptions { size: 1 << 20, prefault: false, ..PoolOptions::default() };
/// let pool = Pool::create(&dir.path().join("pool"), &options)?;
/// let mut log = PmLog::create(&pool, Kind(40), 4096)?;
/// pool.set_root("log", log.head())?;
/// log.append(b"key 1 moved")?;
/// log.append(b"key 2 moved")?;
/// log.persist()?;
/// let again = PmLog::open(&pool, log.head())?;
/// assert_eq!(again.iter()?.collect::<Vec<_>>(), [b"key 1 moved", b"key 2 moved"]);
/// # Ok::<(), terrace_base::Error>(())
/// ```
#[derive(Debug)]
pub struct PmLog {
    writer: LogWriter<PmSegment>,
}

impl PmLog {
    /// An empty log with room for `capacity_hint` bytes before it takes another extent. The caller
    /// publishes [`head`](Self::head), or frees the log.
    pub fn create(pool: &Pool, kind: Kind, capacity_hint: u64) -> Result<Self> {
        let segment = PmSegment::create(pool, kind, capacity_hint)?;
        let id = segment.id();
        Ok(PmLog { writer: LogWriter::create(segment, id)? })
    }

    /// The log whose head lies at `head`. A torn end is dropped, durably; in a read-only pool nothing is stored.
    pub fn open(pool: &Pool, head: u64) -> Result<Self> {
        Self::open_visiting(pool, head, &mut |_, _| Ok(()))
    }

    /// As [`open`](Self::open), handing every entry to `visit` on the way, oldest first, with its number.
    pub fn open_visiting(pool: &Pool, head: u64, visit: &mut Visit<'_>) -> Result<Self> {
        let mut segment = PmSegment::open(pool, head)?;
        let outline = outline(&segment, visit)?;
        let first_lsn = match outline.first_lsn {
            Some(1) => 1,
            Some(other) => return Err(pool.corruption(head, "a log from entry 1 on", other.to_string())),
            None => return Err(pool.corruption(head, "the header of a log segment", "none")),
        };
        segment.truncate(outline.end)?;
        let header =
            SegmentHeader { id: segment.id(), first_lsn, origin: Origin::default(), has_room: false };
        Ok(PmLog { writer: LogWriter::resume(segment, header, outline.records) })
    }

    /// The offset under which the log is opened again.
    pub fn head(&self) -> u64 {
        self.writer.segment().head()
    }

    /// Makes room for so many more entries, of so many bytes in all: appending them cannot fail for want of
    /// it then.
    pub fn reserve(&mut self, entries: u64, bytes: u64) -> Result<()> {
        self.writer.segment.reserve(bytes.saturating_add(entries.saturating_mul(RECORD_HEADER_BYTES as u64)))
    }

    /// Appends an entry and flushes it; says its number, from 1.
    pub fn append(&mut self, entry: &[u8]) -> Result<u64> {
        self.writer.append(entry)
    }

    /// Makes every entry durable: one drain.
    pub fn persist(&mut self) -> Result<()> {
        self.writer.sync()
    }

    /// The entries, oldest first.
    pub fn iter(&self) -> Result<impl Iterator<Item = Vec<u8>> + use<>> {
        let mut entries = Vec::new();
        self.visit(&mut |_, entry| {
            entries.push(entry.to_vec());
            Ok(())
        })?;
        Ok(entries.into_iter())
    }

    /// Hands every entry to `visit`, oldest first, with its number.
    pub fn visit(&self, visit: &mut Visit<'_>) -> Result<()> {
        outline(self.writer.segment(), visit).map(drop)
    }

    /// How many entries there are.
    pub fn entries(&self) -> u64 {
        self.writer.next_lsn() - 1
    }

    /// Bytes of entries and their headers.
    pub fn len(&self) -> u64 {
        self.writer.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries() == 0
    }

    /// Bytes of PM that the log holds.
    pub fn pm_bytes(&self) -> u64 {
        self.writer.segment().pm_bytes()
    }

    /// Marks the extents of the log whose head lies at `head` as owned, without opening it: another may have it
    /// open and append to it meanwhile, but not free it.
    pub fn mark_at(pool: &Pool, head: u64, marks: &mut Marks) -> Result<()> {
        PmSegment::outline(pool, head)?.mark(marks)
    }

    /// Where the extents begin of the log whose head lies at `head`; as [`mark_at`](Self::mark_at).
    pub fn extents_at(pool: &Pool, head: u64) -> Result<Vec<u64>> {
        Ok(PmSegment::outline(pool, head)?.extents().collect())
    }

    /// Where the log's extents begin, for marking them after the log has been let go of.
    pub fn extents(&self) -> Vec<u64> {
        self.writer.segment().extents().collect()
    }

    /// Marks the log's extents as owned.
    pub fn mark(&self, marks: &mut Marks) -> Result<()> {
        self.writer.segment().mark(marks)
    }

    /// Reads everything back; returns problems.
    pub fn check(&self) -> Vec<String> {
        let segment = self.writer.segment();
        match outline(segment, &mut |_, _| Ok(())) {
            Err(error) => vec![error.to_string()],
            Ok(found) if u64::from(found.records) != self.entries() || found.end != segment.len() => {
                let expected = (self.entries(), segment.len());
                vec![format!("log at {:#x}: {expected:?} entries and bytes, found {found:?}", self.head())]
            }
            Ok(_) => Vec::new(),
        }
    }

    /// Gives the log's extents back. The caller has durably unlinked the head.
    pub fn free(self) -> Result<()> {
        self.writer.into_segment().free()
    }
}

fn outline(segment: &PmSegment, visit: &mut Visit<'_>) -> Result<Outline> {
    LogReader::outline(&segment.read()?, segment.path(), segment.id(), visit).map_err(|error| match error {
        Error::Corruption { file, offset, expected, found } => {
            let expected = format!("{expected}, in the log at {:#x}", segment.head());
            Error::Corruption { file, offset, expected, found }
        }
        other => other,
    })
}
