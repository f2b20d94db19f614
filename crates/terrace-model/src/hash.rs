//! Lines of the hash memtable: a reader without a lock finds what was inserted before it asked, while the writer
//! appends, replaces, chains lines and replaces the directory.
//!
//! The stores are in the order of `memtable/hash/directory.rs`, the loads too; there are no tags, and records are
//! numbers. A key's versions are kept in one slot, the newest leading to those before it.

use std::sync::Arc;

use shuttle::thread;

use crate::check;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

const SLOTS: usize = 2;
const KEYS: u64 = 5;

/// What a word may be beside 0, which is an empty slot.
enum Word {
    Record(u64),
    Link(usize),
}

const LINK: u64 = 1 << 32;

#[derive(Default)]
struct Line {
    slots: [AtomicU64; SLOTS],
}

/// A record is the number it was inserted with: of a key every `KEYS`th.
#[derive(Default)]
struct Table {
    /// Lines of all directories and chains; nothing of it is freed.
    lines: Mutex<Vec<Arc<Line>>>,
    /// The first line of the current directory, and how many lines it has.
    current: AtomicU64,
    visible: AtomicU64,
    reads: AtomicUsize,
}

fn key_of(record: u64) -> u64 {
    record % KEYS
}

impl Table {
    fn new() -> Table {
        let table = Table::default();
        table.current.store(table.add(vec![Line::default()]), Ordering::Release);
        table
    }

    fn add(&self, more: Vec<Line>) -> u64 {
        let mut lines = self.lines.lock();
        let (first, count) = (lines.len() as u64, more.len() as u64);
        lines.extend(more.into_iter().map(Arc::new));
        first << 8 | count
    }

    fn line(&self, i: usize) -> Arc<Line> {
        self.lines.lock()[i].clone()
    }

    fn first_line(directory: u64, key: u64) -> usize {
        (directory >> 8) as usize + (key % (directory & 0xff)) as usize
    }

    /// Where the key is, or where it may be put: the line, the slot, and what was loaded from it.
    fn search(&self, directory: u64, key: u64) -> (Arc<Line>, usize, Option<Word>) {
        let mut line = self.line(Self::first_line(directory, key));
        loop {
            let words: [u64; SLOTS] = std::array::from_fn(|i| line.slots[i].load(Ordering::Acquire));
            let is_it = |word: &u64| *word != 0 && *word < LINK && key_of(*word) == key;
            if let Some(i) = words.iter().rposition(is_it) {
                return (line, i, Some(Word::Record(words[i])));
            }
            if words[SLOTS - 1] >= LINK {
                line = self.line((words[SLOTS - 1] - LINK) as usize);
                continue;
            }
            return match words.iter().position(|word| *word == 0) {
                Some(free) => (line, free, None),
                None => (line, SLOTS - 1, Some(Word::Link(0))),
            };
        }
    }

    fn put(&self, directory: u64, record: u64) {
        match self.search(directory, key_of(record)) {
            (line, i, Some(Word::Record(_)) | None) => line.slots[i].store(record, Ordering::Release),
            (line, last, Some(Word::Link(_))) => {
                let further = Line::default();
                further.slots[0].store(line.slots[last].load(Ordering::Relaxed), Ordering::Relaxed);
                further.slots[1].store(record, Ordering::Relaxed);
                let at = self.add(vec![further]) >> 8;
                line.slots[last].store(LINK + at, Ordering::Release);
            }
        }
    }

    fn records(&self, directory: u64) -> Vec<u64> {
        let mut found = Vec::new();
        for first in 0..directory & 0xff {
            let mut at = Some(((directory >> 8) + first) as usize);
            while let Some(line) = at.map(|at| self.line(at)) {
                // Each word is loaded once: the last may turn into a link between two loads.
                let words: [u64; SLOTS] = std::array::from_fn(|i| line.slots[i].load(Ordering::Acquire));
                found.extend(words.iter().filter(|word| **word != 0 && **word < LINK));
                at = (words[SLOTS - 1] >= LINK).then(|| (words[SLOTS - 1] - LINK) as usize);
            }
        }
        found
    }

    fn grow(&self) {
        let before = self.current.load(Ordering::Relaxed);
        let lines = 2 * (before & 0xff);
        let directory = self.add((0..lines).map(|_| Line::default()).collect());
        self.records(before).into_iter().for_each(|record| self.put(directory, record));
        self.current.store(directory, Ordering::Release);
    }

    fn write(&self, last: u64) {
        for record in 1..=last {
            if record % 4 == 0 {
                self.grow();
            }
            self.put(self.current.load(Ordering::Relaxed), record);
            self.visible.store(record, Ordering::Release);
        }
    }

    /// Every key that was visible is there, in a version that is as new as that or newer, and once.
    fn read(&self) {
        let visible = self.visible.load(Ordering::Acquire);
        let directory = self.current.load(Ordering::Acquire);
        for record in (visible.saturating_sub(KEYS - 1)).max(1)..=visible {
            match self.search(directory, key_of(record)) {
                (_, _, Some(Word::Record(found))) => assert!(found >= record, "{found} for {record}"),
                _ => panic!("{record} is missing, {visible} are visible"),
            }
        }
        let mut keys: Vec<u64> = self.records(directory).into_iter().map(key_of).collect();
        keys.sort_unstable();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "a key is met twice");
        assert!(keys.len() as u64 >= visible.min(KEYS), "a key is missing");
        self.reads.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_reader_finds_what_was_there_before_it_asked() {
    check(|| {
        let table = Arc::new(Table::new());
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let table = table.clone();
                thread::spawn(move || (0..2).for_each(|_| table.read()))
            })
            .collect();
        table.write(9);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(table.reads.load(Ordering::SeqCst), 4);
        table.read();
    });
}
