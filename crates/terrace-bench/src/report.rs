//! Outcomes in words and columns.

use std::fmt::Write as _;

use crate::outcome::Outcome;
use crate::workload::{Action, Workload};

/// One outcome in a line.
pub fn line(workload: &Workload, outcome: &Outcome) -> String {
    let mut text = format!(
        "{:<12} {:>11} ops in {:>7.2} s  {:>11} ops/s  p50 {:>8}  p99 {:>8}  p99.9 {:>8}  max {:>8}",
        outcome.name,
        grouped(outcome.counts.operations),
        outcome.elapsed.as_secs_f64(),
        grouped(outcome.throughput() as u64),
        nanos(outcome.latency.p50_ns),
        nanos(outcome.latency.p99_ns),
        nanos(outcome.latency.p999_ns),
        nanos(outcome.latency.max_ns),
    );
    for note in notes(workload, outcome) {
        let _ = write!(text, "  {note}");
    }
    text
}

fn notes(workload: &Workload, outcome: &Outcome) -> Vec<String> {
    let counts = &outcome.counts;
    let mut notes = Vec::new();
    let reads = counts.found + counts.missing;
    if reads > 0 {
        // A run that missed a record it had to find has no outcome.
        let sure =
            if counts.due > 0 { format!(", {} of them had to be", grouped(counts.due)) } else { "".into() };
        notes.push(format!("found {} of {}{sure}", grouped(counts.found), grouped(reads)));
    }
    if counts.scanned > 0 && !matches!(workload.action, Action::Walk(_)) {
        notes.push(format!("{} records scanned", grouped(counts.scanned)));
    }
    if let Some(wa) = outcome.ssd_write_amplification() {
        notes.push(format!("WA SSD {wa:.2}"));
    }
    if let Some(wa) = outcome.pm_write_amplification() {
        notes.push(format!("WA PM {wa:.2}"));
    }
    if outcome.interrupted {
        notes.push("interrupted".to_string());
    }
    notes
}

/// All outcomes as a table.
pub fn table(outcomes: &[Outcome]) -> String {
    const HEAD: [&str; 10] =
        ["benchmark", "threads", "ops", "ops/s", "p50", "p99", "p99.9", "max", "WA SSD", "WA PM"];
    let amplification = |wa: Option<f64>| wa.map_or("-".to_string(), |wa| format!("{wa:.2}"));
    let mut rows: Vec<Vec<String>> = vec![HEAD.iter().map(|h| h.to_string()).collect()];
    rows.extend(outcomes.iter().map(|o| {
        vec![
            o.name.clone(),
            o.threads.to_string(),
            grouped(o.counts.operations),
            grouped(o.throughput() as u64),
            nanos(o.latency.p50_ns),
            nanos(o.latency.p99_ns),
            nanos(o.latency.p999_ns),
            nanos(o.latency.max_ns),
            amplification(o.ssd_write_amplification()),
            amplification(o.pm_write_amplification()),
        ]
    }));
    columns(&rows)
}

/// Rows of as many cells each, aligned: the first column to the left, the others to the right.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if i == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    }
    text
}

/// A number with its thousands apart: `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration in the unit that suits it: `740 ns`, `3.2 µs`, `18 ms`, `2.5 s`.
pub fn nanos(nanos: u64) -> String {
    const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
    let value = nanos as f64;
    let (unit, size) = UNITS.into_iter().rev().find(|(_, size)| value >= *size).unwrap_or(UNITS[0]);
    match value / size {
        small if small < 10.0 && size > 1.0 => format!("{small:.1} {unit}"),
        large => format!("{large:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Counts, Latency};
    use std::time::Duration;

    fn outcome() -> Outcome {
        Outcome {
            name: "readrandom".into(),
            threads: 2,
            counts: Counts { operations: 1_000_000, found: 632_000, missing: 368_000, ..Counts::default() },
            elapsed: Duration::from_secs(2),
            latency: Latency {
                count: 1_000_000,
                p50_ns: 740,
                p99_ns: 3200,
                max_ns: 18_000_000,
                ..Latency::default()
            },
            ..Outcome::default()
        }
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [grouped(0), grouped(999), grouped(1000), grouped(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [nanos(0), nanos(740), nanos(3240), nanos(18_000_000), nanos(2_500_000_000)],
            ["0 ns", "740 ns", "3.2 µs", "18 ms", "2.5 s"]
        );
    }

    #[test]
    fn a_line_says_what_was_found() {
        let workload = Workload::find("readrandom").unwrap();
        let line = line(workload, &outcome());
        assert!(line.contains("500,000 ops/s"), "{line}");
        assert!(line.contains("found 632,000 of 1,000,000"), "{line}");
    }

    #[test]
    fn a_table_is_aligned() {
        let text = table(&[outcome(), Outcome { name: "a".into(), ..outcome() }]);
        let widths: Vec<usize> = text.lines().map(|l| l.chars().count()).collect();
        assert_eq!(widths.len(), 3);
        assert!(widths.iter().all(|&w| w == widths[0]), "{text}");
    }
}
