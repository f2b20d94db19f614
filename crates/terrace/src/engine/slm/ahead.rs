//! Detects that the pool names more than the manifest: the manifest has then lost its newest groups, which
//! look as if they had never been written.
//!
//! 1. A table is in the manifest before a word of the index names it, and stays there until none does.
//! 2. A flush records its progress in the pool before it does so in the manifest, and its memtable is dropped
//!    after that.

use std::collections::BTreeSet;

use terrace_base::Result;
use terrace_index::SkipList;
use terrace_pmem::Pool;

use super::memtable::{MEMTABLE_KIND, MEMTABLES, root};
use super::open::{FLUSHED_ROOT, INDEX_ROOT};
use crate::located::{Chain, Location, LocationIndex, each_word_of};
use crate::manifest::State;

/// The item of `pool` that the manifest with `state` should record and does not.
pub(super) fn missing_in(state: &State, pool: &Pool) -> Result<Option<String>> {
    let named = tables_named(pool)?;
    if let Some(number) = named.iter().find(|number| !state.tables.contains_key(*number)) {
        return Ok(Some(format!("the index names table {number}, and it does not")));
    }
    let flushed = pool.root(FLUSHED_ROOT)?.unwrap_or(0);
    let is_lost = flushed > state.flushed_seq && !is_held(pool, flushed)?;
    Ok(is_lost.then(|| format!("memtables are flushed up to {flushed}, by it up to {}", state.flushed_seq)))
}

/// The tables named by words of the index, or by chains that hang from it.
fn tables_named(pool: &Pool) -> Result<BTreeSet<u64>> {
    let mut named = BTreeSet::new();
    each_word_of(&LocationIndex::open(pool, INDEX_ROOT)?, |_, word| {
        match Location::decode(word) {
            Some(Location::Position(position)) => drop(named.insert(position.number())),
            Some(Location::Chain(offset)) => {
                let versions = Chain::load(pool, offset)?.versions.into_iter();
                named.extend(versions.filter_map(|version| version.position).map(|p| p.number()));
            }
            // Damage to this word alone.
            None => {}
        }
        Ok(())
    })?;
    Ok(named)
}

/// Whether the memtable exists whose flush has come as far as `flushed`.
fn is_held(pool: &Pool, flushed: u64) -> Result<bool> {
    for slot in 0..MEMTABLES {
        if let Some(head) = pool.root(root(slot))?
            && SkipList::open(pool, MEMTABLE_KIND, head)?.max_seq() == flushed
        {
            return Ok(true);
        }
    }
    Ok(false)
}
