//! The bytes of a tree: its header, leaves, keys and log sets (`docs/formats/sptree.md`).

use std::mem::offset_of;
use std::sync::atomic::{AtomicU16, AtomicU64};

use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_pmem::pm_layout;

/// Entries of a leaf.
pub(super) const SLOTS: usize = 64;

/// First word of a tree's header: `TSPTREE` and version 2.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"TSPTREE\x02");

/// Where a tree begins; named by a root of the pool.
#[repr(C)]
#[derive(Debug)]
pub(super) struct TreeHeader {
    /// [`MAGIC`].
    pub magic: u64,
    /// The first leaf, which never changes.
    pub first: u64,
    /// CRC-32C of magic, first leaf and the header's place.
    pub crc: u32,
    /// Zero.
    pub reserved: u32,
    /// The log set that entries go to; 0: none.
    pub logs: AtomicU64,
    /// The log set before it, whose entries are not all in the leaves yet; 0: none.
    pub old_logs: AtomicU64,
    /// Zero.
    pub reserved2: [u64; 3],
}

/// Bytes of the tree header.
pub(super) const TREE_HEADER_BYTES: u64 = 64;

/// 256 bytes of a leaf: one block of the media.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Block {
    /// Key word and word. In the first block, the last of them is the leaf's next and its low key.
    pub slots: [[AtomicU64; 2]; 13],
    /// Sort of key and check of each slot.
    pub metas: [AtomicU16; 13],
    /// First block: sort of the low key; else 0.
    pub low_kind: u8,
    /// First block: [`LEAF_TAG`]; else 0.
    pub tag: u8,
    /// First block: CRC-32C of low key, its sort, tag and the leaf's place; else 0.
    pub crc: u32,
    /// First block: proof and bitmap. Others: two words of the order, volatile.
    pub words: [AtomicU64; 2],
}

/// A leaf: five blocks.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Leaf {
    pub blocks: [Block; 5],
}

/// Bytes of a leaf.
pub(super) const LEAF_BYTES: u64 = 1280;
/// Bytes of a block.
pub(super) const BLOCK_BYTES: u64 = 256;
/// Where the line lies that has next, low key, proof and bitmap.
pub(super) const STATE_LINE_AT: u64 = 192;
/// Where `next` lies in a leaf.
pub(super) const NEXT_AT: u64 = 192;
/// Where the low key's word lies in a leaf.
pub(super) const LOW_AT: u64 = 200;
/// Where the bitmap lies in a leaf.
pub(super) const BITMAP_AT: u64 = 248;
/// The tag of a leaf.
pub(super) const LEAF_TAG: u8 = 0x5F;

/// Sort of a key that is a record: its word is the record's offset under 16 bits of the key's hash. Smaller
/// sorts are the length of a key that is its word itself.
pub(super) const RECORD: u8 = 9;

/// Bits of a record's offset in a key word.
pub(super) const OFFSET_BITS: u32 = 48;
pub(super) const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

const _: () = {
    assert!(size_of::<TreeHeader>() == TREE_HEADER_BYTES as usize);
    assert!(size_of::<Block>() == BLOCK_BYTES as usize && size_of::<Leaf>() == LEAF_BYTES as usize);
    assert!(offset_of!(Block, slots) + 12 * 16 == NEXT_AT as usize && NEXT_AT + 8 == LOW_AT);
    assert!(PROOF_AT + 8 == BITMAP_AT);
    // One cache line holds what changes together.
    assert!(NEXT_AT >= STATE_LINE_AT && BITMAP_AT + 8 == STATE_LINE_AT + 64);
};

// SAFETY: fields that change while they are shared are atomic.
pm_layout! {
    unsafe TreeHeader: 64 {
        magic @ 0,
        first @ 8,
        crc @ 16,
        reserved @ 20,
        logs @ 24 as pub(super) LOGS_AT,
        old_logs @ 32 as pub(super) OLD_LOGS_AT,
        reserved2 @ 40,
    }
    unsafe Block: 256 {
        slots @ 0,
        metas @ 208 as METAS_AT,
        low_kind @ 234 as LOW_KIND_AT,
        tag @ 235,
        crc @ 236 as CRC_AT,
        words @ 240 as pub(super) PROOF_AT,
    }
    unsafe Leaf: 1280 { blocks @ 0 }
}

/// Block and place in it of each slot: twelve in the first block, thirteen in the others.
pub(super) const fn place(slot: usize) -> (usize, usize) {
    if slot < 12 { (0, slot) } else { (1 + (slot - 12) / 13, (slot - 12) % 13) }
}

/// Where slot `slot` lies in a leaf.
pub(super) const fn slot_at(slot: usize) -> u64 {
    let (block, i) = place(slot);
    block as u64 * BLOCK_BYTES + i as u64 * 16
}

/// Where the meta of slot `slot` lies in a leaf.
pub(super) const fn meta_at(slot: usize) -> u64 {
    let (block, i) = place(slot);
    block as u64 * BLOCK_BYTES + METAS_AT + i as u64 * 2
}

