//! The runs of one level in order; a change copies few of them.
//!
//! A row is a list of pieces of a few dozen runs each. A changed row shares every unchanged piece with the
//! previous one; it has its own list of pieces, which is shorter than the row by the length of a piece.
//!
//! 1. No piece is empty, and except during a change none is longer than `PIECE`.
//! 2. All runs are in the order of the level, and so are the pieces.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use super::run::Run;

/// Most runs in a piece. Two neighbours that have become short are joined.
const PIECE: usize = 64;

type Piece = Arc<Vec<Run>>;

/// The runs of a level. A copy shares them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pieces: Arc<Vec<Piece>>,
    len: usize,
    bytes: u64,
    /// Runs with tombstones.
    with_deletes: usize,
}

/// A run's position in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RowPosition {
    piece: usize,
    at: usize,
}

/// The order of runs on `level`: the newest first on level 0, by keys on the others. Numbers make it total,
/// since a repair may leave runs that are otherwise alike.
pub(crate) fn order(level: usize, a: &Run, b: &Run) -> Ordering {
    match level {
        0 => Reverse((a.meta().max_seq, a.number())).cmp(&Reverse((b.meta().max_seq, b.number()))),
        _ => (&a.meta().smallest, a.number()).cmp(&(&b.meta().smallest, b.number())),
    }
}

impl Row {
    /// From `runs`, which are in the order of their level.
    pub fn of(runs: Vec<Run>) -> Row {
        let mut row = Row::default();
        runs.iter().for_each(|run| row.count(run, true));
        row.pieces = Arc::new(runs.chunks(PIECE / 2).map(|piece| Arc::new(piece.to_vec())).collect());
        row
    }

    /// The number of runs.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all runs.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a run has tombstones.
    pub fn has_deletes(&self) -> bool {
        self.with_deletes > 0
    }

    pub fn iter(&self) -> impl Iterator<Item = &Run> + Clone {
        self.pieces.iter().flat_map(|piece| piece.iter())
    }

    pub fn get(&self, place: RowPosition) -> Option<&Run> {
        self.pieces.get(place.piece)?.get(place.at)
    }

    /// The place of the first run for which `before` is false, or the end if there is none; `before` must be
    /// true for all runs before that one.
    pub fn partition(&self, before: impl Fn(&Run) -> bool) -> RowPosition {
        let piece = self.pieces.partition_point(|piece| piece.last().is_some_and(&before));
        let at = self.pieces.get(piece).map_or(0, |runs| runs.partition_point(|run| before(run)));
        RowPosition { piece, at }
    }

    /// The first run's place.
    pub fn first(&self) -> RowPosition {
        RowPosition::default()
    }

    /// The place after that of a run.
    pub fn after(&self, place: RowPosition) -> RowPosition {
        let is_last = self.pieces.get(place.piece).is_none_or(|piece| place.at + 1 >= piece.len());
        if is_last {
            RowPosition { piece: place.piece + 1, at: 0 }
        } else {
            RowPosition { at: place.at + 1, ..place }
        }
    }

    /// The place before one; none before the first.
    pub fn before(&self, place: RowPosition) -> Option<RowPosition> {
        if let Some(at) = place.at.checked_sub(1) {
            return Some(RowPosition { at, ..place });
        }
        let piece = place.piece.checked_sub(1)?;
        Some(RowPosition { piece, at: self.pieces.get(piece)?.len() - 1 })
    }

    /// Removes `run`, which must be in it.
    pub fn remove(&mut self, level: usize, run: &Run) {
        let place = self.partition(|other| order(level, other, run).is_lt());
        if self.get(place).is_none_or(|found| found.number() != run.number()) {
            return;
        }
        self.count(run, false);
        let pieces = Arc::make_mut(&mut self.pieces);
        Arc::make_mut(&mut pieces[place.piece]).remove(place.at);
        if pieces[place.piece].is_empty() {
            pieces.remove(place.piece);
        } else {
            join_if_short(pieces, place.piece);
            join_if_short(pieces, place.piece.saturating_sub(1));
        }
    }

    /// Inserts `run`, which must not be in it.
    pub fn insert(&mut self, level: usize, run: Run) {
        let mut place = self.partition(|other| order(level, other, &run).is_lt());
        self.count(&run, true);
        let pieces = Arc::make_mut(&mut self.pieces);
        match pieces.len().checked_sub(1) {
            None => return pieces.push(Arc::new(vec![run])),
            // After the very last one.
            Some(last) if place.piece > last => place = RowPosition { piece: last, at: pieces[last].len() },
            Some(_) => {}
        }
        let piece = Arc::make_mut(&mut pieces[place.piece]);
        piece.insert(place.at, run);
        if piece.len() > PIECE {
            let rest = piece.split_off(PIECE / 2);
            pieces.insert(place.piece + 1, Arc::new(rest));
        }
        debug_assert!(self.is_in_order_around(level, place), "the order of the level");
    }

    /// Whether the runs of the piece at `place` and the next one are in the order of `level`.
    fn is_in_order_around(&self, level: usize, place: RowPosition) -> bool {
        let pieces = self.pieces.iter().skip(place.piece).take(2);
        let runs: Vec<&Run> = pieces.flat_map(|piece| piece.iter()).collect();
        runs.is_sorted_by(|a, b| order(level, a, b).is_lt())
    }

