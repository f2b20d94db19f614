//! The report: an HTML file for each machine that needs nothing else, the picture of it that a README shows, and the
//! tables as Markdown.
//!
//! Pictures ([`crate::chart`]) are SVG in the page itself. On a phone one of them fills the width. The page has a
//! second set of their colours for dark mode; it finds the first set by the colours' text. A little script sorts and
//! filters the table and dims a store whose name in the legend is pressed; without it the page is whole.

mod about;
mod markdown;
mod overview;
mod sections;
mod table;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use plotters::style::{BLACK, RGBColor, WHITE};

use super::results::Results;
use super::view::{self, View};
use crate::chart::{self, COLOURS, hex};
use crate::store::StoreResult;

/// The tables'.
pub const TABLES: &str = "figures.md";

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
/// Colours, light and dark, shared by the page and pictures that stand alone.
const THEMES: &str = include_str!("colours.css");

/// Draws the report of `results` into `dir`; the files made.
pub fn write(results: &Results, dir: &Path) -> StoreResult<Vec<PathBuf>> {
    let views = view::views(results);
    let mut files: Vec<(String, String)> = Vec::new();
    for view in &views {
        files.push((view.file().to_string(), html(view, &views)?));
        files.push((view.picture(), themed(&overview::alone(&view.results)?)));
    }
    files.push((TABLES.to_string(), markdown::tables(results, &views)));
    let mut made = Vec::new();
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        made.push(path);
    }
    Ok(made)
}

/// The page of `view`, one of `views`.
fn html(view: &View, views: &[View]) -> StoreResult<String> {
    let body = sections::all(view, views)?.concat();
    let mut dimmed = String::new();
    for (i, colour) in COLOURS.iter().enumerate().take(view.results.entrants.len()) {
        let (fills, strokes) = (drawn("fill", *colour), drawn("stroke", *colour));
        let _ = write!(
            dimmed,
            ".dim-{i} {fills},.dim-{i} {strokes}{{opacity:.07}}.dim-{i} .key{i}{{opacity:.4}}"
        );
    }
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>Terrace and its peers</title>\n\
         <style>{THEMES}{}{STYLE}{dimmed}</style></head>\n<body>{body}<script>{SCRIPT}</script></body></html>\n",
        pictures()
    ))
}

/// A picture that stands alone, with colours for dark mode, too.
fn themed(svg: &str) -> String {
    match svg.split_once('>') {
        Some((head, rest)) => format!("{head}><style>{THEMES}{}</style>{rest}", pictures()),
        None => svg.to_string(),
    }
}

/// The CSS selector for shapes of the colour `colour`.
fn drawn(how: &str, colour: RGBColor) -> String {
    format!("svg [{how}=\"{}\"]", hex(colour))
}

/// The variables that stand for the colours of pictures.
fn pictures() -> String {
    let mut css = String::new();
    let mut is = |colour: RGBColor, name: &str| {
        for how in ["fill", "stroke"] {
            let _ = write!(css, "{}{{{how}:var(--{name})}}", drawn(how, colour));
        }
    };
    for (i, colour) in COLOURS.iter().enumerate() {
        is(*colour, &format!("s{i}"));
    }
    for (colour, name) in [(BLACK, "ink"), (WHITE, "card"), (chart::MESH, "line"), (chart::SOFT, "soft")] {
        is(colour, name);
    }
    css
}

/// Text with HTML's special characters escaped.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

/// A number with three significant digits, thousands apart.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => crate::report::grouped(value.round().max(0.0) as u64),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        0.0 => "0".to_string(),
        v if v < 0.001 => "&lt; 0.001".replace("&lt;", "<"),
        _ => format!("{value:.3}"),
    }
}

/// A number in three or four characters: `950`, `1.5k`, `148k`, `2.1M`.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 999.5e6 => (value / 1e9, "G"),
        v if v >= 999.5e3 => (value / 1e6, "M"),
        v if v >= 999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    match scaled.abs() {
        v if v >= 9.95 || v == 0.0 => format!("{scaled:.0}{unit}"),
        v if v >= 0.095 => format!("{scaled:.1}{unit}"),
        _ => format!("{scaled:.2}{unit}"),
    }
}

/// `1.05×`.
fn times(ratio: f64) -> String {
    if ratio >= 9.95 { format!("{ratio:.0}×") } else { format!("{ratio:.2}×") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 0.31, 7.0, 950.0, 1500.0, 148_200.0, 2.14e6].map(short),
            ["0", "0.3", "7.0", "950", "1.5k", "148k", "2.1M"]
        );
        assert_eq!(
            [0.0, 0.0123, 1.234, 12.34, 123_456.7].map(number),
            ["0", "0.012", "1.23", "12.3", "123,457"]
        );
        assert_eq!([0.987, 12.3].map(times), ["0.99×", "12×"]);
    }

    #[test]
    fn text_is_no_markup() {
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
