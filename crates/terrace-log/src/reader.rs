//! Reading a log back, and telling a torn tail from damage.
//!
//! After a power cut the records after the last sync may be there in any part: torn, missing, whole behind a hole. None
//! of them was acknowledged as durable, and the log ends before the first one that is not whole. A record that *was*
//! synced and is not whole is damage. The records behind the hole decide: each holds how much of the log was durable
//! when it was written. So after the first broken record every header behind it is looked at, and if one of them says
//! that the broken record was durable, the log is damaged there.
//!
//! So damage within the last synced group, without later records, cannot be told from a torn end. A sealed log has no
//! such group.
//!
//! While the page cache through which a file was written still exists, no byte of it was lost, synced or not. A process
//! that is killed within a write leaves the first part of that write. So the bytes behind the whole records must be
//! such a part, and everything else is damage.
//!
//! A file with room is longer than the appended bytes, and zeros follow them. So zeros at its end are ignored, and an
//! append that a killed process had begun is the first part of a record before them: bytes that were not stored are
//! zeros.

use std::ops::Range;
use std::path::Path;

use terrace_base::{Error, Result};
use terrace_disk::{Access, Fs, ROOM_UNIT_BYTES};

use crate::frame::{Origin, RECORD_HEADER_BYTES, Record, RecordHeader, decode_record, find_header, seed_of};
use crate::frame::{RecordKind, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, SegmentHeader, VERSION};

/// How a log ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// With its last record.
    Clean,
    /// With bytes that are not a record and were not acknowledged as durable.
    Torn {
        /// Where the whole records end.
        at: u64,
        /// How many bytes follow.
        dropped: u64,
    },
}

/// Is called with each record: its lsn and its payload. An error ends the reading.
pub type Visit<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// Reads logs.
#[derive(Debug)]
pub struct LogReader;

impl LogReader {
    /// Hands every record of the segment `id` in `data` to `visit`, in order.
    ///
    /// # Errors
    ///
    /// `Corruption` where a record or the header is damaged, after the records before it have been
    /// visited, and where the segment is another one; `InvalidFormat` for a version not known.
    /// `path` is for those errors.
    pub fn read_file(data: &[u8], path: &Path, id: u64, visit: &mut Visit<'_>) -> Result<Tail> {
        Ok(Self::outline(data, path, id, visit)?.tail)
    }

    /// As [`read_file`](Self::read_file), with a more detailed result.
    pub fn outline(data: &[u8], path: &Path, id: u64, visit: &mut Visit<'_>) -> Result<Outline> {
        Self::outline_in(data, path, id, 0, visit)
    }

    /// As [`outline`](Self::outline), where the files are now read through the page cache `epoch`: if they were written
    /// through it, too, only the unfinished write of a killed process may be missing.
    pub fn outline_in(
        data: &[u8],
        path: &Path,
        id: u64,
        epoch: u64,
        visit: &mut Visit<'_>,
    ) -> Result<Outline> {
        let Some(header) = check_header(data, path, id)? else {
            return Ok(Outline { tail: torn(data, 0), ..Outline::NONE });
        };
        let seed = seed_of(id);
        let (mut end, mut records, mut sealed, mut durable) = (SEGMENT_HEADER_BYTES, 0, false, 0);
        while !sealed {
            let Some(record) = decode_record(&data[end..], seed).filter(|r| r.header.ordinal == records)
            else {
                break;
            };
            match record.header.kind {
                RecordKind::Data => visit(header.first_lsn + u64::from(records), record.payload)?,
                RecordKind::End => sealed = true,
            }
            durable = record.header.durable;
            end += record.header.record_bytes();
            records += 1;
        }
        // From here on no header lies behind the last byte that is not zero.
        let written = &data[..end + without_zeros(&data[end..])];
        if end < written.len() {
            check_tail(written, path, end, records, seed)?;
        }
        // The length of a cut file shows that it has no room: zeros there stand for lost bytes.
        let has_room = header.has_room && (data.len() as u64).is_multiple_of(ROOM_UNIT_BYTES);
        let filled = if has_room || (header.has_room && sealed) { written } else { data };
        if end < filled.len() && header.origin.epoch != 0 && header.origin.epoch == epoch {
            check_unbroken_tail(filled, path, end, (records, sealed), seed)?;
        }
        Ok(Outline {
            tail: torn(filled, end),
            first_lsn: Some(header.first_lsn),
            records,
            end: end as u64,
            sealed,
            synced: if sealed { records } else { durable.saturating_sub(1) },
            origin: header.origin,
        })
    }

