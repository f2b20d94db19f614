//! The benchmarks, as data.
//!
//! The first group carries db_bench's names and does what db_bench does. The second is YCSB's load and core workloads A
//! to F with the published proportions: zipfian keys (0.99, scrambled), the latest for D, scans of 1 to 100 records for
//! E, half read-modify-write for F. YCSB's records hold 1000 bytes: ask for `--value-size 1000` to compare with
//! published figures. The third covers patterns of applications that neither has: values of two sizes, a series in time
//! whose oldest records are deleted, a queue, and the operations of a recorded trace.

use crate::distribution::Shape;
use crate::keys::KeyOrder;
use crate::store::Direction;
use crate::values::{MIXED_BY_BYTES, MIXED_BY_COUNT, Sizes};

/// The database that a workload starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Starts from an empty database whose keys have this order.
    Fresh(KeyOrder),
    /// Works on the existing database.
    Existing,
}

/// Which key numbers are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChoice {
    /// 0, 1, 2, ...: each thread has its own stretch.
    Sequential,
    /// Any, equally likely.
    Uniform,
    /// Scrambled zipfian.
    Zipfian,
    /// Zipfian from the newest backward.
    Latest,
    /// Keys that were never written, among those that were.
    Absent,
    /// Any of the newest ones, as many as one in so many of the plan's; older ones are taken away.
    Newest(u32),
    /// Any of those that are there, drawn by this shape over the order of their keys.
    ByKey(Shape),
    /// Any that keys can tell apart. They form as many equal regions, filled one after the other, each by its shape.
    Regions(&'static [Shape]),
}

/// How much of each operation, in percent; the sum is 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mix {
    /// Point reads.
    pub read: u8,
    /// Writes to a chosen key.
    pub update: u8,
    /// Writes of the next new key.
    pub insert: u8,
    /// Range reads from a chosen key.
    pub scan: u8,
    /// Point read and then write of the same key.
    pub modify: u8,
    /// Removals of a chosen key.
    pub delete: u8,
    /// Removals of the oldest key; inserts while there are not too many keys.
    pub expire: u8,
    /// Takes from a queue: a read of the first record and its removal; inserts while there are not too many keys.
    pub pop: u8,
}

/// The operations of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Operations drawn from a mix.
    Operations {
        /// How much of each.
        mix: Mix,
        /// On which keys.
        keys: KeyChoice,
        /// Shortest and longest scan, in records, equally likely between.
        scan_records: (u32, u32),
    },
    /// Reads of so many such keys at once as the plan says, each key one operation.
    MultiRead(KeyChoice),
    /// Every record in key order, each record one operation.
    Walk(Direction),
    /// The operations of the plan's trace.
    Replay,
    /// Writes buffered records out.
    Flush,
    /// Compacts everything.
    Compact,
}

/// One benchmark.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// A description in a line.
    pub about: &'static str,
    /// The database that it starts from.
    pub start: Start,
    /// Its operations.
    pub action: Action,
    /// The sizes of the values that it writes.
    pub sizes: Sizes,
}

impl Mix {
    /// The shares, in the order in which operations are drawn.
    pub fn shares(&self) -> [u8; 8] {
        [self.read, self.update, self.insert, self.scan, self.modify, self.delete, self.expire, self.pop]
    }

    /// Whether some of them need the order of keys.
    pub fn needs_order(&self) -> bool {
        self.scan > 0 || self.pop > 0
    }

    /// Whether no operation changes a record or takes one away.
    pub fn only_adds(&self) -> bool {
        self.read + self.insert + self.scan == 100
    }

    /// Whether all operations are of one kind, so that none need be drawn.
    pub fn has_one_kind(&self) -> bool {
        self.shares().contains(&100)
    }
}

const NO_OPS: Mix = Mix { read: 0, update: 0, insert: 0, scan: 0, modify: 0, delete: 0, expire: 0, pop: 0 };
pub(crate) const READ: Mix = Mix { read: 100, ..NO_OPS };
const UPDATE: Mix = Mix { update: 100, ..NO_OPS };
const INSERT: Mix = Mix { insert: 100, ..NO_OPS };
const DELETE: Mix = Mix { delete: 100, ..NO_OPS };
const SCAN: Mix = Mix { scan: 100, ..NO_OPS };

/// Range reads of one record: how many is up to the plan.
pub(crate) const ONE_RECORD: (u32, u32) = (1, 1);

const fn operations(mix: Mix, keys: KeyChoice) -> Action {
    Action::Operations { mix, keys, scan_records: ONE_RECORD }
}

const fn on_existing(name: &'static str, about: &'static str, action: Action) -> Workload {
    Workload { name, about, start: Start::Existing, action, sizes: Sizes::Planned }
}

const fn fill(name: &'static str, about: &'static str, order: KeyOrder, action: Action) -> Workload {
    Workload { name, about, start: Start::Fresh(order), action, sizes: Sizes::Planned }
}

