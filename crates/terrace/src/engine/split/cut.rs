//! Chooses which records migrate and which stay, by the weights of a sample (SplitKV, section 3.3).
//!
//! Records lighter than the average migrate. If that does not make the room wanted, because many weigh the
//! same, the oldest of the lightest migrate, too.

/// What is known of a record: its weight and its number; younger records have higher numbers.
pub(super) type Sample = (u8, u64);

/// The choice of the records that migrate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// The average weight, which is subtracted from the weights of those that stay.
    pub average: u8,
    /// Records lighter than this migrate, in sixteenths.
    below: u32,
    /// Records up to this one migrate, by weight and then by age.
    up_to: Option<Sample>,
}

const SIXTEENTHS: u64 = 16;

impl Cut {
    /// Nothing stays.
    pub const ALL: Cut = Cut { average: 0, below: 0, up_to: Some((u8::MAX, u64::MAX)) };

    /// The cut by which at least about `wanted` of all records migrate, judged by `samples` of them.
    pub fn choose(samples: &mut [Sample], wanted: f64) -> Cut {
        if samples.is_empty() {
            return Cut::ALL;
        }
        let count = samples.len() as u64;
        let sum: u64 = samples.iter().map(|(weight, _)| u64::from(*weight)).sum();
        let below = (sum * SIXTEENTHS / count) as u32;
        let average = (sum / count) as u8;
        samples.sort_unstable();
        let lighter = samples.partition_point(|sample| Self::is_lighter(sample.0, below)) as f64;
        let needed = (wanted.clamp(0.0, 1.0) * count as f64).ceil();
        let up_to = match lighter < needed {
            true => samples.get(needed as usize - 1).copied(),
            false => None,
        };
        Cut { average, below, up_to }
    }

    fn is_lighter(weight: u8, below: u32) -> bool {
        u64::from(weight) * SIXTEENTHS < u64::from(below)
    }

    /// Whether a record migrates.
    pub fn takes(&self, sample: Sample) -> bool {
        Self::is_lighter(sample.0, self.below) || self.up_to.is_some_and(|last| sample <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_example() {
        // Figure 3: six items with an average weight of three. Four are lighter.
        let mut all = [(2, 1), (5, 2), (1, 3), (7, 4), (2, 5), (1, 6)];
        let cut = Cut::choose(&mut all, 0.1);
        assert_eq!(cut.average, 3);
        assert!([(2, 1), (1, 3), (2, 5), (1, 6)].into_iter().all(|sample| cut.takes(sample)));
        assert!(!cut.takes((5, 2)) && !cut.takes((7, 4)));
    }

    #[test]
    fn of_equals_the_oldest_go() {
        let mut all: Vec<Sample> = (0..100).map(|number| (3, number)).collect();
        let cut = Cut::choose(&mut all, 0.2);
        let going = all.iter().filter(|sample| cut.takes(**sample)).count();
        assert_eq!((going, cut.takes((3, 19)), cut.takes((3, 20))), (20, true, false));
    }

    #[test]
    fn as_much_goes_as_is_wanted() {
        let mut all: Vec<Sample> = (0..100).map(|number| ((number % 2) as u8 * 10, number)).collect();
        for (wanted, goes) in [(0.0, 50), (0.3, 50), (0.75, 75), (1.0, 100)] {
            let cut = Cut::choose(&mut all, wanted);
            assert_eq!(all.iter().filter(|sample| cut.takes(**sample)).count(), goes, "{wanted}");
        }
        assert!(Cut::choose(&mut [], 0.0).takes((9, 9)));
    }
}
