//! The guide's memory: words that are handed out once and never taken back.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

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

#[repr(align(64))]
struct Line(
    #[expect(dead_code, reason = "lines side by side are looked at as words")]
    [AtomicU64; LINE_WORDS as usize],
);

/// Words by address. What is handed out is zero.
pub(super) struct Arena {
    segments: [OnceLock<Box<[Line]>>; SEGMENTS],
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
        &words_of(self.segment(segment))[start..]
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
            // What does not fit begins the next segment.
            let from = if words <= left { at } else { at + left };
            match self.end.compare_exchange_weak(end, from + words, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return from,
                Err(seen) => end = seen,
            }
        }
    }

    #[inline]
    fn segment(&self, number: usize) -> &[Line] {
        self.segments[number].get_or_init(|| {
            let lines = (FIRST_SEGMENT_WORDS << number) / LINE_WORDS;
            let lines = Box::<[Line]>::new_zeroed_slice(lines as usize);
            // SAFETY: zero bytes are valid `AtomicU64`s. (Not filled in a loop, so that the system provides the
            // pages one by one as they are used.)
            unsafe { lines.assume_init() }
        })
    }
}

#[inline]
fn words_of(lines: &[Line]) -> &[AtomicU64] {
    const { assert!(size_of::<Line>() == 8 * LINE_WORDS as usize) };
    // SAFETY: a line is an array of words and nothing else, so that lines side by side are words side by side;
    // the slice covers the same bytes for the same time.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LINE_WORDS as usize) }
}

/// The segment that holds `at`, and where in it.
#[inline]
fn segment_of(at: u64) -> (usize, usize) {
    let shifted = at + FIRST_SEGMENT_WORDS;
    let segment = shifted.ilog2() - FIRST_SEGMENT_WORDS.ilog2();
    (segment as usize, (shifted - (FIRST_SEGMENT_WORDS << segment)) as usize)
}
