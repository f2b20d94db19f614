//! An engine as readers see it: without what range tombstones hide, and without what is due. Values of dated
//! keyspaces are shown without their deadlines.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use arc_swap::Guard;
use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_pmem::Pool;

use crate::batch::Op;
use crate::core::Core;
use crate::core::condition::{Check, Condition};
use crate::core::engine::{Direction, Engine, EngineIter, Here, Step};
use crate::core::lent::{Lent, to_keep};
use crate::core::range_tombstones::{List, RangeTombstone, over};
use crate::core::report::CheckReport;
use crate::core::request::Group;
use crate::core::snapshots::{Held, Snapshots};
use crate::keyspaces::DEADLINE_BYTES;
use crate::stats::Stats;

/// Where there are no range tombstones and no dated keyspaces a read costs a look at a flag and at the key's first byte.
#[derive(Debug)]
pub(crate) struct Masked {
    engine: Arc<dyn Engine>,
    core: Arc<Core>,
}

impl Masked {
    pub fn new(engine: Arc<dyn Engine>, core: Arc<Core>) -> Masked {
        Masked { engine, core }
    }

    /// The tombstones, if there is one over `place`. Loaded before anything is read: one that is added meanwhile is of
    /// a later moment than the read.
    #[inline]
    fn list_over(&self, place: &[u8]) -> Option<Guard<Arc<List>>> {
        let list = self.core.range_tombstones.load()?;
        over(&list, place).next()?;
        Some(list)
    }

    /// Whether a reader at `at`, or now, sees `tombstone`.
    fn is_seen(&self, tombstone: &RangeTombstone, at: Option<u64>) -> bool {
        let has_happened = match at {
            Some(at) => tombstone.number <= at,
            None if self.engine.writes_by_groups() => tombstone.number <= self.core.snapshots.visible(),
            None => self.engine.has_happened(tombstone.number),
        };
        has_happened && !tombstone.is_withdrawn()
    }

    /// Whether version `number` of the key at `place` is hidden from a reader at `at`. It was read before.
    fn is_hidden(&self, list: &List, place: &[u8], number: u64, at: Option<u64>) -> bool {
        over(list, place).any(|tombstone| number < tombstone.number && self.is_seen(tombstone, at))
    }

    fn get_under(&self, list: &List, place: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        let mut found = None;
        self.engine
            .get_with(place, at, &mut |value| found = Some((value.number, value.known().map(to_keep))))?;
        let found = found.filter(|(number, _)| !self.is_hidden(list, place, *number, at));
        found.map(|(_, value)| value).transpose()
    }

    /// The value that is stored at `place` as a reader at `at`, or now, sees it.
    fn current(&self, place: &[u8], stored: Bytes, at: Option<u64>) -> Result<Option<Bytes>> {
        if !self.core.deadlines.is_dated(place, at) {
            return Ok(Some(stored));
        }
        if stored.len() < DEADLINE_BYTES {
            return Err(self.lacks_deadline(place));
        }
        Ok((!self.core.deadlines.is_due(&stored)).then(|| stored.slice(DEADLINE_BYTES..)))
    }

    /// What no write has made.
    fn lacks_deadline(&self, place: &[u8]) -> Error {
        let found = format!("the value of \"{}\", which is too short for one", place.escape_ascii());
        let expected = "a deadline before a value".to_owned();
        Error::Corruption { file: self.core.dir.clone(), offset: 0, expected, found }
    }

    fn mask(&self, walk: Box<dyn EngineIter>, at: u64, way: Way) -> Box<dyn EngineIter> {
        // The snapshot is held, so those that it sees are in the list.
        let list = self.core.range_tombstones.load().map(Guard::into_inner);
        let is_plain = !self.core.deadlines.has_begun(Some(at)) && !self.core.merging.may_have_any();
        if list.is_none() && is_plain {
            return walk;
        }
        let mask = Masked { engine: self.engine.clone(), core: self.core.clone() };
        let list = list.unwrap_or_default();
        Box::new(MaskedIter { walk, mask, list, at, way, is_at_end: false, hidden: 0, failure: None })
    }
}

impl Engine for Masked {
    fn writes_by_groups(&self) -> bool {
        self.engine.writes_by_groups()
    }

    fn has_happened(&self, number: u64) -> bool {
        self.engine.has_happened(number)
    }

    fn write_one(&self, op: Op<'_>, condition: Condition<'_>) -> Option<Result<bool>> {
        self.engine.write_one(op, condition)
    }

    fn hold(&self, snapshots: &Arc<Snapshots>) -> Held {
        self.engine.hold(snapshots)
    }

