//! Recovers everything that is not itself damaged.
//!
//! As for `lsm`, tables are the ground truth and logs are replayed over them. Before that the lists' contents
//! are written into tables, of the same level if the manifest can be trusted. The records of a damaged list
//! are taken wherever they lie in buffers; if the manifest does not tell which lists existed, all whole ones
//! are taken. In both cases all tables then go to level 0, where every order of versions is right: a record
//! may be one that had been replaced.

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_index::pmlist::{Lists, PmList, salvage_buffer};
use terrace_pmem::Pool;
use terrace_table::TableMeta;

use super::open;
use crate::commit_log::Gathered;
use crate::leveled::{PlacedRun, logged};
use crate::manifest::{Identity, State};
use crate::salvage::{Salvage, TableSorter};

/// Repairs the database in the view that `base` works in.
pub(crate) fn repair(base: Salvage) -> Result<Salvage> {
    let core = base.core.clone();
    logged::repair(base, open::log_home(), &core.options.tlsm.levels, gather_lists, open::assemble)
}

/// A list to recover: its level and its keys, if the manifest names it, and its place.
struct Wanted {
    head: u64,
    named: Option<(u32, TableMeta)>,
}

/// Writes the lists' contents into tables, beside `runs`.
fn gather_lists(
    base: &mut Salvage,
    identity: &Identity,
    known: Option<&State>,
    _logs: Option<&Gathered>,
    runs: &mut Vec<PlacedRun>,
) -> Result<()> {
    let Some(pool) = base.open_pool(identity, known)? else {
        base.lost("everything that was in lists in the pool");
        return Ok(());
    };
    let lists = Lists::new(&pool, u64::MAX);
    lists.keep_all(true);
    let believed = known.filter(|_| base.left.is_none());
    let wanted = wanted(&lists, believed);
    if believed.is_some() {
        let is_named = |head: &u64| wanted.iter().any(|list| list.head == *head);
        let others = lists.heads().into_iter().filter(|head| !is_named(head));
        let newest = others.filter_map(|head| Some((lists.open(head).ok()?.figures().max_seq, head))).max();
        base.newest_unnamed = newest.map(|(seq, head)| (seq, format!("the list at {head:#x} of the pool")));
    }
    if believed.is_none() && !wanted.is_empty() {
        base.report.doubts.push(
            "which lists in the pool were the newest: the manifest knew. What was deleted or replaced last may be back".into(),
        );
    }
    let (mut damaged, is_placed) = (Vec::new(), believed.is_some());
    for list in &wanted {
        match open_list(&lists, list) {
            Ok(Some(found)) => {
                let level = list.named.as_ref().filter(|_| is_placed).map_or(0, |(level, _)| *level);
                let tables = bring(base, &found, list.head)?;
                runs.extend(tables.into_iter().map(|meta| (level, meta, false)));
            }
            Ok(None) => {}
            Err(e) if e.is_of_another_version() || e.is_system_failure() => return Err(e),
            Err(e) => {
                base.pool_aside.get_or_insert(e.to_string());
                base.lost(format!("{e}: what of a list is damaged, too"));
                damaged
                    .push(list.named.as_ref().map(|(_, meta)| (meta.smallest.clone(), meta.largest.clone())));
            }
        }
    }
    if !damaged.is_empty() {
        base.report.doubts.push(
            "which records of damaged lists were the newest: all of their keys are taken that buffers hold. What was \
             deleted or replaced last may be back"
                .into(),
        );
        let tables = bring_scattered(base, &pool, &lists, &damaged)?;
        runs.extend(tables.into_iter().map(|meta| (0, meta, false)));
    }
    if !damaged.is_empty() || !is_placed {
        runs.iter_mut().for_each(|(level, ..)| *level = 0);
    }
    Ok(())
}

/// The lists that the manifest names, or all existing ones if it cannot be trusted.
fn wanted(lists: &Lists, believed: Option<&State>) -> Vec<Wanted> {
    let Some(state) = believed else {
        return lists.heads().into_iter().map(|head| Wanted { head, named: None }).collect();
    };
    let named = state.tables.values().filter_map(|table| {
        let named = Some((table.level, (*table.meta).clone()));
        Some(Wanted { head: table.list?.head, named })
    });
    named.collect()
}

/// The list, proved; `None` if nothing names it and it is not whole.
fn open_list(lists: &Lists, wanted: &Wanted) -> Result<Option<PmList>> {
    let opened = lists.open(wanted.head).and_then(|list| {
        let pool = lists.pool();
        let expected = wanted.named.as_ref().map(|(_, meta)| (meta.entries, meta.max_seq, &meta.smallest));
        let (figures, about) = (list.figures(), list.about());
        if expected.is_some_and(|expected| expected != (figures.entries, figures.max_seq, &about.smallest)) {
            return Err(pool.corruption(wanted.head, "the list that the manifest names", "another list"));
        }
        list.verify().map(|()| list)
    });
    match opened {
        Err(Error::Corruption { .. }) if wanted.named.is_none() && !looks_whole(lists, wanted.head) => {
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

/// Whether a list that nothing names says that it is whole.
fn looks_whole(lists: &Lists, head: u64) -> bool {
    lists.open(head).is_ok()
}

fn bring(base: &mut Salvage, list: &PmList, head: u64) -> Result<Vec<TableMeta>> {
    let (core, options) = (base.core.clone(), base.options.clone());
    let mut runs = TableSorter::new(&core, &options, &mut base.next);
    let mut cursor = list.cursor();
    cursor.seek_first()?;
    while cursor.valid() {
        runs.add(cursor.key(), cursor.seq(), cursor.kind(), Bytes::copy_from_slice(cursor.value()?))?;
        cursor.next()?;
    }
    let made = runs.finish()?;
    Ok(base.brought(made, &format!("the list at {head:#x} of the pool")))
}

/// Recovers the records of all buffers whose keys are in one of the `ranges`, or all if the ranges are
/// unknown.
fn bring_scattered(
    base: &mut Salvage,
    pool: &Pool,
    lists: &Lists,
    ranges: &[Option<(Vec<u8>, Vec<u8>)>],
) -> Result<Vec<TableMeta>> {
    let is_wanted = |key: &[u8]| {
        let holds = |range: &Option<(Vec<u8>, Vec<u8>)>| {
            range.as_ref().is_none_or(|(smallest, largest)| **smallest <= *key && *key <= **largest)
        };
        ranges.iter().any(holds)
    };
    let (core, options) = (base.core.clone(), base.options.clone());
    let (mut unread, mut runs) = (Vec::new(), TableSorter::new(&core, &options, &mut base.next));
    for buffer in lists.buffers() {
        let salvaged = salvage_buffer(pool, buffer, &mut |key, seq, kind, value| match is_wanted(key) {
            true => runs.add(key, seq, kind, Bytes::copy_from_slice(value)),
            false => Ok(()),
        });
        match salvaged {
            Ok(0) => {}
            Ok(places) => {
                unread.push(format!("the buffer at {buffer:#x} of the pool is damaged at {places} places"))
            }
            Err(e @ Error::Corruption { .. }) => unread.push(format!("{e}: everything that was in it")),
            Err(e) => return Err(e),
        }
    }
    let made = runs.finish()?;
    unread.into_iter().for_each(|what| base.lost(what));
    Ok(base.brought(made, "damaged lists"))
}
