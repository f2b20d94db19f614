//! The bytes of a table: its header, its directory and its buckets (`docs/formats/turbohash.md`).

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_pmem::pm_layout;

/// First word of a table's header: `TTURBO` and version 4.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"TTURBO\x04\0");

/// Where a table begins; named by a root of the pool. It never changes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableHeader {
    /// [`MAGIC`].
    pub magic: u64,
    /// Seed of the keys' hashes.
    pub seed: u64,
    /// The directory: a [`Descriptor`] for each shard.
    pub directory: u64,
    /// Shards are 2 to this power.
    pub shard_bits: u32,
    /// Buckets of a new shard are 2 to this power.
    pub initial_bits: u32,
    /// Most buckets that a probe looks at.
    pub scope: u32,
    /// CRC-32C of the place and of everything before.
    pub crc: u32,
}

/// Bytes of the table header.
pub(super) const TABLE_HEADER_BYTES: u64 = 40;

/// Where the head of the overflow lies behind the table header (`overflow`).
pub(super) const OVERFLOW_AT: u64 = TABLE_HEADER_BYTES;

/// Bytes of the slot that the table header and the head of the overflow share.
pub(super) const HEADER_SLOT_BYTES: u64 = OVERFLOW_AT + 8;

/// The descriptor of one shard: two sets of place and size, and which of them is in force.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Descriptor {
    /// Offset of the first bucket, and in its low byte the power of two that the buckets are; 0: no buckets yet.
    pub sets: [AtomicU64; 2],
    /// Version number, whose low bit chooses the set, and in the upper half a checksum ([`seal_version`]).
    pub version: AtomicU64,
    /// Zero.
    pub reserved: u64,
}

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: u64 = 32;

/// Slots of a bucket.
pub(super) const SLOTS: usize = 14;
/// Slots of a bucket that hold pairs: one stays empty for near-place update.
pub(super) const USABLE_SLOTS: usize = SLOTS - 1;

/// Key and value of a pair of 8 and 8 bytes; or the key's hash and the offset of its record (`pair`).
#[repr(C)]
#[derive(Debug)]
pub(super) struct PairSlot {
    pub key: AtomicU64,
    pub value: AtomicU64,
}

/// A bucket: one 256-byte block.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Bucket {
    /// Valid bits (14), deleted bits (14), sequence (20), checks of tags and state (8 each): see
    /// [`Meta`](super::meta::Meta).
    pub meta: AtomicU64,
    /// Tags of slots 0 to 7.
    pub tags: AtomicU64,
    /// Tags of slots 8 to 13, and which slots name records.
    pub tags_kinds: AtomicU64,
    /// Four bits of checksum a slot, and in the upper eight the path filter ([`leads_on`](super::checks::leads_on)).
    pub checks: AtomicU64,
    pub slots: [PairSlot; SLOTS],
}

/// Bytes of a bucket.
pub(super) const BUCKET_BYTES: u64 = 256;
/// Bytes of a bucket before its slots.
pub(super) const BUCKET_HEADER_BYTES: u64 = 32;
/// Bytes of a slot.
pub(super) const SLOT_BYTES: u64 = 16;
/// Slots that share the header's cache line.
pub(super) const SLOTS_BESIDE_HEADER: usize = 2;
/// Words of a bucket.
pub(super) const BUCKET_WORDS: usize = 32;
/// Words of a bucket before its slots.
pub(super) const HEADER_WORDS: usize = 4;

const _: () = {
    assert!(size_of::<TableHeader>() == TABLE_HEADER_BYTES as usize);
    assert!(size_of::<Descriptor>() == DESCRIPTOR_BYTES as usize);
    assert!(size_of::<Bucket>() == BUCKET_BYTES as usize);
    assert!(offset_of!(Bucket, slots) == BUCKET_HEADER_BYTES as usize);
    assert!(size_of::<PairSlot>() == SLOT_BYTES as usize);
    assert!(BUCKET_HEADER_BYTES + SLOTS_BESIDE_HEADER as u64 * SLOT_BYTES == 64);
    assert!(BUCKET_WORDS * 8 == BUCKET_BYTES as usize && HEADER_WORDS * 8 == BUCKET_HEADER_BYTES as usize);
};

// SAFETY: a header never changes while it is shared; in the others, fields that change are atomic.
pm_layout! {
    unsafe TableHeader: 40 {
        magic @ 0, seed @ 8, directory @ 16, shard_bits @ 24, initial_bits @ 28, scope @ 32, crc @ 36 as CRC_AT
    }
    unsafe Descriptor: 32 { sets @ 0, version @ 16 as pub(super) VERSION_AT, reserved @ 24 }
    unsafe PairSlot: 16 { key @ 0, value @ 8 }
    unsafe Bucket: 256 { meta @ 0, tags @ 8, tags_kinds @ 16, checks @ 24, slots @ 32 }
}

