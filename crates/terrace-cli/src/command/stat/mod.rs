//! `terrace stat`.

mod json;

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use terrace::{Latency, Stats};
use terrace_bench::report::{grouped, nanos};

use crate::failure::CommandResult;
use crate::open::{Intent, OpenArgs};
use terrace_base::size::human;

/// Shows the contents of DRAM, persistent memory and SSD, their cost, and the effect of a power cut.
///
/// Counters are since the database was opened, which is now: amplification is best seen with
/// `terrace bench` or from a program's own statistics.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  terrace stat ./db --json | jq .ssd.bytes")]
pub struct Stat {
    /// The database
    pub dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Stat {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let db = self.open.open(&self.dir, Intent::Read)?;
        let stats = db.stats();
        let text = if self.json { json::render(&stats)? } else { render(&stats) };
        Ok(out.write_all(text.as_bytes())?)
    }
}

/// The statistics for a person.
pub fn render(stats: &Stats) -> String {
    let mut text = String::new();
    let mut heading = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12}{value}");
    };
    heading("engine", stats.engine);
    heading("pool", &stats.media);
    if let Some(emulated) = &stats.emulated {
        heading("EMULATED", emulated);
    }
    heading("durability", &stats.durability);
    if !stats.log.is_empty() {
        heading("log", &stats.log);
    }
    if stats.ssd.tables > 0 {
        heading("tables read", &stats.table_reads);
    }
    heading("opened", &stats.opened);
    if let Some(failure) = &stats.failure {
        heading("FAILURE", failure);
    }
    text.push('\n');
    dram(stats, &mut text);
    pm(stats, &mut text);
    ssd(stats, &mut text);
    buckets(stats, &mut text);
    values(stats, &mut text);
    hints(stats, &mut text);
    lists(stats, &mut text);
    slots(stats, &mut text);
    counts(stats, &mut text);
    keyspaces(stats, &mut text);
    latencies(stats, &mut text);
    text
}

/// A floor's line and those of its parts; a part without a value is left out.
fn floor(text: &mut String, name: &str, total: &str, parts: &[(&str, String)]) {
    let _ = writeln!(text, "{name:<6}{total}");
    for (part, value) in parts.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "        {part:<24}{value:>14}");
    }
}

fn dram(stats: &Stats, text: &mut String) {
    let dram = &stats.dram;
    let hits = dram.cache_hits + dram.cache_misses;
    let parts = [
        ("block cache", human(dram.block_cache)),
        ("open SSTables", human(dram.tables)),
        ("memtables", human(dram.memtables)),
        ("index", human(dram.index)),
        ("pool's allocator", human(dram.allocator)),
        ("flush and compaction", human(dram.jobs)),
        ("cache hits", if hits > 0 { percent(dram.cache_hits, hits) } else { String::new() }),
        ("process, by the system", dram.resident.map_or(String::new(), human)),
    ];
    floor(text, "DRAM", &format!("{} of a budget of {}", human(dram.total()), human(dram.budget)), &parts);
}

fn pm(stats: &Stats, text: &mut String) {
    let (pm, traffic) = (&stats.pm, &stats.pm.traffic);
    let parts = [
        ("memtables", human(pm.memtables)),
        ("index", human(pm.index)),
        ("versions for snapshots", human(pm.chains)),
        // On an ordinary file XPLines are not counted.
        ("written", if traffic.xpline_writes > 0 { human(traffic.xpline_bytes()) } else { String::new() }),
        ("drains", grouped(traffic.drains)),
        ("write amplification", factor(stats.pm_write_amplification().filter(|&wa| wa > 0.0))),
    ];
    let total = format!("{} of a pool of {}, up to {}", human(pm.used), human(pm.size), human(pm.max_size));
    match (pm.max_size, pm.is_memory) {
        (0, _) => {}
        (_, true) => floor(text, "PM", &total, &parts),
        (_, false) => floor(text, "POOL", &format!("{total}, in an ordinary file"), &parts),
    }
}

