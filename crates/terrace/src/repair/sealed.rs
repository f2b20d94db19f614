//! Small files of a repair: a magic, the format's version and a checksum before a body.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::codec::{Reader, put_bytes};
use terrace_base::{Error, Result};
use terrace_disk::{Access, Fs};

/// Bytes before the body: the magic, the version and the checksum of both and of the body.
const HEAD_BYTES: usize = 16;

/// The last version whose checksum did not cover it. Its bodies are those of the present version, so that a repair
/// that an earlier build began can be ended.
const UNCOVERED: u32 = 2;

/// No such file is longer: the names of a million files are shorter.
const MOST_BYTES: u64 = 64 << 20;

/// A sort of such files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sort {
    pub magic: [u8; 8],
    pub version: u32,
    /// The sort's name, for messages.
    pub what: &'static str,
}

impl Sort {
    pub fn seal(&self, body: &[u8]) -> Vec<u8> {
        let front = [&self.magic[..], &self.version.to_le_bytes()].concat();
        [&front[..], &crc(&front, body).to_le_bytes(), body].concat()
    }

    pub fn damaged(&self, path: &Path, found: &str) -> Error {
        Error::corruption(path, 0, self.what, found)
    }

    /// The body of `data`, the contents of `path`.
    pub fn unseal<'d>(&self, path: &Path, data: &'d [u8]) -> Result<&'d [u8]> {
        let damaged = |found| Err(self.damaged(path, found));
        let Some((head, body)) = data.split_at_checked(HEAD_BYTES) else { return damaged("too few bytes") };
        if head[..8] != self.magic {
            return damaged("another magic");
        }
        let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        // A version says nothing before the checksum holds. The first two did not cover themselves.
        let own = if version <= UNCOVERED { crc32c(body) } else { crc(&head[..12], body) };
        if head[12..] != own.to_le_bytes() {
            return damaged("another checksum");
        }
        if version != self.version && version != UNCOVERED {
            return Err(Error::other_version(
                path,
                format!("version {version}"),
                format!("versions {UNCOVERED} and {}", self.version),
            ));
        }
        Ok(body)
    }

    /// Reads a file of this sort.
    pub fn read(&self, fs: &dyn Fs, path: &Path) -> Result<Vec<u8>> {
        match fs.open(path, Access::Sequential)?.len() {
            0..=MOST_BYTES => fs.read(path),
            _ => Err(self.damaged(path, "more bytes than any has")),
        }
    }
}

/// The checksum of the magic, the version and the body.
fn crc(front: &[u8], body: &[u8]) -> u32 {
    crc32c_append(crc32c(front), body)
}

pub(super) fn put_path(out: &mut Vec<u8>, path: &Path) {
    put_bytes(out, path.as_os_str().as_bytes());
}

pub(super) fn path_of(r: &mut Reader<'_>) -> Option<PathBuf> {
    Some(PathBuf::from(OsStr::from_bytes(r.bytes()?)))
}

/// A path; `None` for an empty one.
pub(super) fn some_path(path: PathBuf) -> Option<PathBuf> {
    Some(path).filter(|path| !path.as_os_str().is_empty())
}

/// Asserts that `bytes` are those of the page in `docs/formats`, that they are damage with any bit flipped or
/// cut short, that they are read if they are sound and of version 2, and refused by name if of another version.
#[cfg(test)]
pub(super) fn assert_golden(bytes: &[u8], golden: &str, decode: impl Fn(&[u8]) -> Result<()>) {
    use terrace_base::ErrorKind;

    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, golden);
    decode(bytes).unwrap();
    let kind = |bytes: &[u8]| decode(bytes).unwrap_err().kind();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(kind(&flipped), ErrorKind::Corruption, "bit {bit}");
    }
    (0..bytes.len()).for_each(|len| assert_eq!(kind(&bytes[..len]), ErrorKind::Corruption, "{len} bytes"));
    let magic = bytes.first_chunk().unwrap();
    let later = Sort { magic: *magic, version: u32::from(bytes[8]) + 1, what: "a later one" };
    let body = &bytes[HEAD_BYTES..];
    let earlier =
        |version| [&magic[..], &u32::to_le_bytes(version), &crc32c(body).to_le_bytes(), body].concat();
    decode(&earlier(UNCOVERED)).unwrap();
    for other in [later.seal(body), earlier(UNCOVERED - 1)] {
        assert!(decode(&other).unwrap_err().is_of_another_version());
    }
}
