//! The benchmark of bare memtables, for `terrace-bench memtables` (WipDB, figure 2.3).
//!
//! Random keys go to as many memtables, each of which has a part of the key space, as a store's buckets have.

use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace::bare_memtables::{Design, Memtables};
use terrace_base::clock::{Clock, SystemClock};

use crate::chart::{Axis, Lines, Panel, Series, save};
use crate::index::pairs::{Permutation, mix};
use crate::report::{columns, grouped};
use crate::store::StoreResult;

/// The memtables by name.
pub const DESIGNS: [(&str, Design); 4] = [
    ("skiplists", Design::Skiplists),
    ("one-skiplist", Design::OneSkiplist),
    ("hash", Design::Hash),
    ("hash-huge", Design::HugeHash),
];

/// The plan of a measurement.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Memtables.
    pub tables: u64,
    /// Keys that a memtable gets on average.
    pub keys: u64,
    /// Keys to insert at least: full memtables give way to empty ones.
    pub num: u64,
    /// Bytes of a value. Keys have 16.
    pub value_bytes: usize,
}

/// A measurement.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Run {
    /// Which memtables.
    pub design: String,
    /// How many.
    pub tables: u64,
    /// Keys in each on average.
    pub keys: u64,
    /// Keys inserted, and read as often.
    pub operations: u64,
    /// Insertions a second.
    pub inserts: f64,
    /// Reads a second.
    pub gets: f64,
    /// Bytes of DRAM for a key.
    pub bytes_per_key: f64,
    /// Reads that did not find the inserted value.
    pub wrong: u64,
}

fn key_of(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mix(number).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The memtable of a key: each has a range of keys.
fn table_of(number: u64, tables: u64) -> usize {
    ((u128::from(mix(number)) * u128::from(tables)) >> 64) as usize
}

/// Fills memtables and reads everything back in another order, as often as it takes.
pub fn measure(name: &str, design: Design, spec: &Spec) -> Run {
    let Spec { tables, keys, num, value_bytes } = *spec;
    let (clock, value) = (SystemClock::new(), vec![0x5a; value_bytes]);
    let (each, fillings) = (tables * keys, num.div_ceil(tables * keys));
    let (mut inserting, mut getting) = (Duration::ZERO, Duration::ZERO);
    let (mut wrong, mut held) = (0, 0);
    for filling in 0..fillings {
        let first = filling * each;
        let memtables = Memtables::new(design, tables as usize);
        let began = clock.now();
        for number in first..first + each {
            memtables.put(table_of(number, tables), &key_of(number), number + 1, &value);
        }
        let filled = clock.now();
        let mut order = Permutation::new(each, 0);
        for _ in 0..each {
            let number = first + order.step();
            let found = memtables.get(table_of(number, tables), &key_of(number));
            wrong += u64::from(found != Some(number + 1));
        }
        getting += clock.now() - filled;
        inserting += filled - began;
        held = memtables.dram_bytes();
    }
    let operations = each * fillings;
    let rate = |time: Duration| operations as f64 / time.as_secs_f64().max(1e-9);
    Run {
        design: name.to_string(),
        tables,
        keys,
        operations,
        inserts: rate(inserting),
        gets: rate(getting),
        bytes_per_key: held as f64 / each as f64,
        wrong,
    }
}

/// The median of several runs of one thing: of each figure by itself.
pub fn median(runs: &[Run]) -> Option<Run> {
    let middle = |figure: fn(&Run) -> f64| {
        let mut all: Vec<f64> = runs.iter().map(figure).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    };
    let wrong = runs.iter().map(|run| run.wrong).sum();
    Some(Run { inserts: middle(|r| r.inserts), gets: middle(|r| r.gets), wrong, ..runs.first()?.clone() })
}

/// Runs in columns.
pub fn table(runs: &[Run]) -> String {
    let mut rows = vec![
        ["memtable", "tables", "keys each", "M inserts/s", "M gets/s", "bytes/key"]
            .map(String::from)
            .to_vec(),
    ];
    rows.extend(runs.iter().map(|run| {
        vec![
            run.design.clone(),
            grouped(run.tables),
            grouped(run.keys),
            format!("{:.2}", run.inserts / 1e6),
            format!("{:.2}", run.gets / 1e6),
            format!("{:.0}", run.bytes_per_key),
        ]
    }));
    columns(&rows)
}

/// Draws figure 2.3 into the folder `dir`, and beside it the same for reads; returns the file.
pub fn figure(runs: &[Run], dir: &Path) -> StoreResult<Option<PathBuf>> {
    let drawn = [
        panel(runs, "Inserts", "M inserts/s", |r| r.inserts / 1e6),
        panel(runs, "Reads", "M gets/s", |r| r.gets / 1e6),
    ];
    save(dir, "memtables", 2, &drawn)
}

fn panel(runs: &[Run], title: &str, y: &str, figure: fn(&Run) -> f64) -> Panel {
    let tables = || runs.iter().map(|run| run.tables as f64);
    let (least, most) = (tables().fold(f64::MAX, f64::min), tables().fold(1.0, f64::max));
    let across = Axis::log(least, most, "memtables", |count| format!("{count}"));
    // With room for the names above the lines.
    let up = Axis::linear(runs.iter().map(figure).fold(0.0, f64::max) * 1.3, y);
    let line = |(colour, (name, _)): (usize, &(&str, Design))| {
        let own = runs.iter().filter(|run| run.design == *name);
        let mut points: Vec<_> = own.map(|run| ((run.tables as f64).log10(), figure(run))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: name.to_string(), colour, points }
    };
    let series = DESIGNS.iter().enumerate().map(line).filter(|series| !series.points.is_empty()).collect();
    Panel::Lines(Lines { title: title.into(), across, up, series })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_memtable_answers() {
        let mut runs = Vec::new();
        for tables in [1, 10] {
            for (name, design) in DESIGNS {
                let run = measure(name, design, &Spec { tables, keys: 300, num: 4000, value_bytes: 20 });
                assert_eq!((run.wrong, run.operations), (0, if tables == 1 { 4200 } else { 6000 }));
                assert!(run.bytes_per_key > 36.0 && run.inserts > 0.0 && run.gets > 0.0);
                runs.push(run);
            }
        }
        assert_eq!(table(&runs).lines().count(), 9);
        let dir = tempfile::tempdir().unwrap();
        let svg = std::fs::read_to_string(figure(&runs, dir.path()).unwrap().unwrap()).unwrap();
        assert!(DESIGNS.iter().all(|(name, _)| svg.contains(name)));
        let rates = [3.0, 1.0, 2.0].map(|inserts| Run { inserts, ..runs[0].clone() });
        assert_eq!(median(&rates).map(|run| run.inserts), Some(2.0));
    }
}
