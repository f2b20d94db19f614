//! Charts as SVG, drawn by plotters: all that this crate draws is drawn here.
//!
//! | module | draws |
//! |---|---|
//! | `lines` | lines over common axes |
//! | `bars` | upright bars in groups |
//! | `rows` | lying bars with their figures beside them |
//! | `dots` | dots in rows |
//!
//! A picture holds the colours of print. A page that uses others for dark mode, or dims a series, finds them by their
//! text ([`hex`]).

mod bars;
mod dots;
mod lines;
mod rows;

use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

pub use bars::Bars;
pub use dots::{Dot, DotRow, Dots};
pub use lines::{Lines, Series};
pub use rows::{Row, Rows};

use crate::store::StoreResult;

type Outcome<T = ()> = StoreResult<T>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Pixels of a panel among others.
const PANEL: (u32, u32) = (460, 320);
/// The size of text in such a panel, and of its title.
const TEXT: u32 = 12;
const TITLE: u32 = 15;

/// Pixels across a picture that stands alone. A phone shows half of that, so its text is twice the size of a panel's.
pub const WIDE: u32 = 680;
const LARGE_TEXT: u32 = 26;

/// Colours of series.
pub const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(224, 130, 10),
    RGBColor(0, 158, 115),
    RGBColor(194, 59, 120),
    RGBColor(107, 79, 187),
    RGBColor(138, 109, 29),
    RGBColor(74, 163, 199),
    RGBColor(122, 127, 133),
    RGBColor(181, 67, 42),
    RGBColor(61, 143, 47),
];

/// Lines of the mesh, and axes.
pub const MESH: RGBColor = RGBColor(217, 222, 227);
/// An axis, and whatever is less important than the rest.
pub const SOFT: RGBColor = RGBColor(102, 112, 120);

fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// A colour as it is written in a picture.
pub fn hex(colour: RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2)
}

/// An axis: its range and where it has marks.
#[derive(Debug, Clone, Default)]
pub struct Axis {
    /// Left or lower end.
    pub from: f64,
    /// Right or upper end.
    pub to: f64,
    /// Places and their text.
    pub marks: Vec<(f64, String)>,
    /// Its unit.
    pub name: String,
}

impl Axis {
    /// From zero to at least `top`, with marks at round numbers.
    pub fn linear(top: f64, name: &str) -> Axis {
        let top = top.max(1e-9);
        let rough = top / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let count = (top / step).ceil() as usize;
        let marks = (0..=count).map(|i| (i as f64 * step, short(i as f64 * step))).collect();
        Axis { from: 0.0, to: count as f64 * step, marks, name: name.into() }
    }

    /// Powers of ten around `least` to `most`; places are logarithms.
    pub fn log(least: f64, most: f64, name: &str, text: fn(f64) -> String) -> Axis {
        let from = least.max(1e-9).log10().floor();
        let to = most.max(1e-9).log10().ceil().max(from + 1.0);
        let marks = (from as i32..=to as i32).map(|p| (f64::from(p), text(10f64.powi(p)))).collect();
        Axis { from, to, marks, name: name.into() }
    }

    /// One place for each of `names`, from 0 on, a unit wide; the name stands in its middle.
    fn names(names: &[String]) -> Axis {
        let marks = names.iter().enumerate().map(|(i, name)| (i as f64 + 0.5, name.clone())).collect();
        Axis { from: 0.0, to: names.len().max(1) as f64, marks, name: String::new() }
    }

    /// The same with its ends swapped: the first entry stands on top.
    fn downward(self) -> Axis {
        Axis { from: self.to, to: self.from, ..self }
    }

    fn text(&self, place: f64) -> String {
        let mark = self.marks.iter().find(|(at, _)| (at - place).abs() < 1e-9);
        mark.map_or_else(String::new, |(_, text)| text.clone())
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, limit: (i32, i32)) -> i32 {
        let share = (place - self.from) / (self.to - self.from);
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.marks.iter().map(|(place, _)| *place).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, place: &f64) -> String {
        self.text(*place)
    }
}

