//! Upright bars in groups, one bar of each series a group.

use plotters::prelude::*;

use super::{Area, Axis, MESH, Outcome, SOFT, TEXT, TITLE, colour, short};

/// How far below the smallest power of ten bars begin where the axis is logarithmic, in powers of ten.
const LOG_FLOOR: f64 = 0.1;

/// Bars in groups.
#[derive(Debug, Clone, Default)]
pub struct Bars {
    /// Above them.
    pub title: String,
    /// The unit of the vertical axis.
    pub y: String,
    /// The groups' names.
    pub groups: Vec<String>,
    /// Names, and a value for each group, where there is one.
    pub series: Vec<(String, Vec<Option<f64>>)>,
    /// Whether the axis is logarithmic.
    pub log: bool,
}

impl Bars {
    pub(super) fn draw(&self, area: &Area<'_>) -> Outcome {
        let (across, up) = (Axis::names(&self.groups), self.up());
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", TITLE))
            .margin(8)
            .x_label_area_size(TEXT * 3)
            .y_label_area_size(TEXT * 9 / 2)
            .build_cartesian_2d(across.clone(), up.clone())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(MESH)
            .light_line_style(TRANSPARENT)
            .axis_style(SOFT)
            .x_label_formatter(&|place| across.text(*place))
            .y_label_formatter(&|place| up.text(*place))
            .y_desc(&self.y)
            .draw()?;
        let width = 0.8 / self.series.len().max(1) as f64;
        for (i, (name, values)) in self.series.iter().enumerate() {
            let bars = values.iter().enumerate().filter_map(|(group, value)| {
                let left = group as f64 + 0.1 + i as f64 * width;
                let top = if self.log { (*value)?.log10() } else { (*value)? }.max(up.from);
                Some(Rectangle::new([(left, up.from), (left + width * 0.94, top)], colour(i).filled()))
            });
            chart
                .draw_series(bars)?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 10, y + 4)], colour(i).filled()));
        }
        if self.series.len() > 1 {
            // Groups over a logarithmic axis fall off to the right.
            let (left, right) = (SeriesLabelPosition::UpperLeft, SeriesLabelPosition::UpperRight);
            chart
                .configure_series_labels()
                .position(if self.log { right } else { left })
                .background_style(WHITE.mix(0.85))
                .border_style(TRANSPARENT)
                .draw()?;
        }
        Ok(())
    }

    /// The axis upward, with room for the names above the bars.
    fn up(&self) -> Axis {
        let values = || self.series.iter().flat_map(|(_, values)| values.iter().flatten().copied());
        let top = values().fold(0.0, f64::max).max(1e-9);
        if self.log {
            let least = values().filter(|v| *v > 0.0).fold(top, f64::min);
            let axis = Axis::log(least, top * 10.0, &self.y, short);
            Axis { from: axis.from - LOG_FLOOR, ..axis }
        } else {
            Axis::linear(top * 1.3, &self.y)
        }
    }
}
