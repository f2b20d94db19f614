//! CLOCK: which entries were requested since the hand last passed.
//!
//! One bit for each of many hashes. Keys that share a bit keep each other a little longer; nothing else
//! depends on it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bits: any thread sets them, and the hand clears them.
#[derive(Debug)]
pub(super) struct Touched {
    words: Box<[AtomicU64]>,
}

impl Touched {
    /// About `bits` of them, all clear.
    pub fn new(bits: u64) -> Touched {
        let words = (bits / 64).max(1).next_power_of_two();
        Touched { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Notes that the entry with `hash` was requested.
    pub fn touch(&self, hash: u64) {
        let (word, bit) = self.place(hash);
        // It is mostly set already, and the cache line stays with every reader.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether it was requested since the last call, which this clears.
    pub fn take(&self, hash: u64) -> bool {
        let (word, bit) = self.place(hash);
        word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// Bytes of DRAM held.
    pub fn dram_bytes(&self) -> u64 {
        8 * self.words.len() as u64
    }

    fn place(&self, hash: u64) -> (&AtomicU64, u64) {
        let word = (hash >> 6) as usize & (self.words.len() - 1);
        (&self.words[word], 1 << (hash & 63))
    }
}

/// A round of the hand over entries: from its position to the end, and on from the beginning; at most twice
/// round, since every bit is clear after one round.
#[derive(Debug)]
pub(super) struct Round {
    /// Bytes still to be gathered.
    wanted: u64,
    /// How often the end was reached.
    ends: u32,
}

/// The most ends that a hand reaches: the first may come at once.
const MOST_ENDS: u32 = 3;

impl Round {
    /// A round that gathers this many bytes.
    pub fn new(wanted: u64) -> Round {
        Round { wanted, ends: 0 }
    }

    /// Whether an entry of `bytes` is a victim; `was_touched` says whether it was requested.
    pub fn takes(&mut self, was_touched: bool, bytes: u64) -> bool {
        if was_touched || self.wanted == 0 {
            return false;
        }
        self.wanted = self.wanted.saturating_sub(bytes);
        true
    }

    /// Notes that the end was reached.
    pub fn reaches_end(&mut self) {
        self.ends += 1;
    }

    /// Whether there is enough, or no more to be found.
    pub fn is_over(&self) -> bool {
        self.wanted == 0 || self.ends >= MOST_ENDS
    }
}

#[cfg(test)]
mod tests {
    use terrace_base::checksum::hash64;

    use super::*;

    fn hash(key: u64) -> u64 {
        hash64(&key.to_be_bytes())
    }

    /// Runs a round over `keys` entries of 10 bytes, from `from` on.
    fn gather(touched: &Touched, keys: u64, from: u64, wanted: u64) -> Vec<u64> {
        let (mut round, mut gone, mut at) = (Round::new(wanted), Vec::new(), from);
        while !round.is_over() {
            if at == keys {
                round.reaches_end();
                at = 0;
                continue;
            }
            if !gone.contains(&at) && round.takes(touched.take(hash(at)), 10) {
                gone.push(at);
            }
            at += 1;
        }
        gone
    }

    #[test]
    fn what_was_asked_for_stays_for_a_round() {
        let touched = Touched::new(1 << 16);
        for key in [3, 4, 6] {
            touched.touch(hash(key));
        }
        assert_eq!(gather(&touched, 8, 2, 35), [2, 5, 7, 0]);
        assert_eq!(gather(&touched, 8, 3, 10), [3], "its bit was cleared");
        touched.touch(hash(1));
        assert!(touched.take(hash(1)) && !touched.take(hash(1)));
    }

    #[test]
    fn a_round_ends_although_too_little_is_there_and_all_of_it_is_asked_for() {
        let touched = Touched::new(1 << 16);
        (0..8).for_each(|key| touched.touch(hash(key)));
        let mut gone = gather(&touched, 8, 5, 1000);
        gone.sort_unstable();
        assert_eq!(gone, (0..8).collect::<Vec<_>>());
        assert_eq!(gather(&touched, 0, 0, 1), Vec::<u64>::new());
    }
}