/// A panel of a picture.
#[derive(Debug, Clone)]
pub enum Panel {
    /// Lines.
    Lines(Lines),
    /// Upright bars.
    Bars(Bars),
}

/// How far the vertical axis extends beyond its data, to leave room for names.
const ROOM: f64 = 1.3;

/// The points of a line, and its name.
pub type Named = (String, Vec<(f64, f64)>);

impl Panel {
    /// Lines over axes from zero, with room for their names above them.
    pub fn lines(title: String, x: &str, y: &str, series: Vec<Named>) -> Panel {
        let points = || series.iter().flat_map(|(_, points)| points);
        let across = Axis::linear(points().map(|p| p.0).fold(0.0, f64::max), x);
        let up = Axis::linear(points().map(|p| p.1).fold(0.0, f64::max) * ROOM, y);
        let named = |(colour, (name, points))| Series { name, colour, points };
        let series = series.into_iter().enumerate().map(named).collect();
        Panel::Lines(Lines { title, across, up, series })
    }

    fn is_empty(&self) -> bool {
        match self {
            Panel::Lines(l) => l.series.iter().all(|series| series.points.is_empty()),
            Panel::Bars(b) => b.series.iter().all(|(_, values)| values.iter().all(Option::is_none)),
        }
    }
}

/// A picture of the panels that have something in them, `columns` to a row; `None` if none has.
pub fn panels(columns: usize, panels: &[Panel]) -> Outcome<Option<String>> {
    let panels: Vec<&Panel> = panels.iter().filter(|p| !p.is_empty()).collect();
    if panels.is_empty() {
        return Ok(None);
    }
    let columns = columns.min(panels.len());
    let rows = panels.len().div_ceil(columns);
    picture((PANEL.0 * columns as u32, PANEL.1 * rows as u32), |root| {
        root.fill(&WHITE)?;
        for (area, panel) in root.split_evenly((rows, columns)).iter().zip(panels) {
            match panel {
                Panel::Lines(lines) => lines.draw(area, TEXT, true)?,
                Panel::Bars(bars) => bars.draw(area)?,
            }
        }
        Ok(())
    })
    .map(Some)
}

/// Draws [`panels`] into the file `name`.svg in the folder `dir`, which is made; the file, if there was something to
/// draw.
pub fn save(dir: &Path, name: &str, columns: usize, drawn: &[Panel]) -> Outcome<Option<PathBuf>> {
    let Some(svg) = panels(columns, drawn)? else { return Ok(None) };
    std::fs::create_dir_all(dir)?;
    let path = dir.join(format!("{name}.svg"));
    std::fs::write(&path, svg)?;
    Ok(Some(path))
}

/// The picture that `draw` draws, of so many pixels.
fn picture(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Outcome) -> Outcome<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(&root)?;
        root.present()?;
    }
    Ok(text)
}

/// A number short enough for an axis: `950`, `1.5k`, `148k`, `2.1M`.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e9 => format!("{}G", trimmed(value / 1e9)),
        v if v >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        v if v >= 1e4 => format!("{}k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
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
        assert_eq!((axis.text(3.0), axis.text(2.5)), ("1000".to_string(), String::new()));
    }

    #[test]
    fn nothing_to_draw_is_no_picture() {
        let empty = [Panel::Lines(Lines::default()), Panel::Bars(Bars::default())];
        assert!(panels(2, &empty).unwrap().is_none());
        let series = vec![Series { name: "a<".into(), colour: 0, points: vec![(0.0, 1.0), (1.0, 3.0)] }];
        let lines =
            Lines { series, across: Axis::linear(1.0, "x"), up: Axis::linear(3.0, "y"), title: "t".into() };
        let svg = panels(2, &[Panel::Lines(lines), empty[1].clone()]).unwrap().unwrap();
        assert!(
            svg.contains("a&lt;") && svg.contains(&hex(COLOURS[0])) && svg.trim_end().ends_with("</svg>")
        );
    }
}
