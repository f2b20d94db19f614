//! The blocks of its inputs that a merge need not read: those in which the value tree holds the newest
//! version of every entry's key.
//!
//! A hint gives the block of a key, the number of entries there, and whether a newer version has arrived
//! since. If as many keys as a block has entries have hints there, every key in it is known, with one version
//! each. The value tree tells whether it has all of them. Then nobody reads any of the block's entries: no
//! holder of a snapshot, since all of those see the tree's versions, and nobody who takes one later, since
//! those versions were visible before snapshots were listed.
//!
//! A copy that is not stale hides nothing, although the tree has its key: an eviction may have just written it, and be
//! about to remove that very version from the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::layout::{Hint, ValueLocation};
use super::tree::{LEAST_THRESHOLD, ValueTree};
use crate::leveled::{MergePart, Watched};
use crate::levels::run::Passed;

/// The trees' interest in a part of a merge.
pub(super) fn watch<'a>(values: &'a ValueTree, part: &MergePart<'a>) -> Option<Watched<'a>> {
    let hints = &values.hints;
    if !hints.is_on() {
        return None;
    }
    let (mut named, mut blocks) = (Vec::new(), BTreeMap::<(u64, u64), Block>::new());
    let walked = hints.each(part.from, part.to, &mut |key, bits| {
        if let Some(hint) = Hint::decode(bits, key).filter(|hint| part.inputs.contains(&hint.run)) {
            if hint.is_stale {
                blocks.entry((hint.run, hint.block)).or_default().add(key, hint);
            }
            named.push(key.to_vec());
        }
        Ok(true)
    });
    let passed = hints.soft(walked).map_or_else(Passed::default, |()| passed(values, part, &blocks));
    let count = passed.values().map(|blocks| blocks.len() as u64).sum();
    hints.figures.passed.fetch_add(count, Ordering::Relaxed);
    let (mut walk, inputs) = (hints.walk(), part.inputs);
    let wanted = move |key: &[u8]| match walk.find(key) {
        // The key's output takes the place of the known copy.
        Some((hint, _)) => inputs.contains(&hint.run),
        None => values.sketch.estimate(values.hash(key)) >= LEAST_THRESHOLD,
    };
    Some(Watched { wanted: Box::new(wanted), passed, named })
}

/// What hints say of a block.
#[derive(Debug, Default)]
struct Block {
    /// Its entries; 0 if the hints disagree.
    entries: u64,
    keys: Vec<Vec<u8>>,
}

impl Block {
    fn add(&mut self, key: &[u8], hint: Hint) {
        let agrees = self.keys.is_empty() || self.entries == hint.entries;
        self.entries = if agrees { hint.entries } else { 0 };
        self.keys.push(key.to_vec());
    }

    fn is_known(&self) -> bool {
        self.entries > 0 && self.keys.len() as u64 == self.entries
    }
}

/// The blocks that are known and hidden. An unreadable part of the value tree hides nothing.
fn passed(values: &ValueTree, part: &MergePart<'_>, blocks: &BTreeMap<(u64, u64), Block>) -> Passed {
    let mut passed = BTreeMap::<u64, BTreeSet<u64>>::new();
    for ((run, offset), block) in blocks.iter().filter(|(_, block)| block.is_known()) {
        if block.keys.iter().all(|key| hides(values, part, key).unwrap_or(false)) {
            passed.entry(*run).or_default().insert(*offset);
        }
    }
    passed.into_iter().map(|(run, blocks)| (run, Arc::new(blocks))).collect()
}

/// Whether nobody sees anything of `key` below the value tree.
fn hides(values: &ValueTree, part: &MergePart<'_>, key: &[u8]) -> Result<bool> {
    let _here = values.limbo.enter();
    let Some(ValueLocation::Here(word)) = values.place(key)? else { return Ok(false) };
    let number = values.record(word, key)?.number;
    Ok(number <= part.visible && part.held.iter().all(|&held| held >= number))
}
