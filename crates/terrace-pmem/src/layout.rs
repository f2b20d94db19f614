//! The layout of a pool: offsets, sizes and the bytes of the fixed structures.
//!
//! ```text
//! 0      superblock, first copy     (written once)
//! 4096   superblock, second copy
//! 8192   state, two slots 256 bytes apart
//! 8704   size word
//! 12288  roots, 60 entries of 32 bytes
//! 16384  end of the header; rounded up to whole extents
//! ...    first segment of the extent table
//! ...    extents
//! ```
//!
//! The byte tables are in `docs/formats/pool.md`.

use crate::pm_layout;
use terrace_base::checksum::crc32c;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// First bytes of every pool.
pub(crate) const MAGIC: [u8; 8] = *b"TERRPOOL";

/// The format this build writes and reads.
pub(crate) const VERSION: u32 = 2;

pub(crate) const SUPERBLOCK_AT: [u64; 2] = [0, 4096];
pub(crate) const STATE_AT: [u64; 2] = [8192, 8192 + 256];
pub(crate) const SIZE_WORD_AT: u64 = 8704;
pub(crate) const ROOTS_AT: u64 = 12288;
pub(crate) const HEADER_BYTES: u64 = 16384;

pub(crate) const ROOT_COUNT: u64 = 60;
pub(crate) const ROOT_NAME_BYTES: usize = 24;

pub(crate) const EXTENT_BYTES_MIN: u64 = 4096;
pub(crate) const EXTENT_BYTES_MAX: u64 = 64 << 20;

/// The constant properties of a pool; written once at creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Superblock {
    pub magic: [u8; 8],
    pub version: u32,
    /// Granularity of the media at creation: 1 byte, 2 cache line, 3 page.
    pub granularity: u32,
    pub uuid: [u8; 16],
    pub extent_bytes: u64,
    /// Largest size foreseen at creation; opening may allow more.
    pub max_size: u64,
    /// Units covered by the first segment of the extent table, a power of two.
    pub first_units: u64,
    pub reserved: [u8; 68],
    /// CRC-32C of everything before. At this place in every version.
    pub crc: u32,
}

/// The granularity of a pool that was made on an ordinary file.
pub(crate) const OF_PAGES: u32 = 3;

impl Superblock {
    /// Whether the pool was made on an ordinary file.
    pub(crate) fn is_of_pages(&self) -> bool {
        self.granularity == OF_PAGES
    }

    pub(crate) fn sealed(mut self) -> Self {
        self.crc = crc32c(&self.as_bytes()[..124]);
        self
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.crc == crc32c(&self.as_bytes()[..124])
    }
}

/// The pool was closed in order.
pub(crate) const STATE_CLEAN: u32 = 1;
/// Something active at an unclean open was not reclaimed yet.
pub(crate) const STATE_UNRECLAIMED: u32 = 2;
/// The session ran on media where drained stores survive a power cut.
pub(crate) const STATE_POWER_SAFE: u32 = 4;
/// The system could not write back stores of the session: the contents mean nothing, even within the same boot.
pub(crate) const STATE_DISTRUSTED: u32 = 8;

/// The part that changes from session to session. Of its two slots the valid one with the higher sequence counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct State {
    pub sequence: u64,
    /// Counts the opens.
    pub generation: u64,
    /// Hash of the boot id of the session, 0 if there was none to be had.
    pub boot: u64,
    pub flags: u32,
    pub reserved: [u8; 4],
    /// Hash of the file, its device and how that was mounted; 0 if there was none to be had.
    pub instance: u64,
    /// Generation of the last session that changed the contents and was closed in order.
    pub contents: u64,
    /// Digest of roots, size word and extent table with the units' digests, if the pool was closed in order; 0 if there
    /// are none.
    pub digest: u64,
    pub reserved2: [u8; 4],
    pub crc: u32,
}

impl State {
    pub(crate) fn sealed(mut self) -> Self {
        self.crc = crc32c(&self.as_bytes()[..60]);
        self
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.crc == crc32c(&self.as_bytes()[..60])
    }

    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// A named root: the name, padded with zeros, and a word checked against it. A zero word is a free entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct RootEntry {
    pub name: [u8; ROOT_NAME_BYTES],
    pub word: u64,
}

