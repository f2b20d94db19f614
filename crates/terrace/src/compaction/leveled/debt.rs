//! How much is still to be compacted until every level is within its target.

use super::view::{LevelsView, bytes_of};
use super::{LeveledOptions, Targets};

/// Bytes that compactions will read and write, as an estimate: what is too much on each level goes to the next,
/// and is merged there with its share of it.
pub fn debt(view: &LevelsView<'_>, targets: &Targets, options: &LeveledOptions) -> u64 {
    let sizes = view.sizes();
    let Some(tables) = view.levels.first() else { return 0 };
    let mut carried = 0;
    let mut debt = 0u64;
    if tables.len() >= options.l0_trigger || bytes_of(tables) > options.base_bytes {
        carried = sizes[0];
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