    fn ordered(&self) -> Result<()> {
        self.engine.ordered()
    }

    fn walk_all(self: Arc<Self>, at: u64) -> Result<Box<dyn EngineIter>> {
        let way = if self.ordered().is_ok() { Way::Ordered(Direction::Forward) } else { Way::Any };
        Ok(self.mask(self.engine.clone().walk_all(at)?, at, way))
    }

    fn apply(&self, group: Group<'_>) -> Result<()> {
        self.engine.apply(group)
    }

    fn apply_if(&self, group: Group<'_>, holds: Check<'_>) -> Result<bool> {
        self.engine.apply_if(group, holds)
    }

    fn keeps_operands(&self) -> bool {
        self.engine.keeps_operands()
    }

    fn operands_in_memory(&self, key: &[u8]) -> Option<usize> {
        // What stands on something that is hidden is not folded apart from it.
        self.list_over(key).map_or_else(|| self.engine.operands_in_memory(key), |_| None)
    }

    fn get(&self, key: &[u8], at: Option<u64>) -> Result<Option<Bytes>> {
        let found = match self.list_over(key) {
            None => self.engine.get(key, at),
            Some(list) => self.get_under(&list, key, at),
        };
        match found? {
            Some(stored) => self.current(key, stored, at),
            None => Ok(None),
        }
    }

    fn get_with(&self, key: &[u8], at: Option<u64>, show: &mut dyn FnMut(Lent<'_>)) -> Result<bool> {
        let (list, is_dated) = (self.list_over(key), self.core.deadlines.is_dated(key, at));
        let (mut is_shown, mut is_short, mut failure) = (false, false, None);
        self.engine.get_with(key, at, &mut |value| {
            is_short = is_dated && value.len() < DEADLINE_BYTES;
            let is_due = is_dated && self.core.deadlines.is_due(&value);
            let is_hidden = list.as_ref().is_some_and(|list| self.is_hidden(list, key, value.number, at));
            if !is_hidden && let Some(why) = value.failure() {
                failure = Some(why.clone());
            } else if !is_short && !is_due && !is_hidden {
                is_shown = true;
                show(if is_dated { value.without(DEADLINE_BYTES) } else { value });
            }
        })?;
        match failure {
            Some(failure) => Err(failure),
            None if is_short => Err(self.lacks_deadline(key)),
            None => Ok(is_shown),
        }
    }

    fn version(&self, key: &[u8], at: Option<u64>) -> Result<Option<u64>> {
        let (list, is_dated) = (self.list_over(key), self.core.deadlines.is_dated(key, at));
        let mut found = None;
        self.engine.get_with(key, at, &mut |value| {
            let is_due = is_dated && self.core.deadlines.is_due(&value);
            let is_hidden = list.as_ref().is_some_and(|list| self.is_hidden(list, key, value.number, at));
            found = (!is_due && !is_hidden).then_some(value.number);
        })?;
        Ok(found)
    }

    fn get_many(&self, keys: &[&[u8]], at: u64) -> Result<Vec<Option<Bytes>>> {
        let list = self.core.range_tombstones.load();
        if list.is_some_and(|list| keys.iter().any(|key| over(&list, key).next().is_some())) {
            return keys.iter().map(|key| self.get(key, Some(at))).collect();
        }
        let found = self.engine.get_many(keys, at)?;
        if !keys.iter().any(|key| self.core.deadlines.is_dated(key, Some(at))) {
            return Ok(found);
        }
        let current = |(key, stored): (&&[u8], Option<Bytes>)| match stored {
            Some(stored) => self.current(key, stored, Some(at)),
            None => Ok(None),
        };
        keys.iter().zip(found).map(current).collect()
    }

    fn contains(&self, key: &[u8]) -> Result<bool> {
        let is_dated = self.core.deadlines.is_dated(key, None);
        match self.list_over(key) {
            None if !is_dated => self.engine.contains(key),
            // Whatever its value is.
            Some(_) if !is_dated => Ok(self.version(key, None)?.is_some()),
            _ => self.get_with(key, None, &mut |_| ()),
        }
    }

    fn walk(self: Arc<Self>, at: u64, direction: Direction) -> Result<Box<dyn EngineIter>> {
        Ok(self.mask(self.engine.clone().walk(at, direction)?, at, Way::Ordered(direction)))
    }

    fn rotate(&self) -> Result<()> {
        self.engine.rotate()
    }

    fn wait_until_flushed(&self) -> Result<()> {
        self.engine.wait_until_flushed()
    }

    fn sync(&self) -> Result<()> {
        self.engine.sync()
    }

    fn compact(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<()> {
        self.engine.compact(from, to)
    }

    fn released(&self) {
        self.core.range_tombstones.forget(|| self.core.snapshots.list());
        self.engine.released();
    }

    fn fill_stats(&self, stats: &mut Stats) {
        self.engine.fill_stats(stats);
    }

    fn partitions(&self) -> Vec<Vec<u8>> {
        self.engine.partitions()
    }

    fn check(&self) -> Result<CheckReport> {
        self.engine.check()
    }

    fn pool(&self) -> Option<&Pool> {
        self.engine.pool()
    }

    fn close(&self) -> Result<()> {
        self.engine.close()
    }
}

/// The order in which a walk finds keys.
#[derive(Debug, Clone, Copy)]
enum Way {
    Ordered(Direction),
    Any,
}

/// A walk without what is hidden from its snapshot, or due. An entry that is neither stays where the engine shows it,
/// unless it is dated.
struct MaskedIter {
    walk: Box<dyn EngineIter>,
    mask: Masked,
    list: Arc<List>,
    at: u64,
    way: Way,
    /// Whether everything that follows is hidden.
    is_at_end: bool,
    hidden: u64,
    /// Why the value that was given last is not known.
    failure: Option<Error>,
}

impl fmt::Debug for MaskedIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaskedIter").field("at", &self.at).field("way", &self.way).finish_non_exhaustive()
    }
}