/// First bytes of every slab.
pub(crate) const SLAB_MAGIC: u32 = u32::from_le_bytes(*b"SLAB");

/// The head of a slab, followed by its bitmap words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct SlabHeader {
    pub magic: u32,
    pub kind: u32,
    pub class_bytes: u32,
    pub slots: u32,
    /// Offset of slot 0 within the slab.
    pub data_at: u32,
    pub reserved: u32,
    /// The slab's own offset in the pool.
    pub offset: u64,
    pub reserved2: [u8; 28],
    pub crc: u32,
}

impl SlabHeader {
    pub(crate) fn sealed(mut self) -> Self {
        self.crc = crc32c(&self.as_bytes()[..60]);
        self
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.magic == SLAB_MAGIC && self.crc == crc32c(&self.as_bytes()[..60])
    }
}

// These structures are only copied out of a pool and into it.
pm_layout! {
    proof Superblock: 128 {
        magic @ 0,
        version @ 8,
        granularity @ 12,
        uuid @ 16,
        extent_bytes @ 32,
        max_size @ 40,
        first_units @ 48,
        reserved @ 56,
        crc @ 124,
    }
    proof State: 64 {
        sequence @ 0,
        generation @ 8,
        boot @ 16,
        flags @ 24,
        reserved @ 28,
        instance @ 32,
        contents @ 40,
        digest @ 48,
        reserved2 @ 56,
        crc @ 60,
    }
    proof RootEntry: 32 { name @ 0, word @ 24 }
    proof SlabHeader: 64 {
        magic @ 0,
        kind @ 4,
        class_bytes @ 8,
        slots @ 12,
        data_at @ 16,
        reserved @ 20,
        offset @ 24,
        reserved2 @ 32,
        crc @ 60,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn golden_superblock() {
        let superblock = Superblock {
            magic: MAGIC,
            version: VERSION,
            granularity: 3,
            uuid: *b"0123456789abcdef",
            extent_bytes: 65536,
            max_size: 64 << 30,
            first_units: 8192,
            reserved: [0; 68],
            crc: 0,
        }
        .sealed();
        let expected = concat!(
            "54455252504f4f4c",
            "02000000",
            "03000000",
            "30313233343536373839616263646566",
            "0000010000000000",
            "0000000010000000",
            "0020000000000000",
        );
        let bytes = hex(superblock.as_bytes());
        assert_eq!(bytes[..112], *expected);
        assert_eq!(bytes[112..248], "00".repeat(68));
        assert_eq!(bytes[248..], *"50d21f6a");
        assert!(superblock.is_sound());
    }

    #[test]
    fn golden_state() {
        let flags = STATE_CLEAN | STATE_POWER_SAFE;
        let state = State {
            sequence: 7,
            generation: 4,
            boot: 0x1122_3344_5566_7788,
            flags,
            reserved: [0; 4],
            instance: 0x99aa_bbcc_ddee_ff00,
            contents: 3,
            digest: 0x0123_4567_89ab_cdef,
            reserved2: [0; 4],
            crc: 0,
        }
        .sealed();
        let expected = concat!(
            "0700000000000000",
            "0400000000000000",
            "8877665544332211",
            "05000000",
            "00000000",
            "00ffeeddccbbaa99",
            "0300000000000000",
            "efcdab8967452301",
            "00000000",
        );
        let bytes = hex(state.as_bytes());
        assert_eq!(bytes[..120], *expected);
        assert_eq!(bytes[120..], *"0692e2da");
    }

    #[test]
    fn golden_slab_header() {
        let header = SlabHeader {
            magic: SLAB_MAGIC,
            kind: 2,
            class_bytes: 64,
            slots: 1020,
            data_at: 256,
            reserved: 0,
            offset: 0x30000,
            reserved2: [0; 28],
            crc: 0,
        }
        .sealed();
        let expected = concat!(
            "534c4142",
            "02000000",
            "40000000",
            "fc030000",
            "00010000",
            "00000000",
            "0000030000000000"
        );
        let bytes = hex(header.as_bytes());
        assert_eq!(bytes[..64], *expected);
        assert_eq!(bytes[120..], *"867a7af1");
    }
}
