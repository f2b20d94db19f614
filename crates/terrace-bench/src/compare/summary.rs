//! Medians and spread over the rounds.

use super::contender::Contender;
use super::results::{Results, Session, Step};

/// Several measurements of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stat {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// How many.
    pub count: usize,
}

impl Stat {
    /// Of `values`; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Stat> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (below, above) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Stat { median: (below + above) / 2.0, min, max, count: values.len() })
    }

    /// Greatest less least, as a share of the median; `None` of a single measurement.
    pub fn spread(&self) -> Option<f64> {
        (self.count > 1 && self.median != 0.0).then(|| (self.max - self.min) / self.median.abs())
    }
}

/// A metric of a step.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name, for columns and command lines.
    pub name: &'static str,
    /// A description in a few words.
    pub about: &'static str,
    /// Whether more is better; the opposite where not.
    pub more_is_better: bool,
    /// Its value for a step.
    pub of: fn(&Step) -> Option<f64>,
}

const MIB: f64 = 1024.0 * 1024.0;

/// All metrics of a step.
pub const METRICS: &[Metric] = &[
    higher("ops/s", "operations a second", |s| Some(s.outcome.throughput())),
    lower("µs/op", "the time of an operation, by and large", |s| {
        Some(1e6 * s.outcome.threads.max(1) as f64 / s.outcome.throughput())
            .filter(|micros| micros.is_finite())
    }),
    lower("p50 µs", "half of the operations took at most this", |s| micros(s.outcome.latency.p50_ns)),
    lower("p99 µs", "99 in 100 took at most this", |s| micros(s.outcome.latency.p99_ns)),
    lower("p99.9 µs", "999 in 1000 took at most this", |s| micros(s.outcome.latency.p999_ns)),
    lower("p99.99 µs", "9999 in 10000 took at most this", |s| micros(s.outcome.latency.p9999_ns)),
    lower("max µs", "the longest", |s| micros(s.outcome.latency.max_ns)),
    lower("stalled s", "seconds spent in operations of more than 10 ms", |s| {
        Some(s.outcome.stalled.as_secs_f64())
    }),
    lower("delayed s", "seconds spent in operations of more than half a millisecond", |s| {
        Some(s.outcome.delayed.as_secs_f64())
    }),
    higher("slowest s", "operations of the slowest second, as a share of the median one's", |s| {
        s.outcome.slowest_second()
    }),
    higher("found", "point reads that found a record", |s| reads(s).map(|_| s.outcome.counts.found as f64)),
    higher("found %", "of all point reads", |s| Some(100.0 * s.outcome.counts.found as f64 / reads(s)?)),
    higher("had to", "records that reads had to find, and did: else there is no figure", |s| {
        Some(s.outcome.counts.due as f64).filter(|due| *due > 0.0)
    }),
    lower("WA", "SSD bytes written (kernel's count) per byte written", Step::write_amplification),
    lower("WA store", "SSD bytes written by the store's own count", |s| s.outcome.ssd_write_amplification()),
    lower("WA tables", "bytes written into sorted tables, logs left out, per byte written", |s| {
        s.outcome.table_write_amplification()
    }),
    lower("WA merges", "bytes that compactions wrote, per byte written", |s| {
        s.outcome.compaction_write_amplification()
    }),
    lower("WA L0", "of them into level 0", level::<0>),
    lower("WA L1", "into level 1", level::<1>),
    lower("WA L2", "into level 2", level::<2>),
    lower("WA L3", "into level 3", level::<3>),
    lower("WA L4", "into level 4", level::<4>),
    lower("WA L5", "into level 5", level::<5>),
    lower("WA L6", "into level 6", level::<6>),
    lower("WA PM", "PM bytes written, in blocks of 256, per byte written", |s| {
        s.outcome.pm_write_amplification()
    }),
    lower("RA", "SSD bytes read (kernel's count) per byte read", Step::read_amplification),
    lower("SA", "bytes of files per byte of records", Step::space_amplification),
    lower("CPU µs/op", "processor time of all threads", |s| Some(s.cpu_micros())),
    lower("DRAM MiB", "memory of its own at the end", |s| Some(s.dram_bytes as f64 / MIB)),
    lower("PM MiB", "persistent memory at the end", |s| Some(s.pm_bytes as f64 / MIB)),
    lower("SSD MiB", "files at the end", |s| Some(s.ssd_bytes as f64 / MIB)),
];