impl TableHeader {
    /// The header's bytes at a place of the pool, checksum included.
    pub fn encode(&self, place: u64) -> [u8; TABLE_HEADER_BYTES as usize] {
        let mut out = self.fields();
        let crc = crc32c_append(crc32c(&place.to_le_bytes()), &out[..CRC_AT as usize]);
        out[CRC_AT as usize..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Whether the checksum is right, at this place.
    pub fn is_sound(&self, place: u64) -> bool {
        self.encode(place)[CRC_AT as usize..] == self.crc.to_le_bytes()
    }

    /// The version that the header says, if it is not this one and the checksum agrees: until version 3 it did not
    /// cover the place.
    pub fn other_version(&self, place: u64) -> Option<u8> {
        let (magic, own) = (self.magic.to_le_bytes(), MAGIC.to_le_bytes());
        let is_other = magic != own && magic[..6] == own[..6];
        let was_sound = crc32c(&self.fields()[..CRC_AT as usize]) == self.crc;
        (is_other && (was_sound || self.is_sound(place))).then_some(magic[6])
    }

    /// The header's bytes, with zeros in place of the checksum.
    fn fields(&self) -> [u8; TABLE_HEADER_BYTES as usize] {
        let mut out = [0; TABLE_HEADER_BYTES as usize];
        out[0..8].copy_from_slice(&self.magic.to_le_bytes());
        out[8..16].copy_from_slice(&self.seed.to_le_bytes());
        out[16..24].copy_from_slice(&self.directory.to_le_bytes());
        out[24..28].copy_from_slice(&self.shard_bits.to_le_bytes());
        out[28..32].copy_from_slice(&self.initial_bits.to_le_bytes());
        out[32..36].copy_from_slice(&self.scope.to_le_bytes());
        out
    }

    /// Whether a table may have this header.
    pub fn is_admissible(&self) -> bool {
        (1..=SHARD_BITS_MAX).contains(&self.shard_bits)
            && self.initial_bits <= INITIAL_BITS_MAX
            && (1..=SCOPE_MAX).contains(&self.scope)
    }
}

/// The version word of the descriptor at a place of the pool, at version `version`, with `set` in force.
pub(super) fn seal_version(place: u64, version: u32, set: u64) -> u64 {
    let mut bytes = [0; 20];
    bytes[0..8].copy_from_slice(&place.to_le_bytes());
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    bytes[12..20].copy_from_slice(&set.to_le_bytes());
    u64::from(version) | u64::from(crc32c(&bytes)) << 32
}

/// The bytes of a directory of `shards` shards without buckets, at a place of the pool.
pub(super) fn encode_directory(place: u64, shards: u64) -> Vec<u8> {
    let mut out = vec![0; (shards * DESCRIPTOR_BYTES) as usize];
    for (shard, descriptor) in (0..).zip(out.chunks_exact_mut(DESCRIPTOR_BYTES as usize)) {
        let own = place.wrapping_add(shard * DESCRIPTOR_BYTES);
        let at = VERSION_AT as usize;
        descriptor[at..at + 8].copy_from_slice(&seal_version(own, 0, 0).to_le_bytes());
    }
    out
}

/// The tag of a hash.
#[inline(always)]
pub(super) fn tag_of(hash: u64) -> u8 {
    hash as u8
}

/// The home bucket of a hash among `1 << bits`.
#[inline(always)]
pub(super) fn home_of(hash: u64, bits: u32) -> usize {
    (hash >> 8) as usize & ((1 << bits) - 1)
}

/// Most bits that choose a shard, and most that choose a bucket: with the tag they are 64.
pub(super) const SHARD_BITS_MAX: u32 = 24;
/// See [`SHARD_BITS_MAX`].
pub(super) const BUCKET_BITS_MAX: u32 = 32;
/// Most bits of a new shard's buckets.
pub(super) const INITIAL_BITS_MAX: u32 = 20;
/// The widest probing scope.
pub(super) const SCOPE_MAX: u32 = 1 << 20;

/// The shard of a hash among `1 << bits`, at least two: the hash's upper bits, so that shards are ranges of hashes.
#[inline(always)]
pub(super) fn shard_of(hash: u64, bits: u32) -> usize {
    (hash >> ((64 - bits) & 63)) as usize
}

/// The least hash of a shard.
pub(super) fn first_hash(shard: usize, bits: u32) -> u64 {
    (shard as u64) << (64 - bits)
}
#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> TableHeader {
        TableHeader {
            magic: MAGIC,
            seed: 0x0102_0304_0506_0708,
            directory: 0x30000,
            shard_bits: 16,
            initial_bits: 2,
            scope: 16,
            crc: 0,
        }
    }

    #[test]
    fn golden_header() {
        let hex: String = header().encode(0x1234_0000).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "54545552424f040008070605040302010000030000000000100000000200000010000000e3cafd21");
    }

    #[test]
    fn golden_descriptor() {
        assert_eq!(seal_version(0x1234_0060, 1, 0x40002), 14180905838616510465);
        let directory = encode_directory(0x1234_0000, 4);
        assert_eq!(directory[112..120], seal_version(0x1234_0060, 0, 0).to_le_bytes());
    }
}
