//! The figures of TurboHash's, Spot-on's and SPTree's evaluations, drawn from our own runs.

use std::path::{Path, PathBuf};

use super::phase::Op;
use super::phase_outcome::PhaseOutcome;
use super::run::Run;
use crate::chart::{Bars, Named, Panel, save};
use crate::store::StoreResult;

/// Bytes in a gigabyte, as media are sold.
const GB: f64 = 1e9;

/// Draws every figure for which there is something in `runs` into the folder `dir`; the files made.
pub fn figures(runs: &[Run], dir: &Path) -> StoreResult<Vec<PathBuf>> {
    let all: [(&str, usize, Vec<Panel>); 6] = [
        ("load-factor", 1, vec![load_factor(runs)]),
        ("probe-distance", 3, probe_distance(runs)),
        ("pm-written", 1, vec![pm_written(runs)]),
        ("insert-io", 2, insert_io(runs)),
        ("operations", 4, operations(runs)),
        ("recovery", 2, recovery(runs)),
    ];
    let mut made = Vec::new();
    for (name, columns, drawn) in all {
        made.extend(save(dir, name, columns, &drawn)?);
    }
    Ok(made)
}

/// The name of a run among others: with its pairs if not all have the same.
fn label(run: &Run, runs: &[Run]) -> String {
    if runs.iter().all(|r| r.pairs == run.pairs) {
        run.index.clone()
    } else {
        format!("{} {}", run.index, run.pairs.name())
    }
}

/// The labels in order of appearance, each once.
fn labels(runs: &[Run]) -> Vec<String> {
    let mut seen = Vec::new();
    for run in runs {
        let label = label(run, runs);
        if !seen.contains(&label) {
            seen.push(label);
        }
    }
    seen
}

/// Thread counts, ascending, each once.
fn thread_counts(runs: &[Run]) -> Vec<usize> {
    let mut counts: Vec<usize> = runs.iter().map(|r| r.threads).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Figure 3.8: load factor after every million inserts.
fn load_factor(runs: &[Run]) -> Panel {
    let mut series: Vec<Named> = Vec::new();
    for run in runs {
        let label = label(run, runs);
        if series.iter().any(|(seen, _)| *seen == label) {
            continue;
        }
        let points = run.phases.iter().filter(|p| p.op == Op::Insert).flat_map(|p| &p.timeline);
        let line: Vec<_> = points.filter_map(|p| Some((p.pairs as f64 / 1e6, p.load_factor?))).collect();
        if !line.is_empty() {
            series.push((label, line));
        }
    }
    Panel::lines("Load factor after every million inserts".into(), "million pairs", "load factor", series)
}

/// Figure 3.9: how many buckets a miss looks at, by load factor.
fn probe_distance(runs: &[Run]) -> Vec<Panel> {
    let panel = |run: &Run| {
        let longest = run.probes.iter().map(|p| p.histogram.len()).max().unwrap_or(0);
        let series = run.probes.iter().map(|p| {
            let values = (0..longest).map(|i| p.histogram.get(i).filter(|n| **n > 0).map(|n| *n as f64));
            (format!("load {:.2}, average {:.2}", p.load_factor, p.average()), values.collect())
        });
        Panel::Bars(Bars {
            title: format!("{}: buckets looked at for a miss", label(run, runs)),
            y: "probes".into(),
            groups: (1..=longest).map(|d| d.to_string()).collect(),
            series: series.collect(),
            log: true,
        })
    };
    runs.iter().filter(|r| !r.probes.is_empty()).map(panel).collect()
}

/// Figure 4.2: bytes written to PM by the inserts.
fn pm_written(runs: &[Run]) -> Panel {
    let fewest = thread_counts(runs).first().copied().unwrap_or(1);
    bars("PM written by the inserts", "GB", runs, &[fewest], Op::Insert, |p| {
        Some(p.xpline_writes as f64 * 256.0 / GB)
    })
}

/// Figure 4.3: blocks read and written, and throughput, by variant and threads.
fn insert_io(runs: &[Run]) -> Vec<Panel> {
    let threads = thread_counts(runs);
    vec![
        bars("Inserts", "M inserts/s", runs, &threads, Op::Insert, |p| Some(p.throughput() / 1e6)),
        bars(
            "PM blocks written and read an insert",
            "blocks of 256 bytes",
            runs,
            &threads,
            Op::Insert,
            |p| Some(p.each(p.xpline_writes + p.xpline_reads)),
        ),
    ]
}

/// Bars by index, one series for each number of threads.
fn bars(
    title: &str,
    y: &str,
    runs: &[Run],
    threads: &[usize],
    op: Op,
    value: impl Fn(&PhaseOutcome) -> Option<f64>,
) -> Panel {
    let groups = labels(runs);
    let series = threads.iter().map(|&count| {
        let of = |group: &String| {
            let run = runs.iter().find(|r| r.threads == count && label(r, runs) == *group)?;
            run.phase(op).and_then(&value)
        };
        let name = if count == 1 { "1 thread".to_string() } else { format!("{count} threads") };
        (name, groups.iter().map(of).collect())
    });
    let series = series.collect();
    Panel::Bars(Bars { title: title.into(), y: y.into(), groups, series, log: false })
}

/// Figure 4.6: throughput and PM traffic of each kind of operation by threads.
fn operations(runs: &[Run]) -> Vec<Panel> {
    let throughput = |op: Op| {
        let series = series_by_threads(runs, op, |p| p.throughput() / 1e6);
        Panel::lines(format!("{}: throughput", op.name()), "threads", "M ops/s", series)
    };
    let traffic = |op: Op| {
        let blocks = |p: &PhaseOutcome| p.each(p.xpline_reads + p.xpline_writes);
        let series = series_by_threads(runs, op, blocks);
        let title = format!("{}: PM read and written", op.name());
        Panel::lines(title, "threads", "256-byte blocks an op", series)
    };
    Op::ALL.iter().flat_map(|(_, op)| [throughput(*op), traffic(*op)]).collect()
}

fn series_by_threads(runs: &[Run], op: Op, value: impl Fn(&PhaseOutcome) -> f64) -> Vec<Named> {
    let line = |group: String| {
        let own = runs.iter().filter(|r| label(r, runs) == group);
        let mut points: Vec<_> = own.filter_map(|r| Some((r.threads as f64, value(r.phase(op)?)))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (group, points)
    };
    labels(runs).into_iter().map(line).filter(|(_, points)| !points.is_empty()).collect()
}

/// Figure 4.8: recovery by number of pairs.
fn recovery(runs: &[Run]) -> Vec<Panel> {
    let panel = |title: &str, value: fn(&super::run::Recovery) -> f64| {
        let line = |group: String| {
            let own = runs.iter().filter(|r| label(r, runs) == group);
            let mut points: Vec<_> =
                own.flat_map(|r| &r.recoveries).map(|r| (r.pairs as f64 / 1e6, value(r))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            (group, points)
        };
        let series = labels(runs).into_iter().map(line).filter(|(_, points)| !points.is_empty());
        Panel::lines(title.into(), "million pairs", "ms", series.collect())
    };
    vec![
        panel("Unclean stop to first read", |r| r.first_read_ms),
        panel("Unclean stop to everything rebuilt", |r| r.rebuilt_ms),
    ]
}
