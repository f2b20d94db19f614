//! The directory: it leads to the newest version of each key.
//!
//! A power of two lines of eight slots; each line is a cache line of the processor. A slot is one word: two
//! bytes of tag, which are part of the key's hash, and six bytes of pointer to the newest version's record.
//!
//! ```text
//!   | slot 0 | slot 1 | .. | slot 7 |        a full line:   | slot 0 | .. | 0, line |
//!                                                                             |
//!                                                           | what was there | the ninth | ..
//! ```
//!
//! 1. Slots of a line are filled in turn and never emptied. A key has one slot in a directory.
//! 2. The word of a slot changes to a newer version of its key, or, in the last slot, to a link to a further line,
//!    which has the tag 0. The first slot of that line then holds the previous word.
//! 3. The target of a word is complete before the word is stored: stores have release order, loads acquire.
//! 4. A directory is replaced as a whole, by one that leads to everything that it led to. It then no longer
//!    changes, and lives as long as the table. A reader still using it came before the first insertion into
//!    the new one was finished: had that happened before the reader loaded the pointer to the directory, it
//!    would have loaded the new one. So everything inserted before the reader asked is in the directory that
//!    it loads.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use terrace_base::prefetch;

use super::record::{Head, MemRecord};
use crate::memtable::arena::Arena;

pub(super) const SLOTS: usize = 8;

/// The tag is kept above the pointer. Linux gives no addresses above these bits to a program that does not
/// request them, on any machine; [`Word::new`] checks that.
const POINTER_BITS: u32 = 48;
const POINTER_MASK: usize = (1 << POINTER_BITS) - 1;
const _: () = assert!(usize::BITS == 64, "a slot holds a tag and a pointer");

/// The tag of a link to a further line.
const LINK: u16 = 0;

/// The tag of keys with this hash. The lowest bits choose the line.
pub(super) fn tag_of(hash: u64) -> u16 {
    ((hash >> POINTER_BITS) as u16).max(1)
}

/// The content of a slot: null, or a pointer with a tag in its upper bits. The pointer keeps its provenance:
/// tagging changes only its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word(*mut Head);

impl Word {
    fn new(tag: u16, to: NonNull<Head>) -> Word {
        assert!(to.addr().get() <= POINTER_MASK, "the system gives no memory above 2^48");
        Word(to.as_ptr().map_addr(|address| address | usize::from(tag) << POINTER_BITS))
    }

    #[inline]
    fn tag(self) -> u16 {
        (self.0.addr() >> POINTER_BITS) as u16
    }

    #[inline]
    fn is_link(self) -> bool {
        self.tag() == LINK && !self.0.is_null()
    }

    #[inline]
    fn pointer(self) -> Option<NonNull<Head>> {
        NonNull::new(self.0.map_addr(|address| address & POINTER_MASK))
    }
}

/// One line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Line {
    slots: [AtomicPtr<Head>; SLOTS],
}

const _: () = assert!(size_of::<Line>() == 64);

/// The layout of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub log2_lines: u32,
    /// Whether its keys are hashed by the slower function that is safe from attackers.
    pub keyed: bool,
}

const LOG2_MASK: usize = 31;
const KEYED: usize = 32;
const _: () = assert!(LOG2_MASK | KEYED < align_of::<Line>());

/// The pointer to a directory, with its shape in the bits that its alignment leaves. So a lookup reads no head of it.
#[derive(Debug, Default)]
pub(super) struct Current(AtomicPtr<Line>);

impl Current {
    /// The directory, if there is one yet.
    ///
    /// # Safety
    /// The directory stored last must live for `'a`.
    #[inline]
    pub unsafe fn load<'a>(&self) -> Option<Directory<'a>> {
        let word = self.0.load(Ordering::Acquire);
        let bits = word.addr() & (LOG2_MASK | KEYED);
        let lines = NonNull::new(word.map_addr(|address| address & !(LOG2_MASK | KEYED)))?;
        let shape = Shape { log2_lines: (bits & LOG2_MASK) as u32, keyed: bits & KEYED != 0 };
        // SAFETY: the caller's promise; `store` had a directory of this shape.
        Some(Directory { lines: unsafe { std::slice::from_raw_parts(lines.as_ptr(), shape.lines()) }, shape })
    }

