//! How long operations take, in histograms.
//!
//! A get or a put is short: looking at the clock twice would cost a good part of it. So one of [`EVERY`] is timed, on
//! average: each thread leaves out a number of them that is drawn anew each time, so that no rhythm of the caller's
//! picks the ones that are timed. Syncs and stalls are all timed: the clock costs nothing beside them.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use terrace_base::alarm::Alarm;
use terrace_base::clock::Clock;
use terrace_disk::SyncWatch;

/// One of so many gets, and of so many puts, is timed.
const EVERY: u32 = 64;

/// Decimal digits of a duration that a histogram keeps.
const DIGITS: u8 = 2;

/// How long operations took since the database was opened: part of [`Stats`](crate::Stats).
///
/// Of gets and puts one in 64 is timed, drawn at random, and of syncs and stalls each one. All is zero where
/// [`Options::latencies`](crate::Options::latencies) is false.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
/// for i in 0..1000u32 {
///     db.put(i.to_be_bytes(), "value")?;
/// }
/// let puts = db.stats().latencies.puts;
/// assert!(puts.timed > 0 && puts.median <= puts.p99 && puts.p99 <= puts.longest);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latencies {
    /// Point reads: `get`, `get_with` and `contains_key`.
    pub gets: Latency,
    /// Writes: puts, deletions, batches and commits, with the time in the queue and in stalls.
    pub puts: Latency,
    /// Syncs of files, by whom ever.
    pub syncs: Latency,
    /// Delays and waits of writers.
    pub stalls: Latency,
}

/// The distribution of a duration, exact to one per cent; what is far above the median to no more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// How many were timed.
    pub timed: u64,
    /// Their mean.
    pub mean: Duration,
    /// Half of them took so long at most.
    pub median: Duration,
    /// 90 per cent of them.
    pub p90: Duration,
    /// 99 per cent of them.
    pub p99: Duration,
    /// 99.9 per cent of them.
    pub p999: Duration,
    /// The longest that was timed.
    pub longest: Duration,
}

/// Durations of one kind. It has no memory before the first.
#[derive(Debug, Default)]
struct Durations(Mutex<Option<Histogram<u64>>>);

impl Durations {
    fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mut histogram = self.0.lock();
        // It grows as it needs; one that cannot be made, or cannot grow so far, leaves this one out.
        if histogram.is_none() {
            *histogram = Histogram::new(DIGITS).ok();
        }
        if let Some(histogram) = &mut *histogram {
            let _ = histogram.record(nanos);
        }
    }

    fn figures(&self) -> Latency {
        let histogram = self.0.lock();
        let Some(histogram) = &*histogram else { return Latency::default() };
        let at = |share| Duration::from_nanos(histogram.value_at_quantile(share));
        Latency {
            timed: histogram.len(),
            mean: Duration::from_nanos(histogram.mean() as u64),
            median: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            longest: Duration::from_nanos(histogram.max()),
        }
    }
}

/// Times the operations of a database.
#[derive(Debug)]
pub(crate) struct Timers {
    is_on: bool,
    clock: Arc<dyn Clock>,
    /// Who times something knows what time it is.
    alarm: Arc<Alarm>,
    gets: Durations,
    puts: Durations,
    syncs: Durations,
    stalls: Durations,
}

impl Timers {
    /// Times nothing unless it `is_on`. Who times something looks at `alarm`.
    pub fn new(is_on: bool, clock: Arc<dyn Clock>, alarm: Arc<Alarm>) -> Arc<Timers> {
        let (gets, puts) = (Durations::default(), Durations::default());
        Arc::new(Timers {
            is_on,
            clock,
            alarm,
            gets,
            puts,
            syncs: Durations::default(),
            stalls: Durations::default(),
        })
    }

