//! Operands in memtables and runs, and the values that readers see for them.
//!
//! An operand stands on the next older version of its key. A reader finds all of them in the one readable set with
//! which it began: in a later one a merge of runs may have folded some of them.

use std::cmp::Reverse;

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Entry, Kind};

use crate::core::lent::Lent;
use crate::core::merging::Merging;

/// The value of `key` up to sequence number `at`, where the newest version is an operand. The others find the newest
/// version up to a number, in memtables and in runs.
pub(crate) fn folded(
    merging: &Merging,
    key: &[u8],
    at: u64,
    in_memory: impl Fn(u64) -> Option<Entry>,
    in_runs: impl Fn(u64) -> Result<Option<Entry>>,
) -> Result<Option<Lent<'static>>> {
    let mut versions = stack(at, |at| Ok(in_memory(at)))?;
    if versions.last().is_none_or(|last| !last.kind.is_whole()) {
        versions.extend(stack(at, in_runs)?);
        // After a repair or a replay some may be in both, and an operand as well as what a merge has made of it.
        versions.sort_by_key(|entry| Reverse((entry.seq, entry.kind.is_whole())));
        versions.dedup_by_key(|entry| entry.seq);
    }
    let Some(number) = versions.first().map(|newest| newest.seq) else { return Ok(None) };
    let operands: Vec<Bytes> =
        versions.iter().map_while(|entry| (!entry.kind.is_whole()).then(|| entry.value.clone())).collect();
    let base = versions.into_iter().nth(operands.len());
    if operands.is_empty() {
        return Ok(base.and_then(Lent::of_entry));
    }
    Ok(Some(match merging.fold(key, base.and_then(Entry::into_value), &operands) {
        Ok(value) => Lent::own(number, value),
        Err(why) => Lent::unknown(number, why),
    }))
}

/// How many operands lie on top of what is not in memory; `None` if a value, or that there is none, is known there.
/// `newest` finds the number and the kind of the newest version up to a number.
pub(crate) fn count_on_top(newest: impl Fn(u64) -> Option<(u64, Kind)>) -> Option<usize> {
    let (mut up_to, mut count) = (Some(u64::MAX), 0);
    while let Some((seq, kind)) = up_to.and_then(&newest) {
        if kind.is_whole() {
            return None;
        }
        count += 1;
        up_to = seq.checked_sub(1);
    }
    Some(count)
}

/// Operands up to sequence number `at`, the newest first, and the version on which they stand, if `newest` knows it:
/// the newest version up to a number.
fn stack(at: u64, newest: impl Fn(u64) -> Result<Option<Entry>>) -> Result<Vec<Entry>> {
    let (mut versions, mut up_to) = (Vec::new(), Some(at));
    while let Some(at) = up_to {
        let Some(entry) = newest(at)? else { break };
        up_to = entry.seq.checked_sub(1).filter(|_| !entry.kind.is_whole());
        versions.push(entry);
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::lent::to_keep;
    use crate::keyspaces::{MergeOperator, Prefix};

    const MEMORY: [(u64, Kind, &str); 2] = [(9, Kind::Operand, "d"), (7, Kind::Operand, "c")];

    fn newest(versions: &[(u64, Kind, &'static str)], at: u64) -> Option<Entry> {
        let up_to = versions.iter().filter(|(seq, ..)| *seq <= at);
        let (seq, kind, value) = *up_to.max_by_key(|(seq, kind, _)| (*seq, kind.is_whole()))?;
        Some(Entry { seq, kind, value: Bytes::from_static(value.as_bytes()) })
    }

    fn value(memory: &[(u64, Kind, &'static str)], runs: &[(u64, Kind, &'static str)], at: u64) -> Bytes {
        let merging = Merging::default();
        merging.set(1, &MergeOperator::append());
        let place = [Prefix::of(1).as_slice(), b"k"].concat();
        let in_runs = |at| Ok(newest(runs, at));
        let found = folded(&merging, &place, at, |at| newest(memory, at), in_runs).unwrap().unwrap();
        to_keep(found.known().unwrap())
    }

    #[test]
    fn operands_are_folded_with_what_they_stand_on_wherever_that_is() {
        let runs = [(5, Kind::Operand, "b"), (3, Kind::Put, "a"), (2, Kind::Put, "older")];
        assert_eq!([9, 8, 6].map(|at| value(&MEMORY, &runs, at)), ["abcd", "abc", "ab"]);
        assert_eq!(value(&[MEMORY[0], (7, Kind::Put, "w")], &runs, 9), "wd");
        assert_eq!(value(&[MEMORY[0], (7, Kind::Delete, "")], &runs, 9), "d");
        assert_eq!(value(&MEMORY, &[], 9), "cd");
    }

    /// Must catch an operand that is folded twice: what is replayed may lie in runs already, folded or not.
    #[test]
    fn what_is_in_memory_and_in_runs_is_folded_once() {
        let runs = [(7, Kind::Operand, "c"), (7, Kind::Put, "abc"), (3, Kind::Put, "a")];
        assert_eq!(value(&MEMORY, &runs, 9), "abcd");
        assert_eq!(value(&MEMORY, &[(9, Kind::Put, "abcd"), (7, Kind::Put, "abc")], 9), "abcd");
        assert_eq!(value(&MEMORY, &[(9, Kind::Operand, "d"), (7, Kind::Operand, "c")], 9), "cd");
    }

    #[test]
    fn operands_are_counted_down_to_a_value() {
        let count = |versions: &[(u64, Kind, &'static str)]| {
            count_on_top(|at| newest(versions, at).map(|entry| (entry.seq, entry.kind)))
        };
        assert_eq!((count(&[]), count(&MEMORY)), (Some(0), Some(2)));
        assert_eq!(count(&[MEMORY[0], MEMORY[1], (0, Kind::Operand, "")]), Some(3));
        assert_eq!((count(&[MEMORY[0], (2, Kind::Delete, "")]), count(&[(2, Kind::Put, "")])), (None, None));
    }
}