    pub fn store(&self, directory: Directory<'_>) {
        let Shape { log2_lines, keyed } = directory.shape;
        let bits = log2_lines as usize | if keyed { KEYED } else { 0 };
        self.0
            .store(directory.lines.as_ptr().cast_mut().map_addr(|address| address | bits), Ordering::Release);
    }
}

impl Shape {
    pub fn lines(self) -> usize {
        1 << self.log2_lines
    }
}

/// A directory that can be reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Directory<'a> {
    lines: &'a [Line],
    pub shape: Shape,
}

/// The end of a search.
#[derive(Debug)]
pub(super) enum SlotSearch<'a> {
    /// In the key's slot.
    Found(&'a AtomicPtr<Head>, MemRecord<'a>),
    /// In the slot that a new key takes.
    Free(&'a AtomicPtr<Head>),
    /// After the last slot of this many lines, which are full.
    Full(&'a AtomicPtr<Head>, usize),
}

impl<'a> Directory<'a> {
    /// A new one without keys.
    ///
    /// # Safety
    /// The arena must live for `'a`.
    pub unsafe fn new(arena: &mut Arena, shape: Shape) -> Directory<'a> {
        let start = arena.allocate_lines(shape.lines()).cast::<Line>();
        for i in 0..shape.lines() {
            // SAFETY: the memory is new, aligned to lines and large enough for this many.
            unsafe { start.add(i).write(Line::default()) };
        }
        // SAFETY: just initialised; from here on it is written only by the slots' atomics.
        Directory { lines: unsafe { std::slice::from_raw_parts(start.as_ptr(), shape.lines()) }, shape }
    }

    #[inline]
    fn line(&self, hash: u64) -> &'a Line {
        &self.lines[hash as usize & (self.lines.len() - 1)]
    }

    /// Prefetches the line of this hash.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch::line(std::ptr::from_ref(self.line(hash)));
    }

    /// Finds the one record for which `is_it` is true, among those of this hash.
    #[inline]
    pub fn search(&self, hash: u64, is_it: impl Fn(MemRecord<'a>) -> bool) -> SlotSearch<'a> {
        let tag = tag_of(hash);
        let mut line = self.line(hash);
        let mut lines = 1;
        loop {
            // One load of each slot: the last may turn into a link at any time.
            let words = line.words();
            let mut same =
                words.iter().zip(0..).fold(0u32, |same, (word, i)| same | u32::from(word.tag() == tag) << i);
            while let Some(i) = same.checked_ilog2() {
                same &= !(1 << i);
                let i = i as usize;
                let record = words[i].pointer().map(|head| line.record(head));
                if let Some(record) = record.filter(|record| is_it(*record)) {
                    return SlotSearch::Found(&line.slots[i], record);
                }
            }
            let Some(further) = line.further(words) else {
                return match words.iter().position(|word| word.0.is_null()) {
                    Some(free) => SlotSearch::Free(&line.slots[free]),
                    None => SlotSearch::Full(&line.slots[SLOTS - 1], lines),
                };
            };
            (line, lines) = (further, lines + 1);
        }
    }

    /// Every record that a slot leads to.
    pub fn for_each(&self, mut each: impl FnMut(MemRecord<'a>)) {
        for (i, line) in self.lines.iter().enumerate() {
            // Their heads are read next, wherever they lie.
            let ahead = self.lines.get(i + 1).into_iter().flat_map(Line::words);
            ahead.filter_map(Word::pointer).for_each(|head| prefetch::line(head.as_ptr()));
            line.chain().for_each(|(line, words)| line.records(words).for_each(&mut each));
        }
    }

    /// Checks every slot; returns what is wrong. `hash` computes the hash of a record's key in this
    /// directory.
    pub fn check(&self, hash: impl Fn(MemRecord<'_>) -> u64, problems: &mut Vec<String>) {
        for (i, first) in self.lines.iter().enumerate() {
            for (line, words) in first.chain() {
                let used = words.iter().take_while(|word| !word.0.is_null()).count();
                let empty_behind = words[used..].iter().all(|word| word.0.is_null());
                if !empty_behind || words[..SLOTS - 1].iter().any(|word| word.is_link()) {
                    problems.push(format!("line {i} has a gap or a link before its last slot"));
                }
                for (word, record) in words.iter().zip(line.records(words)) {
                    let hash = hash(record);
                    if word.tag() != tag_of(hash) || hash as usize & (self.lines.len() - 1) != i {
                        problems.push(format!("line {i} has the key {:?} of another place", record.key()));
                    }
                }
            }
        }
    }

    /// The most lines in one chain.
    #[cfg(test)]
    pub fn longest_chain(&self) -> usize {
        self.lines.iter().map(|line| line.chain().count()).max().unwrap_or(0)
    }
}

impl SlotSearch<'_> {
    /// Puts `record`, whose key has this hash, in this place. The caller is the one writer and has found this
    /// place since its last change.
    #[inline]
    pub fn set(&self, arena: &mut Arena, hash: u64, record: NonNull<Head>) {
        let word = Word::new(tag_of(hash), record);
        match self {
            SlotSearch::Found(slot, _) | SlotSearch::Free(slot) => slot.store(word.0, Ordering::Release),
            SlotSearch::Full(last, _) => chain(arena, last, word),
        }
    }
}

/// Puts `word` into a further line, and makes `last` lead to it.
#[cold]
fn chain(arena: &mut Arena, last: &AtomicPtr<Head>, word: Word) {
    let displaced = last.load(Ordering::Relaxed);
    let line = arena.allocate_line().cast::<Line>();
    let further = Line::default();
    further.slots[0].store(displaced, Ordering::Relaxed);
    further.slots[1].store(word.0, Ordering::Relaxed);
    // SAFETY: the memory is new and aligned to a line.
    unsafe { line.write(further) };
    // A reader that loads the slot finds its previous word either here or there.
    last.store(Word::new(LINK, line.cast()).0, Ordering::Release);
}

impl Line {
    #[inline]
    fn words(&self) -> [Word; SLOTS] {
        std::array::from_fn(|i| Word(self.slots[i].load(Ordering::Acquire)))
    }

    #[inline]
    fn record(&self, head: NonNull<Head>) -> MemRecord<'_> {
        // SAFETY: a tagged word was made from a record in the arena that this line lies in, which lives as
        // long as it; the record was complete before the word could be loaded (invariant 3).
        unsafe { MemRecord::new(head) }
    }

    /// The line that the last of these words leads to; the words were loaded from this line.
    #[inline]
    fn further(&self, words: [Word; SLOTS]) -> Option<&Line> {
        let last = words[SLOTS - 1];
        let line = last.pointer().filter(|_| last.is_link())?;
        // SAFETY: a link was made from a line in the same arena, complete before it was stored.
        Some(unsafe { line.cast::<Line>().as_ref() })
    }

    /// This line and those chained to it, with their words. Each word is loaded once: a slot's word from
    /// before it turned into a link is found here or there, never twice.
    fn chain(&self) -> impl Iterator<Item = (&Line, [Word; SLOTS])> {
        std::iter::successors(Some((self, self.words())), |(line, words)| {
            line.further(*words).map(|line| (line, line.words()))
        })
    }

    /// The records that these words lead to; the words were loaded from this line.
    fn records(&self, words: [Word; SLOTS]) -> impl Iterator<Item = MemRecord<'_>> {
        let tagged = words.into_iter().filter(|word| word.tag() != LINK);
        tagged.filter_map(Word::pointer).map(|head| self.record(head))
    }
}
