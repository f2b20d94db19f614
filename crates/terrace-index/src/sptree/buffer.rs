//! Write buffers.

use terrace_base::Result;

use super::Core;
use super::key::Probe;
use super::layout::Item;
use super::leaf::Page;
use super::mnode::{Locked, Mnode, Version};
use crate::ordered::Wish;

/// Most entries of a buffer.
pub(super) const MAX_ENTRIES: usize = 14;
/// Words of a buffer.
pub(super) const WORDS: usize = 32;

impl Core {
    pub(super) fn is_buffered(&self) -> bool {
        self.logs.is_some()
    }
    pub(super) fn in_buffer(&self, _: &Mnode, _: &Probe<'_>, _: Version) -> Option<Option<u64>> {
        None
    }
    pub(super) fn apply_buffered(
        &self,
        _: Locked<'_>,
        _: &Probe<'_>,
        _: &mut dyn FnMut(Option<u64>) -> Wish,
    ) -> Result<Option<Option<u64>>> {
        Ok(None)
    }
    pub(super) fn flush_for_merge(&self, _: &Locked<'_>) -> Result<bool> {
        Ok(true)
    }
    pub(super) fn empty_buffer(&self, _: &Mnode) {}
    pub(super) fn flush_all(&self) -> Result<()> {
        Ok(())
    }
    pub(super) fn check_buffers(&self, _: &mut Vec<String>) -> Result<i64> {
        Ok(0)
    }
    pub(super) fn read_page(&self, node: &Mnode, version: Version, page: &mut Page) -> Result<Option<()>> {
        self.page(node, version, page)
    }
    pub(super) fn read_leaf(&self, node: &Mnode, version: Version, page: &mut Page) -> Result<Option<()>> {
        self.page(node, version, page)
    }
    #[allow(dead_code)]
    fn unused(_: Item) {}
}
