//! Lookups of many keys together, in one table or in several.
//!
//! Each step is taken for all keys before the next one begins: the blocks of the index, then those of the data. Blocks
//! that nobody has read yet are announced before the first of them is waited for, so that the disk works on all of them
//! at once. Blocks that are in memory are loaded into the processor's caches a few keys ahead.

use std::sync::Arc;

use terrace_base::{Error, Result, prefetch};

use crate::block::Block;
use crate::entry::Entry;
use crate::frame::{BlockKind, Handle};
use crate::mapped::InBlock;
use crate::position::Position;
use crate::table::Table;

/// How many blocks ahead the header of one is loaded, then its end, some of its restarts, and the entries
/// that are passed one by one: each of these says where the next one is.
const AHEAD: [usize; 4] = [8, 6, 4, 2];

/// A key that is looked for in a table.
#[derive(Debug, Clone, Copy)]
pub struct Sought<'a> {
    /// The table.
    pub table: &'a Table,
    /// The key.
    pub key: &'a [u8],
    /// A block of the table that holds a version of the key. If it is not known, the index leads there; the filter is
    /// not asked.
    pub position: Option<Position>,
}

/// Where the next step is taken.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// In an index block.
    Index(Handle),
    /// In a data block to which the index leads.
    Data(Handle),
    /// In a data block with a version of the key.
    At(Position),
    /// No version of the key is there.
    Nothing,
}

impl Step {
    /// The block, unless there is none: its offset, and about its length.
    fn block(self) -> Option<(u64, u64)> {
        match self {
            Step::Index(handle) | Step::Data(handle) => Some((handle.offset, handle.len)),
            Step::At(position) => Some((position.offset(), position.read_len() as u64)),
            Step::Nothing => None,
        }
    }
}

/// A key with its next step, and its place among those that are looked for.
#[derive(Debug, Clone)]
struct Search<'a> {
    sought: Sought<'a>,
    step: Step,
    /// The block of the next step, where it is not read through a mapping and somebody has read it.
    held: Option<Arc<Block>>,
    /// The restart of that block before the key, if it was looked for.
    restart: Option<usize>,
    /// Whether its answer was read through a mapping.
    is_mapped: bool,
    place: usize,
}

