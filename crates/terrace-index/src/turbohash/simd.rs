//! Comparing a tag with the fourteen of a bucket at once.
//!
//! The operations of a table are generic over [`Isa`] and compiled once for each, under the processor features
//! that it needs ([`by_isa`]), so that the comparison is a few instructions in their midst and not a call. The
//! best one that the processor has is chosen when a table is opened.

use super::layout::SLOTS;
use super::meta::of_live;

/// An instruction set that operations are compiled for.
pub(super) trait Isa {
    /// The slots whose tag is `tag`, of 14.
    ///
    /// # Safety
    ///
    /// The processor has the features of this set.
    unsafe fn matches(tags: u64, tags_kinds: u64, tag: u8) -> u32;

    /// `meta::of_live`.
    ///
    /// # Safety
    ///
    /// The processor has the features of this set.
    #[inline(always)]
    unsafe fn of_live(tags: u64, tags_kinds: u64, live: u32) -> (u64, u64) {
        of_live(tags, tags_kinds, live)
    }

    /// The low bits of `word`, as many as the low byte of `bits` says, which is below 64.
    ///
    /// # Safety
    ///
    /// The processor has the features of this set.
    #[inline(always)]
    unsafe fn low_bits(word: u64, bits: u64) -> u64 {
        low_bits(word, bits)
    }
}

/// Any number of low bits, below 64, of a word.
#[inline(always)]
fn low_bits(word: u64, bits: u64) -> u64 {
    word & ((1 << (bits & 63)) - 1)
}

const SLOTS_MASK: u32 = (1 << SLOTS) - 1;

/// Any processor.
pub(super) struct Portable;

impl Isa for Portable {
    #[inline(always)]
    unsafe fn matches(tags: u64, tags_kinds: u64, tag: u8) -> u32 {
        (equal_bytes(tags, tag) | equal_bytes(tags_kinds, tag) << 8) & SLOTS_MASK
    }
}

/// A bit for each byte of `word` that is `byte`.
#[inline(always)]
fn equal_bytes(word: u64, byte: u8) -> u32 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let x = word ^ u64::from(byte).wrapping_mul(0x0101_0101_0101_0101);
    let zero_bytes = !(((x & LOW) + LOW) | x | LOW);
    ((zero_bytes >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512, Sse2};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, _bzhi_u64, _mm_cmpeq_epi8, _mm_cmpeq_epi8_mask, _mm_cvtsi128_si64, _mm_maskz_mov_epi8,
        _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8, _mm_unpackhi_epi64,
    };

    use super::{Isa, SLOTS_MASK};

    /// 128-bit vectors, on every x86-64.
    pub(in super::super) struct Sse2;
    /// The same comparison in three-operand form, beside `popcnt` and `bmi`.
    pub(in super::super) struct Avx2;
    /// Comparison into a mask register.
    pub(in super::super) struct Avx512;

    /// # Safety
    ///
    /// None but that of the vector features, which every x86-64 has.
    #[inline(always)]
    unsafe fn vector(tags: u64, tags_kinds: u64) -> __m128i {
        // SAFETY: SSE2 is part of the baseline.
        unsafe { _mm_set_epi64x(tags_kinds as i64, tags as i64) }
    }

    impl Isa for Sse2 {
        #[inline(always)]
        unsafe fn matches(tags: u64, tags_kinds: u64, tag: u8) -> u32 {
            // SAFETY: SSE2 is part of the baseline.
            unsafe {
                let equal = _mm_cmpeq_epi8(vector(tags, tags_kinds), _mm_set1_epi8(tag as i8));
                _mm_movemask_epi8(equal) as u32 & SLOTS_MASK
            }
        }
    }

    impl Isa for Avx2 {
        #[inline(always)]
        unsafe fn low_bits(word: u64, bits: u64) -> u64 {
            // SAFETY: the caller says that the processor has BMI2. It looks at the low byte alone.
            unsafe { _bzhi_u64(word, bits as u32) }
        }

        #[inline(always)]
        unsafe fn matches(tags: u64, tags_kinds: u64, tag: u8) -> u32 {
            // SAFETY: as in `Sse2`; the instructions take the form of the function this is inlined into.
            unsafe { Sse2::matches(tags, tags_kinds, tag) }
        }
    }

    impl Isa for Avx512 {
        #[inline(always)]
        unsafe fn low_bits(word: u64, bits: u64) -> u64 {
            // SAFETY: as in `Avx2`.
            unsafe { Avx2::low_bits(word, bits) }
        }

        #[inline(always)]
        unsafe fn matches(tags: u64, tags_kinds: u64, tag: u8) -> u32 {
            // SAFETY: the caller says that the processor has AVX-512 BW and VL.
            let equal = unsafe { _mm_cmpeq_epi8_mask(vector(tags, tags_kinds), _mm_set1_epi8(tag as i8)) };
            u32::from(equal) & SLOTS_MASK
        }

        #[inline(always)]
        unsafe fn of_live(tags: u64, tags_kinds: u64, live: u32) -> (u64, u64) {
            // SAFETY: the caller says that the processor has AVX-512 BW and VL.
            unsafe {
                let kept = _mm_maskz_mov_epi8(live as u16, vector(tags, tags_kinds));
                let low = _mm_cvtsi128_si64(kept) as u64;
                // Bits 14 and 15 of `live` are clear, and so the kinds' bytes become.
                (low, _mm_cvtsi128_si64(_mm_unpackhi_epi64(kept, kept)) as u64)
            }
        }
    }
}

