//! Proving a tree whole, writers being at rest. Background work is put off meanwhile.
//!
//! Along the chain each leaf's range must begin at the end of the one before. Its keys must lie inside, its slots and
//! its state must agree with their checks, and its node must agree with the leaf. A search must lead to it, and every
//! key must be found. Every leaf that the top layer names must be in the chain.

use std::collections::HashMap;
use std::ops::Bound as RangeBound;
use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::Core;
use super::bound::Bound;
use super::key::Probe;
use super::layout::Proven;
use super::mnode::Mnode;
use super::page::Page;
use crate::ordered::OrderedIndex;
use crate::point::PointIndex;
use crate::scan_batch::ScanBatch;

/// The state that is carried from leaf to leaf.
struct Report {
    problems: Vec<String>,
    /// The leaf that must come next.
    next: u64,
    /// Where the last leaf's range ended.
    reached: Bound,
    keys: u64,
    leaves: HashMap<u64, Vec<u8>>,
}

impl Report {
    fn expect(&mut self, right: bool, off: u64, what: &str) {
        if !right {
            self.problems.push(format!("sptree: leaf at {off}: {what}"));
        }
    }
}

impl Core {
    /// Every finding.
    pub(super) fn check_all(&self) -> Result<Vec<String>> {
        let _still = self.still();
        self.replay_all()?;
        let counted = self.count();
        let _here = self.limbo.enter();
        let mut report = Report {
            problems: Vec::new(),
            next: self.first,
            reached: Bound::Inline(0, 0),
            keys: 0,
            leaves: HashMap::new(),
        };
        let walked =
            self.for_each_node(&mut |node, page, high| self.check_node(node, page, high, &mut report));
        if let Err(e) = walked {
            report.problems.push(format!("sptree: {e}"));
            return Ok(report.problems);
        }
        report.expect(report.next == 0, report.next, "it follows the last leaf");
        let keys = (report.keys as i64 + self.check_buffers(&mut report.problems)?) as u64;
        if keys != counted {
            report.problems.push(format!("sptree: {keys} keys are in the leaves, {counted} were counted"));
        }
        self.check_top(&mut report)?;
        report.problems.extend(self.top.check()?);
        Ok(report.problems)
    }

    fn check_node(&self, node: &Mnode, page: &Page, high: &Bound, report: &mut Report) -> Result<()> {
        let off = node.leaf();
        report.expect(off == report.next, off, "another one is next in the chain");
        let (low, _) = self.leaf_low(off)?;
        report.expect(low == node.low(), off, "its node has another low key");
        report.expect(low == report.reached, off, "its range does not begin where the one's before ends");
        let (state, proven) = self.leaf_state(off)?;
        report.expect(proven == Proven::Whole, off, "its state does not fit its proof");
        report.expect(state.0 == node.bitmap.load(Ordering::Relaxed), off, "its node has another bitmap");
        let next = node.next.load(Ordering::Acquire);
        // SAFETY: the neighbour of a living node, and the caller is present.
        let named = unsafe { next.as_ref() };
        report.expect(named.is_none_or(|next| next.leaf() == state.1), off, "its node has another neighbour");
        report.keys += page.len as u64;
        let mut last: Option<Vec<u8>> = None;
        for item in page.items() {
            let key = self.key_of(*item)?;
            let probe = Probe::new(key.bytes());
            let inside = low.cmp_key(&probe).is_ge() && high.cmp_key(&probe).is_lt();
            report.expect(inside, off, "a key outside its range");
            report.expect(last.as_deref().is_none_or(|last| last < probe.key), off, "a key twice");
            let found = self.find(node, &probe, node.version())?.flatten();
            report.expect(found.map(|(_, found)| found) == Some(*item), off, "a key that is not found");
            let (led, _) = self.locate(&probe)?;
            report.expect(std::ptr::eq(led, node), off, "a key that a search leads elsewhere");
            last = Some(key.bytes().to_vec());
        }
        report.leaves.insert(off, low.to_vec().unwrap_or_default());
        (report.next, report.reached) = (state.1, high.clone());
        Ok(())
    }

    fn check_top(&self, report: &mut Report) -> Result<()> {
        let mut batch = ScanBatch::new();
        self.top.scan(RangeBound::Unbounded, false, usize::MAX, &mut batch)?;
        for (low, leaf) in batch.iter() {
            let right = report.leaves.get(&leaf).is_some_and(|found| found == low);
            report.expect(right, leaf, "the top layer names it, and it is not in the chain by that key");
        }
        Ok(())
    }
}