fn level<const LEVEL: usize>(step: &Step) -> Option<f64> {
    step.outcome.level_write_amplification(LEVEL)
}

fn reads(step: &Step) -> Option<f64> {
    let counts = &step.outcome.counts;
    Some((counts.found + counts.missing) as f64).filter(|reads| *reads > 0.0)
}

const fn higher(name: &'static str, about: &'static str, of: fn(&Step) -> Option<f64>) -> Metric {
    Metric { name, about, more_is_better: true, of }
}

const fn lower(name: &'static str, about: &'static str, of: fn(&Step) -> Option<f64>) -> Metric {
    Metric { name, about, more_is_better: false, of }
}

fn micros(nanos: u64) -> Option<f64> {
    Some(nanos as f64 / 1000.0)
}

/// The metric called `name`.
pub fn metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|m| m.name == name)
}

/// Operations a second.
pub const THROUGHPUT: &Metric = &METRICS[0];

impl Results {
    /// The sessions of a store at a script.
    pub fn sessions_of<'a>(&'a self, script: &'a str, entrant: &'a str) -> impl Iterator<Item = &'a Session> {
        self.sessions.iter().filter(move |s| s.script == script && s.entrant == entrant)
    }

    /// A store's step in each round.
    pub fn steps_of<'a>(
        &'a self,
        script: &'a str,
        entrant: &'a str,
        step: &'a str,
    ) -> impl Iterator<Item = &'a Step> {
        self.sessions_of(script, entrant).filter_map(move |s| s.steps.iter().find(|s| s.name == step))
    }

    /// A metric of a store's step over the rounds.
    pub fn stat(&self, script: &str, entrant: &str, step: &str, metric: &Metric) -> Option<Stat> {
        Stat::of(self.steps_of(script, entrant, step).filter_map(metric.of))
    }

    /// The names of a script's steps, in order, of which at least one store has figures.
    pub fn step_names(&self, script: &str) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for session in self.sessions.iter().filter(|s| s.script == script) {
            for step in &session.steps {
                if !names.contains(&step.name) {
                    names.push(step.name.clone());
                }
            }
        }
        names
    }

    /// Throughput of a store's step as a multiple of the baseline's.
    pub fn ratio(&self, script: &str, entrant: &str, step: &str, baseline: &str) -> Option<f64> {
        let of = |name| self.stat(script, name, step, THROUGHPUT).map(|s| s.median);
        let base = of(baseline).filter(|base| *base > 0.0)?;
        Some(of(entrant)? / base)
    }

    /// The fastest store at a step, and its throughput: of Terrace's engines if `ours`, of the peers if not.
    pub fn fastest(&self, script: &str, step: &str, ours: bool) -> Option<(f64, &str)> {
        let those = self
            .entrants
            .iter()
            .filter(|name| Contender::entrant_of(name).is_ok_and(|e| e.is_ours() == ours));
        let rates =
            those.filter_map(|name| Some((self.stat(script, name, step, THROUGHPUT)?.median, name.as_str())));
        rates.max_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The store that others are measured by: the usual one, or the first.
    pub fn baseline(&self) -> &str {
        let usual = self.entrants.iter().find(|name| *name == super::entrant::BASELINE);
        usual.or(self.entrants.first()).map_or("", String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_has_its_spread() {
        let stat = Stat::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((stat.median, stat.min, stat.max, stat.spread()), (2.0, 1.0, 3.0, Some(1.0)));
        assert_eq!(Stat::of([4.0, 2.0]).unwrap().median, 3.0);
        assert_eq!(Stat::of([5.0]).unwrap().spread(), None);
        assert_eq!(Stat::of([f64::NAN]), None);
    }

    #[test]
    fn metrics_have_names_of_their_own() {
        for m in METRICS {
            assert_eq!(METRICS.iter().filter(|o| o.name == m.name).count(), 1);
            assert!(metric(m.name).is_some());
        }
    }
}