impl MaskedIter {
    /// Whether what lies at `place` is neither hidden nor dated.
    fn is_plain(&self, place: &[u8]) -> bool {
        over(&self.list, place).next().is_none() && !self.mask.core.deadlines.is_dated(place, Some(self.at))
    }

    /// The entry to which the walk has come, as a reader sees it; `None` if it is hidden or due.
    fn seen(&mut self, place: Bytes, value: Bytes) -> Result<Option<(Bytes, Bytes)>> {
        self.failure = self.walk.failure().cloned();
        if self.pass(&place)? {
            self.hidden += 1;
            return Ok(None);
        }
        if self.failure.is_some() {
            return Ok(Some((place, value)));
        }
        Ok(self.mask.current(&place, value, Some(self.at))?.map(|value| (place, value)))
    }

    /// Whether the entry at `place` is hidden. If all that follows up to some place is, the walk goes there.
    fn pass(&mut self, place: &[u8]) -> Result<bool> {
        let MaskedIter { walk, mask, list, at, way, is_at_end, .. } = self;
        let mut seen = over(list, place).filter(|tombstone| mask.is_seen(tombstone, Some(*at))).peekable();
        if seen.peek().is_none() {
            return Ok(false);
        }
        let Some(untouched) = seen.find(|tombstone| tombstone.is_untouched()) else {
            return Ok(mask.get_under(list, place, Some(*at))?.is_none());
        };
        if let (Some(span), Way::Ordered(direction)) = (untouched.spans.around(place), *way) {
            match (direction, &span.end) {
                (Direction::Forward, Some(end)) => walk.seek(Bound::Included(end))?,
                (Direction::Backward, _) if !span.from.is_empty() => {
                    walk.seek(Bound::Excluded(&span.from))?;
                }
                _ => *is_at_end = true,
            }
        }
        Ok(true)
    }
}

impl EngineIter for MaskedIter {
    fn seek(&mut self, bound: Bound<&[u8]>) -> Result<()> {
        self.is_at_end = false;
        self.walk.seek(bound)
    }

    fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        self.failure = None;
        while !self.is_at_end {
            let Some((place, value)) = self.walk.next()? else { break };
            if let Some(entry) = self.seen(place, value)? {
                return Ok(Some(entry));
            }
        }
        self.failure = None;
        Ok(None)
    }

    fn step(&mut self, entry: &mut Step) -> Result<bool> {
        self.failure = None;
        while !self.is_at_end && self.walk.step(entry)? {
            if matches!(entry, Step::Here) && self.is_plain(self.walk.here().key) {
                self.failure = self.walk.failure().cloned();
                return Ok(true);
            }
            let (place, value) = std::mem::take(entry).into_entry(&self.walk.here())?;
            if let Some((place, value)) = self.seen(place, value)? {
                *entry = Step::Entry(place, value);
                return Ok(true);
            }
        }
        self.failure = None;
        Ok(false)
    }

    fn here(&self) -> Here<'_> {
        self.walk.here()
    }

    fn passed(&self) -> u64 {
        let hidden = if self.mask.engine.writes_by_groups() { self.hidden } else { 0 };
        self.walk.passed() + hidden
    }
}
