//! A buffer of each thread for bytes that are read only to be copied.

use std::cell::Cell;

/// Longer buffers are not kept.
const MOST_BYTES: usize = 256 << 10;

/// Runs `with` over `len` bytes with arbitrary contents.
pub(crate) fn with_scratch<T>(len: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) });
    // Taken, not borrowed: a nested call gets another buffer.
    let mut buf = KEPT.take();
    if buf.len() < len {
        buf.resize(len, 0);
    }
    let out = with(&mut buf[..len]);
    if buf.len() <= MOST_BYTES {
        KEPT.set(buf);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_as_long_as_asked_for_and_do_not_overlap() {
        for len in [0, 10, 3, MOST_BYTES + 1, 5] {
            with_scratch(len, |outer| {
                outer.fill(1);
                with_scratch(len + 1, |inner| inner.fill(2));
                assert_eq!((outer.len(), outer.iter().all(|b| *b == 1)), (len, true));
            });
        }
    }
}
