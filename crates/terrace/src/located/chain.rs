//! Version chains: more than one version of a key, as long as a snapshot needs an older one.
//!
//! An index word is a [`Position`] or, tagged, the offset of a chain in the pool. A chain lists versions
//! newest first. It exists only while some snapshot needs a version under the newest; without snapshots there
//! are no chains and no costs.
//!
//! 1. A chain is written and durable before its word is published, and its sequence numbers and key
//!    never change afterwards. Only a version's position may be replaced, by the compaction that moved
//!    it, with one 8-byte publish.
//! 2. Only the holder of the index-writer lock changes chains; readers take no lock.
//! 3. A chain taken out of the index waits in limbo for its readers.
//! 4. After a crash no snapshot is left, so every chain found is collapsed.
//!
//! Format: `docs/formats/slm.md`.

use std::sync::atomic::Ordering;

use terrace_base::checksum::crc32c;
use terrace_base::{Error, Result};
use terrace_index::kinds;
use terrace_pmem::{Kind as PmKind, POff, Pool};
use terrace_table::Position;

use super::moves::Origin;

/// Slots of this kind hold chains.
pub(crate) const CHAIN_KIND: PmKind = kinds::VERSION_CHAIN;

/// Both top bits of an index word say that it names a chain.
const CHAIN_TAG: u64 = 0b11 << 62;

/// The longest plausible chain: more versions than this mean damage.
const MAX_VERSIONS: u64 = 1 << 20;

/// Header: checksum of the rest (4), versions (4), key bytes (4), reserved (4).
const HEADER_BYTES: u64 = 16;

/// Each version: sequence number above two bits, whether it is exact and whether there is no position
/// (8), position (8).
const VERSION_BYTES: u64 = 16;

const _: () = assert!(HEADER_BYTES.is_multiple_of(8) && VERSION_BYTES == 2 * size_of::<u64>() as u64);

/// One version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    /// Its sequence number, or, if only the record itself knows that, an upper bound: no other version of the
    /// key in any table lies between the two.
    pub seq: u64,
    /// Whether `seq` is the number itself. Only the oldest version of a chain may lack the exact number.
    pub exact: bool,
    /// A tombstone has no position.
    pub position: Option<Position>,
}

impl Version {
    /// A lower bound of the sequence number.
    pub fn lowest(&self) -> u64 {
        if self.exact { self.seq } else { 0 }
    }
}

/// What an index word names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Location {
    Position(Position),
    Chain(u64),
}

impl Location {
    pub fn decode(word: u64) -> Option<Location> {
        if word & CHAIN_TAG == CHAIN_TAG {
            return Some(Location::Chain(word & !CHAIN_TAG));
        }
        Position::from_word(word).map(Location::Position)
    }

    pub fn encode(self) -> u64 {
        match self {
            Location::Position(position) => position.word(),
            Location::Chain(offset) => offset | CHAIN_TAG,
        }
    }
}

/// A chain read from the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chain {
    pub key: Vec<u8>,
    pub versions: Vec<Version>,
}

impl Chain {
    /// Writes the chain, durable but not yet linked; returns its offset.
    pub fn store(&self, pool: &Pool) -> Result<u64> {
        debug_assert!(
            self.versions.is_sorted_by(|a, b| a.seq >= b.lowest()),
            "a chain lists the newest first"
        );
        let encoded = self.encode();
        let slot = pool.reserve(CHAIN_KIND, encoded.len() as u64)?;
        pool.copy_flush(slot.offset, &encoded);
        pool.activate(&slot);
        pool.drain();
        Ok(slot.offset)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.extend((self.versions.len() as u32).to_le_bytes());
        out.extend((self.key.len() as u32).to_le_bytes());
        out.extend([0; 4]);
        for version in &self.versions {
            out.extend(pack(version).to_le_bytes());
            out.extend(version.position.map_or(0, Position::word).to_le_bytes());
        }
        out.extend(&self.key);
        let crc = crc32c(&self.covered());
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The bytes under the checksum: everything but the positions, which change in place.
    fn covered(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.key.len() + 8 * self.versions.len() + 8);
        out.extend((self.versions.len() as u32).to_le_bytes());
        out.extend((self.key.len() as u32).to_le_bytes());
        self.versions.iter().for_each(|v| out.extend(pack(v).to_le_bytes()));
        out.extend(&self.key);
        out
    }

    /// Reads the chain at `offset`.
    pub fn load(pool: &Pool, offset: u64) -> Result<Chain> {
        let damaged = |what: &str| Error::corruption(pool.path(), offset, "a version chain", what);
        pool.charge_read(offset, HEADER_BYTES + 2 * VERSION_BYTES);
        let word = |at: u64| pool.atomic_checked(POff::new(at)).map(|a| a.load(Ordering::Acquire));
        if !offset.is_multiple_of(8) {
            return Err(damaged("an unaligned offset"));
        }
        let (first, second) = (word(offset)?, word(offset + 8)?);
        let (crc, count, key_len) = (first as u32, first >> 32, second & 0xffff_ffff);
        if count == 0 || count > MAX_VERSIONS || key_len > crate::batch::MAX_KEY_BYTES as u64 {
            return Err(damaged("an impossible length"));
        }
        let mut versions = Vec::with_capacity(count as usize);
        for i in 0..count {
            let at = offset + HEADER_BYTES + i * VERSION_BYTES;
            versions.push(unpack(word(at)?, word(at + 8)?).ok_or_else(|| damaged("a wrong position"))?);
        }
        let key_at = offset + HEADER_BYTES + count * VERSION_BYTES;
        // SAFETY: a chain's key never changes while it is linked or in limbo (invariant 1), and the
        // caller is present in the index's limbo or holds the writer lock, so nobody frees it meanwhile.
        let key = unsafe { pool.bytes(key_at, key_len) }?.to_vec();
        let chain = Chain { key, versions };
        if crc32c(&chain.covered()) != crc {
            return Err(damaged("a wrong checksum"));
        }
        Ok(chain)
    }

