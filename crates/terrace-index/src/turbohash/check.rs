//! Proving a table's invariants, marking what it owns, and its figures.

use std::collections::{BTreeMap, HashSet};

use terrace_base::Result;
use terrace_pmem::Marks;

use super::directory::{Content as ShardContent, View};
use super::layout::{SLOTS, USABLE_SLOTS, home_of, shard_of, tag_of};
use super::probe::{Content, Header};
use super::{Garbage, TurboHash};
use crate::hashed::HashFigures;
use crate::pair::Pair;

/// A bucket as a walk sees it.
type Seen = (Header, Vec<(usize, Content)>);

impl TurboHash {
    /// Marks header, directory, buckets and records. Each shard is held while it is read, so that its objects are
    /// marked even if they are moved; and objects that are unlinked meanwhile are not freed before the walk is over, so
    /// that nothing is met twice.
    pub(super) fn mark_all(&self, marks: &mut Marks) -> Result<()> {
        let _here = self.limbo.enter();
        marks.slot(self.header_at)?;
        marks.slot(self.header.directory)?;
        // Shards may move into and out of them meanwhile: an extent is marked as long as the table has it.
        self.blocks.extents().into_iter().try_for_each(|extent| marks.slot(extent))?;
        self.overflow.pages().into_iter().try_for_each(|page| marks.slot(page))?;
        for shard in 0..self.views.len() {
            self.named_by(shard)?.into_iter().try_for_each(|slot| marks.slot(slot))?;
        }
        Ok(())
    }

    /// The slot of a shard's buckets, if it is theirs alone, and the records of its keys.
    fn named_by(&self, shard: usize) -> Result<Vec<u64>> {
        let held = self.hold(shard);
        let mut named = Vec::new();
        if !held.view.is_empty() && !self.blocks.is_part(held.view.bytes()) {
            named.push(self.offset_of(held.view.address(0)));
        }
        for i in 0..held.view.len() {
            // SAFETY: the shard is held.
            let contents = unsafe { self.pairs_in(shard, held.view, i)? };
            named.extend(contents.iter().filter(|(_, c)| c.is_record).map(|(_, c)| c.value));
        }
        named.extend(self.overflow.records(self.hashes_of(shard)).iter().map(|(_, record)| record));
        Ok(named)
    }

    /// How full the table is and how far probes go.
    pub(super) fn walk_figures(&self) -> Result<HashFigures> {
        let mut figures = HashFigures::default();
        for shard in 0..self.views.len() {
            let _here = self.limbo.enter();
            let view = self.view(shard);
            let seen = self.buckets_of(view)?;
            figures.buckets += view.len() as u64;
            for _ in self.overflow.records(self.hashes_of(shard)) {
                figures.keys += 1;
                HashFigures::count(&mut figures.hits, 1 + self.scope(view));
            }
            for (at, (header, contents)) in seen.iter().enumerate() {
                figures.keys += contents.len() as u64;
                figures.deleted += u64::from(header.meta.deleted().count_ones());
                for (_, content) in contents {
                    let home = home_of(self.hash_of(content), view.bits());
                    HashFigures::count(&mut figures.hits, 1 + self.distance(view, home, at));
                }
                for tag in (0..=255).step_by(16) {
                    let ends = |i: usize| seen[(at + i) & (view.len() - 1)].0.ends_path_of(tag);
                    let end = (0..self.scope(view)).position(ends);
                    HashFigures::count(&mut figures.misses, end.map_or(self.scope(view), |i| i + 1));
                }
            }
        }
        figures.slots = figures.buckets * SLOTS as u64 + self.overflow.places();
        figures.usable_slots = figures.buckets * USABLE_SLOTS as u64 + self.overflow.places();
        Ok(figures)
    }

