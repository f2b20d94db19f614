//! The overview: every step's throughput as a multiple of the baseline's, one dot for each store.

use crate::chart::{Axis, Dot, DotRow, Dots};
use crate::compare::contender::Contender;
use crate::compare::entrant::Entrant;
use crate::compare::results::Results;
use crate::store::StoreResult;

/// The picture, without a background and the stores' names: its page has both.
pub fn picture(results: &Results) -> StoreResult<String> {
    dots(results).picture()
}

/// The picture as a file of its own, with the names of the stores.
pub fn alone(results: &Results) -> StoreResult<String> {
    dots(results).alone(&results.entrants)
}

fn dots(results: &Results) -> Dots {
    let rows = rows(results);
    let across = axis(rows.iter().flat_map(|row| row.dots.iter().map(|dot| dot.at)));
    Dots { across, rule: 0.0, rows }
}

/// A row for each step that more than one store did; places are logarithms of ratios to the base of 2.
fn rows(results: &Results) -> Vec<DotRow> {
    let mut rows = Vec::new();
    let base = results.baseline();
    for script in results.scripts.iter().filter(|s| !s.kill) {
        let mut begins_group = !rows.is_empty();
        for step in results.step_names(&script.name) {
            let dot = |(colour, name): (usize, &String)| {
                let ratio = results.ratio(&script.name, name, &step, base)?;
                let is_large = Contender::entrant_of(name).is_ok_and(Entrant::is_ours);
                (ratio > 0.0).then(|| Dot { colour, at: ratio.log2(), is_large })
            };
            // Terrace's own dots are larger, and lie above the others.
            let mut dots: Vec<Dot> = results.entrants.iter().enumerate().filter_map(dot).collect();
            dots.sort_by_key(|dot| dot.is_large);
            if dots.len() > 1 {
                let name = format!("{} {step}", script.name);
                rows.push(DotRow { name, begins_group: std::mem::take(&mut begins_group), dots });
            }
        }
    }
    rows
}

/// The axis covers at most so many powers of two to either side. A dot farther out stands at the end of the axis, whose
/// mark says so.
const FARTHEST: i32 = 4;

/// An axis for `places`, from one half to the double at least.
fn axis(places: impl Iterator<Item = f64> + Clone) -> Axis {
    let (least, most) = (places.clone().fold(-1.0, f64::min), places.fold(1.0, f64::max));
    let (low, high) = ((least.floor() as i32).max(-FARTHEST), (most.ceil() as i32).min(FARTHEST));
    let every = if high - low > 5 { 2 } else { 1 };
    let mark = |power: i32| {
        let ratio = 2f64.powi(power);
        let text = if power < 0 { format!("1/{:.0}", 1.0 / ratio) } else { format!("{ratio:.0}×") };
        let is_beyond = (power == low && least < f64::from(low), power == high && most > f64::from(high));
        let text = match is_beyond {
            (true, _) => format!("≤{text}"),
            (_, true) => format!("≥{text}"),
            _ => text,
        };
        (f64::from(power), text)
    };
    let marks = (low..=high).filter(|power| power % every == 0).map(mark).collect();
    Axis { from: f64::from(low) - 0.1, to: f64::from(high) + 0.1, marks, name: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beyond_an_axis_is_said_at_its_end() {
        let texts = |places: [f64; 2]| {
            let axis = axis(places.into_iter());
            axis.marks.into_iter().map(|(_, text)| text).collect::<Vec<_>>()
        };
        assert_eq!(texts([-0.5, 0.5]), ["1/2", "1×", "2×"]);
        assert_eq!(texts([-6.0, 1.0]), ["≤1/16", "1/8", "1/4", "1/2", "1×", "2×"]);
        assert_eq!(texts([-3.5, 9.0]), ["1/16", "1/4", "1×", "4×", "≥16×"]);
    }
}
