//! The tree's memory: words that are handed out once and never taken back.

use std::alloc::{Layout, handle_alloc_error};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::MmapMut;

/// The address of the entry before all others, which has no key and the word 0; of no other thing.
pub(super) const HEAD: u64 = 0;

/// Words of the head.
const HEAD_WORDS: u64 = super::entry::FIXED_WORDS;

/// Words of a cache line.
const LINE_WORDS: u64 = 8;

/// Words of the first segment; each further one is twice as long as the one before.
const FIRST_SEGMENT_WORDS: u64 = 4096;

/// Segments at most: more than memory.
const SEGMENTS: usize = 36;

/// Words by address. New words are zero.
pub(super) struct Arena {
    segments: [OnceLock<Segment>; SEGMENTS],
    /// The next free address.
    end: AtomicU64,
}

impl Arena {
    pub fn new() -> Arena {
        Arena { segments: [const { OnceLock::new() }; SEGMENTS], end: AtomicU64::new(HEAD_WORDS) }
    }

    /// Bytes of DRAM taken.
    pub fn bytes(&self) -> u64 {
        self.end.load(Ordering::Relaxed) * 8
    }

    /// The words from `at` to the end of its segment.
    #[inline]
    pub fn words(&self, at: u64) -> &[AtomicU64] {
        let (segment, start) = segment_of(at);
        &self.segment(segment).words()[start..]
    }

    /// The address of `words` unused words of one segment.
    pub fn allocate(&self, words: u64) -> u64 {
        self.allocate_at_multiple(1, words)
    }

    /// The address of unused cache lines of one segment that hold `words`.
    pub fn allocate_lines(&self, words: u64) -> u64 {
        self.allocate_at_multiple(LINE_WORDS, words)
    }

    fn allocate_at_multiple(&self, of: u64, words: u64) -> u64 {
        let mut end = self.end.load(Ordering::Relaxed);
        loop {
            let at = end.next_multiple_of(of);
            let (segment, start) = segment_of(at);
            let left = (FIRST_SEGMENT_WORDS << segment) - start as u64;
            // An allocation that does not fit begins the next segment.
            let from = if words <= left { at } else { at + left };
            match self.end.compare_exchange_weak(end, from + words, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return from,
                Err(seen) => end = seen,
            }
        }
    }

    #[inline]
    fn segment(&self, number: usize) -> &Segment {
        self.segments[number].get_or_init(|| Segment::new(FIRST_SEGMENT_WORDS << number))
    }
}

/// Words side by side, from the beginning of a page on. The system provides the pages as they are used: a writer that
/// needs the next segment does not wait for all of it to be zeroed.
struct Segment(MmapMut);

impl Segment {
    fn new(words: u64) -> Segment {
        let bytes = words as usize * size_of::<AtomicU64>();
        match MmapMut::map_anon(bytes) {
            Ok(memory) => Segment(memory),
            // As with any allocation without memory.
            Err(_) => {
                handle_alloc_error(Layout::array::<AtomicU64>(words as usize).unwrap_or(Layout::new::<u64>()))
            }
        }
    }

    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping begins at a page and lives as long as `self`; zeros are valid words, and
        // nobody has it as bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() / size_of::<AtomicU64>()) }
    }
}

/// The segment that holds `at`, and where in it.
#[inline]
fn segment_of(at: u64) -> (usize, usize) {
    let shifted = at + FIRST_SEGMENT_WORDS;
    let segment = shifted.ilog2() - FIRST_SEGMENT_WORDS.ilog2();
    (segment as usize, (shifted - (FIRST_SEGMENT_WORDS << segment)) as usize)
}
