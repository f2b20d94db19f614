//! Damage: flipped bits, cut, missing and foreign files, in everything a database consists of.
//!
//! Whatever the damage, every answer is right or an error that names file and place; nothing panics or hangs;
//! `check` finds all that can matter; `repair` brings the rest back and says what is gone. The formats'
//! own tests go through every bit of theirs; here it is the database as a whole that is looked at.
//!
//! What cannot be told from writes that a power cut took: the newest group of a log or manifest that was not
//! closed. `TERRACE_DAMAGE=n` tries n times as many places; `TERRACE_DAMAGE_SEED` sets others.

mod ahead;
mod deleted;
mod ends;
pub mod image;
mod ingested;
mod job_log;
mod judge;
mod memtable;
mod moments;
mod older_pool;
mod sample;
pub mod spaces;
mod whole;

use std::collections::BTreeMap;
use std::path::PathBuf;

use terrace_base::rng::Rng;

use judge::{Judge, Outcome};
use sample::{Sample, samples_in_memory, samples_of_split, samples_with_tables};

/// Bits flipped in each file, and in each pool.
const FLIPS: (usize, usize) = (6, 120);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// What has been tried, and what came of it.
#[derive(Default)]
struct Docket {
    tally: BTreeMap<(String, Outcome), u32>,
    faults: BTreeMap<String, Vec<String>>,
}

impl Docket {
    /// Has `judge` look at what was done to `what` at `place`.
    fn hear(&mut self, what: &str, place: &str, judge: &Judge<'_>) {
        let sample = judge.sample.name;
        match judge.judge() {
            Ok(outcome) => *self.tally.entry((what.into(), outcome)).or_default() += 1,
            Err(fault) => {
                let group = format!("{sample}, {what}: {:.30}", fault.trim_matches(char::is_numeric));
                self.faults.entry(group).or_default().push(format!("{place}: {fault}"));
            }
        }
    }

    /// Fails if there was a fault; shows one of each sort.
    #[track_caller]
    fn close(self) {
        for ((what, outcome), count) in &self.tally {
            println!("{what}: {count} x {outcome:?}");
        }
        let shown: Vec<_> =
            self.faults.iter().map(|(group, all)| format!("{} x {group}: {}", all.len(), all[0])).collect();
        assert!(shown.is_empty(), "{shown:#?}");
    }
}

/// The bits of files and the pool that are flipped, a file's by its path.
fn places(sample: &Sample, rng: &mut Rng) -> Vec<(Option<PathBuf>, usize)> {
    let effort = number("TERRACE_DAMAGE", 1) as usize;
    let mut places = Vec::new();
    for (path, bytes) in sample.image.files.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        let bits = (0..FLIPS.0 * effort).map(|_| rng.below(bytes.len() as u64 * 8) as usize);
        places.extend(bits.map(|bit| (Some(path.clone()), bit)));
    }
    let Some(pool) = sample.image.pool.as_deref() else { return places };
    let used = used_bytes(pool);
    let bits = (0..FLIPS.1 * effort)
        .map(|_| used[rng.below(used.len() as u64) as usize] * 8 + rng.below(8) as usize);
    places.extend(bits.map(|bit| (None, bit)));
    places
}

/// Bytes that are not zero, and those near them.
fn used_bytes(bytes: &[u8]) -> Vec<usize> {
    let lines = bytes.chunks(64).enumerate().filter(|(_, line)| line.iter().any(|b| *b != 0));
    lines.flat_map(|(i, line)| i * 64..i * 64 + line.len()).collect()
}

/// Must catch a bit of a file or pool that changes an answer without a word, or that neither check nor repair copes
/// with.
#[test]
fn flipped_bits_are_told_or_harmless() {
    flip(samples_with_tables());
}

/// Must catch such a bit in hash tables, leaves, records and undo lists, of which no file has a copy.
#[test]
fn flipped_bits_where_all_is_in_memory_are_told_or_harmless() {
    flip(samples_in_memory());
}

/// Must catch such a bit in what one index leads to in three places: records in memory, runs in tables, items in slots.
#[test]
fn flipped_bits_of_records_runs_and_slots_are_told_or_harmless() {
    flip(samples_of_split());
}

fn flip(samples: Vec<Sample>) {
    let mut rng = Rng::new(number("TERRACE_DAMAGE_SEED", 1));
    let mut docket = Docket::default();
    for sample in samples {
        for (path, bit) in places(&sample, &mut rng) {
            let mut image = sample.image.clone();
            let (byte, mask) = (bit / 8, 1 << (bit % 8));
            let (what, whose) = match &path {
                Some(path) => {
                    image.files.get_mut(path).unwrap()[byte] ^= mask;
                    (whole::kind_of(path), path.display().to_string())
                }
                None => {
                    image.pool.as_mut().unwrap()[byte] ^= mask;
                    sample.image.structure_at(byte as u64)
                }
            };
            // The tree's nodes and keys are proved by `check` and not each time they are read.
            let check_is_enough = ["node", "record", "key"].contains(&what);
            // Within one boot a killed process has lost nothing of a log file.
            let unfinished = ["manifest", "commit log", "sptree log"].contains(&what);
            let torn = what == "log" && image.boot != image::FIRST_BOOT;
            let may_lose_the_newest = (unfinished || torn) && !sample.closed;
            let place = format!("{whose}, byte {byte:#x}, bit {}", bit % 8);
            let (sample, image, may_doubt) = (&sample, &image, what == "note");
            let judge = Judge { sample, image, may_lose_the_newest, check_is_enough, may_doubt };
            docket.hear(what, &place, &judge);
        }
    }
    docket.close();
}