    /// Every finding.
    pub(super) fn check_all(&self) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        let mut places = BTreeMap::new();
        for shard in 0..self.views.len() {
            let _here = self.limbo.enter();
            let view = self.view(shard);
            let described = self.described(shard)?;
            let mirrored = (!view.is_empty()).then(|| (self.offset_of(view.address(0)), view.bits()));
            if described != mirrored {
                findings.push(format!(
                    "shard {shard}: the directory says {described:?}, its mirror {mirrored:?}"
                ));
                continue;
            }
            if let Some((offset, _)) = described {
                let before = places.range(..offset + view.bytes()).next_back();
                if before.is_some_and(|(at, bytes)| at + bytes > offset) {
                    findings.push(format!("shard {shard}: its buckets are another's, too"));
                }
                places.insert(offset, view.bytes());
            }
            match self.buckets_of(view) {
                Ok(buckets) => self.check_shard(shard, view, &buckets, &mut findings),
                Err(e) => findings.push(format!("shard {shard}: {e}")),
            }
        }
        let mut blocks: Vec<_> = places.into_iter().collect();
        self.limbo.for_each(|garbage| {
            if let Garbage::Shard { offset, bytes } = *garbage {
                blocks.push((offset, bytes));
            }
        });
        findings.extend(self.blocks.check(&blocks));
        let _here = self.limbo.enter();
        findings.extend(self.overflow.check(|key| self.hash.of(key))?);
        Ok(findings)
    }

    fn check_shard(&self, shard: usize, view: View, buckets: &[Seen], findings: &mut Vec<String>) {
        let (mut keys, mut counted) = (HashSet::new(), ShardContent::default());
        for (at, (header, contents)) in buckets.iter().enumerate() {
            let mut expect = |holds: bool, what: &str| {
                if !holds {
                    findings.push(format!("shard {shard}, bucket {at}: {what}"));
                }
            };
            let meta = header.meta;
            expect(meta.valid().count_ones() as usize <= USABLE_SLOTS, "no slot is empty");
            expect(meta.deleted() & !meta.valid() == 0, "an empty slot that is deleted");
            counted.live += contents.len() as u64;
            counted.deleted += u64::from(meta.deleted().count_ones());
            for (slot, content) in contents {
                let hash = self.hash_of(content);
                let home = home_of(hash, view.bits());
                let distance = self.distance(view, home, at);
                let ends = |i: usize| buckets[(home + i) & (view.len() - 1)].0.ends_path_of(tag_of(hash));
                expect(shard_of(hash, self.header.shard_bits) == shard, "a key of another shard");
                expect(distance < self.scope(view), "a key outside its scope");
                expect(!(0..distance).any(ends), "a key behind the end of its path");
                expect(header.tag(*slot) == tag_of(hash), "a slot with another tag");
                let key = if content.is_record {
                    // SAFETY: present in limbo, and writers are at rest.
                    match unsafe { Pair::read(&self.pool, content.value) } {
                        Ok(pair) => {
                            counted.record_bytes += pair.bytes();
                            expect(self.hash.of(pair.key) == hash, "a record of another key");
                            pair.key.to_vec()
                        }
                        Err(e) => {
                            expect(false, &e.to_string());
                            continue;
                        }
                    }
                } else {
                    content.key.to_le_bytes().to_vec()
                };
                expect(keys.insert(key), "a key that is there twice");
            }
        }
        for (_, record) in self.overflow.records(self.hashes_of(shard)) {
            // SAFETY: present in limbo. The overflow's own check reports keys that cannot be read.
            if let Ok(pair) = unsafe { Pair::read(&self.pool, record) }
                && !keys.insert(pair.key.to_vec())
            {
                findings.push(format!("shard {shard}: a key that is in the overflow, too"));
            }
        }
        if self.counts[shard].get().is_some_and(|known| known != counted) {
            findings
                .push(format!("shard {shard}: {:?} counted, {counted:?} there", self.counts[shard].get()));
        }
    }

    /// The buckets of a view, each as of one moment; the caller is present in limbo since before it loaded the view.
    fn buckets_of(&self, view: View) -> Result<Vec<Seen>> {
        // SAFETY: the caller is present.
        (0..view.len()).map(|i| self.stable_contents(unsafe { view.bucket(i) })).collect()
    }

    /// The sums over all shards; shards that were not counted since the table was opened are counted now.
    pub(super) fn totals(&self) -> ShardContent {
        let mut total = ShardContent::default();
        for (shard, counts) in self.counts.iter().enumerate() {
            // Damaged parts are not counted; `check` reports them.
            let content = counts.get().or_else(|| self.content(&self.hold(shard)).ok()).unwrap_or_default();
            total.live += content.live;
            total.deleted += content.deleted;
            total.record_bytes += content.record_bytes;
        }
        total
    }
}
