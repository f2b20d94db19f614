//! Entries: a word under a key and a sequence number.
//!
//! Whole keys up to [`WHOLE_KEY_BYTES`] are kept as big-endian words: a comparison is a few integer
//! comparisons, and only longer keys with a longer common beginning are looked up where they come from.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::arena::Arena;

/// Keys up to this length are compared without being looked up.
pub(crate) const WHOLE_KEY_BYTES: usize = 8 * KEY_WORDS;

/// The longest common beginning of keys that is tracked, so that a head can follow it.
pub(super) const MOST_SHARED: usize = WHOLE_KEY_BYTES - 8;

/// Most words of a key kept in an entry.
const KEY_WORDS: usize = 32;

/// Words before an entry's key: the entry's word under the key's length, and the sequence number.
pub(super) const FIXED_WORDS: u64 = 2;

/// Bits of an entry's word in its first word.
const WORD_BITS: u32 = 48;

const WORD_MASK: u64 = (1 << WORD_BITS) - 1;

/// The target of a search, or of an insertion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub key: &'a [u8],
    pub seq: u64,
}

impl Target<'_> {
    /// Whether it comes before `other`: by key, then the higher sequence number first.
    pub fn is_before(&self, other: &Target<'_>) -> bool {
        self.key.cmp(other.key).then(other.seq.cmp(&self.seq)).is_lt()
    }
}

/// Compares an entry's key, looked up by its word, with another.
pub(crate) type LookUp<'a> = &'a dyn Fn(u64, &[u8]) -> Result<Order>;

/// Makes an entry; returns its address.
pub(super) fn create(arena: &Arena, target: Target<'_>, word: u64) -> u64 {
    let at = arena.allocate(FIXED_WORDS + key_words(target.key.len()) as u64);
    let entry = arena.words(at);
    entry[0].store((target.key.len() as u64) << WORD_BITS | word, Ordering::Relaxed);
    entry[1].store(target.seq, Ordering::Relaxed);
    for (word, value) in entry[FIXED_WORDS as usize..].iter().zip(words_of(target.key)) {
        word.store(value, Ordering::Relaxed);
    }
    at
}

/// The word of the entry at `at`; 0 for the head.
pub(super) fn word(arena: &Arena, at: u64) -> u64 {
    arena.words(at)[0].load(Ordering::Acquire) & WORD_MASK
}

/// Replaces the word of the entry at `at` if it is `old`.
pub(super) fn replace(arena: &Arena, at: u64, old: u64, new: u64) -> bool {
    let first = &arena.words(at)[0];
    let len = first.load(Ordering::Relaxed) & !WORD_MASK;
    first.compare_exchange(len | old, len | new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// How the entry at `at` compares with `target`.
pub(super) fn compare(arena: &Arena, at: u64, target: Target<'_>, look_up: LookUp<'_>) -> Result<Order> {
    let (keys, seq) = compare_keys(arena, at, target.key, look_up)?;
    Ok(keys.then_with(|| target.seq.cmp(&seq)))
}

/// How the key of the entry at `at` compares with `key`; also the entry's sequence number.
pub(super) fn compare_keys(arena: &Arena, at: u64, key: &[u8], look_up: LookUp<'_>) -> Result<(Order, u64)> {
    let entry = arena.words(at);
    let first = entry[0].load(Ordering::Relaxed);
    let seq = entry[1].load(Ordering::Relaxed);
    let len = (first >> WORD_BITS) as usize;
    let own = &entry[FIXED_WORDS as usize..][..key_words(len)];
    for (word, other) in own.iter().zip(words_of(key)) {
        match word.load(Ordering::Relaxed).cmp(&other) {
            Order::Equal => {}
            unequal => return Ok((unequal, seq)),
        }
    }
    // Zeros pad a last word, so of two keys that are equal as far as both go the shorter is the smaller.
    let keys = if len.min(key.len()) > WHOLE_KEY_BYTES {
        look_up(first & WORD_MASK, key)?
    } else {
        len.cmp(&key.len())
    };
    Ok((keys, seq))
}

/// How the first `count` bytes of the entry's key compare with `key`; equal if `key` begins with them.
pub(super) fn compare_beginning(arena: &Arena, at: u64, count: usize, key: &[u8]) -> Order {
    let entry = arena.words(at);
    let mut bytes =
        entry[FIXED_WORDS as usize..].iter().flat_map(|word| word.load(Ordering::Relaxed).to_be_bytes());
    let mut own = key.iter().copied();
    for _ in 0..count {
        match bytes.next().cmp(&own.next()) {
            Order::Equal => {}
            unequal => return unequal,
        }
    }
    Order::Equal
}

/// Bytes that the keys of two entries begin with, of those that a head can follow.
pub(super) fn common(arena: &Arena, a: u64, b: u64) -> usize {
    let (a, b) = (arena.words(a), arena.words(b));
    let len = |entry: &[_]| (word_at(entry, 0) >> WORD_BITS) as usize;
    let most = len(a).min(len(b)).min(MOST_SHARED);
    for i in 0..most.div_ceil(8) {
        let differing = word_at(a, FIXED_WORDS as usize + i) ^ word_at(b, FIXED_WORDS as usize + i);
        if differing != 0 {
            return most.min(8 * i + differing.leading_zeros() as usize / 8);
        }
    }
    most
}

/// Bytes that the key of the entry at `at` and `key` begin with, of those that a head can follow.
pub(super) fn common_with(arena: &Arena, at: u64, key: &[u8]) -> usize {
    let entry = arena.words(at);
    let len = (word_at(entry, 0) >> WORD_BITS) as usize;
    let most = len.min(key.len()).min(MOST_SHARED);
    for (i, word) in words_of(key).take(most.div_ceil(8)).enumerate() {
        let differing = word_at(entry, FIXED_WORDS as usize + i) ^ word;
        if differing != 0 {
            return most.min(8 * i + differing.leading_zeros() as usize / 8);
        }
    }
    most
}

/// The eight bytes after the first `skip` of the entry's key, padded with zeros.
pub(super) fn head_of(arena: &Arena, at: u64, skip: usize) -> u64 {
    let entry = arena.words(at);
    let own = &entry[FIXED_WORDS as usize..][..key_words((word_at(entry, 0) >> WORD_BITS) as usize)];
    let word = |i: usize| own.get(i).map_or(0, |word| word.load(Ordering::Relaxed));
    let (first, shift) = (skip / 8, 8 * (skip % 8) as u32);
    match shift {
        0 => word(first),
        _ => word(first) << shift | word(first + 1) >> (64 - shift),
    }
}

/// The eight bytes after the first `skip` of `key`, padded with zeros.
#[inline]
pub(super) fn head(key: &[u8], skip: usize) -> u64 {
    let rest = key.get(skip..).unwrap_or_default();
    match rest.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(bytes)
        }
    }
}

fn word_at(words: &[std::sync::atomic::AtomicU64], i: usize) -> u64 {
    words[i].load(Ordering::Relaxed)
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
