//! Measurements.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::store::StoreStats;

/// The kinds of operation that are timed apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A point read.
    Read,
    /// A write of an existing or random key.
    Update,
    /// A write of a new key.
    Insert,
    /// A range read.
    Scan,
    /// A read and a write of one key.
    Modify,
    /// A removal.
    Delete,
    /// Several writes at once.
    Batch,
    /// Several point reads at once.
    MultiRead,
    /// One step of a walk over the database.
    Step,
    /// A flush or a compaction.
    Upkeep,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 10] = [
        Kind::Read,
        Kind::Update,
        Kind::Insert,
        Kind::Scan,
        Kind::Modify,
        Kind::Delete,
        Kind::Batch,
        Kind::MultiRead,
        Kind::Step,
        Kind::Upkeep,
    ];
}

/// An operation that takes longer than this has been held up.
pub const STALL: Duration = Duration::from_millis(10);

/// An operation that takes longer than this has waited for something: LevelDB slows writers down by a millisecond each.
pub const DELAY: Duration = Duration::from_micros(500);

/// Length of a slice of [`Outcome::timeline`].
pub const SLICE: Duration = Duration::from_millis(100);

/// The shares of operations for which [`Outcome::curve`] has a latency.
pub const CURVE: [f64; 14] =
    [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999, 1.0];

/// Longest latency told apart: ten minutes. Longer ones count as this.
const LONGEST_NANOS: u64 = 600_000_000_000;

/// Operations a second over time, of so many of `slices` together each: their middle in seconds, and the rate. The last
/// slice is left out, because it was cut short.
pub fn rates(slices: &[u64], together: usize) -> Vec<(f64, f64)> {
    let whole = &slices[..slices.len().saturating_sub(1)];
    let together = together.max(1);
    let seconds = |slices: usize| SLICE.as_secs_f64() * slices as f64;
    let rate = |chunk: &[u64]| chunk.iter().sum::<u64>() as f64 / seconds(chunk.len());
    let chunks = whole.chunks(together).enumerate();
    chunks.map(|(i, chunk)| ((i as f64 + 0.5) * seconds(together), rate(chunk))).collect()
}

/// A histogram per kind of operation, three significant digits, made when first needed.
#[derive(Debug, Default)]
pub struct Recorder {
    kinds: [Option<Histogram<u64>>; Kind::ALL.len()],
    /// Operations that ended in each slice of time since the recorder's clock was made.
    slices: Vec<u64>,
    stalled: Duration,
    delayed: Duration,
}

impl Recorder {
    /// Notes that an operation took `took`.
    pub fn record(&mut self, kind: Kind, took: Duration) {
        self.of(kind).saturating_record(took.as_nanos() as u64);
    }

    /// Notes that `operations` ended at `now`, the last of them after `took`.
    pub fn ended(&mut self, kind: Kind, operations: u64, took: Duration, now: Duration) {
        self.record(kind, took);
        let slice = (now.as_nanos() as u64 / SLICE.as_nanos() as u64) as usize;
        if slice >= self.slices.len() {
            self.slices.resize(slice + 1, 0);
        }
        self.slices[slice] += operations;
        if took >= STALL && kind != Kind::Upkeep {
            self.stalled += took;
        }
        if took >= DELAY && kind != Kind::Upkeep {
            self.delayed += took;
        }
    }

    /// Operations of each slice of time, from the one in which the first thread began.
    pub fn timeline(&self, began: Duration) -> Vec<u64> {
        let first = (began.as_nanos() / SLICE.as_nanos()) as usize;
        self.slices.get(first..).unwrap_or_default().to_vec()
    }

    /// How long threads were inside operations longer than [`STALL`].
    pub fn stalled(&self) -> Duration {
        self.stalled
    }

    /// How long threads were inside operations longer than [`DELAY`].
    pub fn delayed(&self) -> Duration {
        self.delayed
    }

    fn of(&mut self, kind: Kind) -> &mut Histogram<u64> {
        self.kinds[kind as usize].get_or_insert_with(empty)
    }

