//! Lines of memory that are loaded before they are read.

/// Bytes of a line of the processor's cache.
pub const LINE_BYTES: usize = 64;

/// Starts loading the line at `at`. Neither the address nor what lies there needs to be valid: a processor
/// drops a prefetch that it cannot do.
///
/// ```
/// let values = [1, 2, 3];
/// terrace_base::prefetch::line(values.as_ptr());
/// ```
#[inline(always)]
pub fn line<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect that a program could see, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// Starts loading the `len` bytes at `at`, so that their lines come at once instead of one after the other.
#[inline(always)]
pub fn lines<T>(at: *const T, len: usize) {
    (0..len).step_by(LINE_BYTES).for_each(|offset| line(at.wrapping_byte_add(offset)));
}
