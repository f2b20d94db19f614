//! x86-64: write-back instructions by inline assembly, non-temporal copies, `sfence`.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, __m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

use super::FlushOp;

const LINE: usize = 64;

pub(super) fn detect() -> Option<FlushOp> {
    static OP: OnceLock<FlushOp> = OnceLock::new();
    Some(*OP.get_or_init(|| {
        let ebx = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        match (ebx & 1 << 24 != 0, ebx & 1 << 23 != 0) {
            (true, _) => FlushOp::Clwb,
            (false, true) => FlushOp::ClflushOpt,
            (false, false) => FlushOp::Clflush,
        }
    }))
}

/// Starts writing back every line that `[addr, addr + len)` touches.
///
/// # Safety
///
/// The range is mapped.
#[inline]
pub(crate) unsafe fn flush(op: FlushOp, addr: *const u8, len: usize) {
    let end = addr as usize + len;
    // Aligned down first: stepping 64 bytes from an unaligned address misses the last line.
    let mut line = addr as usize & !(LINE - 1);
    while line < end {
        // SAFETY: the line holds a mapped byte, so all of it is mapped; these instructions change no memory
        // as the program sees it. Without `nomem` the compiler keeps earlier stores before them.
        unsafe {
            match op {
                FlushOp::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                FlushOp::ClflushOpt => {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags))
                }
                FlushOp::Clflush => asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)),
            }
        }
        line += LINE;
    }
}

/// Waits until earlier flushes and non-temporal stores are on their way past the caches.
#[inline]
pub(crate) fn fence() {
    // SAFETY: `sfence` is part of the x86-64 baseline and touches no memory.
    unsafe { _mm_sfence() }
}

/// Keeps earlier stores to a line before later ones to it: x86-64 never reorders stores to one line, so only
/// the compiler has to be told.
#[inline]
pub(crate) fn order() {
    compiler_fence(Ordering::Release);
}

/// Copies and flushes: whole lines past the caches, the partial ones at the ends through them.
///
/// # Safety
///
/// `dst` is valid for `len` writes, `src` for `len` reads, and they do not overlap.
#[inline]
pub(crate) unsafe fn copy_stream(op: FlushOp, dst: *mut u8, src: *const u8, len: usize) {
    let head = (dst as usize).wrapping_neg() % LINE;
    if len < head + LINE {
        // SAFETY: the caller's.
        return unsafe { copy_cached(op, dst, src, len) };
    }
    let body = (len - head) / LINE * LINE;
    let tail = len - head - body;
    // SAFETY: head + body + tail = len, so all three pieces lie inside the caller's ranges; dst + head is
    // line-aligned and body a multiple of the line.
    unsafe {
        copy_cached(op, dst, src, head);
        stream_lines(dst.add(head), src.add(head), body);
        copy_cached(op, dst.add(head + body), src.add(head + body), tail);
    }
}

/// # Safety
///
/// As [`copy_stream`].
#[inline]
unsafe fn copy_cached(op: FlushOp, dst: *mut u8, src: *const u8, len: usize) {
    if len > 0 {
        // SAFETY: the caller's.
        unsafe {
            dst.copy_from_nonoverlapping(src, len);
            flush(op, dst, len);
        }
    }
}

/// # Safety
///
/// As [`copy_stream`], with `dst` aligned to a line and `len` a multiple of it.
#[inline]
unsafe fn stream_lines(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: at + 64 <= len; dst is 64-byte aligned, so each 16-byte store is aligned; loads are
        // unaligned ones. The four stores fill one combining buffer.
        unsafe {
            let from = src.add(at).cast::<__m128i>();
            let to = dst.add(at).cast::<__m128i>();
            let lanes = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, lane) in lanes.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), lane);
            }
        }
        at += LINE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_copies_are_exact_at_every_alignment() {
        let src: Vec<u8> = (0..1024u32).map(|i| (i * 7 + 1) as u8).collect();
        let op = detect().unwrap();
        for at in [0, 1, 15, 16, 63, 64, 65] {
            for len in [0, 1, 8, 63, 64, 65, 127, 128, 129, 200, 777] {
                let mut dst = vec![0u8; 1024];
                // SAFETY: both ranges lie inside their vectors.
                unsafe { copy_stream(op, dst.as_mut_ptr().add(at), src.as_ptr().add(3), len) };
                fence();
                assert_eq!(dst[at..at + len], src[3..3 + len]);
                assert!(dst[..at].iter().chain(&dst[at + len..]).all(|&b| b == 0));
            }
        }
    }

    #[test]
    fn every_supported_instruction_runs() {
        let data = [1u8; 300];
        let ops: &[FlushOp] = match detect().unwrap() {
            FlushOp::Clwb => &[FlushOp::Clwb, FlushOp::ClflushOpt, FlushOp::Clflush],
            FlushOp::ClflushOpt => &[FlushOp::ClflushOpt, FlushOp::Clflush],
            FlushOp::Clflush => &[FlushOp::Clflush],
        };
        for &op in ops {
            // SAFETY: the range lies inside the array.
            unsafe { flush(op, data.as_ptr().add(1), 298) };
            fence();
            assert_eq!(data, [1u8; 300]);
        }
    }
}
