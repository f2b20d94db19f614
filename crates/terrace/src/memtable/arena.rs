//! The memory of one memtable: pieces of chunks, freed as a whole with it.
//!
//! 1. A piece never moves and is freed only with the arena.
//! 2. Pieces are aligned to eight bytes, lines to themselves, and none overlap.

use std::ptr::NonNull;
use std::sync::Arc;

use super::chunks::{Chunk, Chunks, MIN_CHUNK_BYTES, REGION_BYTES};

const ALIGN: usize = 8;
const LINE_BYTES: usize = 64;

/// The largest chunk for small pieces.
const MAX_CHUNK_BYTES: usize = 1 << 20;

/// The limit to which a large piece enlarges a small memtable's next chunk; a piece too large for it gets its
/// own memory.
const ROOMY_CHUNK_BYTES: usize = 32 << 10;

/// A chunk is at most this share of what the memtable already has.
const CHUNK_SHARE: usize = 8;

/// Pieces larger than this share of a chunk get their own memory, so that little of a chunk is ever left
/// unused.
const LARGE_SHARE: usize = 4;

#[derive(Debug)]
pub(super) struct Arena {
    source: Arc<Chunks>,
    chunks: Vec<Chunk>,
    /// The rest of the chunk of small pieces.
    at: NonNull<u8>,
    left: usize,
    held_bytes: usize,
}

// SAFETY: the rest belongs to a chunk that is owned here, as a vector owns its elements.
unsafe impl Send for Arena {}

impl Arena {
    pub fn new(source: Arc<Chunks>) -> Arena {
        Arena { source, chunks: Vec::new(), at: NonNull::dangling(), left: 0, held_bytes: 0 }
    }

    /// Bytes that the memtable holds.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes as u64
    }

    /// A piece of `bytes`, aligned to eight, not initialised. It lives as long as the arena and never moves.
    #[inline]
    pub fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        let bytes = bytes.next_multiple_of(ALIGN);
        if bytes > self.left && !self.refill(bytes) {
            return self.keep(self.source.take_apart(bytes));
        }
        self.cut(bytes)
    }

    /// A piece for one line, aligned to it.
    pub fn allocate_line(&mut self) -> NonNull<u8> {
        let gap = self.at.addr().get().wrapping_neg() % LINE_BYTES;
        if gap + LINE_BYTES <= self.left {
            self.cut(gap);
        } else {
            // Chunks are aligned to their size.
            self.refill(LINE_BYTES);
        }
        self.cut(LINE_BYTES)
    }

    /// Memory for a power of two lines.
    pub fn allocate_lines(&mut self, lines: usize) -> NonNull<u8> {
        let bytes = lines * LINE_BYTES;
        let in_region = bytes.is_power_of_two() && (MIN_CHUNK_BYTES..=REGION_BYTES).contains(&bytes);
        let chunk = if in_region { self.source.take(bytes) } else { self.source.take_apart(bytes) };
        self.keep(chunk)
    }

    /// The lines of memory in which the next small piece will begin, for prefetching.
    #[inline]
    pub fn next_lines(&self) -> impl Iterator<Item = *const u8> + use<> {
        let at = self.at.as_ptr().cast_const();
        (0..3).map(move |line| at.wrapping_add(line * LINE_BYTES))
    }

    fn cut(&mut self, bytes: usize) -> NonNull<u8> {
        assert!(bytes <= self.left, "a piece is cut from what is left");
        let piece = self.at;
        self.left -= bytes;
        // SAFETY: this much is left from here on.
        self.at = unsafe { piece.add(bytes) };
        piece
    }

    /// Begins a new chunk from which to cut `bytes`, unless that is too much of one.
    fn refill(&mut self, bytes: usize) -> bool {
        let chunk_bytes = next_chunk_bytes(self.held_bytes, bytes);
        if bytes > chunk_bytes / LARGE_SHARE {
            return false;
        }
        let chunk = self.source.take(chunk_bytes);
        self.left = chunk.bytes();
        self.at = self.keep(chunk);
        true
    }

    fn keep(&mut self, chunk: Chunk) -> NonNull<u8> {
        let start = chunk.start();
        self.held_bytes += chunk.bytes();
        self.chunks.push(chunk);
        start
    }
}

/// The size of the next chunk for a memtable that holds `held` bytes and needs a piece of `bytes`. Small tables
/// take small ones: there may be thousands.
fn next_chunk_bytes(held: usize, bytes: usize) -> usize {
    let by_table = (held / CHUNK_SHARE).clamp(MIN_CHUNK_BYTES, MAX_CHUNK_BYTES);
    let by_piece = bytes.saturating_mul(CHUNK_SHARE).min(ROOMY_CHUNK_BYTES);
    // Down to a power of two.
    1 << by_table.max(by_piece).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_apart() {
        let mut arena = Arena::new(Chunks::new());
        let mut all: Vec<(usize, usize)> = Vec::new();
        for (i, bytes) in
            (1..300).chain([5000, 512, 513, 1, 100_000, 3 << 20, 9]).cycle().take(5000).enumerate()
        {
            let (piece, bytes) = match i % 7 {
                0 => (arena.allocate_line(), LINE_BYTES),
                _ => (arena.allocate(bytes), bytes),
            };
            assert!(i % 7 != 0 || piece.addr().get() % LINE_BYTES == 0);
            if bytes < 1 << 20 {
                // SAFETY: the piece has the requested length and belongs to nobody else.
                unsafe { piece.as_ptr().write_bytes(0xa5, bytes) };
            }
            all.push((piece.addr().get(), bytes));
        }
        all.sort_unstable();
        assert!(all.iter().all(|(at, _)| at % ALIGN == 0));
        assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert_eq!(arena.held_bytes(), arena.source.given_bytes());
    }

    #[test]
    fn small_tables_take_small_chunks() {
        let tiny: Vec<usize> =
            [0, 50 << 10, 2 << 20, 64 << 20].map(|held| next_chunk_bytes(held, 140)).into();
        assert_eq!(tiny, [4 << 10, 4 << 10, 256 << 10, 1 << 20]);
        assert_eq!((next_chunk_bytes(0, 1000), next_chunk_bytes(0, 4200)), (4 << 10, 32 << 10));
    }
}
