//! The parts of the page, from top to bottom.

use std::fmt::Write as _;

use super::{about, escape, number, overview, short, table, times};
use crate::chart::{Axis, Lines, Row, Rows, Series};
use crate::compare::results::Results;
use crate::compare::script::Script;
use crate::compare::summary::{Stat, THROUGHPUT, metric};
use crate::compare::view::View;
use crate::outcome::{CURVE, rates};
use crate::store::StoreResult;

/// All sections.
pub fn all(view: &View, others: &[View]) -> StoreResult<Vec<String>> {
    let results = &view.results;
    let mut parts = vec![
        about::head(view, others),
        legend(results),
        "<main>".to_string(),
        "<section class=\"pair\">".to_string(),
        summary(results)?,
        behind(results),
        "</section>".to_string(),
    ];
    for script in &results.scripts {
        parts.push(script_section(results, script)?);
    }
    parts.push(about::whole_sessions(results));
    parts.push(section(
        "Every figure",
        &format!(
            "<p class=\"soft\">Medians over the rounds. Press a heading to sort.</p>{}",
            table::figures(results)
        ),
    ));
    parts.push(about::settings(results));
    parts.push(about::method(results));
    parts.push("</main><footer>All raw figures are in results.json beside this page. `terrace-bench report DIR` draws it again.</footer>".to_string());
    Ok(parts)
}

fn part(title: &str, body: &str) -> String {
    format!("<div><h2>{}</h2>{body}</div>", escape(title))
}

/// A section of the page.
pub fn section(title: &str, body: &str) -> String {
    format!("<section><h2>{}</h2>{body}</section>", escape(title))
}

fn legend(results: &Results) -> String {
    let mut html = "<nav class=\"legend\" aria-label=\"stores\">".to_string();
    for (i, name) in results.entrants.iter().enumerate() {
        let _ = write!(
            html,
            "<button class=\"s{i} key{i}\" aria-pressed=\"true\"><i></i>{}</button>",
            escape(name)
        );
    }
    html + "</nav>"
}

fn summary(results: &Results) -> StoreResult<String> {
    let about = format!(
        "<p>Throughput as a multiple of {}’s, each row a benchmark, each dot a store; further right is better.</p>",
        escape(results.baseline())
    );
    let picture = overview::picture(results)?;
    Ok(part("At a glance", &format!("{about}<div class=\"card wide\">{picture}</div>")))
}

/// Steps in which the best engine is slower than the best peer, the worst first.
fn behind(results: &Results) -> String {
    let mut losses = Vec::new();
    for script in &results.scripts {
        for step in results.step_names(&script.name) {
            let best = |ours| results.fastest(&script.name, &step, ours);
            let (Some(ours), Some(theirs)) = (best(true), best(false)) else { continue };
            if ours.0 < theirs.0 {
                losses.push((ours.0 / theirs.0, script.name.clone(), step.clone(), ours, theirs));
            }
        }
    }
    losses.sort_by(|a, b| a.0.total_cmp(&b.0));
    if losses.is_empty() {
        return String::new();
    }
    let mut html =
        "<p>The fastest engine of Terrace beside the fastest peer, where the peer wins.</p><ul>".to_string();
    for (ratio, script, step, ours, theirs) in losses {
        let _ = write!(
            html,
            "<li><b>{}</b> {}: {} {}/s, {} {}/s: <span class=\"bad\">{}</span></li>",
            escape(&script),
            escape(&step),
            escape(ours.1),
            short(ours.0),
            escape(theirs.1),
            short(theirs.0),
            times(ratio)
        );
    }
    part("Where Terrace is behind", &(html + "</ul>"))
}

fn script_section(results: &Results, script: &Script) -> StoreResult<String> {
    let steps = results.step_names(&script.name);
    if steps.is_empty() {
        return Ok(String::new());
    }
    let mut html = format!("<p class=\"soft\">{}</p>", escape(&conditions(results, script)));
    if script.kill {
        html.push_str(&reopenings(results, script));
        return Ok(section(&format!("{}: {}", script.name, script.title), &html));
    }
    html.push_str(&cards(&steps, |step| throughput(results, script, step).map(Some))?);
    let open = if results.scripts.first().is_some_and(|s| s.name == script.name) { " open" } else { "" };
    let mut fold = |title: &str, cards: String| {
        if !cards.is_empty() {
            let _ = write!(html, "<details{open}><summary>{title}</summary>{cards}</details>");
        }
    };
    fold("Latency", cards(&steps, |step| latency(results, script, step))?);
    fold("Throughput over time", cards(&steps, |step| timeline(results, script, step))?);
    fold("Bytes written and space", writing(results, script, &steps)?);
    Ok(section(&format!("{}: {}", script.name, script.title), &html))
}

