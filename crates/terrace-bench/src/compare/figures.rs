//! Pictures of a comparison: lines over scripts that differ in one thing, bars for the steps of one script.
//!
//! A figure may need more than one run can measure in one go: results of several are put together first, those of
//! further rounds among them.

use std::path::{Path, PathBuf};

use super::page::number;
use super::results::Results;
use super::script::Script;
use super::summary::{Metric, metric};
use crate::chart::{Bars, Named, Panel, save};
use crate::report::columns;
use crate::store::StoreResult;

/// A picture of scripts that are [points](super::script::Point) of it.
struct Figure {
    name: &'static str,
    across: &'static str,
    panels: &'static [Drawn],
}

/// A panel: a metric of a step.
struct Drawn {
    title: &'static str,
    step: &'static str,
    metric: &'static str,
}

const fn drawn(title: &'static str, step: &'static str, metric: &'static str) -> Drawn {
    Drawn { title, step, metric }
}

const WRITES_AND_READS: &[Drawn] =
    &[drawn("write latency, µs", "fillrandom", "µs/op"), drawn("read latency, µs", "readrandom", "µs/op")];

const SIZE: &str = "MiB of records";
const VALUE: &str = "bytes of a value";

const FIGURES: &[Figure] = &[
    Figure { name: "methods", across: SIZE, panels: WRITES_AND_READS },
    Figure { name: "tiering", across: SIZE, panels: WRITES_AND_READS },
    Figure { name: "threshold", across: SIZE, panels: WRITES_AND_READS },
    Figure { name: "small", across: VALUE, panels: WRITES_AND_READS },
    Figure { name: "large", across: VALUE, panels: WRITES_AND_READS },
    Figure {
        name: "writes",
        across: SIZE,
        panels: &[
            drawn("waited for during the load, s", "fillrandom", "delayed s"),
            drawn("bytes that compactions wrote, by the load's", "fillrandom", "WA merges"),
        ],
    },
];

/// The panels for the steps of a script that is not a point of a figure.
const OF_STEPS: [(&str, &str); 2] = [("thousands of operations a second", "ops/s"), ("latency, µs", "µs/op")];

impl Results {
    /// These and `more` of the same scripts, as further rounds or of further stores.
    pub fn with(mut self, more: Results) -> Results {
        for name in more.entrants {
            if !self.entrants.contains(&name) {
                self.entrants.push(name);
            }
        }
        for script in more.scripts {
            if self.script(&script.name).is_none() {
                self.scripts.push(script);
            }
        }
        self.sessions.extend(more.sessions);
        self.seconds += more.seconds;
        self
    }
}

/// The medians of a metric, a row for each step and a column for each store.
pub fn table(results: &Results, metric: &Metric) -> String {
    let mut rows = vec![std::iter::once(String::new()).chain(results.entrants.iter().cloned()).collect()];
    for script in &results.scripts {
        for step in results.step_names(&script.name) {
            let of = |name: &String| results.stat(&script.name, name, &step, metric);
            let text = |name| of(name).map_or("-".to_string(), |stat| number(stat.median));
            let head = std::iter::once(format!("{} {step}", script.name));
            rows.push(head.chain(results.entrants.iter().map(text)).collect::<Vec<_>>());
        }
    }
    columns(&rows)
}

/// Draws every figure that `results` have data for into `dir`; returns the files.
pub fn draw(results: &Results, dir: &Path) -> StoreResult<Vec<PathBuf>> {
    let mut made = Vec::new();
    for figure in FIGURES {
        let panels: Vec<Panel> = figure.panels.iter().map(|panel| lines(results, figure, panel)).collect();
        made.extend(save(dir, figure.name, 2, &panels)?);
    }
    for script in results.scripts.iter().filter(|script| script.point.is_none()) {
        let panels: Vec<Panel> = OF_STEPS.iter().map(|(y, name)| bars(results, script, y, name)).collect();
        made.extend(save(dir, &script.name, 2, &panels)?);
    }
    Ok(made)
}

fn lines(results: &Results, figure: &Figure, panel: &Drawn) -> Panel {
    let place = |script: &Script| Some(script.point.as_ref().filter(|p| p.figure == figure.name)?.at);
    let line = |name: &String| -> Named {
        let points = results.scripts.iter().filter_map(|script| {
            let stat = results.stat(&script.name, name, panel.step, metric(panel.metric)?)?;
            Some((place(script)?, stat.median))
        });
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (name.clone(), points)
    };
    let series = results.entrants.iter().map(line).filter(|(_, points)| !points.is_empty()).collect();
    Panel::lines(panel.title.to_string(), figure.across, "", series)
}

fn bars(results: &Results, script: &Script, y: &str, name: &str) -> Panel {
    let groups = results.step_names(&script.name);
    let scale = if name == "ops/s" { 1e-3 } else { 1.0 };
    let of = |store: &String| {
        let value =
            |step: &String| Some(results.stat(&script.name, store, step, metric(name)?)?.median * scale);
        (store.clone(), groups.iter().map(value).collect::<Vec<_>>())
    };
    let series = results.entrants.iter().map(of).filter(|(_, values)| values.iter().any(Option::is_some));
    let series = series.collect();
    Panel::Bars(Bars { title: y.to_string(), y: String::new(), groups, series, log: name != "ops/s" })
}

#[cfg(test)]
mod tests {
    use super::super::script::Scale;
    use super::*;

    #[test]
    fn every_point_has_its_figure_and_every_panel_its_metric() {
        for script in Scale::ALL.into_iter().flat_map(Scale::scripts) {
            let Some(point) = &script.point else { continue };
            let figure = FIGURES.iter().find(|figure| figure.name == point.figure).unwrap();
            for panel in figure.panels {
                assert!(script.steps.iter().any(|step| step == panel.step), "{}", script.name);
                assert!(metric(panel.metric).is_some(), "{}", panel.metric);
            }
        }
        assert!(OF_STEPS.iter().all(|(_, name)| metric(name).is_some()));
    }
}
