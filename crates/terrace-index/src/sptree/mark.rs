//! Marking what the tree owns, and adding it up.

use std::sync::atomic::Ordering;

use terrace_base::Result;
use terrace_pmem::Marks;

use super::Core;
use super::bound::Bound;
use super::key::Probe;
use super::layout::{LEAF_BYTES, OFFSET_MASK, RECORD, TREE_HEADER_BYTES};
use super::mnode::Mnode;
use super::page::Page;
use crate::key_object::KEY_HEAD_BYTES;
use crate::point::PointIndex;

impl Core {
    /// Visits every node from left to right with its items, each key's range once. Keys that are there throughout are
    /// visited if nothing is merged meanwhile.
    pub(super) fn for_each_node(
        &self,
        visit: &mut dyn FnMut(&Mnode, &Page, &Bound) -> Result<()>,
    ) -> Result<()> {
        self.finish_rebuild();
        if let Some(failure) = self.rebuild.failure() {
            return Err(failure);
        }
        let mut cursor = Vec::new();
        let mut page = Page::new();
        loop {
            let (node, version) = self.locate(&Probe::plain(&cursor))?;
            let Some(()) = self.page(node, version, &mut page)? else { continue };
            let Some(high) = node.high(version) else { continue };
            visit(node, &page, &high)?;
            match high.to_vec() {
                Some(high) => cursor = high,
                None => return Ok(()),
            }
        }
    }

    pub(super) fn mark_all(&self, marks: &mut Marks) -> Result<()> {
        self.replay_all()?;
        let _alone = self.merges.gate.write();
        let _here = self.limbo.enter();
        marks.slot(self.header_off)?;
        self.mark_logs(marks)?;
        self.for_each_node(&mut |node, page, _| {
            marks.slot(node.leaf())?;
            let (_, record) = self.leaf_low(node.leaf())?;
            if record != 0 {
                marks.slot(record)?;
            }
            let records = page.items().iter().filter(|item| item.2 == RECORD);
            records.map(|item| item.0 & OFFSET_MASK).try_for_each(|record| marks.slot(record))
        })?;
        self.top.mark(marks)?;
        // Objects that a job had unlinked before the walk came by must be in limbo afterwards: limbo is searched for
        // pending frees before reclaimed memory is given out again.
        self.jobs.rest();
        Ok(())
    }

    /// Bytes of the pool that the tree holds, as far as its leaves can be read.
    pub(super) fn pm_bytes(&self) -> u64 {
        let _here = self.limbo.enter();
        let _ = self.replay_all();
        let mut bytes = TREE_HEADER_BYTES + self.top.pm_bytes() + self.log_bytes();
        let record = |off| Ok::<_, terrace_base::Error>(KEY_HEAD_BYTES + self.record_key(off)?.len() as u64);
        // An error ends the walk; the counts until then stand.
        let _ = self.for_each_node(&mut |node, page, _| {
            bytes += LEAF_BYTES;
            if let (_, low @ 1..) = self.leaf_low(node.leaf())? {
                bytes += record(low)?;
            }
            for item in page.items().iter().filter(|item| item.2 == RECORD) {
                bytes += record(item.0 & OFFSET_MASK)?;
            }
            Ok(())
        });
        bytes
    }

    /// Bytes of DRAM that the tree holds.
    pub(super) fn dram_bytes(&self) -> u64 {
        let limbo = self.limbo.len() * size_of::<(u64, super::Garbage)>();
        let fixed = (size_of::<Self>() + limbo) as u64;
        fixed + self.arena.bytes() + self.art.bytes() + self.top.dram_bytes()
    }

    /// Keys in the tree.
    pub(super) fn count(&self) -> u64 {
        self.finish_rebuild();
        // Parts that cannot be read are not counted; lookups report them.
        let _ = self.replay_all();
        self.keys.load(Ordering::Relaxed).max(0) as u64
    }
}
