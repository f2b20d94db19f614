//! Runs in words and columns.

use std::fmt::Write as _;

use super::phase_outcome::PhaseOutcome;
use super::run::Run;
use crate::report::{columns, grouped, nanos};

/// One phase in a line.
pub fn line(p: &PhaseOutcome) -> String {
    let mut text = format!(
        "{:<7} {:>2} thr  {:>11} ops  {:>8.3} M ops/s  p50 {:>7}  p99 {:>7}  p99.9 {:>7}",
        p.op.name(),
        p.threads,
        grouped(p.operations),
        p.throughput() / 1e6,
        nanos(p.latency.p50_ns),
        nanos(p.latency.p99_ns),
        nanos(p.latency.p999_ns),
    );
    let _ = write!(text, "  PM blocks {:.2} w {:.2} r", p.each(p.xpline_writes), p.each(p.xpline_reads));
    if p.wrong > 0 {
        let _ = write!(text, "  WRONG ANSWERS: {}", grouped(p.wrong));
    }
    text
}

/// All phases of all runs as a table.
pub fn table(runs: &[Run]) -> String {
    const HEAD: [&str; 13] = [
        "index",
        "pairs",
        "op",
        "threads",
        "ops",
        "M ops/s",
        "p50",
        "p99",
        "p99.9",
        "max of 64",
        "PM blocks w",
        "PM blocks r",
        "drains",
    ];
    let mut rows: Vec<Vec<String>> = vec![HEAD.iter().map(|h| h.to_string()).collect()];
    for run in runs {
        rows.extend(run.phases.iter().map(|p| {
            vec![
                run.index.clone(),
                run.pairs.name().to_string(),
                p.op.name().to_string(),
                p.threads.to_string(),
                grouped(p.operations),
                format!("{:.3}", p.throughput() / 1e6),
                nanos(p.latency.p50_ns),
                nanos(p.latency.p99_ns),
                nanos(p.latency.p999_ns),
                nanos(p.longest_block_ns),
                format!("{:.2}", p.each(p.xpline_writes)),
                format!("{:.2}", p.each(p.xpline_reads)),
                format!("{:.2}", p.each(p.drains)),
            ]
        }));
    }
    columns(&rows)
}

/// Everything beside single phases: footprints, load factors, probes, recoveries, findings.
pub fn facts(run: &Run) -> String {
    let mut text = String::new();
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    for f in &run.footprints {
        let _ = writeln!(
            text,
            "{}: {} pairs hold {:.1} MiB of DRAM and {:.1} MiB of PM ({:.1} MiB of the pool are in use)",
            run.index,
            grouped(f.pairs),
            mib(f.dram_bytes),
            mib(f.pm_bytes),
            mib(f.pool_used_bytes)
        );
    }
    let factors = run.phases.iter().flat_map(|p| &p.timeline).filter_map(|p| p.load_factor);
    if let Some(peak) = factors.reduce(f64::max) {
        let _ = writeln!(text, "{}: peak load factor {peak:.3}", run.index);
    }
    for p in &run.probes {
        let _ = writeln!(
            text,
            "{}: a miss looks at {:.2} buckets at load {:.3}; by distance {:?}",
            run.index,
            p.average(),
            p.load_factor,
            p.histogram
        );
    }
    for r in &run.recoveries {
        let _ = writeln!(
            text,
            "{}: with {} pairs after an unclean stop: pool open after {:.1} ms, index {:.1} ms, first read {:.1} ms, rebuilt {:.1} ms",
            run.index,
            grouped(r.pairs),
            r.pool_ms,
            r.open_ms,
            r.first_read_ms,
            r.rebuilt_ms
        );
    }
    for finding in &run.findings {
        let _ = writeln!(text, "{}: FINDING: {finding}", run.index);
    }
    text
}
