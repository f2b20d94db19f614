//! Processors whose write-back instructions we do not know: such media are opened as `Page` and made durable
//! by `msync`, so nothing here is reached for durability.

use std::sync::atomic::{Ordering, fence as memory_fence};

use super::FlushOp;

pub(super) fn detect() -> Option<FlushOp> {
    None
}

/// Does nothing: no medium asks for it without a [`FlushOp`].
///
/// # Safety
///
/// None needed; the signature is that of the other implementations.
#[inline]
pub(crate) unsafe fn flush(_op: FlushOp, _addr: *const u8, _len: usize) {}

/// Orders memory operations.
#[inline]
pub(crate) fn fence() {
    memory_fence(Ordering::SeqCst);
}

/// Orders stores.
#[inline]
pub(crate) fn order() {
    memory_fence(Ordering::Release);
}

/// Copies.
///
/// # Safety
///
/// `dst` is valid for `len` writes, `src` for `len` reads, and they do not overlap.
#[inline]
pub(crate) unsafe fn copy_stream(_op: FlushOp, dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's.
    unsafe { dst.copy_from_nonoverlapping(src, len) }
}
