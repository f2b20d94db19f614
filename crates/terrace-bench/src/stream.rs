//! One thread's operations, drawn from a workload with a seeded generator.

use std::sync::Arc;

use terrace_base::rng::Rng;

use crate::distribution::{Latest, Scrambled, Shape};
use crate::keys::KeyMaker;
use crate::space::KeySpace;
use crate::workload::{KeyChoice, Mix};

/// The next operation and its key number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Read the key.
    Read(u64),
    /// Read the key beside this one that was never written.
    ReadAbsent(u64),
    /// Write the key.
    Update(u64),
    /// Write the new key, and acknowledge it to the key space if it was reserved there.
    Insert(u64),
    /// Read so many records from the key on.
    Scan(u64, u32),
    /// Read the key, then write it.
    Modify(u64),
    /// Remove the key.
    Delete(u64),
    /// Remove the oldest key.
    Expire(u64),
    /// Read the first record and remove this key, which is the first when one thread takes.
    Pop(u64),
}

/// Draws operations.
#[derive(Debug)]
pub struct Stream {
    mix: Mix,
    scan_records: (u32, u32),
    chooser: Chooser,
    space: Arc<KeySpace>,
    rng: Rng,
}

#[derive(Debug, Clone)]
enum Chooser {
    Sequential {
        next: u64,
    },
    Uniform {
        among: Option<u64>,
    },
    Absent,
    /// One of the newest, of which so many are kept.
    Newest(u64),
    Zipfian(Scrambled),
    Latest(Latest),
    /// Among these numbers, which are in the order of their keys.
    ByKey {
        shape: Shape,
        numbers: Arc<[u64]>,
    },
    Regions {
        shapes: &'static [Shape],
        /// Numbers of a region, and draws that it gets.
        width: u64,
        each: u64,
        drawn: u64,
    },
}

/// The state that streams of one run share. It is made once, since the sums behind a distribution are not cheap.
#[derive(Debug, Clone)]
pub struct StreamMaker {
    mix: Mix,
    scan_records: (u32, u32),
    chooser: Chooser,
    space: Arc<KeySpace>,
}

impl StreamMaker {
    /// For `operations` operations on `space`, or, when `fill` is given, on that many new keys. Keys have `key_size`
    /// bytes.
    pub fn new(
        mix: Mix,
        keys: KeyChoice,
        scan_records: (u32, u32),
        space: Arc<KeySpace>,
        operations: u64,
        fill: Option<u64>,
        key_size: usize,
    ) -> Self {
        let records = space.visible();
        let chooser = match keys {
            KeyChoice::Sequential => Chooser::Sequential { next: 0 },
            KeyChoice::Uniform => Chooser::Uniform { among: fill },
            KeyChoice::Absent => Chooser::Absent,
            KeyChoice::Newest(one_in) => Chooser::Newest((operations / u64::from(one_in)).max(1)),
            KeyChoice::ByKey(shape) => {
                let keys = KeyMaker::new(key_size, space.order());
                Chooser::ByKey { shape, numbers: space.numbers_in_key_order(&keys) }
            }
            KeyChoice::Regions(shapes) => {
                let regions = shapes.len() as u64;
                let width = KeyMaker::capacity(key_size) / regions;
                Chooser::Regions { shapes, width, each: operations.div_ceil(regions).max(1), drawn: 0 }
            }
            KeyChoice::Latest => Chooser::Latest(Latest::new(records)),
            KeyChoice::Zipfian => {
                // As in YCSB: room for twice the records expected to be inserted, so that the
                // popularity of a key does not move when one is.
                let inserted = operations.saturating_mul(u64::from(mix.insert)) / 100;
                Chooser::Zipfian(Scrambled::new(records.saturating_add(inserted.saturating_mul(2))))
            }
        };
        StreamMaker { mix, scan_records, chooser, space }
    }

    /// The stream of one thread; a sequential one starts at key number `first`.
    pub fn stream(&self, seed: u64, first: u64) -> Stream {
        let mut chooser = self.chooser.clone();
        if let Chooser::Sequential { next } | Chooser::Regions { drawn: next, .. } = &mut chooser {
            *next = first;
        }
        Stream {
            mix: self.mix,
            scan_records: self.scan_records,
            chooser,
            space: self.space.clone(),
            rng: Rng::new(seed),
        }
    }
}

