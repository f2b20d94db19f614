//! Proving the trees: the index of each, the records of values, and that hints lead where they say.

use terrace_base::Result;
use terrace_index::PointIndex;

use super::layout::{Hint, ValueLocation};
use super::tree::ValueTree;
use crate::core::report::{CheckReport, problem};
use crate::leveled::{LeveledTree, WriteBuffer};

/// Proves both trees. Neither a flush nor a compaction runs.
pub(super) fn check<B: WriteBuffer>(
    values: &ValueTree,
    tree: &LeveledTree<B>,
    report: &mut CheckReport,
) -> Result<()> {
    check_values(values, tree.last_seq(), report)?;
    check_hints(values, tree, report)
}

/// Proves index and records of the value tree; `last` is the last sequence number written.
fn check_values(values: &ValueTree, last: u64, report: &mut CheckReport) -> Result<()> {
    let work = values.work.lock();
    let (mut keys, mut problems) = (0, Vec::new());
    if work.witness.flushed > last {
        problems.push(format!("value tree: write {} was flushed, after {last}", work.witness.flushed));
    }
    let walked = values.each_place(&mut |key, place| {
        keys += 1;
        let name = key.escape_ascii();
        if !values.may_hold(values.hash(key)) {
            problems.push(format!("value tree: {name} is not in the filter"));
        }
        let ValueLocation::Here(word) = place else { return Ok(()) };
        match values.record(word, key) {
            Ok(record) if record.number > last => {
                problems.push(format!("value tree: {name} has number {} after {last}", record.number));
            }
            Ok(_) => {}
            Err(e) => problems.push(format!("value tree: {}", problem(e)?)),
        }
        Ok(())
    });
    report.note(walked)?;
    if keys != values.index.len() {
        problems.push(format!("value tree: {keys} keys are found, {} were counted", values.index.len()));
    }
    report.problems.extend(problems);
    report.problems.extend(values.index.check()?.into_iter().map(|p| format!("value tree: {p}")));
    Ok(())
}

/// Proves the index of hints, and that each hint whose run exists leads to its key.
fn check_hints<B: WriteBuffer>(
    values: &ValueTree,
    tree: &LeveledTree<B>,
    report: &mut CheckReport,
) -> Result<()> {
    let hints = &values.hints;
    let _still = hints.still();
    let (mut keys, mut problems) = (0, Vec::new());
    let walked = hints.each(None, None, &mut |key, bits| {
        keys += 1;
        let name = key.escape_ascii();
        let Some(hint) = Hint::decode(bits, key) else {
            problems.push(format!("tree of hints: the word of {name} is {bits:#018x}"));
            return Ok(true);
        };
        match tree.block_of(hint.run, key) {
            Ok(Some(found)) if found != Some(hint.block) => problems.push(format!(
                "tree of hints: {name} is said to lie in table {} at {:#x}, and is found at {found:x?}",
                hint.run, hint.block
            )),
            Ok(_) => {}
            Err(e) => problems.push(format!("tree of hints: {}", problem(e)?)),
        }
        Ok(true)
    });
    report.note(walked)?;
    if keys != hints.len() {
        problems.push(format!("tree of hints: {keys} keys are found, {} were counted", hints.len()));
    }
    report.problems.extend(problems);
    report.problems.extend(hints.problems()?.into_iter().map(|p| format!("tree of hints: {p}")));
    Ok(())
}
