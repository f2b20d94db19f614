//! The guide: a skiplist in DRAM from keys to words, so that finding a place in a persistent structure touches
//! no PM. It is volatile, and rebuilt or refilled after an open.
//!
//! Whole keys up to [`WHOLE_KEY_BYTES`] are kept as big-endian words: a comparison is a few integer
//! comparisons, and only longer keys with a longer common beginning are looked up where they come from.
//!
//! 1. Nothing leaves the guide. Of what is in it two things change: an entry's word, and links, these by
//!    compare-and-swap to a node that lies between the two. Every level is ascending at all times, and level
//!    `i` is part of level `i - 1`.
//! 2. Words are written before a link leads to them (release) and read after following it (acquire).

use std::cmp::Ordering as Order;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_base::Result;

/// Levels a node may be linked in.
pub(crate) const MAX_HEIGHT: usize = 14;

/// Keys up to this length are compared without being looked up.
pub(crate) const WHOLE_KEY_BYTES: usize = 8 * KEY_WORDS;

/// Most words of a key kept in a node.
const KEY_WORDS: usize = 32;

/// Words of the first segment; each further one is twice as long as the one before.
const FIRST_SEGMENT_WORDS: u64 = 4096;

/// Segments at most: more than memory.
const SEGMENTS: usize = 36;

/// The head node's address; it has every level, no key and no word.
const HEAD: u64 = 0;

/// Words before a node's key: the entry's word under the key's length, and the sequence number.
const FIXED_WORDS: u64 = 2;

/// Bits of an entry's word in its node's first word.
const WORD_BITS: u32 = 48;

const WORD_MASK: u64 = (1 << WORD_BITS) - 1;

/// What is looked for, or about to enter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub key: &'a [u8],
    pub seq: u64,
}

/// Where a target belongs: on each level the address of the last node before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trail {
    before: [u64; MAX_HEIGHT],
    /// The first node at or after it.
    after: u64,
}

/// A target's place among the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The word of the last entry before it; 0 if there is none.
    pub prev: u64,
    /// The word of the first entry at or after it; 0 if there is none.
    pub next: u64,
    /// Whether that entry is at it.
    pub exact: bool,
}

/// A volatile skiplist of words of up to 48 bits, by key and sequence number.
pub(crate) struct Guide {
    segments: [OnceLock<Box<[AtomicU64]>>; SEGMENTS],
    /// The next free address.
    end: AtomicU64,
    /// Levels in use.
    height: AtomicU64,
}

/// Compares an entry's key, looked up by its word, with another.
pub(crate) type LookUp<'a> = &'a dyn Fn(u64, &[u8]) -> Result<Order>;

impl Guide {
    pub fn new() -> Guide {
        let guide = Guide {
            segments: [const { OnceLock::new() }; SEGMENTS],
            end: AtomicU64::new(HEAD),
            height: AtomicU64::new(1),
        };
        let head = guide.allocate(FIXED_WORDS + MAX_HEIGHT as u64);
        debug_assert_eq!(head, HEAD, "nothing is allocated before the head");
        guide
    }

    /// Bytes of DRAM taken.
    pub fn bytes(&self) -> u64 {
        self.end.load(Ordering::Relaxed) * 8
    }

    /// Finds the place of `target`.
    pub fn find(&self, target: Target<'_>, look_up: LookUp<'_>) -> Result<(Trail, Place)> {
        let mut trail = Guide::start();
        let (mut at, mut next) = (HEAD, HEAD);
        for level in (0..self.height.load(Ordering::Acquire) as usize).rev() {
            (at, next) = self.advance(at, level, next, target, look_up)?;
            trail.before[level] = at;
        }
        trail.after = next;
        let exact = next != HEAD && self.compare(next, target, look_up)?.is_eq();
        Ok((trail, Place { prev: self.word(at), next: self.word(next), exact }))
    }

    /// A trail from which [`append`](Self::append) may start in an empty guide.
    pub fn start() -> Trail {
        Trail { before: [HEAD; MAX_HEIGHT], after: HEAD }
    }