impl<'a> Search<'a> {
    fn begin(place: usize, sought: Sought<'a>, max_seq: u64) -> Result<Search<'a>> {
        let step = match sought.position {
            Some(position) => {
                sought.table.check_position(position)?;
                Step::At(position)
            }
            None => sought.table.index_handle(sought.key, max_seq)?.map_or(Step::Nothing, Step::Index),
        };
        Ok(Search { sought, step, held: None, restart: None, is_mapped: false, place })
    }

    /// The block of the next step, read unless it is held.
    fn load(&mut self) -> Result<Arc<Block>> {
        if let Some(block) = self.held.take() {
            return Ok(block);
        }
        let table = self.sought.table;
        match self.step {
            Step::Index(handle) => table.block(handle, BlockKind::Index),
            Step::Data(handle) => table.block(handle, BlockKind::Data),
            Step::At(position) => table.block_at(position),
            Step::Nothing => Err(Error::invalid("there is no block to be read")),
        }
    }

    /// Goes from the index to the data. Returns the block that was read for it.
    fn advance(&mut self, max_seq: u64) -> Result<Option<Arc<Block>>> {
        let (Step::Index(index), Sought { table, key, .. }) = (self.step, self.sought) else {
            return Ok(None);
        };
        let restart = self.restart.take();
        if self.held.is_none()
            && let Some(data) =
                table.map().and_then(|map| map.data_handle(index.offset, restart, key, max_seq))
        {
            self.step = Step::Data(data);
            return Ok(None);
        }
        let block = self.load()?;
        self.step = Step::Data(table.data_handle_by(&block, key, max_seq)?);
        Ok(Some(block))
    }

    /// The version, and the block that was read for it.
    fn find(&mut self, max_seq: u64) -> Result<(Option<Entry>, Option<Arc<Block>>)> {
        let Sought { table, key, .. } = self.sought;
        let (map, restart) = (table.map().filter(|_| self.held.is_none()), self.restart.take());
        let found = match (self.step, map) {
            (Step::Nothing, _) => Some(Ok(None)),
            (Step::At(position), Some(map)) => table.get_at_mapped(map, position, restart, key, max_seq),
            (Step::Data(data), Some(map)) => {
                map.find(data.offset, restart, key, max_seq).map(|found| match found {
                    InBlock::Entry(entry) => Ok(Some(entry)),
                    InBlock::Nothing | InBlock::Behind => Ok(None),
                })
            }
            _ => None,
        };
        self.is_mapped = found.is_some();
        if let Some(found) = found {
            return Ok((found?, None));
        }
        let block = self.load()?;
        let found = match self.step {
            Step::At(_) => table.find_or_follow(&block, key, max_seq),
            _ => table.find_by(&block, key, max_seq),
        };
        Ok((found?, Some(block)))
    }

    /// Starts loading part `part` of what is read of the block.
    #[inline]
    fn prefetch(&mut self, part: usize, max_seq: u64) {
        let Some((offset, _)) = self.step.block() else { return };
        let table = self.sought.table;
        let map = || table.map();
        match (part, &self.held) {
            (0, Some(block)) => prefetch::line(Arc::as_ptr(block)),
            (0, None) => drop(map().map(|map| map.prefetch_header(offset))),
            (1, Some(block)) => block.prefetch_end(),
            (1, None) => drop(map().map(|map| map.prefetch_end(offset))),
            (_, held) => {
                let kind = if let Step::Index(_) = self.step { BlockKind::Index } else { BlockKind::Data };
                let view = match held {
                    Some(block) => Some(block.view()),
                    None => map().and_then(|map| map.verified_view(offset, kind)),
                };
                match (view, part) {
                    (Some(view), 2) => view.prefetch_restarts(),
                    (Some(view), _) => self.restart = view.prefetch_entries(self.sought.key, max_seq).ok(),
                    (None, _) => {}
                }
            }
        }
    }
}

/// The newest version with a sequence number up to `max_seq` of each key that is looked for, in their order; `None`
/// where there is none. The blocks that have to be read are requested together.
///
/// # Errors
///
/// As of [`Table::get`] and [`Table::get_at`], for the first key that fails.
pub fn find_many(sought: &[Sought<'_>], max_seq: u64) -> Result<Vec<Option<Entry>>> {
    find_each(sought, max_seq)?.into_iter().collect()
}

/// As [`find_many`], with an answer for each key once all are on their way.
pub(crate) fn find_each(sought: &[Sought<'_>], max_seq: u64) -> Result<Vec<Result<Option<Entry>>>> {
    let begun = sought.iter().enumerate().map(|(place, one)| Search::begin(place, *one, max_seq));
    let mut searches: Vec<Search<'_>> = begun.collect::<Result<_>>()?;
    if searches.iter().any(|search| matches!(search.step, Step::Index(_))) {
        gather(&mut searches);
        for i in 0..searches.len() {
            load_ahead(&mut searches, i, max_seq);
            let at = searches[i].step.block();
            let block = searches[i].advance(max_seq)?;
            share(&mut searches, i, at, block);
        }
    }
    gather(&mut searches);
    let mut found: Vec<Result<Option<Entry>>> = Vec::new();
    found.resize_with(searches.len(), || Ok(None));
    for i in 0..searches.len() {
        load_ahead(&mut searches, i, max_seq);
        found[searches[i].place] = searches[i].find(max_seq).map(|(entry, block)| {
            let at = searches[i].step.block();
            share(&mut searches, i, at, block);
            entry
        });
    }
    // What was sound when it was found may be zeros by now.
    let is_doubtful = |search: &&mut Search<'_>| search.is_mapped && search.sought.table.check_map().is_err();
    for search in searches.iter_mut().filter(is_doubtful) {
        found[search.place] = search.find(max_seq).map(|(entry, _)| entry);
    }
    Ok(found)
}

/// Brings `searches` into the order of their next blocks, and asks the system for those blocks that nobody has read.
fn gather(searches: &mut [Search<'_>]) {
    searches.sort_unstable_by_key(|search| (search.sought.table.number(), search.step.block()));
    if searches.len() < 2 {
        return;
    }
    let mut last = None;
    for search in searches {
        let Some((offset, len)) = search.step.block() else { continue };
        let this = Some((search.sought.table.number(), offset));
        if this != last {
            search.held = search.sought.table.announce(offset, len);
            last = this;
        }
    }
}

/// Gives the block at `at`, which was read for search `i`, to the next one, if that needs it, too.
fn share(searches: &mut [Search<'_>], i: usize, at: Option<(u64, u64)>, block: Option<Arc<Block>>) {
    let number = searches[i].sought.table.number();
    if let Some(next) = searches.get_mut(i + 1)
        && block.is_some()
        && next.sought.table.number() == number
        && next.step.block() == at
    {
        next.held = block;
    }
}

/// Loads parts of the blocks that come after that of search `i`, which are probably in memory.
#[inline]
fn load_ahead(searches: &mut [Search<'_>], i: usize, max_seq: u64) {
    for (part, ahead) in AHEAD.into_iter().enumerate() {
        let later = if i == 0 { 1..ahead + 1 } else { i + ahead..i + ahead + 1 };
        let later = later.start..later.end.min(searches.len());
        let later = searches.get_mut(later).into_iter().flatten();
        later.for_each(|search| search.prefetch(part, max_seq));
    }
}

impl Table {
    /// The keys of `requests` in this table.
    pub(crate) fn sought<'a>(&'a self, requests: &[(Position, &'a [u8])]) -> Vec<Sought<'a>> {
        let sought = |&(position, key)| Sought { table: self, key, position: Some(position) };
        requests.iter().map(sought).collect()
    }
}
