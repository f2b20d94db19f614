//! The capacity of each level, derived from the last level's size.

use super::LeveledOptions;

/// The levels' targets at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Targets {
    /// The level into which level 0 is compacted. Those between are empty.
    pub base: usize,
    /// Bytes that each level may hold; `u64::MAX` for level 0 and those above `base`.
    pub bytes: Vec<u64>,
}

impl Targets {
    /// The targets of levels that hold `sizes` bytes.
    ///
    /// The largest level stands for the last one; from there up each level may hold a tenth of the one below,
    /// until a level would hold no more than `base_bytes`: that is the base. A smaller database has one level
    /// below level 0, the last.
    pub fn new(sizes: &[u64], options: &LeveledOptions) -> Targets {
        // The options may allow fewer levels than hold data: the lowest with data has a target, too.
        let last = options.levels.max(sizes.len()).max(2) - 1;
        let first_held = (1..=last).find(|&level| sizes.get(level).is_some_and(|&size| size > 0));
        let Some(first_held) = first_held else {
            return Self::from_base(last, last, options.base_bytes as f64, options);
        };
        let largest = sizes[1..].iter().copied().max().unwrap_or(0);
        let (most, least) = (options.base_bytes as f64, options.base_bytes as f64 / options.multiplier);
        let steps = last.saturating_sub(first_held) as i32;
        let mut size = largest as f64 / options.multiplier.powi(steps);
        let mut base = first_held;
        while base > 1 && size > most {
            base -= 1;
            size /= options.multiplier;
        }
        Self::from_base(base, last, size.clamp(least + 1.0, most), options)
    }

    fn from_base(base: usize, last: usize, base_bytes: f64, options: &LeveledOptions) -> Targets {
        let mut size = base_bytes;
        let mut bytes = vec![u64::MAX; last + 1];
        for (level, target) in bytes.iter_mut().enumerate().skip(base) {
            if level > base {
                size *= options.multiplier;
            }
            // A level smaller than the base's limit would be merged into the next again and again.
            *target = size.max(options.base_bytes as f64).round() as u64;
        }
        Targets { base, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_follow_from_the_last_level() {
        let options = LeveledOptions { levels: 7, base_bytes: 256, ..LeveledOptions::default() };
        let small = Targets::new(&[900, 0, 0, 0, 0, 0, 100], &options);
        assert_eq!((small.base, small.bytes[6]), (6, 256), "all of it fits into the last level");
        let targets = Targets::new(&[900, 0, 0, 0, 0, 0, 27_600], &options);
        assert_eq!(targets.base, 3);
        assert_eq!(targets.bytes[3..], [256, 276, 2760, 27_600]);
        assert!(targets.bytes[..3].iter().all(|b| *b == u64::MAX));
        let empty = Targets::new(&[0; 7], &options);
        assert_eq!((empty.base, empty.bytes[6]), (6, 256));
        let full = Targets::new(&[0, 300, 3000, 30_000, 300_000, 3_000_000, 300_000_000], &options);
        assert_eq!((full.base, full.bytes[1], full.bytes[2]), (1, 256, 2560));
    }
}
