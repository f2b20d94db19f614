//! Walking everything the tree owns.

use std::collections::HashSet;

use terrace_base::Result;
use terrace_pmem::Marks;

use super::FastFair;
use super::node::NodeRef;
use super::scan::CopiedEntry;
use std::sync::atomic::Ordering;

impl<const N: usize> FastFair<N> {
    /// Visits every living node, level by level from the root, each from left to right. Beside writers: nodes that live
    /// throughout are visited, and perhaps some whose ranges overlap.
    pub(super) fn for_each_node<'t>(
        &'t self,
        visit: &mut dyn FnMut(NodeRef<'t, N>) -> Result<()>,
    ) -> Result<()> {
        let mut first = self.live(self.header()?.root.load(Ordering::Acquire))?;
        let mut left = self.pool.max_size() / Self::NODE_BYTES;
        loop {
            let mut node = first;
            let mut down = 0;
            loop {
                visit(node)?;
                if down == 0 && node.level() > 0 {
                    down = node.ptr(0);
                }
                if node.next() == 0 {
                    break;
                }
                node = self.live(node.next())?;
                left = left.checked_sub(1).ok_or_else(|| {
                    self.damaged(node.off, "a node among its siblings", "siblings that lead in circles")
                })?;
            }
            if first.level() == 0 {
                return Ok(());
            }
            if down == 0 {
                return Err(self.damaged(first.off, "an inner node with children", "none"));
            }
            let below = self.live(down)?;
            if below.level() >= first.level() {
                return Err(self.damaged(down, "a node of a lower level", "one as high as its parent"));
            }
            first = below;
        }
    }

    /// Marks everything the tree owns, dead nodes that are still named included.
    pub(super) fn mark_all(&self, marks: &mut Marks) -> Result<()> {
        let _here = self.limbo.enter();
        marks.slot(self.header_off)?;
        let mut walk = Marking { marks, seen: HashSet::new(), last: None };
        self.mark_chain(&mut walk, self.header()?.root.load(Ordering::Acquire))?;
        self.for_each_node(&mut |node| {
            self.mark_chain(&mut walk, node.off)?;
            self.mark_chain(&mut walk, node.next())?;
            if node.level() == 0 {
                return self.mark_records(&mut walk, node);
            }
            (0..node.count()).try_for_each(|i| self.mark_chain(&mut walk, node.ptr(i)))
        })
    }

    /// Marks the node at `off` and those that have replaced it, with their key objects.
    fn mark_chain(&self, walk: &mut Marking<'_>, mut off: u64) -> Result<()> {
        while off != 0 && walk.seen.insert(off) {
            let node = self.node(off)?;
            if self.may_need_repair(node.version()) {
                // The last unlinking of a killed process may not be durable; it must be before its memory is reclaimed.
                self.pool.persist(off, Self::NODE_BYTES);
            }
            walk.marks.slot(off)?;
            let low = if node.level() == 0 { node.n.low } else { 0 };
            for key in [node.n.prefix, low] {
                if key != 0 && walk.seen.insert(key) {
                    walk.marks.slot(key)?;
                }
            }
            off = self.forward(node)?;
        }
        Ok(())
    }

    /// Marks the records of a leaf that lie after those marked already: a merge behind the walk's back may
    /// show some twice.
    fn mark_records(&self, walk: &mut Marking<'_>, leaf: NodeRef<'_, N>) -> Result<()> {
        for CopiedEntry { record, .. } in self.copy_leaf(leaf)?.entries {
            let key = self.record_key(record)?;
            if walk.last.as_deref().is_none_or(|last| last < key) {
                walk.marks.slot(record)?;
                walk.last = Some(key.to_vec());
            }
        }
        Ok(())
    }
}

/// The marks of a walk.
struct Marking<'m> {
    marks: &'m mut Marks,
    /// Nodes and key objects marked.
    seen: HashSet<u64>,
    /// Key of the last record marked.
    last: Option<Vec<u8>>,
}
