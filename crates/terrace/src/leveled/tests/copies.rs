//! Copies of an operand, and what a merge has made of it, on any two levels: a repair leaves them, and they count once.

use std::sync::atomic::Ordering;

use super::*;
use crate::keyspaces::MergeOperator;
use crate::levels::output::{Below, Outputs};

/// A key of keyspace 1.
const KEY: &[u8] = b"\xff\x01k";

/// A version: its level, its number, its kind and its value.
type Lies = (usize, u64, Kind, &'static str);

/// Has a run of one version lie on its level.
fn lay(pair: &Pair<()>, (level, seq, kind, value): Lies) {
    let tree = &pair.tree;
    let mut outputs =
        Outputs::new(&tree.core, &tree.manifest, tree.writer_options(1 << 10), Below::default());
    outputs.add(KEY, seq, kind, value.as_bytes()).unwrap();
    let mut change = LevelsEdit::default();
    change.add(level, outputs.finish().unwrap());
    change.edits.push(Edit::FlushedSeq(seq));
    tree.install(change, None).unwrap();
    tree.applied.fetch_max(seq, Ordering::AcqRel);
    tree.core.snapshots.advance(seq);
}

/// What readers of now and of number 20 find, in every way.
fn compare(pair: &Pair<()>, newest: &str) {
    for (at, wanted) in [(pair.visible(), newest), (20, "pa")] {
        assert_eq!(pair.tree.get(KEY, Some(at)).unwrap().as_deref(), Some(wanted.as_bytes()), "at {at}");
        for direction in [Direction::Forward, Direction::Backward] {
            assert_eq!(pair.walk(at, direction), [(KEY.to_vec(), wanted.as_bytes().to_vec())], "at {at}");
        }
    }
}

/// Compacts all that lies so, beside a snapshot of number 20 and without it.
fn fold(versions: &[Lies]) {
    for is_held in [false, true] {
        let pair = Pair::new((), policies(100).into_iter().next().unwrap(), 31);
        pair.tree.core.merging.set(1, &MergeOperator::append().deferred());
        pair.tree.core.merging.set_any(true);
        let mut held = None;
        for version in versions {
            if version.1 > 20 && is_held {
                held = Some(pair.tree.core.snapshots.hold());
            }
            lay(&pair, *version);
        }
        let newest = if versions.iter().any(|version| version.1 > 20) { "pab" } else { "pa" };
        compare(&pair, newest);
        pair.tree.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
        if held.is_some() {
            compare(&pair, newest);
            drop(held);
            pair.tree.released();
            pair.tree.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
        }
        let found = pair.tree.get(KEY, None).unwrap();
        assert_eq!((found.as_deref(), pair.keys_in_runs().len()), (Some(newest.as_bytes()), 1));
        let report = Engine::check(&*pair.tree).unwrap();
        assert!(report.is_clean(), "{report:?}");
        pair.tree.close().unwrap();
    }
}

/// Must catch an operand that counts twice, or not at all, because a copy of it lies elsewhere.
#[test]
fn copies_of_an_operand_on_any_two_levels_count_once() {
    let all_levels = (0..3).flat_map(|a| (0..3).map(move |b| (a, b)));
    // Below level 0 a level has one run of a key.
    for (a, b) in all_levels.filter(|(a, b)| a != b || *a == 0) {
        for of_b in [(Kind::Operand, "a"), (Kind::Put, "pa")] {
            let copies = [(a, 20, Kind::Operand, "a"), (b, 20, of_b.0, of_b.1)];
            for [first, second] in [copies, [copies[1], copies[0]]] {
                let base = (3, 10, Kind::Put, "p");
                println!("{first:?} and {second:?}");
                fold(&[base, first, second]);
                fold(&[base, first, second, (0, 30, Kind::Operand, "b")]);
            }
        }
    }
}
