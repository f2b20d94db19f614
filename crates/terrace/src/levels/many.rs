//! Lookups of many keys together in runs.
//!
//! A lookup goes from run to run, the newest first, until no run can hold a newer version. Here all lookups go side by
//! side: in each round every one of them asks one run, and what these have to read is requested together. Most
//! versions are found in the first round, as filters tell which runs need not be asked.

use terrace_base::Result;
use terrace_table::{Entry, Sought, find_many};

use super::lists::ListRun;
use super::run::Run;

/// A lookup under way.
#[derive(Debug)]
pub(crate) struct Search<'a, P> {
    pub key: &'a [u8],
    /// Where the next run is looked for.
    pub at: P,
    /// The newest version that was found so far.
    pub newest: Option<Entry>,
}

impl<'a, P> Search<'a, P> {
    /// A lookup of `key` from `at` on.
    pub fn new(key: &'a [u8], at: P) -> Search<'a, P> {
        Search { key, at, newest: None }
    }

    /// Whether `run`, and every run whose versions are older than its newest, has nothing newer than what was found.
    pub fn is_over_at(&self, run: &Run) -> bool {
        // After a repair an operand and what a merge has made of it may both be there, with one number.
        let enough = |found: &Entry| found.seq.saturating_add(u64::from(found.kind.is_whole()));
        self.newest.as_ref().is_some_and(|found| enough(found) > run.meta().max_seq)
    }

    /// Asks one run after the other, as [`find_all`] does.
    pub fn find<'r>(mut self, at: u64, next: impl Fn(&mut Self) -> Option<&'r Run>) -> Result<Option<Entry>> {
        while let Some(run) = next(&mut self) {
            if run.may_contain(self.key)? {
                self.note(run.search(self.key, at)?);
            }
        }
        Ok(self.newest)
    }

    /// Notes what a run has.
    pub fn note(&mut self, found: Option<Entry>) {
        let rank = |entry: &Entry| (entry.seq, entry.kind.is_whole());
        if let Some(found) = found
            && self.newest.as_ref().is_none_or(|other| rank(&found) > rank(other))
        {
            self.newest = Some(found);
        }
    }
}

/// Finds the newest version up to sequence number `at` of each key of `searches`. `next` gives the next run that may
/// have a newer version than the one found, if its filter is not asked; `None` if there is none.
pub(crate) fn find_all<'r, P>(
    searches: &mut [Search<'_, P>],
    at: u64,
    next: impl Fn(&mut Search<'_, P>) -> Option<&'r Run>,
) -> Result<()> {
    let mut active: Vec<usize> = (0..searches.len()).collect();
    while !active.is_empty() {
        let asked = pass_filters(searches, active, &next)?;
        let (mut in_tables, mut in_lists) = (Vec::with_capacity(asked.len()), Vec::new());
        for (i, run) in &asked {
            let key = searches[*i].key;
            match run {
                Run::Table(table) => in_tables.push(Sought { table, key, position: None }),
                Run::List(list) => in_lists.push((&**list, key)),
            }
        }
        let mut in_tables = find_many(&in_tables, at)?.into_iter();
        let mut in_lists = ListRun::search_each(&in_lists, at)?.into_iter();
        for (i, run) in &asked {
            let found = if run.is_list() { in_lists.next() } else { in_tables.next() };
            searches[*i].note(found.flatten());
        }
        active = asked.into_iter().map(|(i, _)| i).collect();
    }
    Ok(())
}

/// For each of the searches in `active` the next run whose filter lets it pass, if there is one. What is read of the
/// filters is loaded side by side.
fn pass_filters<'r, P>(
    searches: &mut [Search<'_, P>],
    mut active: Vec<usize>,
    next: impl Fn(&mut Search<'_, P>) -> Option<&'r Run>,
) -> Result<Vec<(usize, &'r Run)>> {
    let mut asked = Vec::with_capacity(active.len());
    while !active.is_empty() {
        let nexts = active.iter().filter_map(|&i| next(&mut searches[i]).map(|run| (i, run)));
        let candidates: Vec<(usize, &'r Run)> = nexts.collect();
        candidates.iter().for_each(|(i, run)| run.prefetch_filter(searches[*i].key));
        active.clear();
        for (i, run) in candidates {
            match run.may_contain(searches[i].key)? {
                true => asked.push((i, run)),
                false => active.push(i),
            }
        }
    }
    Ok(asked)
}
