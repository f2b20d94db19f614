//! Scans in both directions: each leaf is looked at as of one version, the next place is found by its bounds.

use std::ops::Bound as RangeBound;
use std::sync::atomic::Ordering;

use terrace_base::{Result, prefetch};

use super::Core;
use super::bound::Bound;
use super::key::{INLINE_BYTES, Probe, inline_bytes};
use super::layout::Item;
use super::mnode::{Mnode, Version};
use super::page::{Page, Part};
use super::read::MAX_RESTARTS;
use crate::scan_batch::ScanBatch;

impl Core {
    /// Appends keys upward from `from` on until `out` holds `end`. The caller is present.
    pub(super) fn scan_up(&self, from: RangeBound<&[u8]>, end: usize, out: &mut ScanBatch) -> Result<()> {
        let (start, mut including) = match from {
            RangeBound::Included(key) => (key, true),
            RangeBound::Excluded(key) => (key, false),
            RangeBound::Unbounded => (&[][..], true),
        };
        let mut cursor = Bound::new(start);
        let mut hint: Option<&Mnode> = None;
        let mut page = Page::new();
        while out.len() < end {
            let mut inline = [0; 8];
            let probe = Probe::plain(cursor.bytes(&mut inline).unwrap_or_default());
            let (node, version) = self.locate_by(hint, &probe)?;
            let next = node.next.load(Ordering::Acquire);
            prefetch::line(next);
            let part = Part { probe: &probe, including, reverse: false, limit: end - out.len() };
            let Some(()) = self.part(node, version, &part, &mut page)? else { continue };
            let Some(high) = node.high(version) else { continue };
            // SAFETY: the node was alive and led to this one, and the caller is present, so it is not freed.
            hint = unsafe { next.as_ref() };
            if let (Some(next), true) = (hint, page.len < part.limit) {
                self.prefetch_leaf(next.leaf());
            }
            self.load_page(&mut page);
            self.push_all(page.items().iter(), out)?;
            if high == Bound::None {
                return Ok(());
            }
            (cursor, including) = (high, true);
        }
        Ok(())
    }

    /// Appends keys downward from `from` on until `out` holds `end`. The caller is present.
    pub(super) fn scan_down(&self, from: RangeBound<&[u8]>, end: usize, out: &mut ScanBatch) -> Result<()> {
        let (mut cursor, mut including) = match from {
            RangeBound::Included(key) => (key.to_vec(), true),
            RangeBound::Excluded(key) => (key.to_vec(), false),
            RangeBound::Unbounded => return self.scan_down_from_end(end, out),
        };
        let mut page = Page::new();
        while out.len() < end && (including || !cursor.is_empty()) {
            let probe = Probe::plain(&cursor);
            let (node, version) = if including { self.locate(&probe)? } else { self.locate_below(&probe)? };
            let part = Part { probe: &probe, including, reverse: true, limit: end - out.len() };
            let Some(()) = self.part(node, version, &part, &mut page)? else { continue };
            self.load_page(&mut page);
            self.push_all(page.items().iter().rev(), out)?;
            (cursor, including) = (node.low().to_vec().unwrap_or_default(), false);
        }
        Ok(())
    }

    fn scan_down_from_end(&self, end: usize, out: &mut ScanBatch) -> Result<()> {
        self.finish_rebuild();
        let mut page = Page::new();
        for _ in 0..MAX_RESTARTS {
            let last = self.art.last().map(|last| self.node_at(last));
            let is_last = |node: &&Mnode| node.high(node.version()) == Some(Bound::None);
            let Some(node) = last.filter(is_last) else {
                // A last leaf that could not be read, or one that is just being split.
                self.rebuild.failure().map_or(Ok(()), Err)?;
                continue;
            };
            let version = node.version();
            if version.is_dead() || node.high(version) != Some(Bound::None) {
                continue;
            }
            let Some(()) = self.read_page(node, version, &mut page)? else { continue };
            self.load_page(&mut page);
            self.push_all(page.items().iter().rev().take(end - out.len()), out)?;
            if out.len() == end {
                return Ok(());
            }
            let low = node.low().to_vec().unwrap_or_default();
            return self.scan_down(RangeBound::Excluded(&low), end, out);
        }
        Err(self.no_leaf())
    }

    /// The node that `probe` belongs to: `hint` if that is right, else by a search.
    fn locate_by<'t>(&'t self, hint: Option<&'t Mnode>, probe: &Probe<'_>) -> Result<(&'t Mnode, Version)> {
        if let Some(node) = hint {
            let version = node.version();
            if !version.is_dead() && node.covers(probe, version) == Some(true) {
                return Ok((node, version));
            }
        }
        self.locate(probe)
    }

    /// Appends `items`, whose records are loaded.
    fn push_all<'i>(&self, mut items: impl Iterator<Item = &'i Item>, out: &mut ScanBatch) -> Result<()> {
        items.try_for_each(|&item| {
            let (key_word, word, kind) = item;
            // Short keys without the detour by a reference to either sort.
            match usize::from(kind) {
                len @ 0..=INLINE_BYTES => out.push(&inline_bytes(key_word)[..len], word),
                _ => out.push(self.loaded_key_of(item)?.bytes(), word),
            }
            Ok(())
        })
    }
}