fn ssd(stats: &Stats, text: &mut String) {
    let ssd = &stats.ssd;
    let parts = [
        ("entries in SSTables", grouped(ssd.table_entries)),
        ("files of SSTables open", grouped(ssd.open_tables)),
        ("mapped", mapped(stats)),
        ("mappings that failed", if ssd.failed_maps > 0 { grouped(ssd.failed_maps) } else { String::new() }),
        ("files to be removed", grouped(ssd.obsolete_files)),
        ("written", human(ssd.bytes_written)),
        ("read", human(ssd.bytes_read)),
        ("syncs", grouped(ssd.syncs)),
        ("write amplification", factor(stats.ssd_write_amplification())),
        ("space amplification", factor(stats.ssd_space_amplification())),
    ];
    let scrub = scrubbed(stats);
    let parts = [&parts[..], &scrub].concat();
    let tables = if ssd.tables == 1 { "SSTable" } else { "SSTables" };
    floor(text, "SSD", &format!("{} in {} {tables}", human(ssd.table_bytes), grouped(ssd.tables)), &parts);
}

/// What was compared with its checksums, if anything was.
fn scrubbed(stats: &Stats) -> Vec<(&'static str, String)> {
    let scrub = &stats.scrub;
    let some = |count: u64| if count > 0 { grouped(count) } else { String::new() };
    let compared = if scrub.bytes > 0 { human(scrub.bytes) } else { String::new() };
    vec![
        ("scrubbed", compared),
        ("passes of scrubs", some(scrub.passes)),
        ("DAMAGES", some(scrub.damaged)),
        ("tables left unscrubbed", some(scrub.unread)),
    ]
}

/// Mapped bytes and how many of them are in memory, if there are any.
fn mapped(stats: &Stats) -> String {
    let ssd = &stats.ssd;
    match ssd.mapped_tables {
        0 => String::new(),
        _ => format!("{}, {} in memory", human(ssd.mapped_bytes), human(ssd.mapped_resident)),
    }
}

/// The newest values in the pool, for an engine that keeps some there.
fn values(stats: &Stats, text: &mut String) {
    let values = &stats.values;
    if values.bound == 0 && values.keys == 0 {
        return;
    }
    let parts = [
        ("bytes", human(values.bytes)),
        ("let in", grouped(values.admitted)),
        ("replaced", grouped(values.updated)),
        ("evicted", grouped(values.evicted)),
    ];
    floor(
        text,
        "VALUES",
        &format!("of {} keys in the pool, of at most {}", grouped(values.keys), human(values.bound)),
        &parts,
    );
}

/// Figures about outdated values in tables, for an engine that has them.
fn hints(stats: &Stats, text: &mut String) {
    let hints = &stats.hints;
    if hints.bound == 0 && hints.keys == 0 {
        return;
    }
    let parts = [
        ("bytes", human(hints.bytes)),
        ("outdated in SSTables", human(hints.stale_bytes)),
        ("found outdated", grouped(hints.outdated)),
        ("blocks not read", grouped(hints.passed_blocks)),
    ];
    floor(
        text,
        "HINTS",
        &format!("to {} keys in SSTables, of at most {}", grouped(hints.keys), human(hints.bound)),
        &parts,
    );
}

/// Runs in the pool, for an engine that has them.
fn lists(stats: &Stats, text: &mut String) {
    let lists = &stats.lists;
    if lists.bound == 0 {
        return;
    }
    let parts = [
        ("records", grouped(lists.entries)),
        ("bytes", human(lists.bytes)),
        ("bytes that live", human(lists.live_bytes)),
        ("evicted", grouped(lists.evicted)),
        ("emptied", grouped(lists.emptied)),
        ("merges gone on with", grouped(lists.resumed)),
        ("records copied", human(lists.copied_bytes)),
    ];
    let total = format!("{} in the pool, of at most {}", grouped(lists.lists), human(lists.bound));
    floor(text, "LISTS", &total, &parts);
}

/// Large items in slots and small ones in tables, for an engine that parts them.
fn slots(stats: &Stats, text: &mut String) {
    let split = &stats.split;
    if !split.is_there {
        return;
    }
    let flushes = match split.cache_is_volatile {
        true => format!("{} by the device", grouped(split.device_syncs)),
        false => "not needed".into(),
    };
    let parts = [
        ("bytes", human(split.item_bytes)),
        ("bytes of old versions", human(split.retired_bytes)),
        ("blocks held", human(split.held_bytes)),
        ("blocks free", human(split.free_bytes)),
        ("submissions", grouped(split.submissions)),
        ("items submitted", grouped(split.submitted)),
        ("flushes of a cache", flushes),
        ("records migrated", grouped(split.migrated)),
        ("SSTables of these", human(split.migrated_bytes)),
        ("dead in SSTables", human(split.dead_bytes)),
    ];
    let total = format!("{} large items in {}", grouped(split.items), human(split.file_bytes));
    floor(text, "SLOTS", &total, &parts);
}