/// The instruction set that a table's operations run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Sse2,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// Those that this processor has, the best one last.
    pub fn all() -> Vec<Level> {
        #[allow(unused_mut, reason = "one processor has more than the portable one")]
        let mut all = vec![Level::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.push(Level::Sse2);
            let common = is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("avx2");
            if common {
                all.push(Level::Avx2);
            }
            if common && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
                all.push(Level::Avx512);
            }
        }
        all
    }

    /// The best that this processor has.
    pub fn detect() -> Level {
        Self::all().pop().unwrap_or(Level::Portable)
    }
}

/// Defines a method that runs the generic method of the same arguments for the table's instruction set.
macro_rules! by_isa {
    ($(#[$doc:meta])* $vis:vis fn $name:ident$(<$lt:lifetime>)?(&$($slt:lifetime)? self $(, $arg:ident: $ty:ty)*) -> $out:ty = $generic:ident on $level:ident) => {
        $(#[$doc])*
        #[inline]
        $vis fn $name$(<$lt>)?(&$($slt)? self $(, $arg: $ty)*) -> $out {
            use $crate::turbohash::simd;

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512bw,avx512vl,avx2,popcnt,bmi1,bmi2")]
            unsafe fn avx512$(<$lt>)?(this: &$($slt)? $crate::turbohash::TurboHash $(, $arg: $ty)*) -> $out {
                this.$generic::<simd::Avx512>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
            unsafe fn avx2$(<$lt>)?(this: &$($slt)? $crate::turbohash::TurboHash $(, $arg: $ty)*) -> $out {
                this.$generic::<simd::Avx2>($($arg),*)
            }

            match self.$level {
                simd::Level::Portable => self.$generic::<simd::Portable>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                simd::Level::Sse2 => self.$generic::<simd::Sse2>($($arg),*),
                // SAFETY: the level is one of those that were found on this processor.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx2 => unsafe { avx2(self $(, $arg)*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx512 => unsafe { avx512(self $(, $arg)*) },
            }
        }
    };
}
pub(super) use by_isa;

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_base::rng::Rng;

    fn both(level: Level, tags: u64, kinds: u64, tag: u8, live: u32) -> (u32, (u64, u64)) {
        // SAFETY: the levels asked for are those of this processor.
        unsafe {
            match level {
                Level::Portable => {
                    (Portable::matches(tags, kinds, tag), Portable::of_live(tags, kinds, live))
                }
                #[cfg(target_arch = "x86_64")]
                Level::Sse2 => (Sse2::matches(tags, kinds, tag), Sse2::of_live(tags, kinds, live)),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => (Avx2::matches(tags, kinds, tag), Avx2::of_live(tags, kinds, live)),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => (Avx512::matches(tags, kinds, tag), Avx512::of_live(tags, kinds, live)),
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same() {
        let mut rng = Rng::new(1);
        for _ in 0..2000 {
            // Few values, so that tags often match.
            let mut word = || rng.next_u64() & 0x0303_0303_0303_0303;
            let (tags, kinds) = (word(), word());
            let tag = rng.below(4) as u8;
            let live = rng.below(1 << SLOTS) as u32;
            let bytes = [tags.to_le_bytes(), kinds.to_le_bytes()].concat();
            let wanted = (0..SLOTS).filter(|&i| bytes[i] == tag).fold(0, |mask, i| mask | 1 << i);
            for level in Level::all() {
                let found = both(level, tags, kinds, tag, live);
                assert_eq!(found, (wanted, of_live(tags, kinds, live)), "{level:?}");
            }
        }
    }
}
