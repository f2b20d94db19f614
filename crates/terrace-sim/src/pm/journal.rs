//! The history of lines since they were last drained: the flushes and the orderings, with the content each line had at
//! that moment.
//!
//! The journal is a plain list in program order, because flushing is the hot call and draining empties it;
//! the states of a single line are put together only when power is about to be cut.

use std::collections::{BTreeMap, HashMap};
use std::thread::ThreadId;

use super::LINE;
use super::image::Image;

/// The content of one line.
pub(super) type Line = [u8; LINE];

/// An operation on a line.
#[derive(Debug, Clone)]
struct Entry {
    line: u64,
    content: Line,
    mark: Mark,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// The write-back of the line was started by this thread; `None` if that thread died undrained.
    Flushed(Option<ThreadId>),
    /// Stores before this point reach the media before stores after it.
    Ordered,
}

/// The undrained flushes and orderings, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Journal {
    entries: Vec<Entry>,
}

/// A state a line was seen in, and whether the stores up to it are ordered before later ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) content: Line,
    pub(super) barrier: bool,
}

impl Journal {
    pub(super) fn flushed(&mut self, line: u64, content: Line, by: ThreadId) {
        self.entries.push(Entry { line, content, mark: Mark::Flushed(Some(by)) });
    }

    pub(super) fn ordered(&mut self, line: u64, content: Line) {
        self.entries.push(Entry { line, content, mark: Mark::Ordered });
    }

    /// Makes the flushes of thread `by` durable in `image`, and forgets everything that came before them on the same
    /// lines.
    pub(super) fn drain(&mut self, by: ThreadId, image: &mut Image) {
        let is_its = |entry: &Entry| entry.mark == Mark::Flushed(Some(by));
        if self.entries.iter().all(is_its) {
            // Nearly always. Later ones come last.
            self.entries.drain(..).for_each(|entry| image.set_line(entry.line, &entry.content));
            return;
        }
        let mut last = HashMap::new();
        for (at, entry) in self.entries.iter().enumerate() {
            if is_its(entry) {
                last.insert(entry.line, at);
            }
        }
        for (&line, &at) in &last {
            image.set_line(line, &self.entries[at].content);
        }
        let mut at = 0;
        self.entries.retain(|entry| {
            let superseded = last.get(&entry.line).is_some_and(|&l| at <= l);
            at += 1;
            !superseded
        });
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The states each line was seen in, oldest first, by line number.
    pub(super) fn histories(&self) -> BTreeMap<u64, Vec<Seen>> {
        let mut lines: BTreeMap<u64, Vec<Seen>> = BTreeMap::new();
        for entry in &self.entries {
            let seen = Seen { content: entry.content, barrier: entry.mark == Mark::Ordered };
            lines.entry(entry.line).or_default().push(seen);
        }
        lines
    }

    /// The journal as the death of the process leaves it: the write-backs go on, but nobody can wait
    /// for them any more.
    pub(super) fn orphaned(&self) -> Journal {
        let mut journal = self.clone();
        for entry in &mut journal.entries {
            if let Mark::Flushed(by) = &mut entry.mark {
                *by = None;
            }
        }
        journal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> ThreadId {
        std::thread::current().id()
    }

    fn other() -> ThreadId {
        std::thread::scope(|s| s.spawn(me).join().unwrap())
    }

    #[test]
    fn a_drain_takes_the_content_at_the_last_flush() {
        let mut image = Image::zeroed(4096);
        let mut journal = Journal::default();
        journal.flushed(3, [1; LINE], me());
        journal.ordered(3, [2; LINE]);
        journal.flushed(3, [3; LINE], me());
        journal.ordered(3, [4; LINE]);
        journal.drain(me(), &mut image);
        assert_eq!(image.line(3), &[3; LINE]);
        let left = journal.histories();
        assert_eq!(left[&3].len(), 1);
        assert!(left[&3][0].barrier);
    }

    #[test]
    fn a_drain_does_not_wait_for_other_threads() {
        let mut image = Image::zeroed(4096);
        let mut journal = Journal::default();
        journal.flushed(0, [1; LINE], other());
        journal.flushed(1, [2; LINE], me());
        journal.drain(me(), &mut image);
        assert_eq!(image.line(0), &[0; LINE]);
        assert_eq!(image.line(1), &[2; LINE]);
        assert_eq!(journal.histories().len(), 1);
    }

    #[test]
    fn nobody_drains_what_a_dead_process_flushed() {
        let mut image = Image::zeroed(4096);
        let mut journal = Journal::default();
        journal.flushed(0, [1; LINE], me());
        let mut journal = journal.orphaned();
        journal.drain(me(), &mut image);
        assert_eq!(image.line(0), &[0; LINE]);
        assert_eq!(journal.histories()[&0].len(), 1);
    }
}
