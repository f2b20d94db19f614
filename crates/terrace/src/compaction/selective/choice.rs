//! The choice itself. The module above describes its guarantees.

use super::SelectiveOptions;
use super::view::{TableView, View};
use crate::compaction::overlap::{overlap_ratio, overlaps};

/// Why a compaction was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Too few of the chosen table's entries must be kept.
    Garbage,
    /// Neighbouring keys are scattered over the chosen tables.
    Scattered,
}

/// Tables to merge.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Their numbers, ascending; all different.
    pub inputs: Vec<u64>,
    /// Why the first of them was chosen.
    pub reason: Reason,
    /// The sum of its overlap ratios.
    pub score: f64,
}

struct Candidate<'v> {
    table: &'v TableView<'v>,
    /// The share of entries that a compaction drops; zero for a table that is only noted.
    waste: f64,
    /// The sum of the overlap ratios with all other candidates.
    score: f64,
    /// Overlapping candidates: their overlap and their number.
    partners: Vec<(f64, u64)>,
}

/// The next compaction of `view`, if one is worthwhile.
pub fn choose(view: &View<'_>, options: &SelectiveOptions) -> Option<Choice> {
    let candidates = candidates(view, options);
    let best = candidates.iter().filter(|c| c.makes_progress(options)).max_by(|a, b| {
        let by_waste = || a.waste.total_cmp(&b.waste);
        let by_age = || b.table.number.cmp(&a.table.number);
        a.score.total_cmp(&b.score).then_with(by_waste).then_with(by_age)
    })?;
    let mut partners = best.partners.clone();
    partners.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    partners.truncate(options.max_merge_files.max(1) - 1);
    let mut inputs: Vec<u64> = partners.iter().map(|(_, number)| *number).collect();
    inputs.push(best.table.number);
    inputs.sort_unstable();
    let reason = if best.waste > 0.0 { Reason::Garbage } else { Reason::Scattered };
    Some(Choice { inputs, reason, score: best.score })
}

impl Candidate<'_> {
    fn makes_progress(&self, options: &SelectiveOptions) -> bool {
        self.waste > 0.0 || (!self.partners.is_empty() && options.max_merge_files >= 2)
    }
}

fn candidates<'v>(view: &'v View<'_>, options: &SelectiveOptions) -> Vec<Candidate<'v>> {
    let entries: u64 = view.tables.iter().map(|table| table.entries).sum();
    let garbage_counts = view.garbage_entries() as f64 >= options.garbage_share * entries as f64;
    let mut list: Vec<Candidate<'v>> = view
        .tables
        .iter()
        .filter(|table| !view.busy.contains(&table.number))
        .filter_map(|table| {
            let waste = if garbage_counts { waste(view, table, options) } else { 0.0 };
            let candidate = waste > 0.0 || view.candidates.contains(&table.number);
            candidate.then(|| Candidate { table, waste, score: 0.0, partners: Vec::new() })
        })
        .collect();
    for i in 0..list.len() {
        for j in i + 1..list.len() {
            let (s, t) = (list[i].table, list[j].table);
            if overlaps(s.range(), t.range()) {
                let ratio = overlap_ratio(s.range(), t.range());
                list[i].meet(ratio, t.number);
                list[j].meet(ratio, s.number);
            }
        }
    }
    list
}

impl Candidate<'_> {
    fn meet(&mut self, ratio: f64, number: u64) {
        self.score += ratio;
        self.partners.push((ratio, number));
    }
}

