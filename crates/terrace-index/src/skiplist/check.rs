//! Proving a list whole.

use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::read::compare;
use super::{Inner, SkipList};

impl SkipList {
    /// Every finding against the list's invariants; none for a healthy one. Writers must be at rest.
    pub fn check(&self) -> Result<Vec<String>> {
        self.inner.check()
    }
}

impl Inner {
    pub fn check(&self) -> Result<Vec<String>> {
        let mut problems = Vec::new();
        let records = self.check_chain(&mut problems)?;
        let count = records.len() as u64;
        let expected = self.entries.load(Ordering::Relaxed);
        if count != expected {
            problems.push(format!("skiplist: {count} records are linked, {expected} were counted"));
        }
        problems.extend(self.upper.check(&records).map(|problem| format!("skiplist: {problem}")));
        for at in records {
            if !self.may_contain(self.node(at)?.key) {
                problems.push(format!("skiplist: the filter lacks the key of the record at {at}"));
            }
        }
        Ok(problems)
    }

    /// Checksums, order and place of every record; their offsets.
    fn check_chain(&self, problems: &mut Vec<String>) -> Result<Vec<u64>> {
        let extents = self.arena.extents()?;
        let mut prev = None;
        let mut records = Vec::new();
        let mut at = self.after(self.head);
        while at != 0 {
            let node = self.node(at)?;
            if !extents.iter().any(|e| (e.offset..e.offset + e.bytes).contains(&at)) {
                problems.push(format!("skiplist: the record at {at} lies outside the list's extents"));
                break;
            }
            if !self.is_sound(&node)? {
                problems.push(format!("skiplist: the record at {at} has a wrong checksum"));
            }
            if prev.is_some_and(|prev| !compare(&prev, node.key, node.head.seq).is_lt()) {
                problems.push(format!("skiplist: the record at {at} is out of order"));
                break;
            }
            records.push(at);
            prev = Some(node);
            at = node.head.next.load(Ordering::Acquire);
        }
        Ok(records)
    }
}
