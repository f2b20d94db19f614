//! The bytes of a segment header and of a record (`docs/formats/log.md`).
//!
//! A record's header is checked apart from its payload, so that its length may be trusted when the
//! payload is torn, and so that a search for later records need look at headers alone. Both checks
//! are seeded with the segment's id: bytes of another segment are never a record of this one.

use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::codec::Reader;
use terrace_base::{Error, Result};

/// Bytes of the header at the front of every segment.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;

/// Bytes of the header of version 1, which is only refused.
const FIRST_HEADER_BYTES: usize = 32;

/// Bytes of the header in front of every payload.
pub(crate) const RECORD_HEADER_BYTES: usize = 24;

/// The first bytes of every segment.
pub(crate) const SEGMENT_MAGIC: [u8; 8] = *b"TERRALOG";

/// The version of the format written here, and the only one read.
pub(crate) const VERSION: u32 = 2;

/// The last bytes of every record header; a search looks for them.
const MARKER: [u8; 3] = *b"TLG";

/// Where the marker lies within the record header.
const MARKER_AT: usize = RECORD_HEADER_BYTES - MARKER.len();

/// The sort of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// A payload.
    Data = 1,
    /// The segment's end: nothing follows, and all records before it were durable.
    End = 2,
}

/// The origin of a segment. Zero means not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// The page cache that it was written through, as [`Fs::epoch`](terrace_disk::Fs::epoch) names it.
    pub epoch: u64,
    /// The database that it belongs to.
    pub database: u64,
}

/// The front of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) id: u64,
    pub(crate) first_lsn: u64,
    pub(crate) origin: Origin,
    /// Whether the segment may be longer than the appended bytes, with zeros behind them.
    pub(crate) has_room: bool,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[0..8].copy_from_slice(&SEGMENT_MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        out[24..32].copy_from_slice(&self.first_lsn.to_le_bytes());
        out[32..40].copy_from_slice(&self.origin.epoch.to_le_bytes());
        out[40..48].copy_from_slice(&self.origin.database.to_le_bytes());
        out[48] = u8::from(self.has_room);
        let check = header_check(&out);
        out[12..16].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// The version and the header, if these bytes are a header of any version.
    pub(crate) fn decode(data: &[u8]) -> Option<(u32, SegmentHeader)> {
        let mut fields = Reader::new(data);
        let magic = fields.take(8)?;
        let (version, check) = (fields.u32()?, fields.u32()?);
        let (id, first_lsn) = (fields.u64()?, fields.u64()?);
        let front = data.get(..if version == 1 { FIRST_HEADER_BYTES } else { SEGMENT_HEADER_BYTES })?;
        if magic != SEGMENT_MAGIC || check != header_check(front) {
            return None;
        }
        let (mut origin, mut has_room) = (Origin::default(), false);
        if version != 1 {
            origin = Origin { epoch: fields.u64()?, database: fields.u64()? };
            has_room = fields.u8()? != 0;
        }
        Some((version, SegmentHeader { id, first_lsn, origin, has_room }))
    }
}

/// The check covers everything but itself.
fn header_check(front: &[u8]) -> u32 {
    crc32c_append(crc32c(&front[..12]), &front[16..])
}

/// A record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    /// Bytes of payload.
    pub(crate) len: u32,
    /// The record's place in the segment, from 0.
    pub(crate) ordinal: u32,
    /// How much was durable when this record was written: 0 nothing, 1 the segment's header, and
    /// one more for every record.
    pub(crate) durable: u32,
    pub(crate) kind: RecordKind,
    payload_check: u32,
    check: u32,
}

/// A record found whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) header: RecordHeader,
    pub(crate) payload: &'a [u8],
}

/// The seed of the checks of a segment's records.
pub(crate) fn seed_of(id: u64) -> u32 {
    crc32c(&id.to_le_bytes())
}

/// Appends a whole record to `out`.
pub(crate) fn put_record(
    out: &mut Vec<u8>,
    seed: u32,
    (ordinal, durable): (u32, u32),
    kind: RecordKind,
    payload: &[u8],
) -> Result<()> {
    let len = u32::try_from(payload.len()).map_err(|_| {
        Error::invalid(format!("a log record of {} bytes; 4 GiB is the limit", payload.len()))
    })?;
    let mut header = [0; RECORD_HEADER_BYTES];
    header[8..12].copy_from_slice(&len.to_le_bytes());
    header[12..16].copy_from_slice(&ordinal.to_le_bytes());
    header[16..20].copy_from_slice(&durable.to_le_bytes());
    header[20] = kind as u8;
    header[MARKER_AT..].copy_from_slice(&MARKER);
    // The header's check covers the payload's, so that neither can be another record's.
    let payload_check = crc32c_append(seed, payload);
    header[4..8].copy_from_slice(&payload_check.to_le_bytes());
    let check = crc32c_append(seed, &header[4..]);
    header[0..4].copy_from_slice(&check.to_le_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(payload);
    Ok(())
}

impl RecordHeader {
    /// The header at the front of `data`, if its check is right.
    pub(crate) fn decode(data: &[u8], seed: u32) -> Option<RecordHeader> {
        let front = data.get(..RECORD_HEADER_BYTES)?;
        if front[MARKER_AT..] != MARKER {
            return None;
        }
        let mut fields = Reader::new(front);
        let (check, payload_check) = (fields.u32()?, fields.u32()?);
        let (len, ordinal, durable) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let kind = match fields.u8()? {
            1 => RecordKind::Data,
            2 => RecordKind::End,
            _ => return None,
        };
        let header = RecordHeader { len, ordinal, durable, kind, payload_check, check };
        (crc32c_append(seed, &front[4..]) == check).then_some(header)
    }

    /// Bytes of the whole record.
    pub(crate) fn record_bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.len as usize
    }
}