fn conditions(results: &Results, script: &Script) -> String {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let mut text = format!(
        "{} records of {} + {} bytes ({}), {}, {} for write buffers and caches",
        crate::report::grouped(script.records),
        script.key_size,
        script.value_size,
        mib(script.data_bytes()),
        if script.threads == 1 { "1 thread".to_string() } else { format!("{} threads", script.threads) },
        mib(script.memory),
    );
    if let Some(bound) = script.bound {
        let held = results.sessions.iter().filter(|s| s.script == script.name).all(|s| s.bounded);
        let _ = write!(
            text,
            "; process and page cache {} {}",
            if held { "bounded to" } else { "should have been bounded to" },
            mib(bound)
        );
    }
    if script.sync {
        text.push_str("; every write waits for the medium");
    }
    let rounds = results.sessions.iter().filter(|s| s.script == script.name).map(|s| s.round + 1).max();
    let rounds = rounds.unwrap_or(0);
    let _ = write!(text, "; {rounds} {}", if rounds == 1 { "round" } else { "rounds" });
    text
}

/// A grid with a card for each step that has data.
fn cards(steps: &[String], card: impl Fn(&str) -> StoreResult<Option<String>>) -> StoreResult<String> {
    let mut html = String::new();
    for step in steps {
        if let Some(picture) = card(step)? {
            let _ = write!(html, "<div class=\"card\"><h3>{}</h3>{picture}</div>", escape(step));
        }
    }
    Ok(if html.is_empty() { html } else { format!("<div class=\"grid2\">{html}</div>") })
}

fn throughput(results: &Results, script: &Script, step: &str) -> StoreResult<String> {
    let row = |(colour, name): (usize, &String)| {
        let ratio = results.ratio(&script.name, name, step, results.baseline());
        row(colour, name, results.stat(&script.name, name, step, THROUGHPUT), ratio)
    };
    Rows(results.entrants.iter().enumerate().map(row).collect()).picture()
}

/// A store's figure as a bar, and what multiple it is of the baseline's.
fn row(colour: usize, name: &str, stat: Option<Stat>, ratio: Option<f64>) -> Row {
    let spread = stat.filter(|stat| stat.count > 1).map(|stat| (stat.min, stat.max));
    let texts = [stat.map(|stat| short(stat.median)), ratio.map(times)].map(Option::unwrap_or_default);
    Row { name: name.to_string(), colour, value: stat.map(|stat| stat.median), spread, texts }
}

fn latency(results: &Results, script: &Script, step: &str) -> StoreResult<Option<String>> {
    // Nines from left to right; the maximum lies where a fifth nine would.
    let across = |share: f64| if share < 1.0 { -(1.0 - share).log10() } else { 4.7 };
    let mut series = Vec::new();
    for (colour, name) in results.entrants.iter().enumerate() {
        let Some(step) = results.steps_of(&script.name, name, step).next() else { continue };
        let curve = step.outcome.curve.iter().zip(CURVE).filter(|(nanos, _)| **nanos > 0);
        let points: Vec<_> =
            curve.map(|(nanos, share)| (across(share), (*nanos as f64 / 1e3).log10())).collect();
        if !points.is_empty() {
            series.push(Series { name: name.clone(), colour, points });
        }
    }
    let heights = || series.iter().flat_map(|s| s.points.iter().map(|p| 10f64.powf(p.1)));
    let (least, most) = (heights().fold(f64::MAX, f64::min), heights().fold(0.0, f64::max));
    if series.is_empty() {
        return Ok(None);
    }
    let marks = [(0.3, "p50"), (1.0, "p90"), (2.0, "p99"), (3.0, "p99.9"), (4.0, "p99.99"), (4.7, "max")];
    let marks = marks.map(|(place, text)| (place, text.to_string())).to_vec();
    let across = Axis { from: 0.0, to: 4.8, marks, name: String::new() };
    let up = Axis::log(least, most, "", duration);
    Lines { title: String::new(), across, up, series }.picture().map(Some)
}

/// Microseconds in a few characters.
fn duration(micros: f64) -> String {
    crate::report::nanos((micros * 1e3).round() as u64).replace(".0", "").replace(' ', "")
}