    /// Enters `word` under `target`, whose place `trail` was when it was found.
    pub fn insert(&self, trail: &Trail, target: Target<'_>, word: u64, look_up: LookUp<'_>) -> Result<()> {
        let height = random_height();
        let node = self.write_node(target, word, height);
        self.height.fetch_max(height as u64, Ordering::AcqRel);
        for (level, &before) in trail.before.iter().enumerate().take(height) {
            let mut at = before;
            loop {
                let next;
                (at, next) = self.advance(at, level, HEAD, target, look_up)?;
                self.link(node, level).store(next, Ordering::Relaxed);
                let link = self.link(at, level);
                if link.compare_exchange(next, node, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Enters what comes after all others; nobody else may enter anything meanwhile. `trail` is that of the
    /// entry appended before and moves on.
    pub fn append(&self, trail: &mut Trail, target: Target<'_>, word: u64) {
        let height = random_height();
        let node = self.write_node(target, word, height);
        self.height.fetch_max(height as u64, Ordering::AcqRel);
        for (level, before) in trail.before.iter_mut().enumerate().take(height) {
            self.link(*before, level).store(node, Ordering::Release);
            *before = node;
        }
    }

    /// Replaces the word of the entry at or after which `trail` was found, if it is still `old`.
    pub fn replace(&self, trail: &Trail, old: u64, new: u64) -> bool {
        let first = &self.words(trail.after)[0];
        let len = first.load(Ordering::Relaxed) & !WORD_MASK;
        first.compare_exchange(len | old, len | new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Keeps `words` beside the entries; returns their address, which is never 0.
    pub fn keep(&self, words: &[u64]) -> u64 {
        let at = self.allocate(words.len() as u64);
        self.words(at).iter().zip(words).for_each(|(to, word)| to.store(*word, Ordering::Relaxed));
        at
    }

    /// What [`keep`](Self::keep) has put at `at`, and more after it.
    pub fn kept(&self, at: u64) -> impl Iterator<Item = u64> {
        self.words(at).iter().map(|word| word.load(Ordering::Relaxed))
    }

    /// The last entry's word, 0 if there is none.
    pub fn last(&self) -> u64 {
        let mut at = HEAD;
        for level in (0..self.height.load(Ordering::Acquire) as usize).rev() {
            while let next @ 1.. = self.link(at, level).load(Ordering::Acquire) {
                at = next;
            }
        }
        self.word(at)
    }

    /// Compares the guide with the words of all records in order; says what is wrong.
    pub fn check(&self, entries: &[u64]) -> Option<String> {
        let mut below: Vec<u64> = self.level(0);
        let words: Vec<u64> = below.iter().map(|&node| self.word(node)).collect();
        if words != entries {
            return Some(format!(
                "the guide's {} entries are not the {} records",
                words.len(),
                entries.len()
            ));
        }
        for level in 1..MAX_HEIGHT {
            let here = self.level(level);
            let mut rest = below.iter();
            if !here.iter().all(|node| rest.any(|n| n == node)) {
                return Some(format!("level {level} of the guide is no part of the one below"));
            }
            below = here;
        }
        None
    }

    fn level(&self, level: usize) -> Vec<u64> {
        let mut nodes = Vec::new();
        let mut at = HEAD;
        while let next @ 1.. = self.link(at, level).load(Ordering::Acquire) {
            nodes.push(next);
            at = next;
        }
        nodes
    }

    /// Walks `level` from `at`, which is before `target`, to the last such node; also the node after it.
    /// `bound`, if not the head, is known to be at or after `target`.
    fn advance(
        &self,
        mut at: u64,
        level: usize,
        bound: u64,
        target: Target<'_>,
        look_up: LookUp<'_>,
    ) -> Result<(u64, u64)> {
        loop {
            let next = self.link(at, level).load(Ordering::Acquire);
            if next == HEAD || next == bound || self.compare(next, target, look_up)?.is_ge() {
                return Ok((at, next));
            }
            at = next;
        }
    }

    /// How the node at `at` compares with `target`.
    fn compare(&self, at: u64, target: Target<'_>, look_up: LookUp<'_>) -> Result<Order> {
        let node = self.words(at);
        let first = node[0].load(Ordering::Relaxed);
        let len = (first >> WORD_BITS) as usize;
        let own = &node[FIXED_WORDS as usize..][..key_words(len)];
        for (word, other) in own.iter().zip(words_of(target.key)) {
            match word.load(Ordering::Relaxed).cmp(&other) {
                Order::Equal => {}
                unequal => return Ok(unequal),
            }
        }
        // Zeros pad a last word, so of two keys that are equal as far as both go the shorter is the smaller.
        let keys = if len.min(target.key.len()) > WHOLE_KEY_BYTES {
            look_up(first & WORD_MASK, target.key)?
        } else {
            len.cmp(&target.key.len())
        };
        Ok(keys.then_with(|| target.seq.cmp(&node[1].load(Ordering::Relaxed))))
    }

    /// The word of the node at `at`; 0 for the head.
    fn word(&self, at: u64) -> u64 {
        self.words(at)[0].load(Ordering::Acquire) & WORD_MASK
    }

    fn write_node(&self, target: Target<'_>, word: u64, height: usize) -> u64 {
        let key = key_words(target.key.len());
        let at = self.allocate(FIXED_WORDS + (key + height) as u64);
        let node = self.words(at);
        node[0].store((target.key.len() as u64) << WORD_BITS | word, Ordering::Relaxed);
        node[1].store(target.seq, Ordering::Relaxed);
        for (word, value) in node[FIXED_WORDS as usize..].iter().zip(words_of(target.key)) {
            word.store(value, Ordering::Relaxed);
        }
        at
    }

    fn link(&self, at: u64, level: usize) -> &AtomicU64 {
        let node = self.words(at);
        let len = (node[0].load(Ordering::Relaxed) >> WORD_BITS) as usize;
        &node[FIXED_WORDS as usize + key_words(len) + level]
    }

    /// The words from `at` to the end of its segment.
    fn words(&self, at: u64) -> &[AtomicU64] {
        let (segment, start) = segment_of(at);
        &self.segment(segment)[start..]
    }

    fn segment(&self, number: usize) -> &[AtomicU64] {
        self.segments[number].get_or_init(|| {
            let words = Box::<[AtomicU64]>::new_zeroed_slice((FIRST_SEGMENT_WORDS << number) as usize);
            // SAFETY: zero bytes are a valid `AtomicU64`. (Not filled in a loop, so that the system provides
            // the pages one by one as they are used.)
            unsafe { words.assume_init() }
        })
    }

    /// The address of `words` unused words of one segment, all zero.
    fn allocate(&self, words: u64) -> u64 {
        let mut at = self.end.load(Ordering::Relaxed);
        loop {
            let (segment, start) = segment_of(at);
            let left = (FIRST_SEGMENT_WORDS << segment) - start as u64;
            // What does not fit begins the next segment.
            let from = if words <= left { at } else { at + left };
            match self.end.compare_exchange_weak(at, from + words, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return from,
                Err(seen) => at = seen,
            }
        }
    }
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").field("bytes", &self.bytes()).finish()
    }
}

/// The segment that holds `at`, and where in it.
fn segment_of(at: u64) -> (usize, usize) {
    let shifted = at + FIRST_SEGMENT_WORDS;
    let segment = shifted.ilog2() - FIRST_SEGMENT_WORDS.ilog2();
    (segment as usize, (shifted - (FIRST_SEGMENT_WORDS << segment)) as usize)
}

fn key_words(len: usize) -> usize {
    len.div_ceil(8).min(KEY_WORDS)
}

/// The first words of `key`, most significant byte first, the last padded with zeros.
pub(crate) fn words_of(key: &[u8]) -> impl Iterator<Item = u64> {
    let (whole, rest) = key.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(u64::from_be_bytes(last));
    whole.iter().map(|word| u64::from_be_bytes(*word)).chain(last).take(KEY_WORDS)
}

/// 1 with probability 3/4, each further level a quarter of the one before.
///
/// The shape of the towers is no part of any history, so a generator for each thread will do.
fn random_height() -> usize {
    thread_local!(static STATE: std::cell::Cell<u64> = std::cell::Cell::new(first_state()));
    let bits = STATE.with(|state| {
        // xorshift64: never 0 from a seed that is not.
        let mut x = state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        x
    });
    (1 + bits.trailing_ones() as usize / 2).min(MAX_HEIGHT)
}

/// A state of each thread's own.
fn first_state() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BTreeMap;

    use terrace_base::rng::Rng;

    use super::*;

    fn keys(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
        let lens = [0, 1, 7, 8, 9, 16, 100, WHOLE_KEY_BYTES - 1, WHOLE_KEY_BYTES, WHOLE_KEY_BYTES + 1, 400];
        let mut one = || {
            let len = lens[rng.below(lens.len() as u64) as usize];
            // Mostly zeros: long common beginnings, and padding that looks like key.
            (0..len).map(|_| if rng.one_in(40) { rng.below(3) as u8 } else { 0 }).collect()
        };
        (0..count).map(|_| one()).collect()
    }

    #[test]
    fn places_are_those_of_an_ordered_map() {
        let mut rng = Rng::new(3);
        let keys = keys(&mut rng, 400);
        let look_up = |offset: u64, key: &[u8]| Ok(keys[offset as usize - 1].as_slice().cmp(key));
        let guide = Guide::new();
        let mut model = BTreeMap::new();
        for (i, key) in keys.iter().enumerate() {
            let (seq, offset) = (rng.below(4), i as u64 + 1);
            let target = Target { key, seq };
            let (trail, place) = guide.find(target, &look_up).unwrap();
            let at = (key.clone(), Reverse(seq));
            let prev = model.range(..at.clone()).next_back().map_or(0, |(_, offset)| *offset);
            let next = model.range(at.clone()..).next().map_or(0, |(_, offset)| *offset);
            assert_eq!(place, Place { prev, next, exact: model.contains_key(&at) });
            if let std::collections::btree_map::Entry::Vacant(entry) = model.entry(at) {
                guide.insert(&trail, target, offset, &look_up).unwrap();
                entry.insert(offset);
            }
        }
        let offsets: Vec<u64> = model.values().copied().collect();
        assert_eq!(guide.check(&offsets), None);
        assert_eq!(guide.last(), *offsets.last().unwrap());
        assert!(guide.check(&offsets[1..]).is_some());
    }

    #[test]
    fn appending_is_inserting_at_the_end() {
        let guide = Guide::new();
        let mut trail = Guide::start();
        let key = |n: u64| n.to_be_bytes().repeat(3);
        for n in 1..=5000 {
            guide.append(&mut trail, Target { key: &key(n), seq: 0 }, n);
        }
        assert_eq!(guide.check(&(1..=5000).collect::<Vec<_>>()), None);
        let place = guide.find(Target { key: &key(70), seq: 1 }, &|_, _| Ok(Order::Equal)).unwrap().1;
        assert_eq!(place, Place { prev: 69, next: 70, exact: false });
        assert!(guide.bytes() > 5000 * 6 * 8);
    }

    #[test]
    fn threads_enter_side_by_side() {
        let guide = Guide::new();
        let no_look_up = |_: u64, _: &[u8]| Ok(Order::Equal);
        std::thread::scope(|s| {
            for thread in 0..4u64 {
                let guide = &guide;
                s.spawn(move || {
                    for i in 0..2000u64 {
                        let n = 4 * ((i * 7919) % 2000) + thread + 1;
                        let key = n.to_be_bytes();
                        let target = Target { key: &key, seq: 0 };
                        let (trail, _) = guide.find(target, &no_look_up).unwrap();
                        guide.insert(&trail, target, n, &no_look_up).unwrap();
                        assert_eq!(guide.find(target, &no_look_up).unwrap().1.next, n);
                    }
                });
            }
        });
        assert_eq!(guide.check(&(1..=8000).collect::<Vec<_>>()), None);
    }
}