/// One bit that every odd number of flipped bits changes, beside `bits` bits of a mix.
fn check_bits(a: u64, b: u64, seed: u64, bits: u32) -> u64 {
    let parity = u64::from((a ^ b).count_ones() & 1);
    let mut h = a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_mul(0xC2B2_AE3D_27D4_EB4F).rotate_left(29);
    h = (h ^ seed ^ h >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (h >> (64 - bits)) << 1 | parity
}

/// The meta of slot `slot` of the leaf at a place of the pool: sort of key, and check of the slot's 16 bytes.
pub(super) fn meta(place: u64, slot: usize, key_word: u64, word: u64, kind: u8) -> u16 {
    // The sort is covered by its own parity: of a flipped bit in it, or in the check, too.
    let parity = u64::from(kind.count_ones() & 1);
    let check =
        check_bits(key_word, word, place << 8 | (slot as u64) << 2 ^ u64::from(kind) << 56, 11) ^ parity;
    u16::from(kind) << 12 | check as u16
}

/// The sort of key in a meta.
pub(super) fn kind_of(meta: u16) -> u8 {
    (meta >> 12) as u8
}

/// A check of a leaf's bitmap and next leaf: 21 bits.
fn state_check(place: u64, bitmap: u64, next: u64) -> u64 {
    check_bits(bitmap, next, place << 1 | 1, 20)
}

/// A bitmap and the offset of the next leaf.
pub(super) type State = (u64, u64);

/// The verdict of a proof on the state beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proven {
    /// A valid state.
    Whole,
    /// The middle of a split or merge: the bitmap has slots that belong to another leaf.
    Overfull,
    /// A state that was never stored.
    Damaged,
}

/// The proof to be stored before a leaf's state goes from `old` to `new`, by way of `middle`, one word at a time.
pub(super) fn proof(place: u64, old: State, middle: State, new: State) -> u64 {
    let check = |(bitmap, next): State| state_check(place, bitmap, next);
    check(old) | check(middle) << 21 | check(new) << 42
}

/// Compares a state with its proof.
pub(super) fn prove(place: u64, proof: u64, (bitmap, next): State) -> Proven {
    let found = state_check(place, bitmap, next);
    let [old, middle, new] = [0, 21, 42].map(|shift| proof >> shift & ((1 << 21) - 1));
    if proof >> 63 != 0 {
        Proven::Damaged
    } else if found == new {
        Proven::Whole
    } else if found == middle {
        // Before the old one: where a leaf is cleaned, both are the state that is to go.
        Proven::Overfull
    } else if found == old {
        Proven::Whole
    } else {
        Proven::Damaged
    }
}

/// The checksum of a leaf's low key.
pub(super) fn low_crc(place: u64, low: u64, kind: u8) -> u32 {
    crc32c_append(crc32c_append(crc32c(&place.to_le_bytes()), &low.to_le_bytes()), &[kind, LEAF_TAG])
}

/// The checksum in a tree header at a place of the pool.
pub(super) fn header_crc(magic: u64, place: u64, first: u64) -> u32 {
    crc32c_append(crc32c_append(crc32c(&magic.to_le_bytes()), &first.to_le_bytes()), &place.to_le_bytes())
}

/// The bytes of a tree header at a place of the pool.
pub(super) fn encode_header(place: u64, first: u64, logs: u64) -> [u8; TREE_HEADER_BYTES as usize] {
    let mut out = [0; TREE_HEADER_BYTES as usize];
    out[0..8].copy_from_slice(&MAGIC.to_le_bytes());
    out[8..16].copy_from_slice(&first.to_le_bytes());
    out[16..20].copy_from_slice(&header_crc(MAGIC, place, first).to_le_bytes());
    out[24..32].copy_from_slice(&logs.to_le_bytes());
    out
}

/// The contents of a slot: key word, word and sort of key.
pub(super) type Item = (u64, u64, u8);

/// The image of a new leaf at a place of the pool whose first slots hold `items`.
pub(super) fn encode_leaf(place: u64, low: u64, low_kind: u8, next: u64, items: &[Item]) -> Vec<u8> {
    let mut out = vec![0; LEAF_BYTES as usize];
    let mut put = |at: u64, bytes: &[u8]| out[at as usize..][..bytes.len()].copy_from_slice(bytes);
    for (slot, (key_word, word, kind)) in items.iter().enumerate() {
        put(slot_at(slot), &key_word.to_le_bytes());
        put(slot_at(slot) + 8, &word.to_le_bytes());
        put(meta_at(slot), &meta(place, slot, *key_word, *word, *kind).to_le_bytes());
    }
    let state = (low_bits(items.len()), next);
    put(NEXT_AT, &next.to_le_bytes());
    put(LOW_AT, &low.to_le_bytes());
    put(PROOF_AT, &proof(place, state, state, state).to_le_bytes());
    put(BITMAP_AT, &state.0.to_le_bytes());
    put(LOW_KIND_AT, &[low_kind, LEAF_TAG]);
    put(CRC_AT, &low_crc(place, low, low_kind).to_le_bytes());
    out
}

