//! The figures of a database for the crate `metrics`, and so for whatever a program exports its metrics to.

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use crate::latency::Latency;
use crate::stats::Stats;

/// A figure: its name, its unit, what it says, and where it is.
type Figure<T> = (&'static str, Unit, &'static str, fn(&Stats) -> T);

/// What only grows while a database is open.
const COUNTERS: &[Figure<u64>] = &[
    ("terrace_puts_total", Unit::Count, "Keys put", |s| s.counts.puts),
    ("terrace_deletes_total", Unit::Count, "Keys deleted", |s| s.counts.deletes),
    ("terrace_gets_total", Unit::Count, "Point reads", |s| s.counts.gets),
    ("terrace_iterators_total", Unit::Count, "Iterators made", |s| s.counts.iterators),
    ("terrace_user_bytes_total", Unit::Bytes, "Bytes of keys and values put", |s| s.counts.user_bytes),
    ("terrace_commit_groups_total", Unit::Count, "Groups committed", |s| s.counts.commit_groups),
    ("terrace_conflicts_total", Unit::Count, "Transactions refused", |s| s.counts.conflicts),
    ("terrace_flushes_total", Unit::Count, "Memtables flushed", |s| s.counts.flushes),
    ("terrace_flush_bytes_total", Unit::Bytes, "Bytes written by flushes", |s| s.counts.flush_bytes),
    ("terrace_compactions_total", Unit::Count, "Compactions done", |s| s.counts.compactions),
    ("terrace_compaction_bytes_total", Unit::Bytes, "Bytes written by compactions", |s| {
        s.counts.compaction_bytes
    }),
    ("terrace_stalls_total", Unit::Count, "Writes that were slowed or had to wait", |s| s.counts.stalls),
    ("terrace_stall_nanoseconds_total", Unit::Nanoseconds, "How long they waited", |s| s.counts.stall_nanos),
    ("terrace_background_errors_total", Unit::Count, "Background failures", |s| s.counts.background_errors),
    ("terrace_cache_hits_total", Unit::Count, "Blocks found in the cache", |s| s.dram.cache_hits),
    ("terrace_cache_misses_total", Unit::Count, "Blocks that had to be read", |s| s.dram.cache_misses),
    ("terrace_ssd_written_bytes_total", Unit::Bytes, "Bytes written to files", |s| s.ssd.bytes_written),
    ("terrace_ssd_read_bytes_total", Unit::Bytes, "Bytes read from files by calls", |s| s.ssd.bytes_read),
    ("terrace_scrubbed_bytes_total", Unit::Bytes, "Bytes compared with their checksums", |s| s.scrub.bytes),
    ("terrace_damages_total", Unit::Count, "Damages that scrubs have found", |s| s.scrub.damaged),
    ("terrace_ssd_syncs_total", Unit::Count, "Syncs of files", |s| s.ssd.syncs),
    ("terrace_pm_drains_total", Unit::Count, "Drains of persistent memory", |s| s.pm.traffic.drains),
];

/// What goes up and down.
const GAUGES: &[Figure<u64>] = &[
    ("terrace_dram_bytes", Unit::Bytes, "DRAM held, of the budget", |s| s.dram.total()),
    ("terrace_dram_budget_bytes", Unit::Bytes, "The budget of DRAM", |s| s.dram.budget),
    ("terrace_pm_used_bytes", Unit::Bytes, "Bytes allocated in the pool", |s| s.pm.used),
    ("terrace_pm_bytes", Unit::Bytes, "Bytes of the pool", |s| s.pm.size),
    ("terrace_tables", Unit::Count, "Live tables", |s| s.ssd.tables),
    ("terrace_table_bytes", Unit::Bytes, "Bytes of live tables", |s| s.ssd.table_bytes),
    ("terrace_snapshots", Unit::Count, "Snapshots and iterators open", |s| s.counts.snapshots),
    ("terrace_buckets", Unit::Count, "Buckets of keys", |s| s.buckets.buckets),
    ("terrace_failing", Unit::Count, "1 while a background failure stands", |s| {
        u64::from(s.failure.is_some())
    }),
];

/// How long operations took.
const TIMES: &[Figure<Latency>] = &[
    ("terrace_get_seconds", Unit::Seconds, "How long point reads took", |s| s.latencies.gets),
    ("terrace_put_seconds", Unit::Seconds, "How long writes took", |s| s.latencies.puts),
    ("terrace_sync_seconds", Unit::Seconds, "How long syncs of files took", |s| s.latencies.syncs),
    ("terrace_stall_seconds", Unit::Seconds, "How long writers were stalled", |s| s.latencies.stalls),
];

