//! Proving a tree whole, writers being at rest.
//!
//! Level by level the nodes' fences must meet and cover every key; entries must ascend, lie between their node's
//! fences, have its prefix and their keys' slices; and a search from the root must find every key and child where the
//! walk along the siblings has found it. Changes that a crash has left half done, and that the next writer completes,
//! are not findings.

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::POff;

use super::FastFair;
use super::key::{Target, common, slice};
use super::layout::RecordHead;
use super::node::NodeRef;

/// The state that is carried from node to node.
struct Report<'t> {
    problems: Vec<String>,
    level: u8,
    /// High fence of the node before; at a level's beginning none, as before the first key.
    reached: Option<&'t [u8]>,
    last_key: Option<&'t [u8]>,
    keys: u64,
}

impl Report<'_> {
    fn say(&mut self, off: u64, what: &str) {
        self.problems.push(format!("fastfair: node at {off}: {what}"));
    }

    fn expect(&mut self, right: bool, off: u64, what: &str) {
        if !right {
            self.say(off, what);
        }
    }
}

impl<const N: usize> FastFair<N> {
    /// Every finding.
    pub(super) fn check_all(&self) -> Result<Vec<String>> {
        let counted = self.counted().0;
        let _here = self.limbo.enter();
        let mut report =
            Report { problems: Vec::new(), level: u8::MAX, reached: None, last_key: None, keys: 0 };
        self.for_each_node(&mut |node| {
            if node.level() != report.level {
                let whole = report.reached.is_none();
                report.expect(whole, node.off, "the level above ends before its last fence");
                (report.level, report.reached, report.last_key) = (node.level(), None, None);
            }
            self.check_node(node, &mut report)?;
            (0..node.count()).try_for_each(|i| self.check_entry(node, i, &mut report))
        })?;
        let whole = report.reached.is_none();
        report.expect(whole, self.header_off, "the leaves end before their last fence");
        if report.keys != counted {
            let found = report.keys;
            report.problems.push(format!("fastfair: {found} keys are in the leaves, {counted} were counted"));
        }
        Ok(report.problems)
    }

    fn check_node<'t>(&'t self, node: NodeRef<'t, N>, report: &mut Report<'t>) -> Result<()> {
        let (low, high) = (self.low_key(node)?, self.high_key(node)?);
        report.expect(report.reached == low, node.off, "its low fence is not the one before's high fence");
        report.reached = high;
        let shared = match (self.fence(node.n.prefix)?, low, high) {
            (Some(prefix), _, _) => prefix.len(),
            (None, Some(low), Some(high)) => common(low, high),
            _ => 0,
        };
        report.expect(node.skip() <= shared, node.off, "it skips more than its keys must share");
        let count = node.count();
        report.expect((count..N).all(|i| node.ptr(i) == 0), node.off, "entries after its end");
        Ok(())
    }

    fn check_entry<'t>(&'t self, node: NodeRef<'t, N>, i: usize, report: &mut Report<'t>) -> Result<()> {
        let (stored, ptr) = node.entry(i);
        if i > 0 && ptr == node.ptr(i - 1) {
            // A void entry, left by a crash.
            return Ok(());
        }
        let Some(key) = (if node.level() == 0 {
            self.check_record(node, ptr, report)?
        } else {
            self.check_child(node, ptr, report)?
        }) else {
            return Ok(());
        };
        let (low, high) = (self.low_key(node)?, self.high_key(node)?);
        let inside = low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high);
        report.expect(inside, node.off, "an entry outside its fences");
        // The first entry of an inner node takes all keys before the second one, so its own key does not matter.
        if node.level() == 0 || i > 0 {
            report.expect(self.suits(node, key)?, node.off, "an entry without the prefix");
            let right = stored == slice(key, node.skip()) || self.is_on_the_move(node, i)?;
            report.expect(right, node.off, "a slice that is not its key's");
        }
        report.expect(report.last_key.is_none_or(|last| last < key), node.off, "entries out of order");
        report.last_key = Some(key);
        Ok(())
    }

    /// Whether a crash may have left entry `i` with another entry's slice: one was being inserted before it, which
    /// shows its void copy behind it, or it was being swept out, its child merged away.
    fn is_on_the_move(&self, node: NodeRef<'_, N>, i: usize) -> Result<bool> {
        let ptr = node.ptr(i);
        let copied = i + 1 < N && node.ptr(i + 1) == ptr;
        Ok(self.may_need_repair(node.version())
            && (copied || node.level() > 0 && self.forward(self.node(ptr)?)? != 0))
    }

    /// Checks a leaf's record; its key, if it is present.
    fn check_record<'t>(
        &'t self,
        leaf: NodeRef<'t, N>,
        ptr: u64,
        report: &mut Report<'t>,
    ) -> Result<Option<&'t [u8]>> {
        let head = self.pool.get::<RecordHead>(POff::new(ptr))?;
        let key = self.record_key(ptr)?;
        if head.word.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        report.keys += 1;
        let found = match self.descend(Target::At(key), 0)? {
            Some(arrival) if arrival.node.off == leaf.off => self.find(leaf, key)?.map(|(_, record)| record),
            _ => None,
        };
        report.expect(found == Some(ptr), leaf.off, "a key that a search does not find");
        let shortcut = self.shortcut(key)?.is_none_or(|found| found.off == leaf.off);
        report.expect(shortcut, leaf.off, "a shortcut that leads to another leaf");
        Ok(Some(key))
    }

    /// Checks an inner node's child; its separator.
    fn check_child<'t>(
        &'t self,
        node: NodeRef<'t, N>,
        ptr: u64,
        report: &mut Report<'t>,
    ) -> Result<Option<&'t [u8]>> {
        let child = self.node(ptr)?;
        report.expect(child.level() + 1 == node.level(), node.off, "a child of another level");
        let key = self.low_key(child)?.unwrap_or_default();
        let living = self.live(ptr)?;
        if living.n.low == child.n.low {
            let found = self.descend(Target::At(key), child.level())?.map(|a| a.node.off);
            report.expect(found == Some(living.off), node.off, "a child that cannot be found");
        }
        Ok(Some(key))
    }
}
