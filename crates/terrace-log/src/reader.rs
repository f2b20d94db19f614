//! Reading a log back, and telling a torn tail from damage.
//!
//! After a power cut the records after the last sync may be there in any part: torn, missing,
//! whole behind a hole. None of them was promised, and the log ends before the first that is not
//! whole. A record that *was* synced and is not whole is damage. Which it is, the records behind
//! the hole say: each holds how much of the log was durable when it was written. So after the first
//! broken record every header behind it is looked at, and if one of them knows the broken record
//! to have been durable, the log is damaged there.
//!
//! What cannot be told apart, then, is damage within the very last group synced and nothing written
//! after it. A sealed log has no such group.

use std::ops::Range;
use std::path::Path;

use terrace_base::{Error, Result};
use terrace_disk::Fs;

use crate::frame::{Record, RecordHeader, decode_record, find_header, seed_of};
use crate::frame::{RecordKind, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, SegmentHeader, VERSION};

/// How a log ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// With its last record.
    Clean,
    /// With bytes that are no record and of which none was promised.
    Torn {
        /// Where the whole records end.
        at: u64,
        /// How many bytes follow.
        dropped: u64,
    },
}

/// What each record is handed to: its lsn and its payload. An error ends the reading.
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

    /// As [`read_file`](Self::read_file), and says more of what was found.
    pub fn outline(data: &[u8], path: &Path, id: u64, visit: &mut Visit<'_>) -> Result<Outline> {
        let Some(header) = check_header(data, path, id)? else {
            return Ok(Outline { tail: torn(data, 0), first_lsn: None, records: 0, end: 0, sealed: false });
        };
        let seed = seed_of(id);
        let (mut end, mut records, mut sealed) = (SEGMENT_HEADER_BYTES, 0, false);
        while !sealed {
            let Some(record) = decode_record(&data[end..], seed).filter(|r| r.header.ordinal == records)
            else {
                break;
            };
            match record.header.kind {
                RecordKind::Data => visit(header.first_lsn + u64::from(records), record.payload)?,
                RecordKind::End => sealed = true,
            }
            end += record.header.record_bytes();
            records += 1;
        }
        if end < data.len() {
            check_tail(data, path, end, records, seed)?;
        }
        let first_lsn = Some(header.first_lsn);
        Ok(Outline { tail: torn(data, end), first_lsn, records, end: end as u64, sealed })
    }

    /// Hands every record of the segment `id` that is whole to `visit`, in order, those behind damage too:
    /// for repairs. Returns the bytes between whole records, which are damaged; what lies behind the last one
    /// may have been torn as well.
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

    /// Reads the log at `path`, having made it durable first: what a dead process left unsynced is
    /// read here and acted upon, so a power cut must not take it afterwards.
    pub fn recover(fs: &dyn Fs, path: &Path, id: u64, visit: &mut Visit<'_>) -> Result<Tail> {
        fs.sync_file(path)?;
        Self::read_file(&fs.read(path)?, path, id, visit)
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
        Some((version, _)) => Err(Error::InvalidFormat {
            file: path.to_path_buf(),
            found: format!("log version {version}"),
            supported: format!("version {VERSION}"),
        }),
        None => check_unfinished(data, path, id).map(|()| None),
    }
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

/// Fails if a header behind `end` knows the record `broken`, which should start there, for durable.
fn check_tail(data: &[u8], path: &Path, end: usize, broken: u32, seed: u32) -> Result<()> {
    // Within a payload whose length is known there are no headers, whatever its bytes look like.
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