    fn count(&mut self, run: &Run, comes: bool) {
        let (one, bytes, deletes) = (1, run.meta().file_bytes, usize::from(run.meta().deletes > 0));
        match comes {
            true => (self.len, self.bytes) = (self.len + one, self.bytes + bytes),
            false => (self.len, self.bytes) = (self.len - one, self.bytes - bytes),
        }
        self.with_deletes = if comes { self.with_deletes + deletes } else { self.with_deletes - deletes };
    }
}

/// Joins a piece and the next one if the result is short.
fn join_if_short(pieces: &mut Vec<Piece>, at: usize) {
    if let [one, next, ..] = &pieces[at..]
        && one.len() + next.len() <= PIECE / 2
    {
        let next = pieces.remove(at + 1);
        Arc::make_mut(&mut pieces[at]).extend(next.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrace_base::rng::Rng;
    use terrace_disk::{Descriptors, LazyFile, SimFs};
    use terrace_table::{BlockCache, Table, TableMeta};

    use super::*;

    /// A run that begins with key `at`; nothing of it is ever read.
    fn run(number: u64, at: u64, deletes: u64) -> Run {
        let key = at.to_be_bytes().to_vec();
        let meta = TableMeta {
            number,
            smallest: key.clone(),
            largest: key,
            max_seq: at,
            file_bytes: 10,
            deletes,
            ..Default::default()
        };
        let file = LazyFile::new(
            Arc::new(SimFs::new()),
            &Descriptors::new(1),
            "/none".into(),
            10,
            terrace_disk::Access::Random,
        );
        Run::Table(Table::lazy(file, meta, 0, Arc::new(BlockCache::new(0))))
    }

    fn numbers<'a>(tables: impl Iterator<Item = &'a Run>) -> Vec<u64> {
        tables.map(|t| t.number()).collect()
    }

    fn assert_sound(row: &Row, level: usize, model: &BTreeMap<u64, Run>) {
        let mut expected: Vec<&Run> = model.values().collect();
        expected.sort_by(|a, b| order(level, a, b));
        assert_eq!(numbers(row.iter()), numbers(expected.iter().copied()));
        assert!(row.pieces.iter().all(|piece| (1..=PIECE).contains(&piece.len())));
        let few = row.pieces.windows(2).all(|pair| pair[0].len() + pair[1].len() > PIECE / 2);
        assert!(few, "short pieces beside one another");
        assert_eq!((row.len(), row.bytes()), (model.len(), 10 * model.len() as u64));
        assert_eq!(row.has_deletes(), model.values().any(|t| t.meta().deletes > 0));
        let mut forward = Vec::new();
        let mut place = row.first();
        while let Some(table) = row.get(place) {
            forward.push(table.number());
            place = row.after(place);
        }
        let mut backward = Vec::new();
        while let Some(before) = row.before(place) {
            place = before;
            backward.push(row.get(place).unwrap().number());
        }
        backward.reverse();
        assert!(forward == numbers(row.iter()) && backward == forward);
    }

    #[test]
    fn a_row_is_what_a_sorted_list_is_and_shares_what_has_not_changed() {
        for level in [0, 1] {
            let mut rng = Rng::new(7 + level as u64);
            let (mut row, mut model) = (Row::default(), BTreeMap::new());
            for number in 1..1500u64 {
                let grows = number < 900;
                if model.is_empty() || rng.below(10) < if grows { 8 } else { 2 } {
                    let one = run(number, rng.below(400), u64::from(rng.one_in(20)));
                    let before = row.clone();
                    row.insert(level, one.clone());
                    model.insert(number, one);
                    let same = |piece: &&Piece| before.pieces.iter().any(|other| Arc::ptr_eq(piece, other));
                    assert!(row.pieces.iter().filter(same).count() + 2 >= row.pieces.len());
                } else {
                    let at = rng.below(model.len() as u64) as usize;
                    let gone = *model.keys().nth(at).unwrap();
                    let gone = model.remove(&gone).unwrap();
                    let before = numbers(row.iter());
                    let kept = row.clone();
                    row.remove(level, &gone);
                    assert_eq!(numbers(kept.iter()), before, "what others hold stays as it is");
                }
                if number % 50 == 0 {
                    assert_sound(&row, level, &model);
                }
            }
            let mut sorted: Vec<_> = model.values().cloned().collect();
            sorted.sort_by(|a, b| order(level, a, b));
            assert_eq!(numbers(Row::of(sorted).iter()), numbers(row.iter()));
        }
    }

    #[test]
    fn a_run_is_found_by_what_comes_before_it() {
        let row = Row::of((0..300).map(|i| run(i + 1, 2 * i, 0)).collect());
        for i in 0..600u64 {
            let key = i.to_be_bytes();
            let place = row.partition(|t| *t.meta().largest < key[..]);
            assert_eq!(row.get(place).map(|t| t.number()), (i < 599).then(|| i.div_ceil(2) + 1));
        }
    }
}