    /// Adds the notes of `other`.
    pub fn merge(&mut self, other: &Recorder) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            let Some(theirs) = theirs else { continue };
            // Cannot fail: all have the same bounds.
            let _ = mine.get_or_insert_with(empty).add(theirs);
        }
        self.slices.resize(self.slices.len().max(other.slices.len()), 0);
        for (mine, theirs) in self.slices.iter_mut().zip(&other.slices) {
            *mine += theirs;
        }
        self.stalled += other.stalled;
        self.delayed += other.delayed;
    }

    /// The latency of each kind that occurred.
    pub fn by_kind(&self) -> Vec<(Kind, Latency)> {
        let pair = |kind: Kind| Some((kind, Latency::of(self.kinds[kind as usize].as_ref()?)));
        Kind::ALL.into_iter().filter_map(pair).collect()
    }

    /// The latency of all together.
    pub fn overall(&self) -> Latency {
        Latency::of(&self.all())
    }

    /// The latency that each share of [`CURVE`] did not exceed, in nanoseconds.
    pub fn curve(&self) -> Vec<u64> {
        let all = self.all();
        CURVE.iter().map(|share| all.value_at_quantile(*share)).collect()
    }

    fn all(&self) -> Histogram<u64> {
        let mut all = empty();
        for histogram in self.kinds.iter().flatten() {
            let _ = all.add(histogram);
        }
        all
    }
}

/// A histogram of nanoseconds.
pub(crate) fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NANOS, 3)
        .expect("1 < the longest latency, and 3 digits are allowed")
}

/// Percentiles of a latency, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// The average.
    pub mean_ns: f64,
    /// Half were at most this.
    pub p50_ns: u64,
    /// 99 in 100 were at most this.
    pub p99_ns: u64,
    /// 999 in 1000 were at most this.
    pub p999_ns: u64,
    /// 9999 in 10000 were at most this.
    #[serde(default)]
    pub p9999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Latency {
        Latency {
            count: histogram.len(),
            mean_ns: histogram.mean(),
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            p9999_ns: histogram.value_at_quantile(0.9999),
            max_ns: histogram.max(),
        }
    }
}

/// The counters of threads, apart from times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Operations done; a batch counts as its writes.
    pub operations: u64,
    /// Point reads that found a value.
    pub found: u64,
    /// Point reads that found none.
    pub missing: u64,
    /// Records that reads had to find: of point reads the record, of a scan its first, of a walk all.
    #[serde(default)]
    pub due: u64,
    /// Those of them that were not found, and records that scans ended before.
    #[serde(default)]
    pub lost: u64,
    /// Reads that found a record which was never written.
    #[serde(default)]
    pub unwritten: u64,
    /// Records that scans and walks returned.
    pub scanned: u64,
    /// Key and value bytes written.
    pub bytes_written: u64,
    /// Value bytes that point reads returned, key and value bytes that scans did.
    pub bytes_read: u64,
}

impl Counts {
    /// Adds `other`.
    pub fn add(&mut self, other: &Counts) {
        self.operations += other.operations;
        self.found += other.found;
        self.missing += other.missing;
        self.due += other.due;
        self.lost += other.lost;
        self.unwritten += other.unwritten;
        self.scanned += other.scanned;
        self.bytes_written += other.bytes_written;
        self.bytes_read += other.bytes_read;
    }
}

/// The result of one benchmark.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The benchmark's name.
    pub name: String,
    /// Threads that ran it.
    pub threads: usize,
    /// Their counters.
    pub counts: Counts,
    /// From the start of the first thread to the end of the last.
    #[serde(rename = "seconds", with = "seconds")]
    pub elapsed: Duration,
    /// Latency of all operations.
    pub latency: Latency,
    /// Latency of each kind of operation.
    pub by_kind: Vec<(Kind, Latency)>,
    /// The latency that each share of [`CURVE`] did not exceed, in nanoseconds.
    #[serde(default)]
    pub curve: Vec<u64>,
    /// Operations that ended in each [`SLICE`] of time.
    #[serde(default)]
    pub timeline: Vec<u64>,
    /// How long threads were inside operations longer than [`STALL`], together.
    #[serde(default, rename = "stalled_seconds", with = "seconds")]
    pub stalled: Duration,
    /// The same of operations longer than [`DELAY`].
    #[serde(default, rename = "delayed_seconds", with = "seconds")]
    pub delayed: Duration,
    /// The store's counters meanwhile.
    pub store: StoreStats,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
}

