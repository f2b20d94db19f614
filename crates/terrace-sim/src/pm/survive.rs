//! The state of a medium after a power cut.
//!
//! By the contract (`terrace_pmem::media`), any subset of the undrained stores may have reached the media,
//! in aligned 8-byte units; only an ordering of a line constrains the subset, and only within that line. So
//! each line's history is cut at its orderings into epochs. A survivor of the line has every store of the
//! epochs before some epoch, and in that epoch each word holds, independently, any value it was seen with.
//! Being flushed makes a line likelier to survive on real hardware, not more certain: flushes add states but
//! never order them.
//!
//! Arbitrary subsets drawn evenly hardly ever hit the interesting ones ("everything but this one
//! line"), so each survivor is drawn in one of several moods.

use terrace_base::rng::Rng;
use terrace_pmem::Granularity;

use super::capture::{DirtyLine, PmSnapshot};
use super::image::{Image, Page};
use super::journal::{Journal, Line};
use super::{Durable, SimPm};

/// The fate of all stores that were not yet durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// No store survives.
    Nothing,
    /// All stores survive.
    Everything,
    /// All pending stores to persistent memory survive, and no pending change of the disk.
    OnlyPm,
    /// All pending changes of the disk survive, and no pending store to persistent memory.
    OnlyDisk,
    /// An arbitrary part of them survives, fixed by the seed.
    Seeded(u64),
    /// The persistent memory is lost altogether and reads as zeroes; of the disk, nothing unsynced
    /// survives. Only `Page` media can end so at a power cut; elsewhere it stands for a replaced device.
    Wiped,
}

/// How the fates of a survivor's lines (or pages) hang together.
#[derive(Debug, Clone, Copy)]
enum Mood {
    /// Each is wholly old or wholly new: new with `new` in 8.
    Whole { new: u64 },
    /// Each word has its own fate.
    Torn,
    /// All are old but one.
    OneKept(usize),
    /// All are new but one.
    OneLost(usize),
}

impl Mood {
    fn draw(rng: &mut Rng, items: usize) -> Mood {
        let one = rng.below(items as u64) as usize;
        match rng.below(8) {
            0 => Mood::Whole { new: 1 },
            1 | 2 => Mood::Whole { new: 4 },
            3 => Mood::Whole { new: 7 },
            4 | 5 => Mood::Torn,
            6 => Mood::OneKept(one),
            _ => Mood::OneLost(one),
        }
    }

    /// The fate of item `index`.
    fn fate(self, rng: &mut Rng, index: usize) -> Fate {
        let whole = |new: bool| if new { Fate::New } else { Fate::Old };
        match self {
            Mood::Whole { new } => whole(rng.below(8) < new),
            Mood::Torn => Fate::Torn,
            // The odd one out is torn every other time.
            Mood::OneKept(one) | Mood::OneLost(one) if one == index && rng.one_in(2) => Fate::Torn,
            Mood::OneKept(one) => whole(one == index),
            Mood::OneLost(one) => whole(one != index),
        }
    }
}

/// The fate of one line or page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Old,
    New,
    Torn,
}

impl PmSnapshot {
    /// The medium after a power cut: surviving stores are durable.
    pub fn power_cut(&self, survival: Survival) -> SimPm {
        let image = match survival {
            Survival::Nothing | Survival::OnlyDisk => self.durable.clone(),
            Survival::Everything | Survival::OnlyPm => self.current(),
            Survival::Wiped => Image::zeroed(self.len),
            Survival::Seeded(seed) if self.granularity == Granularity::Page => self.pages_left(seed),
            Survival::Seeded(seed) => self.lines_left(seed),
        };
        let durable = Durable { image: image.clone(), journal: Journal::default(), sync_failed: false };
        SimPm::over(&image, durable, self.capacity, self.granularity)
    }

    fn lines_left(&self, seed: u64) -> Image {
        let mut rng = Rng::new(seed);
        let mut image = self.durable.clone();
        let mood = Mood::draw(&mut rng, self.dirty_lines.len());
        for (i, line) in self.dirty_lines.iter().enumerate() {
            let content = match mood.fate(&mut rng, i) {
                Fate::Old => continue,
                Fate::New => line.current,
                Fate::Torn => line.torn(image.line(line.number), &mut rng),
            };
            image.set_line(line.number, &content);
        }
        image
    }

    /// On `Page` media the file's growth is as uncertain as its pages.
    fn pages_left(&self, seed: u64) -> Image {
        let mut rng = Rng::new(seed);
        let mut image = self.durable.clone();
        if rng.one_in(2) {
            image.resize(self.len);
        }
        let mood = Mood::draw(&mut rng, self.dirty_pages.len());
        for (i, (index, page)) in self.dirty_pages.iter().enumerate() {
            if *index >= image.pages().len() {
                break;
            }
            match mood.fate(&mut rng, i) {
                Fate::Old => {}
                Fate::New => *image.page_mut(*index) = **page,
                Fate::Torn => tear_page(image.page_mut(*index), page, &mut rng),
            }
        }
        image
    }
}

/// Replaces about half of the words of `page` by those of `new`, in runs, as sectors and lines do.
fn tear_page(page: &mut Page, new: &Page, rng: &mut Rng) {
    let run = [8, 64, 512][rng.below(3) as usize];
    for (old, new) in page.chunks_exact_mut(run).zip(new.chunks_exact(run)) {
        if rng.one_in(2) {
            old.copy_from_slice(new);
        }
    }
}

impl DirtyLine {
    /// A state the line may be left in, between `durable` and its current content.
    fn torn(&self, durable: &Line, rng: &mut Rng) -> Line {
        let states: Vec<&Line> = std::iter::once(durable)
            .chain(self.seen.iter().map(|seen| &seen.content))
            .chain(std::iter::once(&self.current))
            .collect();
        let (first, last) = self.epoch(rng);
        let mut line = [0; super::LINE];
        for word in 0..super::LINE / 8 {
            let from = first + rng.below((last - first + 1) as u64) as usize;
            line[word * 8..][..8].copy_from_slice(&states[from][word * 8..][..8]);
        }
        line
    }

    /// The first and the last state of an epoch: indices into `durable, seen.., current`.
    fn epoch(&self, rng: &mut Rng) -> (usize, usize) {
        let barriers = self.seen.iter().enumerate().filter(|(_, seen)| seen.barrier).map(|(i, _)| i + 1);
        let mut bounds: Vec<usize> = std::iter::once(0).chain(barriers).collect();
        bounds.push(self.seen.len() + 1);
        let epoch = rng.below(bounds.len() as u64 - 1) as usize;
        (bounds[epoch], bounds[epoch + 1])
    }
}
