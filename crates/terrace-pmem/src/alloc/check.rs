//! Proving that every byte of the pool is free or has exactly one owner.

use std::fmt;
use std::sync::Arc;

use super::class::SLOTS_PER_WORD;
use super::extents::Phase;
use super::marks::Marks;
use super::slab::{Slab, slots_in};
use super::table::{Shape, Unit};
use crate::pool::Pool;

/// A problem that was found in a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its place in the pool.
    pub offset: u64,
    /// A description.
    pub what: String,
}

impl Problem {
    pub(crate) fn new(offset: u64, what: impl Into<String>) -> Self {
        Problem { offset, what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool offset {:#x}: {}", self.offset, self.what)
    }
}

/// What may be active and belong to nobody for as long as the pool is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unreclaimed {
    Nothing,
    Inherited,
    Anything,
}

impl Unreclaimed {
    fn has(self, is_inherited: bool) -> bool {
        self == Unreclaimed::Anything || self == Unreclaimed::Inherited && is_inherited
    }
}

impl Pool {
    /// Compares active extents and slots with the owners' marks. Also verifies the pool's own structures (both
    /// superblock copies, roots, table words, slab heads and bitmaps) and that units which were not changed since the
    /// pool was opened are as they were at the clean close. Nobody may change the pool meanwhile.
    ///
    /// A pool may have been closed with a [debt](Pool::needs_reclaim). Where it is only read the debt stays, and what
    /// was inherited and is not marked is taken for it. A session that writes [pays it](Pool::reclaim) before it
    /// checks, or says that it [cannot yet](Pool::put_off_reclaim). Once a debt was [noted](Pool::leave_unreclaimed)
    /// since the pool was opened, anything that is not marked may be it.
    pub fn check(&self, marks: &Marks) -> Vec<Problem> {
        let mut problems = marks.problems.clone();
        problems.extend(self.check_header());
        problems.extend(self.altered());
        problems.extend(self.check_roots());
        let unreclaimed = self.unreclaimed();
        self.check_space(marks, unreclaimed, &mut problems);
        for slab in self.inner.alloc.slabs.all() {
            let marked = marks.slots.get(&slab.unit).map(Vec::as_slice);
            self.check_slab(&slab, marked, unreclaimed, &mut problems);
        }
        for &unit in marks.slots.keys() {
            if self.inner.alloc.slabs.get(unit).is_none() {
                problems
                    .push(Problem::new(unit * self.extent_bytes(), "slots reached in a slab that is gone"));
            }
        }
        problems
    }

    fn unreclaimed(&self) -> Unreclaimed {
        let stays = self.is_reclaim_put_off() || self.is_read_only() && self.needs_reclaim();
        match self.is_debt_noted() {
            true => Unreclaimed::Anything,
            false if stays => Unreclaimed::Inherited,
            false => Unreclaimed::Nothing,
        }
    }

    fn check_space(&self, marks: &Marks, unreclaimed: Unreclaimed, problems: &mut Vec<Problem>) {
        let bytes = self.extent_bytes();
        let space = self.inner.alloc.space.lock();
        let mut next = 0;
        let mut covered: Vec<(u64, u64, Option<Unit>)> =
            space.runs.iter().map(|(start, len)| (start, len, None)).collect();
        covered.extend(space.live.iter().map(|(&unit, l)| {
            let head = Unit::Head { shape: l.shape, kind: l.kind, units: l.units };
            (unit, l.units, Some(if l.phase == Phase::Active { head } else { Unit::Free }))
        }));
        covered.sort_unstable_by_key(|&(start, ..)| start);
        for (start, len, head) in covered {
            if start != next {
                let at = next.min(start) * bytes;
                problems.push(Problem::new(at, format!("extents {next} and {start} do not adjoin")));
            }
            next = start + len;
            for unit in start..next {
                let expected = head.filter(|_| unit == start).unwrap_or(Unit::Free);
                match self.read_unit(unit) {
                    Ok(found) if found == expected => {}
                    Ok(found) => problems.push(Problem::new(
                        unit * bytes,
                        format!("the table says {found:?}, the allocator {expected:?}"),
                    )),
                    Err(e) => problems.push(Problem::new(unit * bytes, e.to_string())),
                }
            }
        }
        if next != space.units {
            problems.push(Problem::new(next * bytes, "extents up to the pool's end are unaccounted for"));
        }
        let mut unmarked = marks.whole.clone();
        for (unit, l) in &space.live {
            let of_owner = l.kind != 0 && l.shape != Shape::Slab && l.phase == Phase::Active;
            if of_owner && !unmarked.remove(&(unit * bytes)) && !unreclaimed.has(l.inherited) {
                let what = format!("{:?} of kind {} is in use and not reachable", l.shape, l.kind);
                problems.push(Problem::new(unit * bytes, what));
            }
        }
        problems.extend(unmarked.into_iter().map(|at| Problem::new(at, "extent reached that is not in use")));
    }

    fn check_slab(
        &self,
        slab: &Arc<Slab>,
        marked: Option<&[u64]>,
        unreclaimed: Unreclaimed,
        problems: &mut Vec<Problem>,
    ) {
        let state = slab.state.lock();
        match Slab::read_header(self, slab.offset) {
            Ok((header, geometry, _)) if geometry == slab.geometry && header.kind == slab.kind.0.into() => {}
            Ok(_) => problems.push(Problem::new(slab.offset, "slab head changed while in use")),
            Err(e) => problems.push(Problem::new(slab.offset, e.to_string())),
        }
        for word in 0..slab.geometry.words() {
            let active = match slab.active(self, word) {
                Ok(active) => active,
                Err(e) => {
                    problems.push(Problem::new(slab.word_at(word).get(), e.to_string()));
                    continue;
                }
            };
            let marked = marked.and_then(|m| m.get(word as usize)).copied().unwrap_or(0);
            let mut report = |bits: u64, what: &str| {
                let slots = slots_in(1, |_| bits).into_iter().map(|s| s + word * SLOTS_PER_WORD);
                problems.extend(slots.map(|s| Problem::new(slab.offset_of(s), what)));
            };
            let lost = match unreclaimed {
                Unreclaimed::Nothing => active & !marked,
                Unreclaimed::Inherited => active & !marked & !state.inherited(word),
                Unreclaimed::Anything => 0,
            };
            report(lost, "slot is in use and not reachable");
            report(marked & !active, "slot reached that is not in use");
            report(active & !state.taken(word), "slot in use would be given out again");
        }
    }
}