/// Figures about buckets, for an engine that has them.
fn buckets(stats: &Stats, text: &mut String) {
    let buckets = &stats.buckets;
    if buckets.buckets == 0 {
        return;
    }
    let parts = [
        ("sublevels of one, at most", grouped(buckets.most_sublevels)),
        ("splits", grouped(buckets.splits)),
        ("joins", grouped(buckets.joins)),
        ("commit log", human(buckets.log_bytes)),
    ];
    let noun = if buckets.buckets == 1 { "bucket" } else { "buckets" };
    floor(text, "KEYS", &format!("in {} {noun}", grouped(buckets.buckets)), &parts);
    if !buckets.log_held_by.is_empty() {
        let _ = writeln!(text, "        the log's oldest part is needed by {}", buckets.log_held_by);
    }
}

fn counts(stats: &Stats, text: &mut String) {
    let counts = &stats.counts;
    let groups = counts.commit_groups;
    let parts = [
        ("keys in the index", grouped(counts.index_keys)),
        ("puts and deletes", grouped(counts.puts + counts.deletes)),
        (
            "deletions of ranges",
            if counts.range_deletes > 0 { grouped(counts.range_deletes) } else { String::new() },
        ),
        ("point reads", grouped(counts.gets)),
        ("iterators", grouped(counts.iterators)),
        (
            "batches a commit",
            if groups > 0 { factor(ratio(counts.committed_batches, groups)) } else { String::new() },
        ),
        ("conflicts", if counts.conflicts > 0 { grouped(counts.conflicts) } else { String::new() }),
        ("flushes", grouped(counts.flushes)),
        ("compactions", grouped(counts.compactions)),
        ("tables written by level", by_level(&counts.level_bytes)),
        ("stalls", grouped(counts.stalls)),
        ("time stalled", if counts.stall_nanos > 0 { nanos(counts.stall_nanos) } else { String::new() }),
        (
            "background failures",
            if counts.background_errors > 0 { grouped(counts.background_errors) } else { String::new() },
        ),
    ];
    floor(text, "Since it was opened", "", &parts);
}

/// What was done to each keyspace that is open.
fn keyspaces(stats: &Stats, text: &mut String) {
    if stats.keyspaces.is_empty() {
        return;
    }
    let _ =
        writeln!(text, "{:<24}{:>14}{:>14}{:>14}{:>14}", "KEYSPACES", "puts", "deletes", "gets", "bytes put");
    for (name, of) in &stats.keyspaces {
        let [puts, deletes, gets] = [of.puts, of.deletes, of.gets].map(grouped);
        let (name, bytes) = (name.escape_debug().to_string(), human(of.user_bytes));
        let _ = writeln!(text, "  {name:<22}{puts:>14}{deletes:>14}{gets:>14}{bytes:>14}");
    }
    text.push('\n');
}

/// How long operations took, of those kinds that were timed.
fn latencies(stats: &Stats, text: &mut String) {
    let all = &stats.latencies;
    let kinds = [("gets", &all.gets), ("puts", &all.puts), ("syncs", &all.syncs), ("stalls", &all.stalls)];
    if kinds.iter().all(|(_, latency)| latency.timed == 0) {
        return;
    }
    let time = |duration: std::time::Duration| nanos(duration.as_nanos() as u64);
    let _ = writeln!(
        text,
        "{:<8}{:>12}{:>10}{:>10}{:>10}{:>10}",
        "TIMES", "timed", "median", "99 %", "99.9 %", "longest"
    );
    for (kind, latency) in kinds.into_iter().filter(|(_, latency)| latency.timed > 0) {
        let Latency { timed, median, p99, p999, longest, .. } = *latency;
        let [median, p99, p999, longest] = [median, p99, p999, longest].map(time);
        let _ =
            writeln!(text, "  {kind:<6}{:>12}{median:>10}{p99:>10}{p999:>10}{longest:>10}", grouped(timed));
    }
}

/// Bytes that went into each level, as far down as any did.
fn by_level(bytes: &[u64]) -> String {
    let levels = bytes.iter().rposition(|bytes| *bytes > 0).map_or(0, |last| last + 1);
    bytes[..levels].iter().map(|bytes| human(*bytes)).collect::<Vec<_>>().join(", ")
}

fn factor(value: Option<f64>) -> String {
    value.map_or(String::new(), |v| format!("{v:.2}"))
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}%", 100.0 * part as f64 / whole as f64)
}
