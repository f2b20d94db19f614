//! Cursors over a memtable.

use std::cmp::Ordering;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use terrace_base::Result;
use terrace_table::{Cursor, Head};

use super::Inner;
use super::node::{Node, NodeRef, Sought};

/// A position in a memtable, which it keeps alive. It may or may not meet what is inserted meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct MemCursor {
    list: Arc<Inner>,
    node: Option<NonNull<Node>>,
    /// Nodes that were passed since the last search.
    passed: usize,
}

/// Nodes that are loaded ahead at a time, from the second one that is passed on: a walk over fewer needs none.
const LOADED_NODES: usize = 8;

// SAFETY: the node belongs to the list, which the cursor keeps and which is `Send` and `Sync`.
unsafe impl Send for MemCursor {}
// SAFETY: the same; a shared cursor only reads.
unsafe impl Sync for MemCursor {}

impl MemCursor {
    pub(super) fn new(list: Arc<Inner>) -> Self {
        MemCursor { list, node: None, passed: 0 }
    }

    fn node(&self) -> Option<NodeRef<'_>> {
        // SAFETY: the node was found in this list, which the cursor keeps.
        self.node.map(|node| unsafe { NodeRef::new(node) })
    }

    fn set(&mut self, node: Option<NonNull<Node>>) {
        (self.node, self.passed) = (node, 0);
    }

    /// Has nodes loaded that come soon: they lie apart, so that each would be waited for.
    fn load_ahead(&self, node: NodeRef<'_>) {
        let from = if self.passed == 1 { 1 } else { LOADED_NODES };
        if self.passed % LOADED_NODES == 1 {
            self.list.guide.load_behind(&node.sought(), from..2 * LOADED_NODES);
        }
        node.load_next();
    }

    /// The value in its place; empty if the cursor is not positioned.
    pub fn value_bytes(&self) -> &[u8] {
        self.node().map_or(&[], |node| node.value())
    }
}

impl Cursor for MemCursor {
    fn head(&self) -> Option<Head<'_>> {
        self.node().map(|node| Head { key: node.key(), seq: node.seq(), kind: node.kind() })
    }

    fn seek_first(&mut self) -> Result<()> {
        let node = self.list.first().map(NodeRef::pointer);
        self.set(node);
        Ok(())
    }

    fn seek_last(&mut self) -> Result<()> {
        let node = self.list.last().map(NodeRef::pointer);
        self.set(node);
        Ok(())
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<()> {
        let node = self.list.at_or_after(&Sought::new(key, seq)).map(NodeRef::pointer);
        self.set(node);
        Ok(())
    }

    fn seek_back(&mut self, key: &[u8], seq: u64) -> Result<()> {
        let sought = Sought::new(key, seq);
        let (before, next) = self.list.around(&sought);
        let equal = next.filter(|node| node.order(&sought) == Ordering::Equal);
        let node = equal.or(before).map(NodeRef::pointer);
        self.set(node);
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.passed += 1;
        let next = self.node().and_then(|node| self.list.after(node));
        next.into_iter().for_each(|node| self.load_ahead(node));
        self.node = next.map(NodeRef::pointer);
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        let before = self.node().and_then(|node| self.list.before(&node.sought()));
        let before = before.map(NodeRef::pointer);
        self.set(before);
        Ok(())
    }

    fn value(&self) -> Result<Bytes> {
        Ok(Bytes::copy_from_slice(self.value_bytes()))
    }

    fn value_in_place(&self) -> Result<&[u8]> {
        Ok(self.value_bytes())
    }

    fn value_len(&self) -> usize {
        self.value_bytes().len()
    }
}
