//! Size classes of slots, and the shape of a slab.

use crate::layout::SlabHeader;

/// Slots in one bitmap word: a checked word holds 48 bits.
pub(super) const SLOTS_PER_WORD: u32 = crate::word::VALUE_BITS;

/// Class sizes in bytes: four to a doubling from 256 on, so that at most a fifth of a slot is wasted.
pub(super) const CLASSES: [u32; 28] = [
    16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560,
    3072, 3584, 4096, 5120, 6144, 7168, 8192,
];

/// The class for `bytes`, unless they are better off in extents of their own: a slab is to hold several slots.
pub(super) fn class_for(bytes: u64, extent_bytes: u64) -> Option<usize> {
    let class = CLASSES.partition_point(|&c| u64::from(c) < bytes);
    (class < CLASSES.len() && u64::from(CLASSES[class]) <= extent_bytes / 8).then_some(class)
}

/// The class of exactly this size.
pub(super) fn class_of(bytes: u32) -> Option<usize> {
    CLASSES.binary_search(&bytes).ok()
}

/// Where things are in a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub class_bytes: u32,
    pub slots: u32,
    /// Offset of slot 0 within the slab.
    pub data_at: u32,
}

impl Geometry {
    /// As many slots as fit. Slots are aligned to the largest power of two in their size, up to 256.
    pub(super) fn new(class_bytes: u32, extent_bytes: u64) -> Geometry {
        let extent = u32::try_from(extent_bytes).unwrap_or(u32::MAX);
        let align = (1u32 << class_bytes.trailing_zeros()).min(256);
        let data_at = |slots: u32| (Self::bitmap_end(slots)).next_multiple_of(align);
        let mut slots = extent / class_bytes;
        while data_at(slots) + slots * class_bytes > extent {
            slots -= 1;
        }
        Geometry { class_bytes, slots, data_at: data_at(slots) }
    }

    /// The geometry a header tells, if it makes sense in an extent.
    pub(super) fn from_header(header: &SlabHeader, extent_bytes: u64) -> Option<Geometry> {
        let g = Geometry { class_bytes: header.class_bytes, slots: header.slots, data_at: header.data_at };
        let end = u64::from(g.data_at) + u64::from(g.slots) * u64::from(g.class_bytes);
        let sensible = class_of(g.class_bytes).is_some()
            && g.slots > 0
            && u64::from(g.slots) <= extent_bytes
            && Self::bitmap_end(g.slots) <= g.data_at
            && g.data_at.is_multiple_of(16)
            && end <= extent_bytes;
        sensible.then_some(g)
    }

    /// Bitmap words.
    pub(super) fn words(&self) -> u32 {
        self.slots.div_ceil(SLOTS_PER_WORD)
    }

    /// The bits of bitmap word `word` that stand for slots.
    pub(super) fn mask(&self, word: u32) -> u64 {
        let slots = (self.slots - word * SLOTS_PER_WORD).min(SLOTS_PER_WORD);
        (1 << slots) - 1
    }

    fn bitmap_end(slots: u32) -> u32 {
        size_of::<SlabHeader>() as u32 + slots.div_ceil(SLOTS_PER_WORD) * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_and_waste_little() {
        assert!(CLASSES.windows(2).all(|w| w[0] < w[1]));
        assert!(CLASSES.iter().all(|c| c % 16 == 0));
        assert!(CLASSES.windows(2).skip(7).all(|w| w[1] * 4 <= w[0] * 5));
        assert_eq!(class_for(1, 65536), Some(0));
        assert_eq!(class_for(17, 65536), Some(1));
        assert_eq!(class_for(8192, 65536), Some(27));
        assert_eq!(class_for(8193, 65536), None);
        assert_eq!(class_for(513, 4096), None);
    }

    #[test]
    fn golden_geometry() {
        let expected = Geometry { class_bytes: 64, slots: 1020, data_at: 256 };
        assert_eq!((Geometry::new(64, 65536), expected.words()), (expected, 22));
    }

    #[test]
    fn slots_fit_and_are_aligned() {
        for extent in [4096u64, 65536, 1 << 20] {
            for class in CLASSES.into_iter().filter(|&c| u64::from(c) <= extent / 8) {
                let g = Geometry::new(class, extent);
                assert!(g.data_at + g.slots * class <= extent as u32);
                assert!(g.data_at >= 64 + g.words() * 8);
                assert!(g.data_at.is_multiple_of((1 << class.trailing_zeros()).min(256)));
                assert!(g.slots >= 7, "{extent} {class}");
                let bits: u32 = (0..g.words()).map(|w| g.mask(w).count_ones()).sum();
                assert_eq!(bits, g.slots);
            }
        }
    }
}