/// Durations as seconds.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(elapsed: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(elapsed.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Outcome {
    /// Operations a second.
    pub fn throughput(&self) -> f64 {
        self.counts.operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Bytes written to the SSD per byte the benchmark wrote.
    pub fn ssd_write_amplification(&self) -> Option<f64> {
        self.amplification(self.store.ssd_bytes_written)
    }

    /// Bytes written to persistent memory per byte the benchmark wrote.
    pub fn pm_write_amplification(&self) -> Option<f64> {
        self.amplification(self.store.pm_bytes_written)
    }

    /// Bytes written into sorted tables per byte the benchmark wrote.
    pub fn table_write_amplification(&self) -> Option<f64> {
        self.amplification(self.store.table_bytes_written)
    }

    /// Bytes that compactions wrote per byte the benchmark wrote.
    pub fn compaction_write_amplification(&self) -> Option<f64> {
        self.amplification(self.store.compaction_bytes_written)
    }

    /// Bytes written into tables of `level` per byte the benchmark wrote; `None` if nothing went there.
    pub fn level_write_amplification(&self, level: usize) -> Option<f64> {
        let bytes = *self.store.level_bytes_written?.get(level)?;
        self.amplification(Some(bytes).filter(|bytes| *bytes > 0))
    }

    /// Operations of the slowest second, at whatever moment it begins, as a share of the median one's; `None` for less
    /// than three seconds.
    pub fn slowest_second(&self) -> Option<f64> {
        let slices = (1.0 / SLICE.as_secs_f64()).round() as usize;
        // The last slice is not a whole one.
        let whole = &self.timeline[..self.timeline.len().saturating_sub(1)];
        let mut seconds: Vec<u64> = whole.windows(slices).map(|second| second.iter().sum()).collect();
        seconds.sort_unstable();
        let median = *seconds.get(seconds.len() / 2).filter(|_| whole.len() >= 3 * slices)?;
        Some(seconds[0] as f64 / median.max(1) as f64)
    }

    fn amplification(&self, medium_bytes: Option<u64>) -> Option<f64> {
        let user = self.counts.bytes_written;
        (user > 0).then_some(medium_bytes? as f64 / user.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_second_is_found_wherever_it_begins() {
        let of = |timeline: &[u64]| Outcome { timeline: timeline.to_vec(), ..Outcome::default() };
        let even = [10; 40];
        assert_eq!(of(&even).slowest_second(), Some(1.0));
        let mut stalled = even;
        stalled[15..20].fill(0);
        assert_eq!(of(&stalled).slowest_second(), Some(0.5));
        stalled[39] = 0;
        assert_eq!(of(&stalled[..]).slowest_second(), Some(0.5), "the last slice is no whole one");
        assert_eq!(of(&even[..30]).slowest_second(), None, "too short");
    }

    #[test]
    fn merged_threads_equal_one() {
        let (mut one, mut a, mut b) = (Recorder::default(), Recorder::default(), Recorder::default());
        for i in 1..=1000u64 {
            let took = Duration::from_nanos(i * 100);
            one.record(Kind::Read, took);
            if i % 2 == 0 {
                a.record(Kind::Read, took)
            } else {
                b.record(Kind::Read, took)
            };
        }
        a.merge(&b);
        assert_eq!(one.by_kind(), a.by_kind());
        let latency = a.overall();
        assert_eq!(latency.count, 1000);
        assert!((49_900..=50_200).contains(&latency.p50_ns), "{latency:?}");
        assert!((99_000..=99_200).contains(&latency.p99_ns), "{latency:?}");
    }

    #[test]
    fn a_timeline_shows_the_slices_in_which_nothing_ended() {
        let mut recorder = Recorder::default();
        let at = |ms| Duration::from_millis(ms);
        for (operations, took, now) in [(1, 1, 250), (2, 2, 260), (5, 300, 560)] {
            recorder.ended(Kind::Update, operations, at(took), at(now));
        }
        assert_eq!(recorder.timeline(at(230)), [3, 0, 0, 5]);
        assert_eq!(recorder.timeline(at(10_000)), [0u64; 0]);
        assert_eq!((recorder.stalled(), recorder.delayed()), (at(300), at(303)));
        assert_eq!(recorder.curve().len(), CURVE.len());
    }

    #[test]
    fn rates_are_of_whole_slices() {
        let near = |rates: Vec<(f64, f64)>, expected: &[(f64, f64)]| {
            let same = |(a, b): (&(f64, f64), &(f64, f64))| (a.0 - b.0).abs() + (a.1 - b.1).abs() < 1e-6;
            rates.len() == expected.len() && rates.iter().zip(expected).all(same)
        };
        assert!(near(rates(&[10, 20, 30, 7], 2), &[(0.1, 150.0), (0.3, 300.0)]));
        assert!(near(rates(&[10, 7], 0), &[(0.05, 100.0)]));
        assert!(rates(&[], 1).is_empty() && rates(&[5], 3).is_empty());
    }

    #[test]
    fn endless_operations_are_recorded_as_the_longest() {
        let mut recorder = Recorder::default();
        recorder.record(Kind::Upkeep, Duration::from_secs(100_000));
        assert!(recorder.overall().max_ns >= LONGEST_NANOS);
    }
}
