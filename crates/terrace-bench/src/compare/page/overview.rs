//! The picture that tells most: every step's throughput as a multiple of the baseline's, a dot to a store.

use std::fmt::Write as _;

use super::{COLOURS, chart, escape};
use crate::compare::entrant::Entrant;
use crate::compare::results::Results;
use crate::compare::view::View;

const ROW: f64 = 17.0;
/// Left of the axis at least, and for each character that stands there.
const LEFT: f64 = 136.0;
const CHARACTER: f64 = 5.9;
const RIGHT: f64 = 330.0;

/// The picture for the page, whose colours it uses.
pub fn picture(results: &Results) -> String {
    let rows = rows(results);
    let (top, height) = (20.0, ROW * rows.len() as f64 + 34.0);
    let mut svg = chart::open(height);
    axis(&mut svg, &rows, top, height - 12.0);
    for (i, row) in rows.iter().enumerate() {
        let y = top + ROW * (i as f64 + 0.5);
        if i > 0 && rows[i - 1].script != row.script {
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"0\" x2=\"{RIGHT}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>",
                y - ROW / 2.0
            );
        }
        let _ = write!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\"><tspan class=\"soft\">{}</tspan> {}</text>",
            left(&rows) - 6.0,
            y + 4.0,
            escape(&row.script),
            escape(&row.step)
        );
        for dot in &row.dots {
            // Our own stand out: larger, and above the others.
            let (class, radius) = if dot.ours { ("f ours", 4.6) } else { ("f", 3.4) };
            let _ = write!(
                svg,
                "<g class=\"s{}\"><circle class=\"{class}\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"{radius}\">\
                 <title>{}: {}</title></circle></g>",
                dot.series,
                place(dot.ratio, &rows),
                escape(&dot.name),
                super::times(dot.ratio)
            );
        }
    }
    svg + "</svg>"
}

/// The picture as a file of its own, with its colours, a ground and the names of the stores.
pub fn alone(view: &View) -> String {
    let results = &view.results;
    let inner = picture(results);
    let body = inner.split_once('>').map_or("", |(_, body)| body).trim_end_matches("</svg>");
    let below = ROW * rows(results).len() as f64 + 34.0;
    let mut legend = String::new();
    let (mut x, mut y) = (8.0, below + 14.0);
    for (i, name) in results.entrants.iter().enumerate() {
        let width = 20.0 + 6.6 * name.len() as f64;
        if x + width > RIGHT {
            (x, y) = (8.0, y + 16.0);
        }
        let _ = write!(
            legend,
            "<g class=\"s{i}\"><circle class=\"f\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text></g>",
            x + 4.0,
            y - 4.0,
            x + 12.0,
            escape(name)
        );
        x += width;
    }
    let height = y + 10.0;
    format!(
        "<svg viewBox=\"0 0 340 {height:.0}\" width=\"680\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\">\
         <title>Throughput as a multiple of {}'s, {}</title><style>{COLOURS}</style>\
         <rect width=\"340\" height=\"{height:.0}\" fill=\"var(--card)\"/>{body}{legend}</svg>\n",
        escape(results.baseline()),
        view.title.to_lowercase()
    )
}

struct Row {
    script: String,
    step: String,
    /// Peers, then engines.
    dots: Vec<Dot>,
}

struct Dot {
    series: usize,
    name: String,
    /// As a multiple of the baseline.
    ratio: f64,
    /// Whether it is an engine of Terrace.
    ours: bool,
}

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    let base = results.baseline();
    for script in results.scripts.iter().filter(|s| !s.kill) {
        for step in results.step_names(&script.name) {
            let dot = |(series, name): (usize, &String)| {
                let ratio = results.ratio(&script.name, name, &step, base)?;
                let ours = Entrant::parse(name).is_ok_and(Entrant::is_ours);
                (ratio > 0.0).then(|| Dot { series, name: name.clone(), ratio, ours })
            };
            let mut dots: Vec<Dot> = results.entrants.iter().enumerate().filter_map(dot).collect();
            dots.sort_by_key(|dot| dot.ours);
            if dots.len() > 1 {
                rows.push(Row { script: script.name.clone(), step, dots });
            }
        }
    }
    rows
}

/// The axis goes so many powers of two to either side at most: what lies farther out stands at its end, which says so.
const FARTHEST: i32 = 4;

/// Powers of two at either end of the axis.
fn ends(rows: &[Row]) -> (i32, i32) {
    let logs = || rows.iter().flat_map(|r| r.dots.iter().map(|d| d.ratio.log2()));
    let low = logs().fold(-1.0, f64::min).floor() as i32;
    let high = logs().fold(1.0, f64::max).ceil() as i32;
    (low.max(-FARTHEST), high.min(FARTHEST))
}

fn place(ratio: f64, rows: &[Row]) -> f64 {
    let (low, high) = ends(rows);
    let share = (ratio.log2() - f64::from(low)) / f64::from(high - low);
    let left = left(rows);
    left + 4.0 + (RIGHT - left - 8.0) * share.clamp(0.0, 1.0)
}

/// Where the axis begins: to the right of the longest name.
fn left(rows: &[Row]) -> f64 {
    let longest = rows.iter().map(|row| row.script.chars().count() + 1 + row.step.chars().count()).max();
    LEFT.max(8.0 + CHARACTER * longest.unwrap_or(0) as f64)
}

fn axis(svg: &mut String, rows: &[Row], top: f64, bottom: f64) {
    let (low, high) = ends(rows);
    let beyond = |farther: &dyn Fn(f64) -> bool| rows.iter().any(|r| r.dots.iter().any(|d| farther(d.ratio)));
    let every = if high - low > 5 { 2 } else { 1 };
    for power in (low..=high).filter(|p| p % every == 0) {
        let ratio = 2f64.powi(power);
        let text = if power < 0 { format!("1/{:.0}", 1.0 / ratio) } else { format!("{ratio:.0}×") };
        let text = match power {
            p if p == low && beyond(&|r| r < ratio) => format!("≤{text}"),
            p if p == high && beyond(&|r| r > ratio) => format!("≥{text}"),
            _ => text,
        };
        let class = if power == 0 { "rule" } else { "grid" };
        let x = place(ratio, rows);
        // What stands at an end needs the room inside it.
        let middle = x.min(338.0 - 3.8 * text.chars().count() as f64);
        let _ = write!(
            svg,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>\
             <text class=\"soft\" x=\"{middle:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{text}</text>\
             <text class=\"soft\" x=\"{middle:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{text}</text>",
            top - 6.0,
            bottom + 11.0
        );
    }
}
