//! Proving a list whole.

use std::sync::atomic::Ordering;

use terrace_base::Result;

use super::layout::MAX_HEIGHT;
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
        let count = self.check_bottom(&mut problems)?;
        let expected = self.entries.load(Ordering::Relaxed);
        if count != expected {
            problems.push(format!("skiplist: {count} records are linked, {expected} were counted"));
        }
        for level in 1..MAX_HEIGHT {
            self.check_level(level, &mut problems)?;
        }
        Ok(problems)
    }

    /// Checksums, order and place of every record; how many there are.
    fn check_bottom(&self, problems: &mut Vec<String>) -> Result<u64> {
        let extents = self.arena.extents()?;
        let mut prev = None;
        let mut count = 0;
        let mut at = self.after(self.head, 0);
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
            count += 1;
            prev = Some(node);
            at = node.head.next.load(Ordering::Acquire);
        }
        Ok(count)
    }

    /// Every level is a subsequence of the one below: exactly the nodes that are high enough.
    fn check_level(&self, level: usize, problems: &mut Vec<String>) -> Result<()> {
        let mut upper = self.after(self.head, level);
        let mut at = self.after(self.head, 0);
        while at != 0 {
            let node = self.node(at)?;
            if usize::from(node.head.height) > level {
                if upper != at {
                    problems.push(format!("skiplist: level {level} has {upper} where {at} is next"));
                    return Ok(());
                }
                upper = self.after(at, level);
            }
            at = node.head.next.load(Ordering::Acquire);
        }
        if upper != 0 {
            problems.push(format!("skiplist: level {level} goes on to {upper} past the last record"));
        }
        Ok(())
    }
}
