//! Dots in rows: each row a benchmark, each dot a store.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Area, Axis, LARGE_TEXT, MESH, Outcome, SOFT, WIDE, colour, picture};

/// Pixels of a row, and of the marks above and below all.
const ROW: u32 = 34;
const MARKS: u32 = 40;
/// Pixels of a character, about.
const CHARACTER: f64 = 11.8;

/// A dot.
#[derive(Debug, Clone, Default)]
pub struct Dot {
    /// Which of the colours it has.
    pub colour: usize,
    /// Its place on the axis.
    pub at: f64,
    /// Whether it stands out.
    pub is_large: bool,
}

/// Dots side by side.
#[derive(Debug, Clone, Default)]
pub struct DotRow {
    /// Their name.
    pub name: String,
    /// Whether a line goes above it.
    pub begins_group: bool,
    /// The dots, the uppermost last.
    pub dots: Vec<Dot>,
}

/// Rows over one axis.
#[derive(Debug, Clone, Default)]
pub struct Dots {
    /// The axis; places outside it are moved to its ends.
    pub across: Axis,
    /// The place of the baseline on it.
    pub rule: f64,
    /// From top to bottom.
    pub rows: Vec<DotRow>,
}

impl Dots {
    /// A picture of them, without a background and without the series' names: its page has both.
    pub fn picture(&self) -> Outcome<String> {
        picture((WIDE, self.height()), |root| self.draw(root))
    }

    /// A picture that stands alone: on a background, with the series' `names` below.
    pub fn alone(&self, names: &[String]) -> Outcome<String> {
        let lines = places_of(names).last().map_or(0, |(_, line)| line + 1);
        let height = self.height() + ROW * lines as u32 + ROW / 2;
        picture((WIDE, height), |root| {
            root.fill(&WHITE)?;
            let (above, below) = root.split_vertically(self.height());
            self.draw(&above)?;
            for (i, (name, (x, line))) in names.iter().zip(places_of(names)).enumerate() {
                let y = line as i32 * ROW as i32 + ROW as i32 / 2;
                below.draw(&Circle::new((x, y), 8, colour(i).filled()))?;
                below.draw(&Text::new(name.clone(), (x + 16, y), text(HPos::Left)))?;
            }
            Ok(())
        })
    }

    fn height(&self) -> u32 {
        ROW * self.rows.len().max(1) as u32 + 2 * MARKS
    }

    fn draw(&self, area: &Area<'_>) -> Outcome {
        let names: Vec<String> = self.rows.iter().map(|row| row.name.clone()).collect();
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let down = Axis::names(&names).downward();
        let rows = down.from;
        let mut chart = ChartBuilder::on(area)
            .margin_right(24)
            .set_label_area_size(LabelAreaPosition::Left, 20 + (CHARACTER * longest as f64) as u32)
            .set_label_area_size(LabelAreaPosition::Top, MARKS)
            .set_label_area_size(LabelAreaPosition::Bottom, MARKS)
            .build_cartesian_2d(self.across.clone(), down.clone())?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .bold_line_style(MESH)
            .light_line_style(TRANSPARENT)
            .axis_style(TRANSPARENT)
            .label_style(("sans-serif", LARGE_TEXT))
            .x_label_formatter(&|place| self.across.text(*place))
            .y_label_formatter(&|place| down.text(*place))
            .draw()?;
        let line = |ends, colour: RGBColor| PathElement::new(ends, colour.stroke_width(2));
        chart.draw_series([line(vec![(self.rule, 0.0), (self.rule, rows)], SOFT)])?;
        for (i, row) in self.rows.iter().enumerate() {
            let (top, middle) = (i as f64, i as f64 + 0.5);
            if row.begins_group {
                let ends = vec![(self.across.from, top), (self.across.to, top)];
                chart.draw_series([line(ends, MESH)])?;
            }
            let place = |dot: &Dot| (dot.at.clamp(self.across.from, self.across.to), middle);
            let dot = |dot: &Dot| {
                Circle::new(place(dot), if dot.is_large { 9 } else { 7 }, colour(dot.colour).filled())
            };
            chart.draw_series(row.dots.iter().map(dot))?;
        }
        Ok(())
    }
}

fn text(side: HPos) -> TextStyle<'static> {
    ("sans-serif", LARGE_TEXT).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center))
}

/// Where the names of series stand: pixels from the left, and the line.
fn places_of(names: &[String]) -> Vec<(i32, usize)> {
    let (mut x, mut line) = (20, 0);
    let mut places = Vec::new();
    for name in names {
        let width = 40 + (CHARACTER * name.chars().count() as f64) as i32;
        if x + width > WIDE as i32 {
            (x, line) = (20, line + 1);
        }
        places.push((x, line));
        x += width;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_do_not_fit_go_on_in_another_line() {
        let names: Vec<String> = (0..12).map(|i| format!("store number {i}")).collect();
        let places = places_of(&names);
        assert!(places.iter().all(|(x, _)| *x < WIDE as i32 - 100));
        assert!(places.last().unwrap().1 >= 2);
    }
}