/// The record at the front of `data`, if it is there whole.
pub(crate) fn decode_record(data: &[u8], seed: u32) -> Option<Record<'_>> {
    let header = RecordHeader::decode(data, seed)?;
    let payload = data.get(RECORD_HEADER_BYTES..header.record_bytes())?;
    (crc32c_append(seed, payload) == header.payload_check).then_some(Record { header, payload })
}

/// The first record header at or after `from`, and where it starts.
pub(crate) fn find_header(data: &[u8], from: usize, seed: u32) -> Option<(usize, RecordHeader)> {
    let mut at = from.checked_add(MARKER_AT)?;
    loop {
        at += data.get(at..)?.iter().position(|&b| b == MARKER[0])?;
        let start = at - MARKER_AT;
        if let Some(header) = RecordHeader::decode(&data[start..], seed) {
            return Some((start, header));
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_segment_header() {
        let origin = Origin { epoch: 0x0201, database: 0x0403 };
        let header = SegmentHeader { id: 7, first_lsn: 100, origin, has_room: false };
        let bytes = header.encode();
        assert_eq!(&bytes[..12], b"TERRALOG\x02\0\0\0");
        assert_eq!(bytes[12..16], GOLDEN_SEGMENT_CHECK);
        assert_eq!(&bytes[16..32], b"\x07\0\0\0\0\0\0\0\x64\0\0\0\0\0\0\0");
        assert_eq!(&bytes[32..48], b"\x01\x02\0\0\0\0\0\0\x03\x04\0\0\0\0\0\0");
        assert_eq!(bytes[48..], [0; 16]);
        assert_eq!(SegmentHeader::decode(&bytes), Some((VERSION, header)));
        let with_room = SegmentHeader { has_room: true, ..header };
        assert_eq!(with_room.encode()[48], 1);
        assert_eq!(SegmentHeader::decode(&with_room.encode()), Some((VERSION, with_room)));
    }

    /// Only the version is read from a header of version 1.
    #[test]
    fn the_first_version_is_known_by_its_header() {
        let mut bytes = [0; FIRST_HEADER_BYTES];
        bytes[..12].copy_from_slice(b"TERRALOG\x01\0\0\0");
        bytes[16..32].copy_from_slice(b"\x07\0\0\0\0\0\0\0\x64\0\0\0\0\0\0\0");
        bytes[12..16].copy_from_slice(&[0x6f, 0x6a, 0x25, 0x14]);
        assert_eq!(SegmentHeader::decode(&bytes).unwrap().0, 1);
    }

    #[test]
    fn golden_record() {
        let mut out = Vec::new();
        put_record(&mut out, seed_of(7), (2, 1), RecordKind::Data, b"put k v").unwrap();
        assert_eq!(out[..8], GOLDEN_RECORD_CHECKS);
        assert_eq!(&out[8..], b"\x07\0\0\0\x02\0\0\0\x01\0\0\0\x01TLGput k v");
        let record = decode_record(&out, seed_of(7)).unwrap();
        assert_eq!(record.payload, b"put k v");
        assert_eq!((record.header.ordinal, record.header.durable), (2, 1));
    }

    #[test]
    fn another_segments_record_is_none() {
        let mut out = Vec::new();
        put_record(&mut out, seed_of(7), (2, 1), RecordKind::Data, b"put k v").unwrap();
        assert!(decode_record(&out, seed_of(8)).is_none());
        assert!(RecordHeader::decode(&out, seed_of(8)).is_none());
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_none() {
        let mut out = Vec::new();
        put_record(&mut out, seed_of(7), (2, 1), RecordKind::Data, b"put k v").unwrap();
        for bit in 0..out.len() * 8 {
            let mut bad = out.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_record(&bad, seed_of(7)).is_none(), "bit {bit}");
        }
        for len in 0..out.len() {
            assert!(decode_record(&out[..len], seed_of(7)).is_none());
        }
    }

    #[test]
    fn a_search_finds_headers_among_anything() {
        let mut out = b"TTLGTLGT".repeat(20);
        let at = out.len();
        put_record(&mut out, seed_of(7), (2, 1), RecordKind::Data, b"TLGTLG").unwrap();
        assert_eq!(find_header(&out, 0, seed_of(7)).unwrap().0, at);
        assert_eq!(find_header(&out, at, seed_of(7)).unwrap().0, at);
        assert!(find_header(&out, at + 1, seed_of(7)).is_none());
        assert!(find_header(&out, 0, seed_of(9)).is_none());
        assert!(find_header(&out, usize::MAX, seed_of(7)).is_none());
    }

    const GOLDEN_SEGMENT_CHECK: [u8; 4] = [0xf1, 0x9b, 0xa7, 0x25];
    const GOLDEN_RECORD_CHECKS: [u8; 8] = [0x84, 0x76, 0x3f, 0x02, 0x3c, 0xcf, 0x93, 0xe5];
}
