//! Passes over all tables, to compare the checksums of what nobody reads: the order, the pace and the figures.
//!
//! 1. A pass visits each table that there is when it begins, unless the table goes meanwhile, and none that comes
//!    later: so it ends, however fast tables are written.
//! 2. Nothing is held between two pieces, so that a table that goes frees its space at once.
//! 3. The pace is that of one pass in an interval. Who is late makes up for it, at no more than so many bytes a second,
//!    and by no more than one pass.
//! 4. Nothing is remembered from one opening to the next. The calendar says where the first pass begins: as far
//!    through the tables as the present is through its interval. So a database that is closed for a moment goes on about
//!    where it was, and one that is open now and then has all of its tables visited in the long run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use terrace_base::{Error, Result};
use terrace_table::{ScrubPlace, Table};

use crate::stats::{Counter, ScrubStats};

/// The tables of an engine, by number.
pub(crate) trait LiveTables {
    /// The first table whose number is `number` or higher.
    fn at_or_above(&self, number: u64) -> Option<Arc<Table>>;

    /// A number above those of all tables.
    fn end(&self) -> u64;

    /// Bytes of all tables.
    fn bytes(&self) -> u64;
}

/// A pass over tables.
#[derive(Debug)]
pub(crate) struct Pass {
    /// It goes from here to `end`, and then from 0 to here.
    from: u64,
    end: u64,
    has_wrapped: bool,
    /// The number of the table that is being compared, or of the next one; and how far it is.
    next: u64,
    place: ScrubPlace,
    has_begun: bool,
}

/// What a piece of a pass has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Bytes that were read.
    pub bytes: u64,
    /// Whether that was the last of a table.
    pub ends_table: bool,
    /// Whether that was the last of the pass.
    pub ends_pass: bool,
}

impl Pass {
    /// A pass over the tables that there are now, from number `from` on.
    pub fn begin(tables: &dyn LiveTables, from: u64) -> Pass {
        let end = tables.end();
        let from = from.min(end);
        Pass { from, end, has_wrapped: false, next: from, place: ScrubPlace::default(), has_begun: false }
    }

    /// Whether it has compared anything.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Compares the next bytes, `most` at most; `None` if no table is left. What is `damaged` is told.
    ///
    /// # Errors
    /// `Io` if a table cannot be read. The pass goes on with the next one.
    pub fn piece(
        &mut self,
        tables: &dyn LiveTables,
        most: usize,
        damaged: &mut dyn FnMut(Error),
    ) -> Result<Option<Piece>> {
        let Some(table) = self.table(tables) else { return Ok(None) };
        if table.number() != self.next {
            // The one before it is gone.
            (self.next, self.place) = (table.number(), ScrubPlace::default());
        }
        let outcome = table.scrub(&mut self.place, most, damaged);
        let ends_table = outcome.is_err() || self.place.is_done();
        if ends_table {
            (self.next, self.place) = (table.number() + 1, ScrubPlace::default());
        }
        let bytes = outcome?;
        self.has_begun = true;
        let ends_pass = ends_table && self.table(tables).is_none();
        Ok(Some(Piece { bytes, ends_table, ends_pass }))
    }

    fn table(&mut self, tables: &dyn LiveTables) -> Option<Arc<Table>> {
        loop {
            let limit = if self.has_wrapped { self.from } else { self.end };
            match tables.at_or_above(self.next).filter(|table| table.number() < limit) {
                None if !self.has_wrapped => (self.has_wrapped, self.next) = (true, 0),
                found => return found,
            }
        }
    }
}

/// The fewest steps of a pass.
const LEAST_STEPS: u32 = 8;

/// How fast passes go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The time of one pass.
    pub interval: Duration,
    /// Bytes of a second, at most.
    pub rate: u64,
}

impl Pace {
    /// When the next piece is due, after one of `bytes` that was due at `due` and is done `now`, where all tables have
    /// `total` bytes. It may be late already.
    pub fn next_due(&self, due: Duration, now: Duration, bytes: u64, total: u64) -> Duration {
        let due = due.max(now.saturating_sub(self.interval));
        let step = portion(self.interval, bytes, total.max(bytes));
        // Many tables may come meanwhile.
        due.saturating_add(step.min(self.interval / LEAST_STEPS))
    }