    /// Hands every record of the segment `id` that is whole to `visit`, in order, those behind damage too: for repairs.
    /// Returns the bytes between whole records, which are damaged; the bytes behind the last one may also be torn.
    pub fn salvage(
        data: &[u8],
        id: u64,
        visit: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Vec<Range<u64>>> {
        let seed = seed_of(id);
        let (mut end, mut next, mut damaged) = (SEGMENT_HEADER_BYTES, 0, Vec::new());
        while let Some((at, record)) = find_record(data, end, next, seed) {
            if at > end {
                damaged.push(end as u64..at as u64);
            }
            if record.header.kind == RecordKind::Data {
                visit(record.payload)?;
            }
            end = at + record.header.record_bytes();
            next = record.header.ordinal.saturating_add(1);
        }
        Ok(damaged)
    }

    /// Reads the log file that [`create_log_file`](crate::create_log_file) made at `path`.
    ///
    /// It is made durable first, since unsynced records of a dead process are read here and acted upon. That is no
    /// proof, though: if a sync had failed in that process, this one may succeed without effect. A caller that must be
    /// sure writes the records to another file.
    ///
    /// # Errors
    ///
    /// `Corruption` as above, and where the header, which was durable before the file had its name, is not whole.
    pub fn recover(fs: &dyn Fs, path: &Path, id: u64, visit: &mut Visit<'_>) -> Result<Outline> {
        fs.sync_file(path)?;
        Self::look(fs, path, id, visit)
    }

    /// Where the log file at `path` comes from, by its header alone; `None` if that is not whole.
    ///
    /// # Errors
    ///
    /// `InvalidFormat` for a version not known.
    pub fn origin(fs: &dyn Fs, path: &Path) -> Result<Option<Origin>> {
        let file = fs.open(path, Access::Sequential)?;
        let mut head = vec![0; SEGMENT_HEADER_BYTES.min(file.len() as usize)];
        file.read_at(0, &mut head)?;
        match SegmentHeader::decode(&head) {
            Some((VERSION, header)) => Ok(Some(header.origin)),
            Some((version, _)) => Err(other_version(path, version, VERSION)),
            None => Ok(None),
        }
    }

    /// As [`recover`](Self::recover), and changes nothing.
    pub fn look(fs: &dyn Fs, path: &Path, id: u64, visit: &mut Visit<'_>) -> Result<Outline> {
        let data = fs.read(path)?;
        let epoch = fs.epoch(path.parent().unwrap_or(Path::new("")));
        let outline = Self::outline_in(&data, path, id, epoch, visit)?;
        if outline.first_lsn.is_none() {
            let found = format!("{} bytes without it", data.len());
            return Err(Error::corruption(path, 0, "the header of a log file", found));
        }
        Ok(outline)
    }
}

/// A log as far as it could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outline {
    /// How it ended.
    pub tail: Tail,
    /// The lsn of its first record; `None` if not even the segment's header was finished.
    pub first_lsn: Option<u64>,
    /// Whole records, an end record included.
    pub records: u32,
    /// Where they end, in bytes.
    pub end: u64,
    /// Whether it was sealed, after which nothing can have been torn.
    pub sealed: bool,
    /// How many of its first records were durable when the last one was written; all if it was sealed.
    pub synced: u32,
    /// Where it comes from.
    pub origin: Origin,
}

impl Outline {
    /// For a log that was never begun.
    const NONE: Outline = Outline {
        tail: Tail::Clean,
        first_lsn: None,
        records: 0,
        end: 0,
        sealed: false,
        synced: 0,
        origin: Origin { epoch: 0, database: 0 },
    };
}

/// How many bytes `data` has without the zeros at its end.
fn without_zeros(data: &[u8]) -> usize {
    const STEP: usize = 64;
    let mut len = data.len();
    // Megabytes of room are skipped in large steps.
    while len >= STEP && data[len - STEP..len] == [0; STEP] {
        len -= STEP;
    }
    data[..len].iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1)
}