/// A word whose lowest `n` bits are set.
pub(super) fn low_bits(n: usize) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_metas_share_a_block_and_nothing_overlaps() {
        let mut taken = [false; LEAF_BYTES as usize];
        let mut take = |at: u64, len: usize| {
            taken[at as usize..][..len].iter_mut().for_each(|byte| assert!(!std::mem::replace(byte, true)));
        };
        for slot in 0..SLOTS {
            assert_eq!(slot_at(slot) / BLOCK_BYTES, meta_at(slot) / BLOCK_BYTES);
            take(slot_at(slot), 16);
            take(meta_at(slot), 2);
        }
        [NEXT_AT, LOW_AT, PROOF_AT, BITMAP_AT].iter().for_each(|at| take(*at, 8));
    }

    #[test]
    fn every_flipped_bit_of_a_slot_is_noticed() {
        for (key, word, kind, slot) in
            [(0, 1, 0, 0), (u64::MAX, 7, 8, 63), (0x6162_0000_0000_0000, 1 << 63, 2, 13)]
        {
            let whole = meta(4096, slot, key, word, kind);
            assert_eq!(kind_of(whole), kind);
            for bit in 0..64 {
                assert_ne!(meta(4096, slot, key ^ 1 << bit, word, kind), whole);
                assert_ne!(meta(4096, slot, key, word ^ 1 << bit, kind), whole);
            }
            for bit in 0..16 {
                let flipped = whole ^ 1 << bit;
                assert_ne!(meta(4096, slot, key, word, kind_of(flipped)), flipped);
            }
        }
    }

    #[test]
    fn every_flipped_bit_of_a_state_is_noticed() {
        let (old, middle, new) = ((0b0101, 4096), (0b0101, 8192), (0b0001, 8192));
        let stored = proof(512, old, middle, new);
        assert_eq!(prove(512, stored, old), Proven::Whole);
        assert_eq!(prove(512, stored, middle), Proven::Overfull);
        assert_eq!(prove(512, stored, new), Proven::Whole);
        for bit in 0..64 {
            for flipped in [(new.0 ^ 1 << bit, new.1), (new.0, new.1 ^ 1 << bit)] {
                // Back to a state that a crash may leave, which cannot be told apart.
                if ![old, middle].contains(&flipped) {
                    assert_eq!(prove(512, stored, flipped), Proven::Damaged);
                }
            }
        }
        assert_eq!(prove(512, 0, (0, 0)), Proven::Damaged, "a leaf of zeros");
    }

    /// Proof and state after each store of a change.
    fn stores_of(leaf: u64, line: (u64, State), [middle, new]: [State; 2]) -> Vec<(u64, State)> {
        let proof = proof(leaf, line.1, middle, new);
        [line, (proof, line.1), (proof, middle), (proof, new)].to_vec()
    }

    /// A change is cut off after each store, and the cleaning that follows after each of its own, and so on.
    #[test]
    fn what_a_change_and_its_cleaning_leave_wherever_they_are_cut_off_is_told() {
        // A split, and merges of a right leaf with items and of an empty one.
        for (old, middle, new, kept) in [
            ((0b1111, 0), (0b1111, 8192), (0b0011, 8192), 0b0011),
            ((0b0011, 8192), (0b1111, 8192), (0b1111, 0), 0b0011),
            ((0b0011, 8192), (0b0011, 8192), (0b0011, 0), 0b0011),
        ] {
            let start = (proof(512, old, old, old), old);
            for line in stores_of(512, start, [middle, new]) {
                let ((stored, state), of) = (line, (old, middle, new));
                let clean = (kept, state.1);
                match prove(512, stored, state) {
                    Proven::Whole => assert!(state == old || state == new, "{state:?} of {of:?}"),
                    Proven::Damaged => panic!("{state:?} of {of:?}"),
                    Proven::Overfull => {
                        let cleaning = stores_of(512, line, [state, clean]);
                        for &(stored, cut) in &cleaning {
                            let told = prove(512, stored, cut);
                            let wanted = if cut == clean { Proven::Whole } else { Proven::Overfull };
                            assert!(told == wanted || (stored, cut) == line, "{cut:?} of {of:?}: {told:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn golden_leaf() {
        let word = u64::from_be_bytes(*b"abc\0\0\0\0\0");
        let image = encode_leaf(0x1400, 0, 0, 0x2800, &[(word, 7, 3)]);
        assert_eq!(&image[..16], b"\0\0\0\0\0cba\x07\0\0\0\0\0\0\0");
        assert_eq!(&image[192..208], b"\0\x28\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&image[234..236], [0, 0x5F]);
        assert_eq!(&image[248..256], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(image[208..210], meta(0x1400, 0, word, 7, 3).to_le_bytes());
        assert!(image[256..].iter().all(|b| *b == 0));
    }

    #[test]
    fn golden_header() {
        let header = encode_header(0x40, 0x200, 0x300);
        assert_eq!(&header[..16], *b"TSPTREE\x02\0\x02\0\0\0\0\0\0");
        assert_eq!(&header[24..32], [0, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&header[32..], [0; 32]);
    }
}