/// The share of entries that a compaction of `table` drops, if it is enough for a candidate, otherwise zero.
fn waste(view: &View<'_>, table: &TableView<'_>, options: &SelectiveOptions) -> f64 {
    let entries = table.entries as f64;
    let threshold = options.live_key_threshold.min(1.0) * entries;
    // Deciding whether tombstones are droppable takes a walk over all tables: not done for a table that is
    // live enough without them.
    if (table.live + table.pinned) as f64 >= threshold {
        return 0.0;
    }
    let kept = view.kept(table) as f64;
    if kept < threshold { (entries - kept) / entries } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(number: u64, range: (&'static str, &'static str), live: u64) -> TableView<'static> {
        TableView {
            number,
            entries: 10,
            deletes: 0,
            live,
            pinned: 0,
            smallest: range.0.as_bytes(),
            largest: range.1.as_bytes(),
            min_seq: number * 100,
            max_seq: number * 100 + 99,
        }
    }

    fn inputs(view: &View<'_>) -> Option<Vec<u64>> {
        choose(view, &SelectiveOptions::default()).map(|c| c.inputs)
    }

    #[test]
    fn nothing_to_do_is_none() {
        assert_eq!(inputs(&View::default()), None);
        let tables = vec![table(1, ("a", "z"), 10), table(2, ("a", "z"), 7)];
        assert_eq!(inputs(&View { tables, ..View::default() }), None);
    }

    #[test]
    fn too_much_garbage_is_compacted_alone_the_worst_first() {
        let tables = vec![table(1, ("a", "c"), 6), table(2, ("d", "f"), 2), table(3, ("a", "z"), 10)];
        let choice = choose(&View { tables, ..View::default() }, &SelectiveOptions::default()).unwrap();
        assert_eq!(choice, Choice { inputs: vec![2], reason: Reason::Garbage, score: 0.0 });
    }

    #[test]
    fn garbage_waits_until_there_is_enough_of_it() {
        let tables = vec![table(1, ("a", "c"), 6), table(2, ("d", "f"), 8), table(3, ("a", "z"), 10)];
        let mut view = View { tables, ..View::default() };
        let options = |garbage_share| SelectiveOptions { garbage_share, ..Default::default() };
        assert_eq!(choose(&view, &options(0.21)), None);
        assert_eq!(choose(&view, &options(0.2)).unwrap().inputs, [1]);
        view.tables[2].live = 9;
        assert_eq!(choose(&view, &options(0.21)).unwrap().inputs, [1]);
    }

    #[test]
    fn the_largest_sum_of_ratios_brings_its_partners() {
        // Ratios: 1-2 is 2/8, 2-3 is 1/6, 1-3 is 0; so 2 has the largest sum. 4 overlaps none.
        let view = View {
            tables: vec![
                table(1, ("1", "5"), 5),
                table(2, ("3", "9"), 5),
                table(3, ("8", "9"), 10),
                table(4, ("a", "b"), 0),
                table(5, ("1", "9"), 10),
            ],
            candidates: [3].into(),
            ..View::default()
        };
        let choice = choose(&view, &SelectiveOptions::default()).unwrap();
        assert_eq!(choice.inputs, [1, 2, 3]);
        assert_eq!(choice.score, 2.0 / 8.0 + 1.0 / 6.0);
        assert_eq!(choice.reason, Reason::Garbage);
    }

    #[test]
    fn a_candidate_waits_for_a_partner() {
        let tables = vec![table(1, ("a", "c"), 10), table(2, ("d", "f"), 10), table(3, ("c", "d"), 10)];
        let mut view = View { tables, candidates: [1, 2].into(), ..View::default() };
        assert_eq!(inputs(&view), None);
        view.candidates.insert(3);
        let choice = choose(&view, &SelectiveOptions::default()).unwrap();
        assert_eq!((choice.inputs.as_slice(), choice.reason), (&[1, 3][..], Reason::Scattered));
    }

    #[test]
    fn busy_tables_are_left_alone() {
        let tables = vec![table(1, ("a", "z"), 1), table(2, ("a", "z"), 1), table(3, ("a", "z"), 1)];
        let mut view = View { tables, busy: [2].into(), ..View::default() };
        assert_eq!(inputs(&view), Some(vec![1, 3]));
        view.busy = [1, 2, 3].into();
        assert_eq!(inputs(&view), None);
    }

    #[test]
    fn the_most_overlapping_fit_under_the_cap() {
        let tables = vec![
            table(1, ("a", "z"), 1),
            table(2, ("a", "c"), 1),
            table(3, ("a", "x"), 1),
            table(4, ("b", "z"), 1),
        ];
        let view = View { tables, ..View::default() };
        let options = SelectiveOptions { max_merge_files: 3, ..Default::default() };
        assert_eq!(choose(&view, &options).unwrap().inputs, [1, 3, 4]);
    }

    #[test]
    fn a_cap_of_one_leaves_garbage_alone_and_scattered_tables_be() {
        let tables = vec![table(1, ("a", "z"), 10), table(2, ("a", "z"), 10)];
        let mut view = View { tables, candidates: [1, 2].into(), ..View::default() };
        let options = SelectiveOptions { max_merge_files: 1, ..Default::default() };
        assert_eq!(choose(&view, &options), None);
        view.tables[0].live = 0;
        assert_eq!(choose(&view, &options).unwrap().inputs, [1]);
    }

    #[test]
    fn tombstones_count_as_live_until_they_are_droppable() {
        let mut deletes = table(2, ("a", "m"), 6);
        deletes.deletes = 4;
        let mut view = View { tables: vec![table(1, ("k", "z"), 10), deletes], ..View::default() };
        assert_eq!(inputs(&view), None, "table 1 is older and overlaps");
        view.tables.remove(0);
        assert_eq!(inputs(&view), Some(vec![2]));
        view.tables[0].deletes = 3;
        view.tables[0].live = 7;
        assert_eq!(inputs(&view), None, "not more than three in ten");
    }

    #[test]
    fn pinned_garbage_waits_for_its_snapshot() {
        let mut pinned = table(1, ("a", "z"), 2);
        pinned.pinned = 8;
        let mut view = View { tables: vec![pinned], ..View::default() };
        assert_eq!(inputs(&view), None);
        view.tables[0].pinned = 0;
        assert_eq!(inputs(&view), Some(vec![1]));
    }
}