const fn sized(workload: Workload, sizes: Sizes) -> Workload {
    Workload { sizes, ..workload }
}

/// The shapes of the four regions of WipDB's evaluation.
pub const FOUR_REGIONS: &[Shape] =
    &[Shape::Exponential, Shape::Normal, Shape::Uniform, Shape::ReversedExponential];

/// The time series keeps a quarter of the records, the queue a hundredth.
const SERIES_KEEPS: u32 = 4;
const QUEUE_KEEPS: u32 = 100;

/// Every benchmark there is.
pub const WORKLOADS: &[Workload] = &[
    fill(
        "fillseq",
        "write num records in key order into a new database",
        KeyOrder::Ordered,
        operations(INSERT, KeyChoice::Sequential),
    ),
    fill(
        "fillrandom",
        "write num records with random keys, repeats included, into a new database",
        KeyOrder::Ordered,
        operations(UPDATE, KeyChoice::Uniform),
    ),
    on_existing("overwrite", "write num records over random keys", operations(UPDATE, KeyChoice::Uniform)),
    on_existing("readrandom", "read random keys", operations(READ, KeyChoice::Uniform)),
    on_existing("multireadrandom", "read random keys, many at once", Action::MultiRead(KeyChoice::Uniform)),
    on_existing(
        "readexponential",
        "read keys, 95% of them among the first 15% in key order",
        operations(READ, KeyChoice::ByKey(Shape::Exponential)),
    ),
    on_existing("readmissing", "read keys that are not there", operations(READ, KeyChoice::Absent)),
    on_existing("readseq", "read every record in key order", Action::Walk(Direction::Forward)),
    on_existing("readreverse", "read every record in reverse order", Action::Walk(Direction::Backward)),
    on_existing(
        "seekrandom",
        "seek to random keys and read one record, or as many as asked for",
        operations(SCAN, KeyChoice::Uniform),
    ),
    on_existing("deleterandom", "delete random keys", operations(DELETE, KeyChoice::Uniform)),
    fill(
        "load",
        "YCSB: insert num records in hashed order into a new database",
        KeyOrder::Hashed,
        operations(INSERT, KeyChoice::Sequential),
    ),
    fill(
        "fillregions",
        "write num records into four regions of the keys in turn: exponential, normal, uniform, reversed",
        KeyOrder::Ordered,
        operations(UPDATE, KeyChoice::Regions(FOUR_REGIONS)),
    ),
    fill(
        "fillexponential",
        "write num records, 95% of them into the first 15% of all keys there can be",
        KeyOrder::Ordered,
        operations(UPDATE, KeyChoice::Regions(&[Shape::Exponential])),
    ),
    on_existing(
        "a",
        "YCSB A, update heavy: 50% read, 50% update, zipfian",
        operations(Mix { read: 50, update: 50, ..NO_OPS }, KeyChoice::Zipfian),
    ),
    on_existing(
        "b",
        "YCSB B, read mostly: 95% read, 5% update, zipfian",
        operations(Mix { read: 95, update: 5, ..NO_OPS }, KeyChoice::Zipfian),
    ),
    on_existing("c", "YCSB C, read only, zipfian", operations(READ, KeyChoice::Zipfian)),
    on_existing(
        "d",
        "YCSB D, read latest: 95% read, 5% insert",
        operations(Mix { read: 95, insert: 5, ..NO_OPS }, KeyChoice::Latest),
    ),
    on_existing(
        "e",
        "YCSB E, short ranges: 95% scan of 1 to 100 records, 5% insert, zipfian",
        Action::Operations {
            mix: Mix { scan: 95, insert: 5, ..NO_OPS },
            keys: KeyChoice::Zipfian,
            scan_records: (1, 100),
        },
    ),
    on_existing(
        "f",
        "YCSB F, read-modify-write: 50% read, 50% read-modify-write, zipfian",
        operations(Mix { read: 50, modify: 50, ..NO_OPS }, KeyChoice::Zipfian),
    ),
    sized(
        fill(
            "fillmixed",
            "write num records with random keys, half of them of 256 bytes and half of 4 KiB",
            KeyOrder::Ordered,
            operations(UPDATE, KeyChoice::Uniform),
        ),
        MIXED_BY_COUNT,
    ),
    sized(
        fill(
            "fillmixedbytes",
            "the same, with as many bytes in small values as in large ones",
            KeyOrder::Ordered,
            operations(UPDATE, KeyChoice::Uniform),
        ),
        MIXED_BY_BYTES,
    ),
    sized(
        on_existing(
            "updatemixed",
            "50% read, 50% update with values of 256 bytes or 4 KiB, zipfian",
            operations(Mix { read: 50, update: 50, ..NO_OPS }, KeyChoice::Zipfian),
        ),
        MIXED_BY_COUNT,
    ),
    on_existing(
        "updatezipfian",
        "write num records over zipfian keys",
        operations(UPDATE, KeyChoice::Zipfian),
    ),
    fill(
        "timeseries",
        "insert ascending keys, delete the oldest beyond num / 4; 10% read among the others",
        KeyOrder::Ordered,
        operations(Mix { insert: 45, expire: 45, read: 10, ..NO_OPS }, KeyChoice::Newest(SERIES_KEEPS)),
    ),
    fill(
        "queue",
        "append records, take the first (a seek to it and its removal) beyond num / 100",
        KeyOrder::Ordered,
        operations(Mix { insert: 50, pop: 50, ..NO_OPS }, KeyChoice::Newest(QUEUE_KEEPS)),
    ),
    fill(
        "replay",
        "the operations of a recorded trace, in a new database",
        KeyOrder::Ordered,
        Action::Replay,
    ),
    on_existing("flush", "write buffered records out and wait", Action::Flush),
    on_existing("compact", "compact the whole database and wait", Action::Compact),
];

