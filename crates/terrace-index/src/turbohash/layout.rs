//! The bytes of a table: its header, its directory and its buckets (`docs/formats/turbohash.md`).

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;

use terrace_base::checksum::crc32c;
use terrace_pmem::PmSafe;

/// First word of a table's header: `TTURBO` and version 3.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"TTURBO\x03\0");

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
    /// CRC-32C of everything before.
    pub crc: u32,
}

/// Bytes of the table header.
pub(super) const TABLE_HEADER_BYTES: u64 = 40;

/// Where the head of the overflow lies behind the table header (`overflow`).
pub(super) const OVERFLOW_AT: u64 = TABLE_HEADER_BYTES;

/// Bytes of the slot that the table header and the head of the overflow share.
pub(super) const HEADER_SLOT_BYTES: u64 = OVERFLOW_AT + 8;

/// What the directory says of one shard: two sets of place and size, and which of them is in force.
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
/// Where the version lies in a descriptor.
pub(super) const VERSION_AT: u64 = 16;

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
    /// Valid bits (14), deleted bits (14), sequence (20), checks of tags and state (8 each): see [`Meta`].
    pub meta: AtomicU64,
    /// Tags of slots 0 to 7.
    pub tags: AtomicU64,
    /// Tags of slots 8 to 13, and which slots name records.
    pub tags_kinds: AtomicU64,
    /// Four bits of checksum a slot, and in the upper eight the path filter ([`leads_on`]).
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
    assert!(offset_of!(TableHeader, crc) == 36);
    assert!(size_of::<Descriptor>() == DESCRIPTOR_BYTES as usize);
    assert!(offset_of!(Descriptor, version) == VERSION_AT as usize);
    assert!(size_of::<Bucket>() == BUCKET_BYTES as usize);
    assert!(offset_of!(Bucket, slots) == BUCKET_HEADER_BYTES as usize);
    assert!(size_of::<PairSlot>() == SLOT_BYTES as usize);
    assert!(BUCKET_HEADER_BYTES + SLOTS_BESIDE_HEADER as u64 * SLOT_BYTES == 64);
    assert!(BUCKET_WORDS * 8 == BUCKET_BYTES as usize && HEADER_WORDS * 8 == BUCKET_HEADER_BYTES as usize);
};

// SAFETY: repr(C), no padding (asserted by the sizes), integers only; it never changes while it is shared.
unsafe impl PmSafe for TableHeader {}
// SAFETY: as above; what changes while shared is atomic.
unsafe impl PmSafe for Descriptor {}
// SAFETY: as above.
unsafe impl PmSafe for PairSlot {}
// SAFETY: as above.
unsafe impl PmSafe for Bucket {}