    /// Times a get, until the result is dropped.
    #[inline]
    pub fn get(&self) -> Timing<'_> {
        self.begin(&GETS_LEFT, &self.gets)
    }

    /// Times a put, until the result is dropped.
    #[inline]
    pub fn put(&self) -> Timing<'_> {
        self.begin(&PUTS_LEFT, &self.puts)
    }

    /// A writer was stalled so long.
    pub fn stalled(&self, took: Duration) {
        if self.is_on {
            self.stalls.record(took);
        }
    }

    /// What times syncs, if anything does.
    pub fn watch(self: &Arc<Self>) -> Option<Arc<dyn SyncWatch>> {
        self.is_on.then(|| self.clone() as Arc<dyn SyncWatch>)
    }

    /// The figures so far.
    pub fn figures(&self) -> Latencies {
        let Timers { gets, puts, syncs, stalls, .. } = self;
        Latencies {
            gets: gets.figures(),
            puts: puts.figures(),
            syncs: syncs.figures(),
            stalls: stalls.figures(),
        }
    }

    #[inline]
    fn begin<'a>(&'a self, left: &'static Left, to: &'a Durations) -> Timing<'a> {
        let is_due = self.is_on
            && left.with(|left| match left.get() {
                0 => true,
                some => {
                    left.set(some - 1);
                    false
                }
            });
        Timing(is_due.then(|| self.started(left, to)))
    }

    #[cold]
    fn started<'a>(&'a self, left: &'static Left, to: &'a Durations) -> Started<'a> {
        left.set(draw());
        let start = self.clock.now();
        self.alarm.look(start);
        Started { clock: &*self.clock, to, start }
    }
}

impl SyncWatch for Timers {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn synced(&self, took: Duration) {
        self.syncs.record(took);
    }
}

/// Operations that a thread leaves out before it times one.
type Left = std::thread::LocalKey<Cell<u32>>;

thread_local! {
    static GETS_LEFT: Cell<u32> = const { Cell::new(0) };
    static PUTS_LEFT: Cell<u32> = const { Cell::new(0) };
    static DRAWN: Cell<u32> = const { Cell::new(0x9e37_79b9) };
}

/// A number of operations to leave out: on average one less than [`EVERY`].
fn draw() -> u32 {
    // Marsaglia's xorshift: it has to follow no rhythm, and no more.
    let mut bits = DRAWN.get();
    bits ^= bits << 13;
    bits ^= bits >> 17;
    bits ^= bits << 5;
    DRAWN.set(bits);
    (bits >> 8) % (2 * EVERY - 1)
}

/// An operation that is perhaps timed; it ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Timing<'a>(Option<Started<'a>>);

#[derive(Debug)]
struct Started<'a> {
    clock: &'a dyn Clock,
    to: &'a Durations,
    start: Duration,
}

impl Drop for Timing<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(started) = &self.0 {
            started.end();
        }
    }
}

impl Started<'_> {
    #[cold]
    fn end(&self) {
        self.to.record(self.clock.now() - self.start);
    }
}

#[cfg(test)]
mod tests {
    use terrace_base::clock::ManualClock;

    use super::*;

    #[test]
    fn figures_are_those_of_what_was_recorded() {
        let durations = Durations::default();
        assert_eq!(durations.figures(), Latency::default());
        for micros in 1..=1000 {
            durations.record(Duration::from_micros(micros));
        }
        durations.record(Duration::from_secs(3600));
        let figures = durations.figures();
        let near = |found: Duration, micros: f64| {
            let found = found.as_secs_f64() * 1e6;
            assert!((found / micros - 1.0).abs() < 0.011, "{found} us where {micros} us are right");
        };
        assert_eq!(figures.timed, 1001);
        near(figures.median, 501.0);
        near(figures.p90, 901.0);
        near(figures.p99, 991.0);
        near(figures.p999, 1000.0);
        near(figures.longest, 3600e6);
        durations.record(Duration::MAX);
        assert!(durations.figures().longest >= Duration::from_secs(3600));
    }

    #[test]
    fn one_in_so_many_is_timed_whatever_the_rhythm() {
        let clock = Arc::new(ManualClock::default());
        let timers = Timers::new(true, clock.clone(), Arc::default());
        // Every second get takes a microsecond, the others none.
        for i in 0..64_000 {
            let _timing = timers.get();
            clock.advance(Duration::from_micros(i % 2));
        }
        let figures = timers.figures();
        assert!((800..1250).contains(&figures.gets.timed), "{figures:?}");
        let share = figures.gets.mean.as_nanos();
        assert!((400..600).contains(&share), "about half of those that are timed: {figures:?}");
        assert_eq!((figures.puts.timed, figures.syncs.timed), (0, 0));
        assert!(timers.watch().is_some());
    }

    #[test]
    fn what_is_turned_off_times_nothing() {
        let timers = Timers::new(false, Arc::new(ManualClock::default()), Arc::default());
        for _ in 0..1000 {
            let _timing = (timers.get(), timers.put());
        }
        timers.stalled(Duration::from_secs(1));
        assert!(timers.watch().is_none());
        assert_eq!(timers.figures(), Latencies::default());
    }
}