fn torn(data: &[u8], at: usize) -> Tail {
    match data.len() - at {
        0 if at > 0 => Tail::Clean,
        dropped => Tail::Torn { at: at as u64, dropped: dropped as u64 },
    }
}

/// The first whole record at or after `from` whose ordinal is not below `least`, and where it starts.
fn find_record(data: &[u8], from: usize, least: u32, seed: u32) -> Option<(usize, Record<'_>)> {
    let mut from = from;
    loop {
        let (at, _) = find_header(data, from, seed)?;
        if let Some(record) = decode_record(&data[at..], seed).filter(|r| r.header.ordinal >= least) {
            return Some((at, record));
        }
        from = at + 1;
    }
}

/// The segment's header; `None` if it was never finished.
fn check_header(data: &[u8], path: &Path, id: u64) -> Result<Option<SegmentHeader>> {
    match SegmentHeader::decode(data) {
        Some((VERSION, header)) if header.id != id => {
            let (expected, found) = (format!("log segment {id:#x}"), format!("segment {:#x}", header.id));
            Err(Error::corruption(path, 0, expected, found))
        }
        Some((VERSION, header)) if header.first_lsn >= 1 << 63 => {
            Err(Error::corruption(path, 24, "an lsn below 2^63", header.first_lsn.to_string()))
        }
        Some((VERSION, header)) => Ok(Some(header)),
        Some((version, _)) => Err(other_version(path, version, VERSION)),
        None => check_unfinished(data, path, id).map(|()| None),
    }
}

/// The error for a sound header of `version`, where only `supported` is read.
pub(crate) fn other_version(path: &Path, version: u32, supported: u32) -> Error {
    Error::other_version(path, format!("log version {version}"), format!("version {supported}"))
}

/// Headers are made durable before the first record: a record behind a broken one proves damage.
fn check_unfinished(data: &[u8], path: &Path, id: u64) -> Result<()> {
    match find_header(data, 0, seed_of(id)) {
        None => Ok(()),
        Some((at, _)) => {
            let magic = String::from_utf8_lossy(&SEGMENT_MAGIC).into_owned();
            let found = format!("a broken header before the record at byte {at}");
            Err(Error::corruption(path, 0, format!("a {magic} header"), found))
        }
    }
}

/// Fails if the bytes behind the whole records are not the first part of one more.
fn check_unbroken_tail(
    data: &[u8],
    path: &Path,
    end: usize,
    (records, sealed): (u32, bool),
    seed: u32,
) -> Result<()> {
    let rest = &data[end..];
    let begun = || RecordHeader::decode(rest, seed).filter(|h| h.ordinal == records);
    let unfinished =
        rest.len() < RECORD_HEADER_BYTES || begun().is_some_and(|h| h.record_bytes() > rest.len());
    if unfinished && !sealed {
        return Ok(());
    }
    let expected =
        if sealed { "the end of a sealed log".into() } else { format!("record {records} of the segment") };
    let found = format!("{} bytes of something else, and no power cut since they were written", rest.len());
    Err(Error::corruption(path, end as u64, expected, found))
}

/// Fails if a header behind `end` knows the record `broken`, which should start there, for durable.
fn check_tail(data: &[u8], path: &Path, end: usize, broken: u32, seed: u32) -> Result<()> {
    // There are no headers within a payload of known length, even if its bytes look like one.
    let within = RecordHeader::decode(&data[end..], seed).filter(|h| h.ordinal == broken);
    let mut from = end.saturating_add(within.map_or(0, |h| h.record_bytes()));
    while let Some((at, later)) = find_header(data, from, seed) {
        // The broken record was durable if the header and records 0..=broken were.
        if later.ordinal >= broken && u64::from(later.durable) >= u64::from(broken) + 2 {
            let expected = format!("record {broken} of the segment, durable before record {}", later.ordinal);
            let found = format!("no such record, and record {} at byte {at}", later.ordinal);
            return Err(Error::corruption(path, end as u64, expected, found));
        }
        from = at + 1;
    }
    Ok(())
}
