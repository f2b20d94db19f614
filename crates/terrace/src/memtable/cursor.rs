//! Cursors over a memtable.

use std::cmp::Ordering;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Cursor, Kind};

use super::Inner;
use super::node::{Node, NodeRef, Sought};

/// A position in a memtable, which it keeps alive. It may or may not meet what is inserted meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct MemCursor {
    list: Arc<Inner>,
    node: Option<NonNull<Node>>,
}

// SAFETY: the node belongs to the list, which the cursor keeps and which is `Send` and `Sync`.
unsafe impl Send for MemCursor {}
// SAFETY: the same; a shared cursor only reads.
unsafe impl Sync for MemCursor {}

impl MemCursor {
    pub(super) fn new(list: Arc<Inner>) -> Self {
        MemCursor { list, node: None }
    }

    fn node(&self) -> Option<NodeRef<'_>> {
        // SAFETY: the node was found in this list, which the cursor keeps.
        self.node.map(|node| unsafe { NodeRef::new(node) })
    }

    /// The value in its place; empty if the cursor is not positioned.
    pub fn value_bytes(&self) -> &[u8] {
        self.node().map_or(&[], |node| node.value())
    }
}

impl Cursor for MemCursor {
    fn valid(&self) -> bool {
        self.node.is_some()
    }

    fn seek_first(&mut self) -> Result<()> {
        self.node = self.list.first().map(NodeRef::pointer);
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        self.node = self.list.last().map(NodeRef::pointer);
        Ok(())
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        self.node = self.list.at_or_after(&Sought::new(key, seq)).map(NodeRef::pointer);
        Ok(())
    }

    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        let sought = Sought::new(key, seq);
        let (before, next) = self.list.around(&sought);
        let equal = next.filter(|node| node.order(&sought) == Ordering::Equal);
        self.node = equal.or(before).map(NodeRef::pointer);
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        let next = self.node().and_then(|node| self.list.after(node));
        // Nodes lie apart, so that each would be waited for.
        next.into_iter().for_each(NodeRef::load_next);
        self.node = next.map(NodeRef::pointer);
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        let before = self.node().and_then(|node| self.list.before(&node.sought()));
        let before = before.map(NodeRef::pointer);
        self.node = before;
        Ok(())
    }

    fn key(&self) -> &[u8] {
        self.node().map_or(&[], |node| node.key())
    }

    fn seq(&self) -> u64 {
        self.node().map_or(0, |node| node.seq())
    }

    fn kind(&self) -> Kind {
        self.node().map_or(Kind::Delete, |node| node.kind())
    }

    fn value(&self) -> Result<Bytes> {
        Ok(Bytes::copy_from_slice(self.value_bytes()))
    }

    fn value_len(&self) -> usize {
        self.value_bytes().len()
    }
}