impl Stream {
    /// The next operation.
    pub fn next_op(&mut self) -> Op {
        let Mix { read, update, insert, scan, modify, delete, expire, .. } = self.mix;
        let mut point = if self.mix.has_one_kind() { 0 } else { self.rng.below(100) as u8 };
        let mut falls_in = |share: u8| {
            let hit = point < share;
            point = point.wrapping_sub(share);
            hit
        };
        if falls_in(read) {
            let number = self.choose();
            return if matches!(self.chooser, Chooser::Absent) {
                Op::ReadAbsent(number)
            } else {
                Op::Read(number)
            };
        }
        if falls_in(update) {
            return Op::Update(self.choose());
        }
        if falls_in(insert) {
            return Op::Insert(self.new_number());
        }
        if falls_in(scan) {
            let (shortest, longest) = self.scan_records;
            let records = shortest + self.rng.below(u64::from(longest - shortest) + 1) as u32;
            return Op::Scan(self.choose(), records);
        }
        if falls_in(modify) {
            return Op::Modify(self.choose());
        }
        if falls_in(delete) {
            return Op::Delete(self.choose());
        }
        let expires = falls_in(expire);
        match self.space.take_oldest(self.kept()) {
            Some(oldest) if expires => Op::Expire(oldest),
            Some(oldest) => Op::Pop(oldest),
            None => Op::Insert(self.new_number()),
        }
    }

    /// Records that are not taken away.
    fn kept(&self) -> u64 {
        if let Chooser::Newest(kept) = self.chooser { kept } else { 0 }
    }

    /// Says that the insert of `number` was acknowledged.
    pub fn acknowledge(&self, number: u64) {
        if !matches!(self.chooser, Chooser::Sequential { .. }) {
            self.space.acknowledge(number);
        }
    }

    /// Random bits for the thread of this stream.
    pub fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    fn new_number(&mut self) -> u64 {
        match &mut self.chooser {
            Chooser::Sequential { next } => {
                *next += 1;
                *next - 1
            }
            _ => self.space.reserve(),
        }
    }

    fn choose(&mut self) -> u64 {
        let visible = self.space.visible();
        match &mut self.chooser {
            Chooser::Sequential { next } => {
                *next += 1;
                *next - 1
            }
            Chooser::Uniform { among } => self.rng.below(among.unwrap_or(visible)),
            Chooser::Absent => self.rng.below(visible),
            Chooser::Newest(_) => {
                let oldest = self.space.oldest();
                oldest + self.rng.below(visible.saturating_sub(oldest).max(1))
            }
            Chooser::Latest(latest) => latest.next(visible, &mut self.rng),
            Chooser::ByKey { shape, numbers } => {
                let at = shape.below(numbers.len() as u64, &mut self.rng);
                numbers.get(at as usize).copied().unwrap_or(0)
            }
            Chooser::Regions { shapes, width, each, drawn } => {
                let region = (*drawn / *each).min(shapes.len() as u64 - 1);
                *drawn += 1;
                region * *width + shapes[region as usize].below(*width, &mut self.rng)
            }
            Chooser::Zipfian(scrambled) => below(visible, || scrambled.next(&mut self.rng)),
        }
    }
}

