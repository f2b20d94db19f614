//! Where a table may lie that is newer than everything and was made outside: as low as possible, so that it is merged
//! as seldom as possible.

use super::view::span;
use super::{LevelsView, TableFigures};
use crate::compaction::overlap::overlaps;

/// What running compactions read, as one: its uppermost level, its first key and its last.
#[derive(Debug)]
struct Busy<'v> {
    top: usize,
    range: (&'v [u8], &'v [u8]),
}

/// Finds levels for new tables.
#[derive(Debug)]
pub struct Lowest<'v> {
    view: &'v LevelsView<'v>,
    /// The uppermost level below level 0 that is in use: what lay above it would be merged late.
    base: usize,
    /// What running compactions read.
    busy: Option<Busy<'v>>,
}

impl<'v> Lowest<'v> {
    /// Finds levels among those of `view`, in which level 0 is compacted into level `base`.
    pub fn new(view: &'v LevelsView<'v>, base: usize) -> Lowest<'v> {
        let is_busy = |level: &Vec<TableFigures<'_>>| level.iter().any(|table| table.busy);
        let busy = view.levels.iter().position(is_busy).map(|top| {
            let read: Vec<_> = view.levels.iter().flatten().filter(|table| table.busy).copied().collect();
            Busy { top, range: span(&read) }
        });
        Lowest { view, base, busy }
    }

    /// The lowest level for a new table with keys of `range`, all of its versions newer than those of other tables.
    /// Nothing on that level and above it has a key of the range, unless it is level 0; and no running compaction
    /// writes there. `holds_some` says whether a table of level 0 that spans some of the range has a key in it.
    pub fn level(&self, range: (&[u8], &[u8]), holds_some: impl Fn(u64) -> bool) -> usize {
        let free = |level: usize| match level {
            0 => {
                let mut spanning = self.view.levels[0].iter().filter(|table| overlaps(table.range(), range));
                !spanning.any(|table| holds_some(table.number))
            }
            _ => self.view.overlapping(level, range).is_empty(),
        };
        let most = self.most(range);
        let levels = 0..self.view.levels.len();
        let lowest = levels.take_while(|level| *level <= most && free(*level)).last().unwrap_or(0);
        if lowest < self.base { 0 } else { lowest }
    }

    /// The lowest level as far as running compactions are concerned. Each writes between the keys of what it reads, to
    /// the levels of that or to lower ones.
    fn most(&self, range: (&[u8], &[u8])) -> usize {
        match &self.busy {
            Some(busy) if overlaps(busy.range, range) => busy.top.saturating_sub(1),
            _ => usize::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lowest_level(view: &LevelsView<'_>, range: (&[u8], &[u8])) -> usize {
        Lowest::new(view, 1).level(range, |number| number != 6)
    }

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
        view.levels[0].push(table(6, b"a", b"z"));
        assert_eq!(lowest_level(&view, (b"l", b"l")), 3, "it spans the range and has no key in it");
        view.levels[2] = vec![table(7, b"l", b"l")];
        assert_eq!(lowest_level(&view, (b"l", b"l")), 1);
        assert_eq!(Lowest::new(&view, 2).level((b"l", b"l"), |_| false), 0, "level 1 is not in use");
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
