//! Two kinds of chart, lines and groups of bars, several of them to an SVG file.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

type Outcome = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Pixels of one panel.
const PANEL: (u32, u32) = (460, 320);

/// Bars are not drawn below this share of the smallest power of ten when the axis is logarithmic.
const LOG_FLOOR: f64 = 0.8;

/// Colours that differ in print and for the colour-blind (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
];

/// Lines over a common axis.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    pub title: String,
    pub x: String,
    pub y: String,
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// Bars in groups, one bar of each series a group.
#[derive(Debug, Clone, Default)]
pub struct Bars {
    pub title: String,
    pub y: String,
    pub groups: Vec<String>,
    /// A value for each group, where there is one.
    pub series: Vec<(String, Vec<Option<f64>>)>,
    /// Whether the axis is logarithmic.
    pub log: bool,
}

/// A panel of a file.
#[derive(Debug, Clone)]
pub enum Panel {
    Lines(Lines),
    Bars(Bars),
}

impl Panel {
    fn is_empty(&self) -> bool {
        match self {
            Panel::Lines(l) => l.series.iter().all(|(_, points)| points.is_empty()),
            Panel::Bars(b) => b.series.iter().all(|(_, values)| values.iter().all(Option::is_none)),
        }
    }
}

/// Draws the panels that have something in them, `columns` to a row. False if none has.
pub fn draw(path: &Path, columns: usize, panels: &[Panel]) -> Result<bool, Box<dyn Error>> {
    let panels: Vec<&Panel> = panels.iter().filter(|p| !p.is_empty()).collect();
    if panels.is_empty() {
        return Ok(false);
    }
    let columns = columns.min(panels.len());
    let rows = panels.len().div_ceil(columns);
    let root = SVGBackend::new(path, (PANEL.0 * columns as u32, PANEL.1 * rows as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, panel) in root.split_evenly((rows, columns)).iter().zip(panels) {
        match panel {
            Panel::Lines(lines) => lines.draw(area)?,
            Panel::Bars(bars) => bars.draw(area)?,
        }
    }
    root.present()?;
    Ok(true)
}

fn colour(i: usize) -> RGBColor {
    COLOURS[i % COLOURS.len()]
}

/// A number short enough for an axis.
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

impl Lines {
    fn draw(&self, area: &Area<'_>) -> Outcome {
        let points = || self.series.iter().flat_map(|(_, points)| points);
        let right = points().map(|p| p.0).fold(0.0, f64::max);
        let top = points().map(|p| p.1).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(54)
            .build_cartesian_2d(0.0..right.max(1e-9) * 1.03, 0.0..top.max(1e-9) * 1.4)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&|v| short(*v))
            .y_label_formatter(&|v| short(*v))
            .draw()?;
        for (i, (name, points)) in self.series.iter().enumerate() {
            let line = LineSeries::new(points.iter().copied(), colour(i).stroke_width(2)).point_size(3);
            chart
                .draw_series(line)?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour(i).stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(TRANSPARENT)
            .draw()?;
        Ok(())
    }
}

impl Bars {
    fn draw(&self, area: &Area<'_>) -> Outcome {
        let values = || self.series.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let top = values().fold(0.0, f64::max).max(1e-9);
        let right = self.groups.len() as f64;
        let mut builder = ChartBuilder::on(area);
        builder.caption(&self.title, ("sans-serif", 15)).margin(8);
        builder.x_label_area_size(34).y_label_area_size(54);
        if self.log {
            let least = values().filter(|v| *v > 0.0).fold(top, f64::min);
            let floor = 10f64.powf(least.log10().floor()) * LOG_FLOOR;
            let chart = builder.build_cartesian_2d(0.0..right, (floor..top * 10.0).log_scale())?;
            self.fill(chart, floor)
        } else {
            let chart = builder.build_cartesian_2d(0.0..right, 0.0..top * 1.3)?;
            self.fill(chart, 0.0)
        }
    }

    fn fill<'c, 'a: 'c, Y>(
        &self,
        mut chart: ChartContext<'c, SVGBackend<'a>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>,
        floor: f64,
    ) -> Outcome
    where
        Y: plotters::coord::ranged1d::Ranged<ValueType = f64>
            + plotters::coord::ranged1d::ValueFormatter<f64>,
    {
        let name = |x: &f64| {
            let at = x.floor();
            // A label stands in the middle of its group.
            let group = ((x - at - 0.5).abs() < 1e-6).then(|| self.groups.get(at as usize)).flatten();
            group.cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(self.groups.len() * 2 + 1)
            .x_label_formatter(&name)
            .y_label_formatter(&|v| short(*v))
            .y_desc(&self.y)
            .draw()?;
        let width = 0.8 / self.series.len().max(1) as f64;
        for (i, (name, values)) in self.series.iter().enumerate() {
            let bars = values.iter().enumerate().filter_map(|(group, value)| {
                let left = group as f64 + 0.1 + i as f64 * width;
                let value = (*value)?.max(floor);
                Some(Rectangle::new([(left, floor), (left + width * 0.94, value)], colour(i).filled()))
            });
            chart
                .draw_series(bars)?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 10, y + 4)], colour(i).filled()));
        }
        if self.series.len() > 1 {
            chart
                .configure_series_labels()
                // What is drawn over a logarithmic axis falls off to the right.
                .position(if self.log {
                    SeriesLabelPosition::UpperRight
                } else {
                    SeriesLabelPosition::UpperLeft
                })
                .background_style(WHITE.mix(0.85))
                .border_style(TRANSPARENT)
                .draw()?;
        }
        Ok(())
    }
}
