//! Charts as SVG, 340 units wide.

use std::fmt::Write as _;

use super::{escape, short, times};
use crate::compare::summary::Stat;

/// Units across.
const WIDTH: f64 = 340.0;

/// A bar: a store's place among all, its name, and its figure.
pub struct Bar<'a> {
    /// Index of the series, for the colour.
    pub series: usize,
    /// The store.
    pub name: &'a str,
    /// The figure; `None` where there is none.
    pub stat: Option<Stat>,
    /// As a multiple of the baseline's.
    pub ratio: Option<f64>,
}

/// Horizontal bars, one to a store, with the figure and the ratio beside.
pub fn bars(bars: &[Bar<'_>]) -> String {
    const ROW: f64 = 19.0;
    const LEFT: f64 = 76.0;
    const RIGHT: f64 = 248.0;
    let top = bars.iter().filter_map(|b| b.stat).map(|s| s.max).fold(1e-12, f64::max);
    let x = |value: f64| LEFT + (RIGHT - LEFT) * (value / top).clamp(0.0, 1.0);
    let height = ROW * bars.len() as f64 + 2.0;
    let mut svg = open(height);
    for (i, bar) in bars.iter().enumerate() {
        let (y, middle) = (i as f64 * ROW + 2.0, i as f64 * ROW + 13.5);
        let _ = write!(
            svg,
            "<g class=\"s{}\"><text x=\"{:.0}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
            bar.series,
            LEFT - 5.0,
            escape(bar.name)
        );
        match bar.stat {
            Some(stat) => {
                let width = (x(stat.median) - LEFT).max(1.0);
                let _ = write!(
                    svg,
                    "<rect class=\"f\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"14\" rx=\"2\"/>"
                );
                if stat.count > 1 {
                    let _ = write!(
                        svg,
                        "<line class=\"spread\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{2:.1}\" y2=\"{2:.1}\"/>",
                        x(stat.min),
                        x(stat.max),
                        y + 7.0
                    );
                }
                let _ = write!(
                    svg,
                    "<text x=\"292\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
                    short(stat.median)
                );
                if let Some(ratio) = bar.ratio {
                    let _ = write!(
                        svg,
                        "<text class=\"soft\" x=\"339\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
                        times(ratio)
                    );
                }
            }
            None => {
                let _ = write!(svg, "<text class=\"soft\" x=\"{LEFT}\" y=\"{middle:.1}\">no figure</text>");
            }
        }
        svg.push_str("</g>");
    }
    svg + "</svg>"
}

/// A line: a store's place among all and its points.
pub struct Line {
    /// Index of the series, for the colour.
    pub series: usize,
    /// What is shown when one points at it.
    pub name: String,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// An axis: its range and where it has marks.
pub struct Axis {
    /// Left or lower end.
    pub from: f64,
    /// Right or upper end.
    pub to: f64,
    /// Places and their text.
    pub marks: Vec<(f64, String)>,
    /// What it counts.
    pub unit: &'static str,
}

impl Axis {
    /// From zero to at least `top`, with marks at round numbers.
    pub fn linear(top: f64, unit: &'static str) -> Axis {
        let top = top.max(1e-9);
        let rough = top / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let count = (top / step).ceil() as usize;
        let marks = (0..=count).map(|i| (i as f64 * step, short(i as f64 * step))).collect();
        Axis { from: 0.0, to: count as f64 * step, marks, unit }
    }

    /// Powers of ten around `least` to `most`; places are logarithms.
    pub fn log(least: f64, most: f64, unit: &'static str, text: fn(f64) -> String) -> Axis {
        let from = least.max(1e-9).log10().floor();
        let to = most.max(1e-9).log10().ceil().max(from + 1.0);
        let marks = (from as i32..=to as i32).map(|p| (f64::from(p), text(10f64.powi(p)))).collect();
        Axis { from, to, marks, unit }
    }
}

/// Lines over common axes.
pub fn lines(lines: &[Line], across: &Axis, up: &Axis) -> String {
    const HEIGHT: f64 = 214.0;
    const LEFT: f64 = 40.0;
    const RIGHT: f64 = 332.0;
    const TOP: f64 = 16.0;
    const BOTTOM: f64 = 184.0;
    let x = |v: f64| LEFT + (RIGHT - LEFT) * ((v - across.from) / (across.to - across.from)).clamp(0.0, 1.0);
    let y = |v: f64| BOTTOM - (BOTTOM - TOP) * ((v - up.from) / (up.to - up.from)).clamp(0.0, 1.0);
    let mut svg = open(HEIGHT);
    for (place, text) in &up.marks {
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>\
             <text class=\"soft\" x=\"{1:.0}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
            y(*place),
            LEFT - 5.0,
            y(*place) + 4.0,
            escape(text)
        );
    }
    for (place, text) in &across.marks {
        let _ = write!(
            svg,
            "<text class=\"soft\" x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            x(*place),
            BOTTOM + 14.0,
            escape(text)
        );
    }
    let _ = write!(
        svg,
        "<text class=\"soft\" x=\"2\" y=\"9\">{}</text>\
         <text class=\"soft\" x=\"{RIGHT}\" y=\"{HEIGHT}\" text-anchor=\"end\" dy=\"-3\">{}</text>",
        escape(up.unit),
        escape(across.unit)
    );
    for line in lines {
        let points: Vec<String> =
            line.points.iter().map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b))).collect();
        let _ = write!(
            svg,
            "<g class=\"s{}\"><polyline class=\"l\" points=\"{}\"><title>{}</title></polyline></g>",
            line.series,
            points.join(" "),
            escape(&line.name)
        );
    }
    svg + "</svg>"
}

/// The beginning of a picture `height` units high.
pub fn open(height: f64) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\">")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_cover_the_figures() {
        let axis = Axis::linear(147.0, "k");
        assert_eq!(axis.marks.iter().map(|m| m.0).collect::<Vec<_>>(), [0.0, 50.0, 100.0, 150.0]);
        let axis = Axis::log(3.0, 2000.0, "µs", short);
        assert_eq!((axis.from, axis.to, axis.marks.len()), (0.0, 4.0, 5));
    }

    #[test]
    fn a_store_without_a_figure_keeps_its_row() {
        let stat = Stat::of([2.0, 4.0]);
        let none = Bar { series: 1, name: "b<", stat: None, ratio: None };
        let svg = bars(&[Bar { series: 0, name: "a", stat, ratio: Some(1.0) }, none]);
        assert!(svg.contains("no figure") && svg.contains("b&lt;") && svg.contains("1.00×"));
        assert!(svg.ends_with("</svg>"));
    }
}