impl TableHeader {
    /// The header's bytes, checksum included.
    pub fn encode(&self) -> [u8; TABLE_HEADER_BYTES as usize] {
        let mut out = [0; TABLE_HEADER_BYTES as usize];
        out[0..8].copy_from_slice(&self.magic.to_le_bytes());
        out[8..16].copy_from_slice(&self.seed.to_le_bytes());
        out[16..24].copy_from_slice(&self.directory.to_le_bytes());
        out[24..28].copy_from_slice(&self.shard_bits.to_le_bytes());
        out[28..32].copy_from_slice(&self.initial_bits.to_le_bytes());
        out[32..36].copy_from_slice(&self.scope.to_le_bytes());
        let crc = crc32c(&out[..36]);
        out[36..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Whether the checksum is right.
    pub fn is_sound(&self) -> bool {
        self.encode()[36..] == self.crc.to_le_bytes()
    }

    /// Whether a table may have this header.
    pub fn is_admissible(&self) -> bool {
        (1..=SHARD_BITS_MAX).contains(&self.shard_bits)
            && self.initial_bits <= INITIAL_BITS_MAX
            && (1..=SCOPE_MAX).contains(&self.scope)
    }
}

/// The version word of shard `shard` at version `version`, with `set` in force.
pub(super) fn seal_version(shard: u64, version: u32, set: u64) -> u64 {
    let mut bytes = [0; 20];
    bytes[0..8].copy_from_slice(&shard.to_le_bytes());
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    bytes[12..20].copy_from_slice(&set.to_le_bytes());
    u64::from(version) | u64::from(crc32c(&bytes)) << 32
}

/// The bytes of a directory of `shards` shards without buckets.
pub(super) fn encode_directory(shards: u64) -> Vec<u8> {
    let mut out = vec![0; (shards * DESCRIPTOR_BYTES) as usize];
    for (shard, descriptor) in (0..).zip(out.chunks_exact_mut(DESCRIPTOR_BYTES as usize)) {
        let at = VERSION_AT as usize;
        descriptor[at..at + 8].copy_from_slice(&seal_version(shard, 0, 0).to_le_bytes());
    }
    out
}

const SLOT_MASK: u64 = (1 << SLOTS) - 1;
const DELETED_SHIFT: u32 = 14;
const SEQUENCE_SHIFT: u32 = 28;
const CHECK_SHIFT: u32 = 48;
const STATE_CHECK_SHIFT: u32 = 56;
const STATE_MASK: u64 = (1 << CHECK_SHIFT) - 1;
/// Where the kinds begin beside the last tags.
pub(super) const KINDS_SHIFT: u32 = 48;
/// The tags beside the kinds.
pub(super) const TAGS_MASK: u64 = (1 << KINDS_SHIFT) - 1;

/// A bucket's first word: everything that a write publishes, in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta(pub u64);

impl Meta {
    /// The meta of a bucket that has `valid` slots and no history; unsealed.
    pub fn of_valid(valid: u32) -> Meta {
        Meta(u64::from(valid))
    }

    /// Slots that are not empty.
    #[inline(always)]
    pub fn valid(self) -> u32 {
        (self.0 & SLOT_MASK) as u32
    }

    /// Slots whose key was deleted: not empty, but free to be written over.
    #[inline(always)]
    pub fn deleted(self) -> u32 {
        (self.0 >> DELETED_SHIFT & SLOT_MASK) as u32
    }

    /// Slots that hold pairs.
    #[inline(always)]
    pub fn live(self) -> u32 {
        ((self.0 & !(self.0 >> DELETED_SHIFT)) & SLOT_MASK) as u32
    }

    /// Whether searches end here: two slots are empty, or more.
    #[inline(always)]
    pub fn ends_path(self) -> bool {
        (self.valid().count_ones() as usize) < USABLE_SLOTS
    }

    /// The first empty slot; none only in a damaged bucket.
    #[inline(always)]
    pub fn first_empty(self) -> Option<usize> {
        let first = self.valid().trailing_ones() as usize;
        (first < SLOTS).then_some(first)
    }

    /// The first slot of a deleted key.
    #[inline(always)]
    pub fn first_deleted(self) -> Option<usize> {
        let deleted = self.deleted();
        (deleted != 0).then(|| deleted.trailing_zeros() as usize)
    }

    /// The next state with these bits, unsealed.
    #[inline(always)]
    pub fn next(self, valid: u32, deleted: u32) -> Meta {
        let sequence = self.0.wrapping_add(1 << SEQUENCE_SHIFT) & STATE_MASK & !0 << SEQUENCE_SHIFT;
        Meta(u64::from(valid) | u64::from(deleted) << DELETED_SHIFT | sequence)
    }

    /// The word with its checks over the state and the tags of live slots.
    #[inline(always)]
    pub fn seal(self, tags: (u64, u64)) -> Meta {
        let state = self.0 & STATE_MASK;
        Meta(state | tags_check(tags) << CHECK_SHIFT | state_check(state) << STATE_CHECK_SHIFT)
    }

    /// Whether the state's check is right.
    #[inline(always)]
    pub fn is_state_sound(self) -> bool {
        state_check(self.0) == self.0 >> STATE_CHECK_SHIFT
    }

    /// Whether the tags' check is right.
    #[inline(always)]
    pub fn are_tags_sound(self, tags: (u64, u64)) -> bool {
        tags_check(tags) == self.0 >> CHECK_SHIFT & 0xff
    }
}

/// Eight bits over a bucket's state. Not 0 for an empty bucket, so that zeros are no bucket.
#[inline(always)]
fn state_check(state: u64) -> u64 {
    ((state << 16).wrapping_mul(SPREAD) >> 56) ^ 0x5A
}

/// Eight bits over the tags of live slots.
#[inline(always)]
fn tags_check((tags, more_tags): (u64, u64)) -> u64 {
    (tags ^ more_tags.rotate_left(29)).wrapping_mul(SPREAD) >> 56
}

/// No four neighbouring bits of it are alike, so that whichever bit of the other factor is flipped, the upper four
/// bits of the product change, and its upper eight.
const SPREAD: u64 = 0x4E5A_3A26_D18A_669B;

/// Four bits over a slot. Every single flipped bit is noticed, and so is a record taken for a pair of words.
#[inline(always)]
pub(super) fn slot_check(key: u64, value: u64, is_record: bool) -> u64 {
    let check = (key ^ value.rotate_left(31)).wrapping_mul(SPREAD) >> 60;
    if is_record { check ^ 0xf } else { check }
}

/// The tags, in two words, with those of other slots than `live` zeroed, and the kinds.
#[inline(always)]
pub(super) fn of_live(tags: u64, tags_kinds: u64, live: u32) -> (u64, u64) {
    (tags & spread(u64::from(live)), tags_kinds & spread(u64::from(live) >> 8))
}

/// A byte of ones for each of the low eight bits that is set.
#[inline(always)]
fn spread(bits: u64) -> u64 {
    let alone = (bits & 0xff).wrapping_mul(0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    // A byte with its bit set carries into its top bit.
    ((alone + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101).wrapping_mul(0xff)
}

/// The two tag words with slot `slot` set to `tag`, a record's or not.
#[inline(always)]
pub(super) fn with_tag(tags: u64, tags_kinds: u64, slot: usize, tag: u8, is_record: bool) -> (u64, u64) {
    let kind = 1 << (KINDS_SHIFT as usize + slot);
    let kinds = tags_kinds & !kind | if is_record { kind } else { 0 };
    let shift = slot % 8 * 8;
    let set = |word: u64| word & !(0xff << shift) | u64::from(tag) << shift;
    if slot < 8 { (set(tags), kinds) } else { (tags, set(kinds)) }
}

/// The checks with that of slot `slot` set.
#[inline(always)]
pub(super) fn with_check(checks: u64, slot: usize, check: u64) -> u64 {
    checks & !(0xf << (slot * 4)) | check << (slot * 4)
}

/// Where the path filter begins beside the checks.
const FILTER_SHIFT: u32 = 56;
/// Bits of the path filter; above them are three bits of check.
const FILTER_BITS: u64 = 5;

/// Path filters with their checks: of each set of bits, the exclusive or of what stands for each of them. Nothing of
/// that is 0, so that every single flipped bit is noticed.
const FILTERS: [u8; 1 << FILTER_BITS] = {
    const CHECK_OF_BIT: [u8; FILTER_BITS as usize] = [3, 5, 6, 7, 1];
    let mut filters = [0; 1 << FILTER_BITS];
    let mut set = 0;
    while set < filters.len() {
        let (mut check, mut bit) = (0, 0);
        while bit < FILTER_BITS as usize {
            check ^= CHECK_OF_BIT[bit] * (set >> bit & 1) as u8;
            bit += 1;
        }
        filters[set] = set as u8 | check << FILTER_BITS;
        set += 1;
    }
    filters
};

/// The bit that stands for the keys of a tag in path filters.
#[inline(always)]
fn path_bit(tag: u8) -> u64 {
    (u64::from(tag) * FILTER_BITS) >> 8
}

/// Whether a key of this tag may be in a bucket behind the one with these checks: of every key the filters of the buckets
/// between its home and its own say so.
#[inline(always)]
pub(super) fn leads_on(checks: u64, tag: u8) -> bool {
    checks >> (FILTER_SHIFT as u64 + path_bit(tag)) & 1 == 1
}

/// The checks with a filter that says it of the keys of this tag too.
#[inline(always)]
pub(super) fn led_on(checks: u64, tag: u8) -> u64 {
    let set = (checks >> FILTER_SHIFT | 1 << path_bit(tag)) & ((1 << FILTER_BITS) - 1);
    checks & ((1 << FILTER_SHIFT) - 1) | u64::from(FILTERS[set as usize]) << FILTER_SHIFT
}

/// Whether the path filter beside the checks has its own.
#[inline(always)]
pub(super) fn is_filter_sound(checks: u64) -> bool {
    let filter = checks >> FILTER_SHIFT;
    u64::from(FILTERS[(filter & ((1 << FILTER_BITS) - 1)) as usize]) == filter
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

    #[test]
    fn golden_header() {
        let header = TableHeader {
            magic: MAGIC,
            seed: 0x0102_0304_0506_0708,
            directory: 0x30000,
            shard_bits: 16,
            initial_bits: 2,
            scope: 16,
            crc: 0,
        };
        let hex: String = header.encode().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "54545552424f0300080706050403020100000300000000001000000002000000100000006afbefcf");
    }

    #[test]
    fn golden_words() {
        assert_eq!(seal_version(3, 1, 0x40002), 17653362802665979905);
        let (tags, kinds) = with_tag(0, 0, 0, 0xAB, false);
        let (tags, kinds) = with_tag(tags, kinds, 9, 0xCD, true);
        assert_eq!((tags, kinds), (0xAB, 0x0200_0000_0000_CD00));
        assert_eq!(Meta::of_valid(0b10_0000_0001).seal(of_live(tags, kinds, 0x201)).0, 15983275077537890817);
        assert_eq!(Meta::of_valid(0).seal((0, 0)).0, 0x5A << 56);
        assert_eq!(slot_check(1, 2, false), 1);
    }

    #[test]
    fn the_bits_of_live_slots_alone_count() {
        for live in 0..1u32 << SLOTS {
            let (tags, kinds) = of_live(u64::MAX, u64::MAX, live);
            for slot in 0..SLOTS {
                let byte = if slot < 8 { tags >> (slot * 8) } else { kinds >> (slot % 8 * 8) } & 0xff;
                let wanted = if live >> slot & 1 == 1 { 0xff } else { 0 };
                assert_eq!(byte, wanted);
            }
            assert_eq!(kinds >> KINDS_SHIFT, 0);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_slot_and_of_a_header_is_noticed() {
        for i in 0..500u64 {
            let (key, value) = (i.wrapping_mul(0x0123_4567_89AB_CDEF), i.wrapping_mul(0xFEDC_BA98_7654_3211));
            let check = slot_check(key, value, false);
            assert_ne!(slot_check(key, value, true), check);
            let meta = Meta(key & STATE_MASK).seal((value, key));
            assert!(meta.is_state_sound() && meta.are_tags_sound((value, key)));
            for bit in 0..64 {
                assert_ne!(slot_check(key ^ 1 << bit, value, false), check);
                assert_ne!(slot_check(key, value ^ 1 << bit, false), check);
                let flipped = Meta(meta.0 ^ 1 << bit);
                assert!(!flipped.is_state_sound() || !flipped.are_tags_sound((value, key)));
                assert!(!meta.are_tags_sound((value ^ 1 << bit, key)));
                assert!(!meta.are_tags_sound((value, key ^ 1 << bit)));
            }
        }
    }

    #[test]
    fn filters_lead_on_and_flipped_bits_are_noticed() {
        let mut checks = 0x0055_AAAA_5555_AAAA;
        assert!(is_filter_sound(checks) && (0..=255).all(|tag| !leads_on(checks, tag)));
        let mut ends = 256;
        for tag in [0, 255, 128, 60, 200] {
            checks = led_on(checks, tag);
            let still = (0..=255).filter(|&tag| !leads_on(checks, tag)).count();
            assert!(leads_on(checks, tag) && is_filter_sound(checks) && (50..53).contains(&(ends - still)));
            ends = still;
            for bit in 56..64 {
                assert!(!is_filter_sound(checks ^ 1 << bit));
            }
        }
        assert_eq!((ends, checks & ((1 << 56) - 1)), (0, 0x0055_AAAA_5555_AAAA));
        assert_eq!(led_on(led_on(0, 255), 0), 0x51 << 56);
    }

    #[test]
    fn states_follow_one_another() {
        let meta = Meta::of_valid(0b111).seal((1, 2)).next(0b1111, 0b10);
        assert_eq!((meta.valid(), meta.deleted(), meta.live()), (0b1111, 0b10, 0b1101));
        assert_eq!((meta.first_empty(), meta.first_deleted()), (Some(4), Some(1)));
        assert!(meta.ends_path());
        assert!(!Meta::of_valid(0x1FFF).ends_path());
        let last = Meta(STATE_MASK).next(1, 0);
        assert_eq!(last, Meta(1));
    }
}