/// A quantile of times: the label, and where it is.
type Quantile = (&'static str, fn(&Latency) -> Duration);

/// Those that are exported.
const QUANTILES: &[Quantile] = &[
    ("0.5", |latency| latency.median),
    ("0.9", |latency| latency.p90),
    ("0.99", |latency| latency.p99),
    ("0.999", |latency| latency.p999),
    ("1", |latency| latency.longest),
];

/// Gives `stats` to the recorder that the program has installed, as counters and gauges with the labels `database` and
/// `engine`. A program calls it every few seconds, or whenever its metrics are asked for; nothing else is exported, and
/// what costs is [`Db::stats`](crate::Db::stats).
///
/// Counters are absolute, and begin anew when a database is opened again. The distributions of times are gauges with
/// a label `quantile`, since the database was opened, and there is none for what was not timed yet.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let db = terrace::Db::open(dir.path(), terrace::Options::default())?;
/// db.put("apple", "red")?;
/// terrace::export_metrics(&db.stats(), "orchard"); // a recorder shows terrace_puts_total{database="orchard",..} 1
/// # Ok(())
/// # }
/// ```
pub fn export_metrics(stats: &Stats, database: &str) {
    let labels = [("database", database.to_string()), ("engine", stats.engine.to_string())];
    for (name, unit, about, of) in COUNTERS {
        describe_counter!(*name, *unit, *about);
        counter!(*name, &labels).absolute(of(stats));
    }
    for (name, unit, about, of) in GAUGES {
        describe_gauge!(*name, *unit, *about);
        gauge!(*name, &labels).set(of(stats) as f64);
    }
    for (name, unit, about, of) in TIMES {
        describe_gauge!(*name, *unit, *about);
        let latency = of(stats);
        for (quantile, at) in QUANTILES.iter().filter(|_| latency.timed > 0) {
            let [database, engine] = labels.clone();
            let labels = [database, engine, ("quantile", quantile.to_string())];
            gauge!(*name, &labels).set(at(&latency).as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    };
    use parking_lot::Mutex;

    use super::*;

    /// Keeps what is set, by name and labels.
    #[derive(Default)]
    struct Kept(Arc<Mutex<BTreeMap<String, f64>>>);

    struct One(String, Arc<Mutex<BTreeMap<String, f64>>>);

    impl One {
        fn keep(&self, value: f64) {
            self.1.lock().insert(self.0.clone(), value);
        }
    }

    impl CounterFn for One {
        fn increment(&self, _: u64) {
            unreachable!("counters are absolute");
        }
        fn absolute(&self, value: u64) {
            self.keep(value as f64);
        }
    }

    impl GaugeFn for One {
        fn increment(&self, _: f64) {
            unreachable!("gauges are set");
        }
        fn decrement(&self, _: f64) {
            unreachable!("gauges are set");
        }
        fn set(&self, value: f64) {
            self.keep(value);
        }
    }

    impl Kept {
        fn one(&self, key: &Key) -> Arc<One> {
            let labels = key.labels().map(|label| format!(",{}={}", label.key(), label.value()));
            Arc::new(One(key.name().to_string() + &labels.collect::<String>(), self.0.clone()))
        }
    }

    impl Recorder for Kept {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.one(key))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.one(key))
        }
        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            unreachable!("histograms are not exported")
        }
    }

    #[test]
    fn figures_become_counters_and_gauges() {
        let mut stats = Stats { engine: "slm", failure: Some("a full disk".into()), ..Stats::default() };
        (stats.counts.puts, stats.pm.used) = (7, 4096);
        stats.latencies.gets.timed = 3;
        stats.latencies.gets.p99 = Duration::from_millis(250);
        let kept = Kept::default();
        metrics::with_local_recorder(&kept, || export_metrics(&stats, "a"));
        let kept = kept.0.lock();
        let at = |name: &str| kept.get(&format!("{name},database=a,engine=slm")).copied();
        assert_eq!(at("terrace_puts_total"), Some(7.0));
        assert_eq!(at("terrace_pm_used_bytes"), Some(4096.0));
        assert_eq!(at("terrace_failing"), Some(1.0));
        assert_eq!(kept["terrace_get_seconds,database=a,engine=slm,quantile=0.99"], 0.25);
        assert!(!kept.keys().any(|key| key.starts_with("terrace_put_seconds")), "nothing was timed");
        assert_eq!(kept.len(), COUNTERS.len() + GAUGES.len() + QUANTILES.len());
    }
}