/// The first draw below `bound`; draws at or above it are of records not inserted yet.
fn below(bound: u64, mut draw: impl FnMut() -> u64) -> u64 {
    // An empty database has no number to choose; key 0 is as absent as any.
    if bound == 0 {
        return 0;
    }
    loop {
        let number = draw();
        if number < bound {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyOrder;
    use crate::workload::{Action, Workload};

    fn maker(name: &str, records: u64, operations: u64) -> StreamMaker {
        let Some(Workload { action: Action::Operations { mix, keys, scan_records }, start, .. }) =
            Workload::find(name)
        else {
            panic!("{name} draws operations")
        };
        let space = Arc::new(KeySpace::new(records, KeyOrder::Hashed));
        let fill = matches!(start, crate::workload::Start::Fresh(_)).then_some(operations);
        StreamMaker::new(*mix, *keys, *scan_records, space, operations, fill, 16)
    }

    fn draw(name: &str, records: u64, n: u64) -> Vec<Op> {
        let mut stream = maker(name, records, n).stream(11, 0);
        (0..n)
            .map(|_| {
                let op = stream.next_op();
                if let Op::Insert(number) = op {
                    stream.acknowledge(number);
                }
                op
            })
            .collect()
    }

    fn share(ops: &[Op], is: impl Fn(&Op) -> bool) -> f64 {
        ops.iter().filter(|op| is(op)).count() as f64 / ops.len() as f64
    }

    #[test]
    fn mixes_have_the_published_proportions() {
        let near = |value: f64, expected: f64| (value - expected).abs() < 0.01;
        let a = draw("a", 1000, 50_000);
        assert!(near(share(&a, |op| matches!(op, Op::Read(_))), 0.5));
        assert!(near(share(&a, |op| matches!(op, Op::Update(_))), 0.5));
        let f = draw("f", 1000, 50_000);
        assert!(near(share(&f, |op| matches!(op, Op::Modify(_))), 0.5));
        let d = draw("d", 1000, 50_000);
        assert!(near(share(&d, |op| matches!(op, Op::Insert(_))), 0.05));
        assert!(near(share(&d, |op| matches!(op, Op::Read(_))), 0.95));
    }

    #[test]
    fn what_is_old_is_taken_away_in_order() {
        for (name, kept) in [("timeseries", 2500), ("queue", 100)] {
            let (mut oldest, mut newest) = (0, 0);
            for op in draw(name, 0, 10_000) {
                match op {
                    Op::Insert(number) => newest = number + 1,
                    Op::Expire(number) | Op::Pop(number) => {
                        assert_eq!(number, oldest, "{name}");
                        oldest += 1;
                        assert!(newest - oldest >= kept, "{name}");
                    }
                    Op::Read(number) => assert!(number >= oldest && number < newest.max(1), "{name}"),
                    other => panic!("{other:?}"),
                }
            }
            assert!(oldest > 2000 && newest - oldest < kept + 1000, "{name}: {oldest} to {newest}");
        }
    }

    #[test]
    fn scans_are_uniform_from_1_to_100() {
        let lengths: Vec<u32> = draw("e", 1000, 100_000)
            .iter()
            .filter_map(|op| if let Op::Scan(_, n) = op { Some(*n) } else { None })
            .collect();
        let mean = lengths.iter().map(|&n| f64::from(n)).sum::<f64>() / lengths.len() as f64;
        assert!((mean - 50.5).abs() < 0.5, "{mean}");
        let mut counts = [0u32; 101];
        lengths.iter().for_each(|&n| counts[n as usize] += 1);
        assert_eq!(counts[0], 0);
        let expected = lengths.len() as f64 / 100.0;
        assert!(counts[1..].iter().all(|&c| (f64::from(c) / expected - 1.0).abs() < 0.25));
    }

    #[test]
    fn reads_never_choose_a_record_that_is_not_there_yet() {
        for name in ["d", "e"] {
            let mut visible = 500;
            for op in draw(name, 500, 20_000) {
                match op {
                    Op::Insert(number) => {
                        assert_eq!(number, visible);
                        visible += 1;
                    }
                    Op::Read(number) | Op::Scan(number, _) => assert!(number < visible),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn loads_insert_each_number_of_their_stretch_once() {
        let mut stream = maker("load", 0, 100).stream(1, 50);
        assert!((50..100).all(|i| stream.next_op() == Op::Insert(i)));
        let fill = draw("fillrandom", 0, 1000);
        assert!(fill.iter().all(|op| matches!(op, Op::Update(n) if *n < 1000)));
    }

    #[test]
    fn regions_are_filled_one_after_the_other() {
        let ops = draw("fillregions", 0, 4000);
        for (region, part) in ops.chunks(1000).enumerate() {
            let begins = region as u64 * (u64::MAX / 4);
            let places = part.iter().map(|op| match op {
                Op::Update(number) => (*number - begins) as f64 / (u64::MAX / 4) as f64,
                other => panic!("{other:?}"),
            });
            let places: Vec<f64> = places.collect();
            assert!(places.iter().all(|place| (0.0..=1.0).contains(place)), "{region}");
            let mean = places.iter().sum::<f64>() / 1000.0;
            assert!((mean - [0.05, 0.5, 0.5, 0.95][region]).abs() < 0.03, "{region} {mean}");
        }
        // Threads' stretches together are those of a single thread.
        let mut last = maker("fillregions", 0, 4000).stream(1, 3000);
        assert!(matches!(last.next_op(), Op::Update(number) if number > u64::MAX / 4 * 3));
    }

    #[test]
    fn reads_by_key_prefer_the_first_keys() {
        let mut keys = KeyMaker::new(16, KeyOrder::Hashed);
        let mut first = 0;
        for op in draw("readexponential", 2000, 10_000) {
            let Op::Read(number) = op else { panic!("{op:?}") };
            assert!(number < 2000);
            first += u32::from(keys.key(number) < &b"26"[..]);
        }
        assert!((9200..9800).contains(&first), "{first}");
    }

    #[test]
    fn a_seed_repeats_its_operations() {
        assert_eq!(draw("a", 1000, 1000), draw("a", 1000, 1000));
    }

    #[test]
    fn an_empty_database_is_survived() {
        for name in ["a", "b", "c", "d", "f", "readrandom", "readmissing", "deleterandom", "readexponential"]
        {
            assert_eq!(draw(name, 0, 10).len(), 10);
        }
    }
}
