//! Writing a log.

use terrace_base::{Error, Result};

use crate::frame::{Origin, RecordKind, SegmentHeader, put_record, seed_of};
use crate::segment::{FileSegment, Segment};

/// The default lsn of a log's first record.
pub const FIRST_LSN: u64 = 1;

/// The largest buffer that is kept from one append to the next.
const KEPT_BUFFER_BYTES: usize = 1 << 20;

/// Numbers records and writes down how much of the log was durable before each.
///
/// Invariant: `durable` never counts records that a power cut could still take.
#[derive(Debug, Clone)]
pub(crate) struct Framer {
    seed: u32,
    first_lsn: u64,
    next: u32,
    durable: u32,
    sealed: bool,
}

impl Framer {
    /// For a segment whose header is durable and which holds `records`, all durable.
    pub(crate) fn new(header: SegmentHeader, records: u32) -> Self {
        let durable = records.saturating_add(1);
        Framer {
            seed: seed_of(header.id),
            first_lsn: header.first_lsn,
            next: records,
            durable,
            sealed: false,
        }
    }

    pub(crate) fn next_lsn(&self) -> u64 {
        self.first_lsn + u64::from(self.next)
    }

    /// The last lsn that is durable; one less than the first when none is.
    pub(crate) fn durable_lsn(&self) -> u64 {
        self.first_lsn + u64::from(self.durable) - 2
    }

    /// Everything below `next_lsn` has become durable.
    pub(crate) fn set_durable(&mut self, next_lsn: u64) {
        let records = next_lsn.saturating_sub(self.first_lsn) as u32;
        self.durable = self.durable.max(records.saturating_add(1));
    }

    /// Appends the next record to `out`; says its lsn.
    pub(crate) fn frame(&mut self, kind: RecordKind, payload: &[u8], out: &mut Vec<u8>) -> Result<u64> {
        if self.sealed {
            return Err(Error::invalid("the log is sealed"));
        }
        // One ordinal is kept for the end record, one value of `durable` for the header.
        if self.next >= u32::MAX - 2 && kind == RecordKind::Data {
            return Err(Error::invalid("the log segment holds as many records as it can number"));
        }
        put_record(out, self.seed, (self.next, self.durable), kind, payload)?;
        let lsn = self.next_lsn();
        self.next += 1;
        self.sealed = kind == RecordKind::End;
        Ok(lsn)
    }

    /// Forgets the records from `mark`, whose append failed.
    pub(crate) fn take_back(&mut self, mark: Framer) {
        let durable = self.durable;
        *self = mark;
        self.durable = durable;
    }
}

/// Appends records to a segment, for one thread at a time.
///
/// 1. A record whose `append` returned is in the segment whole: a crash of the process keeps it.
/// 2. A record is safe from a power cut once a `sync` after it has returned `Ok`.
/// 3. After a failed sync everything is refused with its error: the records that it covered may be durable, or gone,
///    and a later sync that succeeds proves nothing. A failed append leaves no trace, and its lsn goes to the next
///    record. After one that panicked everything is refused, too.
///
/// ```
/// use std::path::Path;
/// use terrace_disk::{Fs, SimFs};
/// use terrace_log::{FileSegment, LogReader, LogWriter, Tail};
/// let fs = SimFs::new();
/// let mut log = LogWriter::create(FileSegment(fs.create(Path::new("/log"))?), 77)?;
/// assert_eq!(log.append(b"one")?, 1);
/// assert_eq!(log.append(b"two")?, 2);
/// log.sync()?;
/// let mut seen = Vec::new();
/// let data = fs.read(Path::new("/log"))?;
/// let tail = LogReader::read_file(&data, Path::new("/log"), 77, &mut |lsn, payload| {
///     seen.push((lsn, payload.to_vec()));
///     Ok(())
/// })?;
/// assert_eq!(tail, Tail::Clean);
/// assert_eq!(seen, [(1, b"one".to_vec()), (2, b"two".to_vec())]);
/// # Ok::<(), terrace_base::Error>(())
/// ```
#[derive(Debug)]
pub struct LogWriter<S: Segment> {
    pub(crate) segment: S,
    pub(crate) framer: Framer,
    id: u64,
    buffer: Vec<u8>,
    failed: Option<Error>,
    /// Whether a call is on its way, or has panicked.
    is_busy: bool,
}

impl<S: Segment> LogWriter<S> {
    /// Starts a log in an empty segment; its first record has lsn 1.
    ///
    /// `id` tells this segment's bytes from those of every other that may have lain, or come to lie,
    /// in the same place, in this database or another: use each once. The header is durable when
    /// this returns.
    pub fn create(segment: S, id: u64) -> Result<Self> {
        Self::create_at(segment, id, FIRST_LSN)
    }

