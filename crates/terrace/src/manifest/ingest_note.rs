//! What says that an ingest is taking place: the file `NNNNNN.ingest`, named after the first of its tables.
//!
//! It is durable before the first of them gets its name, and goes when the manifest names them or when those are gone
//! that it does not name. So tables that a manifest does not name are worthless if a note tells of them, and no sign that
//! the manifest has lost its end.

use std::path::Path;

use terrace_base::Result;
use terrace_base::checksum::crc32c;
use terrace_base::codec::{Reader, put_varint};
use terrace_disk::{Access, Fs};
use terrace_table::{BlockCache, Table, TableMeta};

use super::files::{self, FileName};

/// Bytes before the numbers: a checksum of what follows, and the origin.
const HEAD_BYTES: usize = 12;

/// One ingest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IngestNote {
    /// The database that it is of.
    pub origin: u64,
    /// The sequence number of all its entries.
    pub seq: u64,
    /// The numbers of its tables.
    pub tables: Vec<u64>,
}

impl IngestNote {
    pub fn encode(&self) -> Vec<u8> {
        let mut body = self.origin.to_le_bytes().to_vec();
        std::iter::once(&self.seq).chain(&self.tables).for_each(|number| put_varint(&mut body, *number));
        [&crc32c(&body).to_le_bytes()[..], &body].concat()
    }

    /// `None` for other bytes: a note that was cut short, before any of its tables got a name, or a damaged one.
    fn decode(bytes: &[u8]) -> Option<IngestNote> {
        let (head, numbers) = bytes.split_at_checked(HEAD_BYTES)?;
        let (crc, origin) = head.split_first_chunk()?;
        let origin = u64::from_le_bytes(origin.try_into().ok()?);
        let mut reader = Reader::new(numbers);
        let seq = reader.varint()?;
        let tables = std::iter::from_fn(|| (!reader.is_empty()).then(|| reader.varint()));
        let tables = tables.collect::<Option<Vec<u64>>>()?;
        (u32::from_le_bytes(*crc) == crc32c(&bytes[4..])).then_some(IngestNote { origin, seq, tables })
    }
}

/// All notes of a directory.
#[derive(Debug, Default)]
pub(crate) struct IngestNotes(Vec<IngestNote>);

impl IngestNotes {
    pub fn read(fs: &dyn Fs, dir: &Path) -> Result<IngestNotes> {
        let mut notes = Vec::new();
        for name in files::list(fs, dir)?.0.into_iter().filter(|name| matches!(name, FileName::Ingest(_))) {
            notes.extend(IngestNote::decode(&fs.read(&name.path(dir))?));
        }
        Ok(IngestNotes(notes))
    }

    /// Whether a table that says of itself that it is this one is told of.
    pub fn tell_of(&self, origin: u64, meta: &TableMeta) -> bool {
        self.of(origin, meta.number).any(|note| (meta.min_seq, meta.max_seq) == (note.seq, note.seq))
    }

    /// The same for the table in the file at `path`, which has this origin and number. One that cannot be read is told of
    /// if its number is.
    pub fn tell_of_file(&self, fs: &dyn Fs, path: &Path, (number, origin): (u64, u64)) -> Result<bool> {
        if self.of(origin, number).next().is_none() {
            return Ok(false);
        }
        match Table::open(fs, path, number, BlockCache::new(0).into(), Access::Random) {
            Ok(table) => Ok(self.tell_of(origin, table.meta())),
            Err(error) if error.is_system_failure() => Err(error),
            Err(_) => Ok(true),
        }
    }

    fn of(&self, origin: u64, number: u64) -> impl Iterator<Item = &IngestNote> {
        self.0.iter().filter(move |note| note.origin == origin && note.tables.contains(&number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_golden_and_every_cut_and_flip_is_found() {
        let note = IngestNote { origin: 0x0102_0304_0506_0708, seq: 300, tables: vec![12, 300] };
        let bytes = note.encode();
        assert_eq!(bytes[4..], [8, 7, 6, 5, 4, 3, 2, 1, 0xac, 2, 12, 0xac, 2]);
        assert_eq!(IngestNote::decode(&bytes), Some(note));
        assert!((0..bytes.len()).all(|len| IngestNote::decode(&bytes[..len]).is_none()));
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(IngestNote::decode(&other), None, "bit {bit}");
        }
    }

    #[test]
    fn a_note_tells_of_its_own_tables_alone() {
        let note = |origin, seq| IngestNote { origin, seq, tables: vec![12, 13] };
        let notes = IngestNotes(vec![note(7, 300), note(7, 400)]);
        let tells = |origin, number, (min_seq, max_seq)| {
            notes.tell_of(origin, &TableMeta { number, min_seq, max_seq, ..TableMeta::default() })
        };
        assert!(tells(7, 12, (300, 300)) && tells(7, 13, (400, 400)));
        assert!(!tells(8, 12, (300, 300)), "another database's");
        assert!(!tells(7, 14, (300, 300)), "no table of it");
        assert!(!tells(7, 12, (300, 400)) && !tells(7, 12, (500, 500)), "a later table of this number");
    }
}
