//! Where a table may lie that is newer than everything and was made outside: as low as possible, so that it is merged
//! as seldom as possible.

use super::LevelsView;
use super::view::span;
use crate::compaction::overlap::overlaps;

/// The lowest level for a new table with keys of `range`, all of its versions newer than those of other tables. Nothing
/// on that level and above it overlaps the range, unless it is level 0; and no running compaction writes there.
pub fn lowest_level(view: &LevelsView<'_>, range: (&[u8], &[u8])) -> usize {
    let free = |level: usize| match level {
        0 => !view.levels[0].iter().any(|table| overlaps(table.range(), range)),
        _ => view.overlapping(level, range).is_empty(),
    };
    let lowest = most(view, range);
    (0..view.levels.len()).take_while(|level| *level <= lowest && free(*level)).last().unwrap_or(0)
}

/// The lowest level as far as running compactions are concerned. Each writes between the keys of what it reads, to the
/// levels of that or to lower ones.
fn most(view: &LevelsView<'_>, range: (&[u8], &[u8])) -> usize {
    let busy = |level: &[_]| level.iter().any(|table: &super::TableFigures<'_>| table.busy);
    let Some(top) = view.levels.iter().position(|level| busy(level)) else { return usize::MAX };
    let read: Vec<_> = view.levels.iter().flatten().filter(|table| table.busy).copied().collect();
    if overlaps(span(&read), range) { top.saturating_sub(1) } else { usize::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::leveled::TableFigures;

    fn table<'a>(number: u64, smallest: &'a [u8], largest: &'a [u8]) -> TableFigures<'a> {
        TableFigures {
            number,
            bytes: 10,
            entries: 1,
            deletes: 0,
            smallest,
            largest,
            min_seq: 1,
            max_seq: 1,
            busy: false,
            keeps_old: false,
            stale: 0,
        }
    }

    #[test]
    fn it_lies_as_low_as_nothing_is_in_the_way() {
        let mut view = LevelsView { levels: vec![Vec::new(); 4] };
        assert_eq!(lowest_level(&view, (b"a", b"z")), 3);
        view.levels[3] = vec![table(1, b"a", b"c"), table(2, b"m", b"p")];
        assert_eq!(lowest_level(&view, (b"d", b"l")), 3, "between two");
        assert_eq!(lowest_level(&view, (b"c", b"l")), 2);
        view.levels[1] = vec![table(3, b"x", b"z")];
        assert_eq!(lowest_level(&view, (b"p", b"x")), 0);
        view.levels[0] = vec![table(4, b"d", b"f"), table(5, b"e", b"k")];
        assert_eq!(lowest_level(&view, (b"f", b"f")), 0);
        assert_eq!(lowest_level(&view, (b"l", b"l")), 3);
    }

    #[test]
    fn it_lies_above_what_a_compaction_writes() {
        let mut view = LevelsView { levels: vec![Vec::new(); 4] };
        let busy = |table: TableFigures<'static>| TableFigures { busy: true, ..table };
        view.levels[2] = vec![busy(table(1, b"a", b"c"))];
        view.levels[3] = vec![busy(table(2, b"a", b"b")), busy(table(3, b"e", b"g"))];
        assert_eq!(
            lowest_level(&view, (b"d", b"d")),
            1,
            "between what is read on the level that is written to"
        );
        assert_eq!(lowest_level(&view, (b"h", b"i")), 3);
        view.levels[0] = vec![busy(table(4, b"a", b"z"))];
        assert_eq!(lowest_level(&view, (b"h", b"i")), 0);
    }
}