    /// As [`create`](Self::create), with the lsn of the first record.
    pub fn create_at(segment: S, id: u64, first_lsn: u64) -> Result<Self> {
        Self::create_of(segment, id, first_lsn, Origin::default())
    }

    /// As [`create_at`](Self::create_at), and says where the log comes from.
    pub fn create_of(mut segment: S, id: u64, first_lsn: u64, origin: Origin) -> Result<Self> {
        if !segment.is_empty() || !(1..1 << 63).contains(&first_lsn) {
            return Err(Error::invalid("a log starts in an empty segment, at an lsn from 1 to 2^63 - 1"));
        }
        let header = SegmentHeader { id, first_lsn, origin, has_room: segment.has_room() };
        segment.append(&header.encode())?;
        // Durable before any record: a damaged header is then never mistaken for an unfinished one.
        segment.sync()?;
        Ok(Self::resume(segment, header, 0))
    }

    /// Goes on after `records` records, all durable.
    pub(crate) fn resume(segment: S, header: SegmentHeader, records: u32) -> Self {
        let framer = Framer::new(header, records);
        LogWriter { segment, framer, id: header.id, buffer: Vec::new(), failed: None, is_busy: false }
    }

    /// Appends one record; says its lsn.
    pub fn append(&mut self, payload: &[u8]) -> Result<u64> {
        self.append_all([payload])
    }

    /// Appends one record for each payload in one write; says the first one's lsn. All or none.
    pub fn append_all<'a>(&mut self, payloads: impl IntoIterator<Item = &'a [u8]>) -> Result<u64> {
        self.put(RecordKind::Data, payloads)
    }

    fn put<'a>(&mut self, kind: RecordKind, payloads: impl IntoIterator<Item = &'a [u8]>) -> Result<u64> {
        self.usable()?;
        let (mark, first) = (self.framer.clone(), self.framer.next_lsn());
        self.is_busy = true;
        self.buffer.clear();
        let framed = payloads
            .into_iter()
            .try_for_each(|payload| self.framer.frame(kind, payload, &mut self.buffer).map(drop));
        let written = framed.and_then(|()| self.segment.append(&self.buffer));
        if written.is_err() {
            self.framer.take_back(mark);
        }
        if self.buffer.capacity() > KEPT_BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        self.is_busy = false;
        written.map(|()| first)
    }

    /// Makes every record appended durable.
    pub fn sync(&mut self) -> Result<()> {
        self.usable()?;
        self.is_busy = true;
        let synced = self.segment.sync();
        self.is_busy = false;
        if let Err(error) = synced {
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.framer.set_durable(self.framer.next_lsn());
        Ok(())
    }

    /// Syncs remaining records and ends the log, durably, without room behind its end. After this any damage to its
    /// records is recognised as damage; the last records of a log that was not sealed could also have been torn by a
    /// crash.
    pub fn seal(&mut self) -> Result<()> {
        if self.durable_lsn() + 1 < self.next_lsn() {
            self.sync()?;
        }
        self.put(RecordKind::End, [&[][..]])?;
        self.segment.trim()?;
        self.sync()
    }

    /// Has the medium begin with what the next [`sync`](Self::sync) waits for. An error is told by a later call.
    pub fn start_sync(&mut self) {
        self.segment.start_sync();
    }

    /// Gives back the room behind the appended bytes, if there is any.
    pub fn trim(&mut self) -> Result<()> {
        self.segment.trim()
    }

    /// Whether there may be room behind the appended bytes.
    pub fn has_room(&self) -> bool {
        self.segment.has_room()
    }

    /// Whether appends are copies into a mapping.
    pub fn is_mapped(&self) -> bool {
        self.segment.is_mapped()
    }

    fn usable(&self) -> Result<()> {
        if self.is_busy {
            return Err(Error::invalid("a thread panicked while it wrote to the log"));
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Bytes in the segment.
    pub fn len(&self) -> u64 {
        self.segment.len()
    }

    /// Whether the segment holds nothing, which a log's never does.
    pub fn is_empty(&self) -> bool {
        self.segment.is_empty()
    }

    /// The segment's id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The lsn that the next record gets.
    pub fn next_lsn(&self) -> u64 {
        self.framer.next_lsn()
    }

    /// The last lsn that is durable; one less than the first when none is.
    pub fn durable_lsn(&self) -> u64 {
        self.framer.durable_lsn()
    }

    /// The segment, in order to free it.
    pub fn into_segment(self) -> S {
        self.segment
    }

    /// The segment written to.
    pub fn segment(&self) -> &S {
        &self.segment
    }
}

impl LogWriter<FileSegment> {
    /// Ends the log at byte `len`, after a failure too, and refuses further records. Later readers of the file find
    /// nothing behind that byte; after a power cut the bytes may be there again.
    pub fn cut(&mut self, len: u64) -> Result<()> {
        self.failed.get_or_insert_with(|| Error::invalid("the log was cut"));
        self.segment.0.cut(len)
    }
}
