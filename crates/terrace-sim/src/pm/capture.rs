//! A captured moment of a medium, from which any number of survivors are made.

use std::sync::Arc;

use terrace_pmem::{Granularity, Media};

use super::image::{Image, Page};
use super::journal::{Journal, Line, Seen};
use super::{Durable, LINE, PAGE_BYTES, SimPm};

/// A medium at one moment: its durable contents, and the possible contents of each page or line that is not durable.
#[derive(Debug, Clone)]
pub struct PmSnapshot {
    pub(super) granularity: Granularity,
    pub(super) capacity: u64,
    pub(super) len: u64,
    pub(super) durable: Image,
    pub(super) journal: Journal,
    pub(super) sync_failed: bool,
    /// Pages whose stores are not all durable, by index, with their current content.
    pub(super) dirty_pages: Vec<(usize, Box<Page>)>,
    /// Lines whose stores are not all durable, by number; empty on `Page` media.
    pub(super) dirty_lines: Vec<DirtyLine>,
}

/// The states that one line went through since it was last drained.
#[derive(Debug, Clone)]
pub(super) struct DirtyLine {
    pub(super) number: u64,
    /// Between the durable state and the current one, oldest first.
    pub(super) seen: Vec<Seen>,
    pub(super) current: Line,
}

impl SimPm {
    /// Captures this moment. The medium does not change.
    pub fn capture(&self) -> PmSnapshot {
        let durable = self.durable.lock().clone();
        let mut snapshot = PmSnapshot {
            granularity: self.granularity,
            capacity: self.capacity(),
            len: self.len(),
            durable: durable.image,
            journal: durable.journal,
            sync_failed: durable.sync_failed,
            dirty_pages: Vec::new(),
            dirty_lines: Vec::new(),
        };
        snapshot.find_pages(self);
        if self.granularity != Granularity::Page {
            snapshot.find_lines(self);
        }
        snapshot
    }
}

impl PmSnapshot {
    /// Whether anything is not durable.
    pub fn is_dirty(&self) -> bool {
        !self.dirty_pages.is_empty() || !self.dirty_lines.is_empty()
    }

    /// Bytes usable at that moment.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was usable; never so.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The medium as the death of the process leaves it: every store is there, and undrained stores are still not
    /// durable.
    pub fn kill(&self) -> SimPm {
        let (journal, sync_failed) = (self.journal.orphaned(), self.sync_failed);
        let durable = Durable { image: self.durable.clone(), journal, sync_failed };
        SimPm::over(&self.current(), durable, self.capacity, self.granularity)
    }

    /// The image of all stores.
    pub(super) fn current(&self) -> Image {
        let mut image = self.durable.clone();
        image.resize(self.len);
        for (index, page) in &self.dirty_pages {
            *image.page_mut(*index) = **page;
        }
        image
    }

    /// Collects the pages that differ from the durable image. A page past the durable length (`Page`
    /// media that grew) differs if it is not zero.
    fn find_pages(&mut self, pm: &SimPm) {
        let mut durable = self.durable.clone();
        durable.resize(self.len);
        for (index, page) in durable.pages().iter().enumerate() {
            let now = pm.current_page(index);
            if page.as_ref() != now {
                self.dirty_pages.push((index, Box::new(*now)));
            }
        }
    }

    /// Collects the lines that differ or have a history.
    fn find_lines(&mut self, pm: &SimPm) {
        let mut histories = self.journal.histories();
        for (index, page) in &self.dirty_pages {
            let first = index * PAGE_BYTES / LINE;
            let was = Arc::clone(&self.durable.pages()[*index]);
            for (i, (old, new)) in was.chunks_exact(LINE).zip(page.chunks_exact(LINE)).enumerate() {
                if old != new {
                    histories.entry((first + i) as u64).or_default();
                }
            }
        }
        self.dirty_lines = histories
            .into_iter()
            .map(|(number, seen)| DirtyLine { number, seen, current: pm.current_line(number) })
            .collect();
    }
}
