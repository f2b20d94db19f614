//! The differences between two runs beyond their noise.
//!
//! A metric of a store's step has changed when no round of one run is as good as any round of the other, and the
//! medians differ by more than a floor: the spread of the rounds, or a fixed share where it is not known, because one
//! of the runs had a single round. Tails are noisier than medians and have a higher floor.

use super::results::Results;
use super::summary::{METRICS, Metric, Stat};

/// Least change of a metric that is believed, when both runs had several rounds.
const FLOOR: f64 = 0.05;
/// The same, when one had a single round.
const FLOOR_OF_ONE: f64 = 0.15;
/// Tails need so much more.
const TAIL_FACTOR: f64 = 3.0;
/// The metrics that are compared: those that do not follow from others.
const COMPARED: [&str; 6] = ["ops/s", "p99 µs", "p99.9 µs", "WA", "SA", "DRAM MiB"];

/// One metric in both runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Script, step, store and metric.
    pub what: [String; 4],
    /// The earlier run.
    pub before: Stat,
    /// The later run.
    pub after: Stat,
    /// After as a multiple of before.
    pub factor: f64,
    /// Whether it is for the better.
    pub better: bool,
}

/// The changes, the largest first, and how many figures were compared.
pub fn changes(before: &Results, after: &Results) -> (Vec<Change>, usize) {
    let (mut found, mut compared) = (Vec::new(), 0);
    let metrics = || METRICS.iter().filter(|m| COMPARED.contains(&m.name));
    for script in before.scripts.iter().map(|s| s.name.as_str()) {
        for step in before.step_names(script) {
            for entrant in &before.entrants {
                for metric in metrics() {
                    let stats = [before, after].map(|r| r.stat(script, entrant, &step, metric));
                    let [Some(was), Some(is)] = stats else { continue };
                    compared += 1;
                    let what = [script, &step, entrant, metric.name].map(str::to_string);
                    found.extend(change(what, metric, was, is));
                }
            }
        }
    }
    let size = |c: &Change| c.factor.max(1e-9).ln().abs();
    found.sort_by(|a, b| size(b).total_cmp(&size(a)));
    (found, compared)
}

fn change(what: [String; 4], metric: &Metric, before: Stat, after: Stat) -> Option<Change> {
    let factor = after.median / before.median;
    if !factor.is_finite() || !beyond_noise(metric, &before, &after) {
        return None;
    }
    Some(Change { what, before, after, factor, better: (factor > 1.0) == metric.more_is_better })
}

/// Whether two measurements differ by more than they vary.
fn beyond_noise(metric: &Metric, before: &Stat, after: &Stat) -> bool {
    let apart = before.max < after.min || after.max < before.min;
    let several = before.count > 1 && after.count > 1;
    let spread = before.spread().unwrap_or(0.0).max(after.spread().unwrap_or(0.0));
    let floor = if several { FLOOR } else { FLOOR_OF_ONE };
    let floor = if metric.name.starts_with('p') { floor * TAIL_FACTOR } else { floor };
    let moved = (after.median - before.median).abs() / before.median.abs().max(1e-9);
    apart && moved > floor.max(spread)
}

/// The changes as a table, for people.
pub fn table(changes: &[Change], compared: usize) -> String {
    let head = ["script", "step", "store", "metric", "before", "after", "change", ""];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    rows.extend(changes.iter().map(|c| {
        let mut row = c.what.to_vec();
        row.push(super::page::number(c.before.median));
        row.push(super::page::number(c.after.median));
        row.push(format!("{:+.0}%", (c.factor - 1.0) * 100.0));
        row.push(if c.better { "better" } else { "worse" }.to_string());
        row
    }));
    let verdict = format!(
        "{} of {compared} figures have changed beyond the noise of the rounds ({} for the better)\n",
        changes.len(),
        changes.iter().filter(|c| c.better).count()
    );
    if changes.is_empty() { verdict } else { crate::report::columns(&rows) + "\n" + &verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::summary::metric;

    fn stat(values: &[f64]) -> Stat {
        Stat::of(values.iter().copied()).unwrap()
    }

    fn judged(name: &str, before: &[f64], after: &[f64]) -> Option<bool> {
        let what = ["s", "t", "e", name].map(str::to_string);
        change(what, metric(name).unwrap(), stat(before), stat(after)).map(|c| c.better)
    }

    #[test]
    fn rounds_that_overlap_have_not_changed() {
        assert_eq!(judged("ops/s", &[100.0, 130.0], &[125.0, 160.0]), None);
    }

    #[test]
    fn a_change_within_the_spread_is_noise() {
        assert_eq!(judged("ops/s", &[100.0, 140.0], &[141.0, 142.0]), None);
        assert_eq!(judged("ops/s", &[100.0, 101.0], &[103.0, 104.0]), None);
    }

    #[test]
    fn a_clear_change_has_its_direction() {
        assert_eq!(judged("ops/s", &[100.0, 103.0], &[120.0, 121.0]), Some(true));
        assert_eq!(judged("ops/s", &[120.0, 121.0], &[100.0, 103.0]), Some(false));
        assert_eq!(judged("WA", &[4.0, 4.1], &[3.0, 3.1]), Some(true));
    }

    #[test]
    fn single_rounds_need_more_and_tails_more_still() {
        assert_eq!(judged("ops/s", &[100.0], &[112.0]), None);
        assert_eq!(judged("ops/s", &[100.0], &[120.0]), Some(true));
        assert_eq!(judged("p99.9 µs", &[100.0], &[130.0]), None);
        assert_eq!(judged("p99.9 µs", &[100.0], &[200.0]), Some(false));
    }

    #[test]
    fn what_was_nothing_is_not_divided_by() {
        assert_eq!(judged("WA", &[0.0, 0.0], &[1.0, 1.0]), None);
    }
}
