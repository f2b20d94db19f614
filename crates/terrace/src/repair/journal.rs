//! The record of a repair that is done but for putting its files in place: `docs/formats/repair.md` has its bytes.
//!
//! It is written as one file and takes its name by a rename. From then on the repair has happened: whoever finds it puts
//! the rest in place, however often it is begun again.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use terrace_base::checksum::crc32c;
use terrace_base::codec::{Reader, put_bytes, put_varint};
use terrace_base::{Error, Result};

use crate::manifest::REPAIR_RECORD;

const MAGIC: [u8; 8] = *b"TERREPAR";
const VERSION: u32 = 1;

/// Bytes before the body: the magic, the version and the checksum of the body.
const HEAD_BYTES: usize = 16;

/// What is left to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Journal {
    /// The manifest that is to be in force.
    pub manifest: u64,
    /// Files, by their paths in the directory, and the names they are to have, too.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Names in the directory that are to go.
    pub removes: Vec<PathBuf>,
    /// The pool's place, if another is to lie there or none.
    pub pool: Option<PoolMove>,
    /// What could not be brought back.
    pub lost: Vec<String>,
}

/// What becomes of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolMove {
    /// Where it lies or is to lie.
    pub place: PathBuf,
    /// The one that is to lie there; none is to, without.
    pub new: Option<PathBuf>,
    /// Where the one that was there goes; without, it is given up.
    pub aside: Option<PathBuf>,
}

impl Journal {
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_varint(&mut body, self.manifest);
        put_varint(&mut body, self.links.len() as u64);
        for (from, to) in &self.links {
            put_path(&mut body, from);
            put_path(&mut body, to);
        }
        put_varint(&mut body, self.removes.len() as u64);
        self.removes.iter().for_each(|name| put_path(&mut body, name));
        put_varint(&mut body, u64::from(self.pool.is_some()));
        if let Some(pool) = &self.pool {
            put_path(&mut body, &pool.place);
            // No path is empty.
            put_path(&mut body, pool.new.as_deref().unwrap_or(Path::new("")));
            put_path(&mut body, pool.aside.as_deref().unwrap_or(Path::new("")));
        }
        put_varint(&mut body, self.lost.len() as u64);
        self.lost.iter().for_each(|line| put_bytes(&mut body, line.as_bytes()));
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend(crc32c(&body).to_le_bytes());
        out.extend(body);
        out
    }

    /// The record in `data`, the contents of `path`.
    pub fn decode(path: &Path, data: &[u8]) -> Result<Journal> {
        let damaged = |found: &str| Error::corruption(path, 0, "the record of a repair", found);
        let (head, body) = data.split_at_checked(HEAD_BYTES).ok_or_else(|| damaged("too few bytes"))?;
        if head[..8] != MAGIC {
            return Err(damaged("another magic"));
        }
        if head[8..12] != VERSION.to_le_bytes() {
            return Err(Error::InvalidFormat {
                file: path.to_path_buf(),
                found: format!("version {}", u32::from_le_bytes([head[8], head[9], head[10], head[11]])),
                supported: format!("version {VERSION}"),
            });
        }
        if head[12..] != crc32c(body).to_le_bytes() {
            return Err(damaged("another checksum"));
        }
        decode_body(body).ok_or_else(|| damaged("bytes that do not decode"))
    }
}

/// Decodes what may be a record, for the fuzzer; what decodes must be encoded to what decodes to the same.
pub(crate) fn decode_record(data: &[u8]) {
    if let Ok(journal) = Journal::decode(Path::new(REPAIR_RECORD), data) {
        let again = Journal::decode(Path::new(REPAIR_RECORD), &journal.encode());
        assert!(again.is_ok_and(|again| again == journal));
    }
}

/// A record with one of everything.
pub(crate) fn sound_record() -> Vec<u8> {
    let pool = PoolMove { place: "/p".into(), new: Some("/p.repair".into()), aside: None };
    let journal = Journal {
        manifest: 9,
        links: vec![("repair/000012.sst".into(), "000012.sst".into())],
        removes: vec!["000003.log".into()],
        pool: Some(pool),
        lost: vec!["x".into()],
    };
    journal.encode()
}

fn decode_body(body: &[u8]) -> Option<Journal> {
    let mut r = Reader::new(body);
    let mut journal = Journal { manifest: r.varint()?, ..Journal::default() };
    for _ in 0..r.varint()? {
        journal.links.push((path_of(&mut r)?, path_of(&mut r)?));
    }
    for _ in 0..r.varint()? {
        journal.removes.push(path_of(&mut r)?);
    }
    if r.varint()? == 1 {
        let some = |path: PathBuf| Some(path).filter(|path| !path.as_os_str().is_empty());
        let place = path_of(&mut r)?;
        journal.pool = Some(PoolMove { place, new: some(path_of(&mut r)?), aside: some(path_of(&mut r)?) });
    }
    for _ in 0..r.varint()? {
        journal.lost.push(String::from_utf8(r.bytes()?.to_vec()).ok()?);
    }
    r.is_empty().then_some(journal)
}

fn put_path(out: &mut Vec<u8>, path: &Path) {
    put_bytes(out, path.as_os_str().as_bytes());
}

fn path_of(r: &mut Reader<'_>) -> Option<PathBuf> {
    Some(PathBuf::from(OsStr::from_bytes(r.bytes()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_and_every_flip_is_found() {
        let bytes = sound_record();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, GOLDEN);
        let journal = Journal::decode(Path::new("r"), &bytes).unwrap();
        assert_eq!((journal.encode(), journal.pool.is_some()), (bytes.clone(), true));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Journal::decode(Path::new("r"), &flipped).is_err(), "bit {bit}");
        }
        (0..bytes.len()).for_each(|len| assert!(Journal::decode(Path::new("r"), &bytes[..len]).is_err()));
    }

    const GOLDEN: &str = "544552524550415201000000ccfa97100901117265706169722f3030303031322e7373740a3030303031322e737374010a3030303030332e6c6f6701022f70092f702e72657061697200010178";
}