    /// The version that is `seq` in a table: the one with the highest number there that is not above the
    /// chain's.
    pub(super) fn find(&self, seq: u64, from: Origin) -> Option<usize> {
        let is_it = |v: &Version| seq <= v.seq && from.newer.is_none_or(|newer| newer > v.seq);
        self.versions.iter().position(|v| v.position.is_some_and(|p| p.number() == from.table) && is_it(v))
    }

    /// The version that a reader at `at` looks for first, with the older ones after it.
    pub fn visible(&self, at: u64) -> &[Version] {
        let first = self.versions.iter().position(|v| v.lowest() <= at).unwrap_or(self.versions.len());
        &self.versions[first..]
    }
}

/// Publishes a new position for version `index` of the chain at `offset`.
pub(super) fn move_version(pool: &Pool, offset: u64, index: usize, to: Position) {
    let at = offset + HEADER_BYTES + index as u64 * VERSION_BYTES + 8;
    pool.publish(POff::new(at), to.word());
}

fn pack(version: &Version) -> u64 {
    version.seq << 2 | u64::from(version.exact) << 1 | u64::from(version.position.is_none())
}

fn unpack(packed: u64, word: u64) -> Option<Version> {
    let deleted = packed & 1 == 1;
    let position = if deleted { None } else { Some(Position::from_word(word)?) };
    Some(Version { seq: packed >> 2, exact: packed & 2 != 0, position })
}

/// The versions to keep: the newest, and each older one that a snapshot in `held` (ascending) still sees. A
/// tombstone at the end says nothing and is dropped, and so is a lone tombstone. If a failed flush was
/// repeated, the versions of its first attempt follow once more and are dropped.
pub(super) fn retain(versions: &[Version], held: &[u64]) -> Vec<Version> {
    let mut kept: Vec<Version> = Vec::new();
    let mut newer: Option<u64> = None;
    for version in versions {
        if newer.is_some_and(|newer| version.seq >= newer) {
            continue;
        }
        if newer.is_none_or(|newer| crate::core::snapshots::is_needed(held, version.lowest(), newer)) {
            kept.push(*version);
        }
        newer = Some(version.seq);
    }
    while kept.last().is_some_and(|v| v.position.is_none()) {
        kept.pop();
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(seq: u64) -> Version {
        Version { seq, exact: true, position: Position::new(seq + 1, 16, 512) }
    }

    fn gone(seq: u64) -> Version {
        Version { seq, exact: true, position: None }
    }

    #[test]
    fn without_snapshots_only_the_newest_stays() {
        assert_eq!(retain(&[put(9), put(5), put(1)], &[]), [put(9)]);
        assert_eq!(retain(&[gone(9), put(5)], &[]), []);
    }

    #[test]
    fn a_snapshot_keeps_the_version_it_sees() {
        assert_eq!(retain(&[put(9), put(5), put(1)], &[6]), [put(9), put(5)]);
        assert_eq!(retain(&[put(9), put(5), put(1)], &[4]), [put(9), put(1)]);
        assert_eq!(retain(&[gone(9), put(5)], &[7]), [gone(9), put(5)]);
        let below_8 = Version { exact: false, ..put(8) };
        assert_eq!(retain(&[put(9), below_8], &[3]), [put(9), below_8]);
        assert_eq!(retain(&[put(9), below_8], &[9]), [put(9)]);
        assert_eq!(retain(&[put(9), gone(5), put(1)], &[6]), [put(9)]);
    }

    #[test]
    fn what_a_flush_put_in_twice_stays_once() {
        let elsewhere = |seq: u64| Version { position: Position::new(77, 16, 512), ..put(seq) };
        let twice = [put(9), put(5), elsewhere(9), elsewhere(5), put(1)];
        assert_eq!(retain(&twice, &[3, 6]), [put(9), put(5), put(1)]);
    }

    #[test]
    fn words_keep_their_kind() {
        let position = Position::new(3, 64, 512).unwrap();
        assert_eq!(
            Location::decode(Location::Position(position).encode()),
            Some(Location::Position(position))
        );
        assert_eq!(Location::decode(Location::Chain(4096).encode()), Some(Location::Chain(4096)));
        assert_eq!(Location::decode(0), None);
    }

    #[test]
    fn the_format_is_the_documented_one() {
        let chain = Chain { key: b"key".to_vec(), versions: vec![gone(9), put(5)] };
        let encoded = chain.encode();
        let covered = [
            &[2, 0, 0, 0, 3, 0, 0, 0][..],
            &[9 * 4 + 3, 0, 0, 0, 0, 0, 0, 0],
            &[5 * 4 + 2, 0, 0, 0, 0, 0, 0, 0],
            b"key",
        ]
        .concat();
        assert_eq!(encoded[..4], crc32c(&covered).to_le_bytes());
        let rest = [
            &[2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..],
            &[9 * 4 + 3, 0, 0, 0, 0, 0, 0, 0],
            &[0; 8],
            &[5 * 4 + 2, 0, 0, 0, 0, 0, 0, 0],
            // Table 6, byte 16, one unit of 512 bytes.
            &(6u64 << 36 | 1 << 8 | 1).to_le_bytes(),
            b"key",
        ];
        assert_eq!(encoded[4..], rest.concat());
    }
}
