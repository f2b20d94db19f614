//! Lines over common axes.

use plotters::prelude::*;

use super::{Area, Axis, LARGE_TEXT, MESH, Outcome, SOFT, TITLE, WIDE, colour, picture};

/// Pixels of a picture of lines alone.
const HEIGHT: u32 = 428;

/// A line.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Which of the colours it has.
    pub colour: usize,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// Lines over common axes.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    /// Above them; none if it is empty.
    pub title: String,
    /// The axis from left to right.
    pub across: Axis,
    /// The axis from bottom to top.
    pub up: Axis,
    /// The lines.
    pub series: Vec<Series>,
}

impl Lines {
    /// A picture of them alone, without a background and without their names: its page has both.
    pub fn picture(&self) -> Outcome<String> {
        picture((WIDE, HEIGHT), |root| self.draw(root, LARGE_TEXT, false))
    }

    pub(super) fn draw(&self, area: &Area<'_>, text: u32, has_names: bool) -> Outcome {
        let mut builder = ChartBuilder::on(area);
        if !self.title.is_empty() {
            builder.caption(&self.title, ("sans-serif", TITLE));
        }
        let room = |axis: &Axis, marks: u32| if axis.name.is_empty() { marks } else { marks + text * 4 / 3 };
        let mut chart = builder
            .margin(8)
            .margin_top(8 + text / 2)
            .margin_right(text * 2)
            .x_label_area_size(room(&self.across, text * 3 / 2))
            .y_label_area_size(room(&self.up, text * 3))
            .build_cartesian_2d(self.across.clone(), self.up.clone())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(MESH)
            .light_line_style(TRANSPARENT)
            .axis_style(SOFT)
            .label_style(("sans-serif", text))
            .axis_desc_style(("sans-serif", text))
            .x_desc(&self.across.name)
            .y_desc(&self.up.name)
            .x_label_formatter(&|place| self.across.text(*place))
            .y_label_formatter(&|place| self.up.text(*place))
            .draw()?;
        for series in &self.series {
            let style = colour(series.colour).stroke_width(if has_names { 2 } else { 3 });
            let line = LineSeries::new(series.points.iter().copied(), style);
            let line = if has_names { line.point_size(3) } else { line };
            chart
                .draw_series(line)?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
        }
        if has_names {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.85))
                .border_style(TRANSPARENT)
                .draw()?;
        }
        Ok(())
    }
}
