//! Huge pages for what is searched at random: with small ones a search would miss in the translation buffers as
//! often as in the caches.

use std::alloc::{Layout, handle_alloc_error};

/// What a huge page takes.
pub(crate) const PAGE_BYTES: usize = 2 << 20;

/// Asks for huge pages in memory of the caller's, before anything touches it; without them all is as well.
pub(crate) fn advise(at: *const u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: advice of this sort changes nothing of what is in the range, whoever has it.
    let _ = unsafe { rustix::mm::madvise(at.cast_mut().cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
    #[cfg(not(target_os = "linux"))]
    let _ = (at, bytes);
}

/// Ends the process as any allocation does for which there is no memory.
pub(crate) fn out_of_memory(bytes: usize) -> ! {
    handle_alloc_error(Layout::from_size_align(bytes, 1).unwrap_or(Layout::new::<u8>()))
}