/// Lines over time are shown for so many times the median of their lengths.
const LONGEST_SHOWN: f64 = 2.5;
/// Points of a line over time at most.
const POINTS: usize = 110;

fn timeline(results: &Results, script: &Script, step: &str) -> StoreResult<Option<String>> {
    let mut series = Vec::new();
    for (colour, name) in results.entrants.iter().enumerate() {
        let Some(step) = results.steps_of(&script.name, name, step).next() else { continue };
        let slices = &step.outcome.timeline;
        let points = rates(slices, slices.len().saturating_sub(1).div_ceil(POINTS));
        if points.len() > 1 {
            series.push(Series { name: name.clone(), colour, points });
        }
    }
    // One slow store would squeeze all others into a corner.
    let ends = series.iter().filter_map(|s| Some(s.points.last()?.0));
    let right = LONGEST_SHOWN * Stat::of(ends).map_or(1.0, |s| s.median);
    let cut = series.iter().any(|s| s.points.last().is_some_and(|p| p.0 > right));
    series.iter_mut().for_each(|s| s.points.retain(|p| p.0 <= right));
    let points = || series.iter().flat_map(|s| s.points.iter());
    let (right, top) = (points().map(|p| p.0).fold(0.0, f64::max), points().map(|p| p.1).fold(0.0, f64::max));
    if series.is_empty() {
        return Ok(None);
    }
    let unit = if cut { "seconds (slower stores go on)" } else { "seconds" };
    let mut across = Axis::linear(right, unit);
    across.to = right;
    across.marks.retain(|(place, _)| *place <= right);
    let up = Axis::linear(top, "operations a second");
    Lines { title: String::new(), across, up, series }.picture().map(Some)
}

/// Write and space amplification of the steps that write.
fn writing(results: &Results, script: &Script, steps: &[String]) -> StoreResult<String> {
    let mut html = String::new();
    let titles = [
        ("WA", "SSD bytes written per byte"),
        ("WA PM", "PM bytes written per byte"),
        ("SA", "bytes held per byte of records"),
        ("CPU µs/op", "processor µs an operation"),
    ];
    for (name, title) in titles {
        let Some(metric) = metric(name) else { continue };
        for step in steps {
            let writes = results
                .entrants
                .iter()
                .any(|e| results.steps_of(&script.name, e, step).any(|s| s.outcome.counts.bytes_written > 0));
            let stats: Vec<Option<Stat>> =
                results.entrants.iter().map(|e| results.stat(&script.name, e, step, metric)).collect();
            // A few writes among reads mostly show the amplification of earlier writes.
            let (cpu, first) = (name.starts_with("CPU"), steps.first() == Some(step));
            let is_shown = match step.as_str() {
                "a" | "overwrite" => writes || cpu,
                "c" | "readrandom" => cpu,
                _ => first,
            };
            if !is_shown || stats.iter().all(Option::is_none) {
                continue;
            }
            let named = results.entrants.iter().enumerate().zip(stats);
            let rows = named.filter(|(_, stat)| stat.is_some());
            let rows = rows.map(|((colour, name), stat)| row(colour, name, stat, None)).collect();
            let _ = write!(
                html,
                "<div class=\"card\"><h3>{}: <span class=\"soft\">{title}</span></h3>{}</div>",
                escape(step),
                Rows(rows).picture()?
            );
        }
    }
    Ok(if html.is_empty() { html } else { format!("<div class=\"grid2\">{html}</div>") })
}

fn reopenings(results: &Results, script: &Script) -> String {
    let head = [
        "store",
        "open, ms",
        "first read, ms",
        "overwritten keys looked for",
        "other keys looked for",
        "missing",
        "with an older value",
        "with a value never theirs",
    ];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    for name in &results.entrants {
        let of = |get: fn(&super::super::results::Reopening) -> f64| {
            Stat::of(results.sessions_of(&script.name, name).filter_map(|s| s.reopening.as_ref()).map(get))
        };
        let Some(open) = of(|r| r.open_seconds * 1e3) else { continue };
        let cell = |stat: Option<Stat>| stat.map_or("–".to_string(), |s| number(s.median));
        rows.push(vec![
            name.clone(),
            number(open.median),
            cell(of(|r| r.first_read_seconds * 1e3)),
            cell(of(|r| r.kept.updated as f64)),
            cell(of(|r| r.kept.filled as f64)),
            cell(of(|r| r.kept.missing as f64)),
            cell(of(|r| r.kept.stale as f64)),
            cell(of(|r| r.kept.wrong as f64)),
        ]);
    }
    table::plain(&rows)
}
