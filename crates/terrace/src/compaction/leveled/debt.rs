//! How much remains to be compacted until every level is within its target.

use super::{LeveledOptions, Targets};

/// Estimated bytes that compactions will read and write, if levels hold `sizes` bytes and level 0 `l0_tables`
/// tables: the excess of each level moves to the next, and is merged there with its share of it.
pub fn debt(sizes: &[u64], l0_tables: usize, targets: &Targets, options: &LeveledOptions) -> u64 {
    let Some(&l0_bytes) = sizes.first() else { return 0 };
    let mut carried = 0;
    let mut debt = 0u64;
    if l0_tables >= options.l0_trigger || l0_bytes > options.base_bytes {
        carried = l0_bytes;
        debt = carried.saturating_add(sizes.get(targets.base).copied().unwrap_or(0));
    }
    for level in targets.base..sizes.len().saturating_sub(1) {
        let size = sizes[level] + carried;
        carried = size.saturating_sub(targets.bytes[level]);
        if carried > 0 {
            let share = 1.0 + sizes[level + 1] as f64 / size as f64;
            debt = debt.saturating_add((carried as f64 * share) as u64);
        }
    }
    debt
}
