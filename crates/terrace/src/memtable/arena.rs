//! Memory that is given out piece by piece and freed as a whole.
//!
//! 1. A piece never moves and is freed only with the arena.
//! 2. Pieces are aligned to eight bytes and do not overlap.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

const ALIGN: usize = 8;

/// Pieces larger than this share of a chunk get their own, so that little of a chunk is ever left unused.
const LARGE_SHARE: usize = 8;

#[derive(Debug)]
pub(super) struct Arena {
    chunks: Vec<Chunk>,
    chunk_bytes: usize,
    /// The chunk of small pieces, if there is one, and how much of it is used.
    current: Option<NonNull<u8>>,
    used: usize,
    /// Bytes of all chunks.
    held_bytes: u64,
}

#[derive(Debug)]
struct Chunk {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an arena owns its chunks, as a vector owns its elements; nothing in it is tied to a thread.
unsafe impl Send for Arena {}

impl Arena {
    /// An empty arena that takes `chunk_bytes` at a time.
    pub fn new(chunk_bytes: usize) -> Arena {
        let chunk_bytes = chunk_bytes.next_multiple_of(ALIGN).max(1024);
        Arena { chunks: Vec::new(), chunk_bytes, current: None, used: 0, held_bytes: 0 }
    }

    /// A piece of `bytes`, not initialised.
    pub fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        let bytes = bytes.next_multiple_of(ALIGN);
        if bytes > self.chunk_bytes / LARGE_SHARE {
            return self.add_chunk(bytes);
        }
        let chunk = match self.current.filter(|_| self.used + bytes <= self.chunk_bytes) {
            Some(chunk) => chunk,
            None => {
                let chunk = self.add_chunk(self.chunk_bytes);
                (self.current, self.used) = (Some(chunk), 0);
                chunk
            }
        };
        let at = self.used;
        self.used += bytes;
        // SAFETY: `at + bytes` is within the chunk, as checked above.
        unsafe { chunk.add(at) }
    }

    /// Bytes of DRAM that the arena holds.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    fn add_chunk(&mut self, bytes: usize) -> NonNull<u8> {
        let layout = Layout::from_size_align(bytes.max(ALIGN), ALIGN);
        let layout = layout.expect("a record is far below the address space");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        self.chunks.push(Chunk { start, layout });
        self.held_bytes += layout.size() as u64;
        start
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and owned by this chunk alone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_apart() {
        let mut arena = Arena::new(4096);
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        for bytes in (1..300).chain([5000, 512, 513, 1]) {
            let piece = arena.allocate(bytes);
            // SAFETY: the piece has the requested length and belongs to nobody else.
            unsafe { piece.as_ptr().write_bytes(0xa5, bytes) };
            pieces.push((piece.as_ptr() as usize, bytes));
        }
        pieces.sort_unstable();
        assert!(pieces.iter().all(|(at, _)| at % ALIGN == 0));
        assert!(pieces.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(arena.held_bytes() >= pieces.iter().map(|p| p.1 as u64).sum());
    }
}