    /// When the next piece may be read at the earliest, after one of `bytes` that is done `now`.
    pub fn earliest(&self, now: Duration, bytes: u64) -> Duration {
        now.saturating_add(portion(Duration::from_secs(1), bytes, self.rate))
    }

    /// The number of the table from which a first pass begins, at this time of the `calendar`.
    pub fn first(&self, tables: &dyn LiveTables, calendar: Duration) -> u64 {
        let (into, interval) = (calendar.as_nanos(), self.interval.as_nanos().max(1));
        let mut left = u128::from(tables.bytes()) * (into % interval) / interval;
        let mut number = 0;
        while let Some(table) = tables.at_or_above(number) {
            let bytes = u128::from(table.meta().file_bytes);
            if left < bytes {
                return table.number();
            }
            left -= bytes;
            number = table.number() + 1;
        }
        0
    }
}

/// `part` of `whole` parts of `time`.
fn portion(time: Duration, part: u64, whole: u64) -> Duration {
    let nanos = time.as_nanos().saturating_mul(u128::from(part)) / u128::from(whole.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// What scrubs have done, behind [`ScrubStats`].
#[derive(Debug, Default)]
pub(crate) struct ScrubFigures {
    passes: Counter,
    tables: Counter,
    bytes: Counter,
    damaged: Counter,
    unread: Counter,
    /// When the last pass ended, in milliseconds of the calendar; 0 for none.
    ended: AtomicU64,
}

impl ScrubFigures {
    /// Counts a piece.
    pub fn count(&self, piece: Piece) {
        self.bytes.add(piece.bytes);
        self.tables.add(u64::from(piece.ends_table));
    }

    /// Counts a damage.
    pub fn count_damage(&self) {
        self.damaged.add(1);
    }

    /// Counts a table that could not be read.
    pub fn count_unread(&self) {
        self.unread.add(1);
    }

    /// Counts a pass, which ends now.
    pub fn count_pass(&self, calendar: Duration) {
        self.passes.add(1);
        self.ended.store(u64::try_from(calendar.as_millis()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    /// The figures now.
    pub fn snapshot(&self) -> ScrubStats {
        let ended = self.ended.load(Ordering::Relaxed);
        ScrubStats {
            passes: self.passes.get(),
            tables: self.tables.get(),
            bytes: self.bytes.get(),
            damaged: self.damaged.get(),
            unread: self.unread.get(),
            last_pass: (ended > 0).then(|| Duration::from_millis(ended)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use parking_lot::Mutex;
    use terrace_disk::{Access, Fs, SimFs};
    use terrace_table::{BlockCache, Kind, TableBuilder, TableOptions};

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    /// Tables that come and go.
    struct Shelf {
        fs: SimFs,
        tables: Mutex<BTreeMap<u64, Arc<Table>>>,
    }

    impl Shelf {
        fn new(numbers: &[u64]) -> Shelf {
            let shelf = Shelf { fs: SimFs::new(), tables: Mutex::default() };
            numbers.iter().for_each(|number| shelf.add(*number));
            shelf
        }

        fn add(&self, number: u64) {
            let path = PathBuf::from(format!("/{number}"));
            let file = self.fs.create(&path).unwrap();
            let mut builder = TableBuilder::new(file, number, TableOptions::default()).unwrap();
            builder.add(b"key", 1, Kind::Put, &[7; 3000]).unwrap();
            builder.finish().unwrap();
            let cache = Arc::new(BlockCache::new(0));
            let table = Table::open(&self.fs, &path, number, cache, Access::Random).unwrap();
            self.tables.lock().insert(number, table);
        }

        fn remove(&self, number: u64) {
            self.tables.lock().remove(&number);
        }
    }

    impl LiveTables for Shelf {
        fn at_or_above(&self, number: u64) -> Option<Arc<Table>> {
            self.tables.lock().range(number..).next().map(|(_, table)| table.clone())
        }

        fn end(&self) -> u64 {
            self.tables.lock().last_key_value().map_or(0, |(number, _)| number + 1)
        }

        fn bytes(&self) -> u64 {
            self.tables.lock().values().map(|table| table.meta().file_bytes).sum()
        }
    }

    /// The numbers of the tables that `pass` ends, up to its end; `between` is done after each piece.
    fn visited(shelf: &Shelf, mut pass: Pass, mut between: impl FnMut(u64)) -> Vec<u64> {
        let mut seen = Vec::new();
        while let Some(table) = pass.table(shelf).map(|table| table.number()) {
            let piece = pass.piece(shelf, 1000, &mut |error| panic!("{error}")).unwrap().unwrap();
            seen.extend(piece.ends_table.then_some(table));
            between(pass.next);
            assert!(!piece.ends_pass || pass.table(shelf).is_none());
        }
        seen
    }

    #[test]
    fn a_pass_visits_what_is_there_and_nothing_that_comes() {
        let shelf = Shelf::new(&[2, 3, 5, 9]);
        assert_eq!(visited(&shelf, Pass::begin(&shelf, 0), |_| {}), [2, 3, 5, 9]);
        assert_eq!(visited(&shelf, Pass::begin(&shelf, 5), |_| {}), [5, 9, 2, 3]);
        assert_eq!(visited(&shelf, Pass::begin(&shelf, 100), |_| {}), [2, 3, 5, 9]);
        let mut next = 10;
        let seen = visited(&shelf, Pass::begin(&shelf, 3), |_| {
            shelf.add(next);
            next += 1;
        });
        assert_eq!(seen, [3, 5, 9, 2]);
        assert_eq!(visited(&Shelf::new(&[]), Pass::begin(&Shelf::new(&[]), 0), |_| {}), []);
    }

    #[test]
    fn a_table_that_goes_is_passed_over_at_any_place() {
        for after in 0..12 {
            let (shelf, mut pieces) = (Shelf::new(&[2, 3, 5, 9]), 0);
            let seen = visited(&shelf, Pass::begin(&shelf, 3), |at| {
                if pieces == after {
                    shelf.remove(at);
                }
                pieces += 1;
            });
            let left: Vec<u64> = shelf.tables.lock().keys().copied().collect();
            assert!(left.iter().all(|number| seen.contains(number)), "{seen:?} of {left:?}");
        }
    }

    #[test]
    fn a_pass_takes_its_time_and_who_is_late_makes_up_for_one() {
        let pace = Pace { interval: 30 * DAY, rate: 1 << 20 };
        let (total, piece, start) = (1 << 30, 1 << 18, 100 * DAY);
        // On time: 4096 pieces in 30 days.
        let next = pace.next_due(start, start + Duration::from_millis(5), piece, total);
        assert_eq!(next - start, 30 * DAY / 4096);
        // Late: as fast as it may be.
        let late = start + 10 * DAY;
        assert_eq!(pace.next_due(start, late, piece, total) - start, 30 * DAY / 4096);
        assert_eq!(pace.earliest(late, piece), late + Duration::from_millis(250));
        // Very late: by one pass.
        let (mut due, now) = (start, start + 1000 * DAY);
        let pieces = (0..).take_while(|_| {
            due = pace.next_due(due, now, piece, total);
            due < now
        });
        assert_eq!(pieces.count(), 4095);
        // A piece that was everything.
        assert_eq!(pace.next_due(start, start, piece, 0), start + 30 * DAY / 8);
        let endless = Pace { interval: Duration::MAX, rate: 1 };
        endless.next_due(Duration::MAX, Duration::MAX, u64::MAX, u64::MAX);
        endless.earliest(Duration::MAX, u64::MAX);
    }

    #[test]
    fn the_calendar_says_where_a_first_pass_begins() {
        let shelf = Shelf::new(&[2, 3, 5, 9]);
        let pace = Pace { interval: 4 * DAY, rate: 1 };
        let days = [0, 1, 2, 3, 4, 7].map(|day| pace.first(&shelf, DAY * day + DAY / 2));
        assert_eq!(days, [2, 3, 5, 9, 2, 9]);
        assert_eq!(pace.first(&Shelf::new(&[]), DAY), 0);
    }
}