/// Names that stand for several benchmarks.
pub const GROUPS: &[(&str, &[&str])] = &[
    (
        "db_bench",
        &[
            "fillseq",
            "fillrandom",
            "overwrite",
            "readrandom",
            "readmissing",
            "readseq",
            "readreverse",
            "seekrandom",
            "deleterandom",
        ],
    ),
    // The reads after a burst of writes pay for the work that it leaves behind.
    ("burst", &["load", "overwrite", "readrandom"]),
    ("mixed", &["fillmixed", "updatemixed", "readrandom", "fillmixedbytes", "readrandom"]),
    // The order YCSB recommends: E adds records, so it comes last, on a database of its own.
    ("ycsb", &["load", "a", "b", "c", "f", "d", "load", "e"]),
];

impl Workload {
    /// Whether a store must keep keys in order for it. A trace's needs are unknown until it is replayed.
    pub fn needs_order(&self) -> bool {
        match self.action {
            Action::Operations { mix, .. } => mix.needs_order(),
            Action::Walk(_) => true,
            Action::MultiRead(_) | Action::Replay | Action::Flush | Action::Compact => false,
        }
    }

    /// The benchmark called `name`; `ycsba` and `ycsb-a` are `a`.
    pub fn find(name: &str) -> Option<&'static Workload> {
        let name = name.to_ascii_lowercase();
        let short = name.strip_prefix("ycsb").map_or(&*name, |rest| rest.trim_start_matches(['-', '_']));
        WORKLOADS.iter().find(|w| w.name == name || w.name == short)
    }

    /// The benchmarks in a list of names and group names separated by commas; the error is the name that is neither.
    pub fn parse_list(list: &str) -> Result<Vec<&'static Workload>, String> {
        let mut found = Vec::new();
        for name in list.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            match GROUPS.iter().find(|(group, _)| group.eq_ignore_ascii_case(name)) {
                Some((_, members)) => found.extend(members.iter().filter_map(|m| Workload::find(m))),
                None => found.push(Workload::find(name).ok_or_else(|| name.to_string())?),
            }
        }
        Ok(found)
    }

    /// Whether it does nothing but write, so that writes may be batched.
    pub fn only_writes(&self) -> bool {
        match self.action {
            Action::Operations { mix, .. } => {
                let Mix { update, insert, delete, .. } = mix;
                update + insert + delete == 100
            }
            _ => false,
        }
    }

    /// Whether its key numbers are any that keys can tell apart, and not those below the number of records.
    pub fn draws_from_all_keys(&self) -> bool {
        matches!(self.action, Action::Operations { keys: KeyChoice::Regions(_), .. })
    }

    /// Whether it makes the database others read, so that its length is in records and not in time.
    pub fn fills(&self) -> bool {
        matches!(self.start, Start::Fresh(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_adds_up() {
        for w in WORKLOADS {
            if let Action::Operations { mix, scan_records, .. } = w.action {
                let sum: u32 = mix.shares().iter().map(|&p| u32::from(p)).sum();
                assert_eq!(sum, 100, "{}", w.name);
                assert!(scan_records.0 >= 1 && scan_records.0 <= scan_records.1, "{}", w.name);
            }
        }
    }

    #[test]
    fn names_are_found_in_every_spelling() {
        for name in ["a", "A", "ycsba", "ycsb-a", "YCSB_A"] {
            assert_eq!(Workload::find(name).map(|w| w.name), Some("a"), "{name}");
        }
        assert!(Workload::find("ycsb").is_none());
        assert!(Workload::find("").is_none());
    }

    #[test]
    fn groups_expand_and_strangers_are_named() {
        let names = |list| Workload::parse_list(list).map(|v| v.iter().map(|w| w.name).collect::<Vec<_>>());
        assert_eq!(names("ycsb"), Ok(vec!["load", "a", "b", "c", "f", "d", "load", "e"]));
        assert_eq!(names("fillseq, readseq"), Ok(vec!["fillseq", "readseq"]));
        assert_eq!(names("fillseq,quicksort"), Err("quicksort".to_string()));
        for (_, members) in GROUPS {
            assert!(members.iter().all(|m| Workload::find(m).is_some()));
        }
    }
}
