//! Lying bars, one to a store, with their figures beside them.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Axis, LARGE_TEXT, Outcome, SOFT, WIDE, colour, picture};

/// Pixels of a row.
const ROW: u32 = 38;
/// Pixels for names on the left, which leaves room for figures on the right.
const NAMES: u32 = 150;
/// How long the longest bar is, of the room beside the names; where figures and notes end.
const LONGEST: f64 = 0.62;
const FIGURES_END: f64 = 0.82;

/// A bar.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Which of the colours it has.
    pub colour: usize,
    /// Its length; `None` where there is no figure.
    pub value: Option<f64>,
    /// The least and the greatest of the values that it stands for.
    pub spread: Option<(f64, f64)>,
    /// Its figure, and a note to that.
    pub texts: [String; 2],
}

/// Bars below each other.
#[derive(Debug, Clone, Default)]
pub struct Rows(pub Vec<Row>);

impl Rows {
    /// A picture of them, without a background.
    pub fn picture(&self) -> Outcome<String> {
        let names: Vec<String> = self.0.iter().map(|row| row.name.clone()).collect();
        let down = Axis::names(&names).downward();
        let top = self.0.iter().filter_map(Row::end).fold(1e-12, f64::max);
        picture((WIDE, ROW * self.0.len().max(1) as u32), |root| {
            let mut chart =
                ChartBuilder::on(root).y_label_area_size(NAMES).build_cartesian_2d(0.0..1.0, down.clone())?;
            chart
                .configure_mesh()
                .disable_mesh()
                .disable_x_axis()
                .axis_style(TRANSPARENT)
                .label_style(("sans-serif", LARGE_TEXT))
                .y_label_formatter(&|place| down.text(*place))
                .draw()?;
            let text = |text: &str, place: (f64, f64), side, colour: RGBColor| {
                let style = ("sans-serif", LARGE_TEXT).into_font().color(&colour);
                Text::new(text.to_string(), place, style.pos(Pos::new(side, VPos::Center)))
            };
            for (i, row) in self.0.iter().enumerate() {
                let (y, middle) = (i as f64, i as f64 + 0.5);
                let Some(value) = row.value else {
                    chart.draw_series([text("no figure", (0.0, middle), HPos::Left, SOFT)])?;
                    continue;
                };
                let x = |value: f64| LONGEST * (value / top).clamp(0.003, 1.0);
                let bar =
                    Rectangle::new([(0.0, y + 0.12), (x(value), y + 0.88)], colour(row.colour).filled());
                chart.draw_series([bar])?;
                let spread = row.spread.map(|(least, most)| [(x(least), middle), (x(most), middle)]);
                chart.draw_series(spread.map(|ends| PathElement::new(ends, BLACK.stroke_width(2))))?;
                chart.draw_series([
                    text(&row.texts[0], (FIGURES_END, middle), HPos::Right, BLACK),
                    text(&row.texts[1], (1.0, middle), HPos::Right, SOFT),
                ])?;
            }
            Ok(())
        })
    }
}

impl Row {
    /// Where it ends, with its spread.
    fn end(&self) -> Option<f64> {
        self.spread.map(|(_, most)| most).or(self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_a_figure_is_there() {
        let texts = ["2.0k".to_string(), "1.00×".to_string()];
        let one =
            Row { name: "a".into(), value: Some(2.0), spread: Some((1.0, 4.0)), texts, ..Row::default() };
        let none = Row { name: "b<".into(), colour: 1, ..Row::default() };
        let svg = Rows(vec![one, none]).picture().unwrap();
        assert!(svg.contains("no figure") && svg.contains("b&lt;") && svg.contains("1.00×"));
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}
