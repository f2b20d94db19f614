//! Which versions of a key a flush or a compaction keeps.
//!
//! Versions come newest first. A version stays if no newer one came before it, if a snapshot sees it: one taken between
//! it and the next newer one, or if the next newer one stays and is an operand. A tombstone that would stay is still
//! dropped if it has nothing left to hide: no snapshot is older than it, so that every older version is dropped in this
//! merge, and no older version can lie anywhere else.

use std::ops::RangeInclusive;

use terrace_table::Kind;

use crate::core::snapshots::is_needed;

/// Decides over a run of versions, in order.
#[derive(Debug)]
pub(crate) struct Survivors<'a, F> {
    /// Snapshots, ascending, listed after everything in the merge had become visible.
    held: &'a [u64],
    /// Whether no version of a key with one of these sequence numbers lies outside the merge, as far as that is known.
    lacks: F,
    key: Vec<u8>,
    newer: Option<Newer>,
    is_newest: bool,
}

/// The version that came before.
#[derive(Debug, Clone, Copy)]
struct Newer {
    seq: u64,
    /// Whether it needs the next one.
    needs_older: bool,
}

impl<'a, F: Fn(&[u8], RangeInclusive<u64>) -> bool> Survivors<'a, F> {
    /// For a merge outside which no versions lie of the keys and with the sequence numbers for which `lacks` says so.
    pub fn new(held: &'a [u64], lacks: F) -> Self {
        Survivors { held, lacks, key: Vec::new(), newer: None, is_newest: false }
    }

    /// Whether the next version stays.
    pub fn keeps(&mut self, key: &[u8], seq: u64, kind: Kind) -> bool {
        if self.newer.is_none() || self.key != key {
            self.key.clear();
            self.key.extend_from_slice(key);
            self.newer = None;
        }
        // Of two copies of one version, which only a repair can leave, the first stays: no snapshot lies
        // between them.
        let newer = self.newer;
        self.is_newest = newer.is_none();
        let is_needed = newer.is_none_or(|newer| {
            is_needed(self.held, seq, newer.seq) || newer.needs_older && newer.seq != seq
        });
        let is_copy = newer.is_some_and(|newer| newer.seq == seq);
        // What a merge has made of an operand needs nothing, and neither does the operand beside it.
        if !is_copy || kind.is_whole() {
            self.newer = Some(Newer { seq, needs_older: is_needed && !kind.is_whole() });
        }
        is_needed && (kind != Kind::Delete || !self.hides_nothing(seq))
    }

    /// Whether a snapshot would see an older version `seq` of the key that was last asked about, and not that one.
    pub fn would_be_apart(&self, seq: u64) -> bool {
        self.newer.is_some_and(|newer| is_needed(self.held, seq, newer.seq))
    }

    /// Whether no version of `key` with one of these numbers lies outside the merge.
    pub fn has_all(&self, key: &[u8], numbers: RangeInclusive<u64>) -> bool {
        (self.lacks)(key, numbers)
    }

    /// Whether the version that was last asked about is the newest of its key in this merge.
    pub fn is_newest(&self) -> bool {
        self.is_newest
    }

    /// Whether the version that was last asked about hides no other one from anybody.
    pub fn hides_nothing(&self, seq: u64) -> bool {
        let is_seen_past = self.held.first().is_some_and(|&oldest| oldest < seq);
        !is_seen_past && seq.checked_sub(1).is_none_or(|older| (self.lacks)(&self.key, 0..=older))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(held: &[u64], versions: &[(&str, u64, Kind)]) -> Vec<u64> {
        let mut survivors = Survivors::new(held, |_: &[u8], _: RangeInclusive<u64>| true);
        let keeps = |(key, seq, kind): &&(&str, u64, Kind)| survivors.keeps(key.as_bytes(), *seq, *kind);
        versions.iter().filter(keeps).map(|v| v.1).collect()
    }

    #[test]
    fn the_newest_stays_and_what_snapshots_see() {
        use Kind::*;
        let versions = [("a", 9, Put), ("a", 7, Delete), ("a", 3, Put), ("b", 8, Put), ("b", 8, Put)];
        assert_eq!(kept(&[], &versions), [9, 8]);
        assert_eq!(kept(&[3], &versions), [9, 3, 8]);
        assert_eq!(kept(&[5, 8], &versions), [9, 7, 3, 8], "the tombstone hides what 5 sees from 8");
        assert_eq!(kept(&[7], &versions), [9, 8], "7 sees a tombstone over nothing");
        assert_eq!(kept(&[9], &versions), [9, 8]);
    }

    #[test]
    fn what_operands_stand_on_stays() {
        use Kind::*;
        let versions = [
            ("a", 9, Operand),
            ("a", 9, Operand),
            ("a", 7, Operand),
            ("a", 3, Put),
            ("a", 2, Put),
            ("b", 8, Put),
        ];
        assert_eq!(kept(&[], &versions), [9, 7, 3, 8]);
        assert_eq!(kept(&[2], &versions), [9, 7, 3, 2, 8]);
        let made = [("a", 9, Operand), ("a", 9, Put), ("a", 7, Operand), ("b", 9, Put), ("b", 9, Operand)];
        assert_eq!(kept(&[], &made), [9, 9], "a merge has made something of it");
        let hidden = [("a", 9, Put), ("a", 7, Operand), ("a", 3, Put), ("b", 9, Operand), ("b", 3, Delete)];
        assert_eq!(kept(&[], &hidden), [9, 9], "operands that nobody sees need nothing");
        assert_eq!(kept(&[7], &hidden), [9, 7, 3, 9]);
        assert_eq!(kept(&[1], &hidden), [9, 9, 3], "the tombstone may hide something");
    }
}
