//! Recovers the sound records of a damaged list.
//!
//! The chain breaks at a damaged record; later records are found by searching all of the arena.
//!
//! 1. A record counts if the head or a record that counts leads to it. No record leads to one that was staged and not
//!    linked.
//! 2. If the chain is broken, stretches that begin with a record without a predecessor count, too: one of them begins
//!    behind the damaged record. A stretch that ends where a record that counts leads does not belong to the chain: it
//!    was staged there and never linked, or dropped. Of several stretches with the same end the longest counts.
//! 3. The newest batch that is not whole is dropped if no whole one is newer: a crash may have cut it short.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use terrace_base::{Kind as VersionKind, Result};
use terrace_pmem::{Extent, Kind, Pool};

use super::arena::Arena;
use super::layout::OWNER_BYTES;
use super::read::{Node, compare};
use super::{Inner, Record, SkipList};

/// The missing parts of a salvaged list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missing {
    /// Places where the chain of records is broken: about as many as records are damaged.
    pub breaks: u64,
    /// Batches of which only some records are left. They were given, unless a crash may have cut them short.
    pub batches: u64,
    /// Whether extents of the list could not be found.
    pub extents: bool,
}

impl SkipList {
    /// Gives the sound records of the list at `head`, in order, and returns what is missing. Works with any damage, and
    /// changes nothing.
    ///
    /// # Errors
    /// `Corruption` if not even the list's first extent can be read; errors of `each`.
    pub fn salvage(
        pool: &Pool,
        kind: Kind,
        head: u64,
        each: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<Missing> {
        let (arena, id, mut extents) = Arena::open_damaged(pool, kind, head)?;
        extents.found.sort_by_key(|extent| extent.offset);
        let list = Self::over(pool, arena, id);
        let (sound, mut missing) = (list.inner.sound_records(&extents.found), Missing::default());
        missing.extents = extents.is_cut;
        let mut nodes = list.inner.linked(&sound, &mut missing.breaks)?;
        nodes.sort_by(|a, b| compare(a, b.key, b.head.seq));
        let partial = partial_batches(&nodes);
        missing.batches = partial.len() as u64;
        let whole = nodes.iter().filter(|node| !partial.contains(&node.head.batch_first));
        let newest = whole.map(|node| node.head.seq).max().unwrap_or(0);
        for node in &nodes {
            if partial.contains(&node.head.batch_first) && node.head.batch_first > newest {
                continue;
            }
            let (value, fields) = (list.inner.value(node)?, node.head.fields());
            each(Record {
                key: node.key,
                seq: fields.seq,
                kind: VersionKind::byte(fields.kind, fields.fields),
                value,
                batch_first: fields.batch_first,
                batch_len: fields.batch_len,
            })?;
        }
        Ok(missing)
    }
}

/// The batches of which not all records are among `nodes`, by their first numbers.
fn partial_batches(nodes: &[Node<'_>]) -> HashSet<u64> {
    let mut found: HashMap<u64, (u32, u32)> = HashMap::new();
    for node in nodes.iter().filter(|node| node.head.batch_len > 1) {
        found.entry(node.head.batch_first).or_insert((0, node.head.batch_len)).0 += 1;
    }
    found.into_iter().filter(|(_, (found, of))| found != of).map(|(first, _)| first).collect()
}

/// Values up to this length are read to their end to verify a possible record.
const SHORT_BYTES: u64 = 4 << 10;

/// The records that count, and where they lead.
#[derive(Default)]
struct Counted<'a> {
    nodes: Vec<Node<'a>>,
    led_to: HashSet<u64>,
    breaks: u64,
}

impl Inner {
    /// The places of all sound records, linked or not, in extents that are sorted.
    fn sound_records(&self, extents: &[Extent]) -> HashSet<u64> {
        let mut sound = HashSet::new();
        for extent in extents {
            let of = std::slice::from_ref(extent);
            let mut at = self.first_byte(extent) + OWNER_BYTES;
            while at < extent.offset + extent.bytes {
                let looks = self.may_be_node(of, at) && self.looks_like_record(extents, at);
                match looks.then(|| self.sound_node(of, at)).flatten() {
                    Some(node) => {
                        sound.insert(at);
                        at = (at + node.head.fields().above()).next_multiple_of(8) + OWNER_BYTES;
                    }
                    None => at += 8,
                }
            }
        }
        sound
    }

    /// Whether the checksum of a possible record at `at` is worth computing. A long record must also have a plausible
    /// link: arbitrary bytes may look like a long record at every place, and reading all of it each time would take
    /// hours.
    fn looks_like_record(&self, extents: &[Extent], at: u64) -> bool {
        let Ok(Node { head, .. }) = self.node(at) else { return false };
        let next = self.after(at);
        let is_short = head.fields().above() <= SHORT_BYTES;
        let leads_on = next == 0 || self.may_be_node(extents, next);
        head.batch_len > 0 && head.batch_first <= head.seq && (is_short || leads_on)
    }

    /// Those of the sound records that count; adds the places where the chain is broken.
    fn linked(&self, sound: &HashSet<u64>, breaks: &mut u64) -> Result<Vec<Node<'_>>> {
        let mut counted = Counted::default();
        self.count_stretch(self.after(self.head), sound, &mut counted)?;
        if counted.breaks > 0 {
            for at in self.begins(sound, &counted.led_to)? {
                self.count_stretch(at, sound, &mut counted)?;
            }
        }
        *breaks = counted.breaks;
        Ok(counted.nodes)
    }

    /// The sound records that no sound one leads to, those with most behind them first, but for those that are
    /// `led_to`.
    fn begins(&self, sound: &HashSet<u64>, led_to: &HashSet<u64>) -> Result<Vec<u64>> {
        let nobodys: HashSet<u64> = sound.iter().map(|&at| self.after(at)).collect();
        let mut begins: Vec<u64> = sound.difference(&nobodys).copied().collect();
        begins.retain(|at| !led_to.contains(at));
        let mut lengths = HashMap::new();
        for &at in &begins {
            self.measure(at, sound, led_to, &mut lengths)?;
        }
        // Of two equally long ones the first written one comes first: failed attempts lie behind it.
        begins.sort_unstable_by_key(|at| (Reverse(lengths.get(at).copied()), *at));
        Ok(begins)
    }

    /// Adds to `lengths`, by record, how many records there are from that at `at`, and from those that follow, to where
    /// others lead or the chain is broken.
    fn measure(
        &self,
        at: u64,
        sound: &HashSet<u64>,
        led_to: &HashSet<u64>,
        lengths: &mut HashMap<u64, u64>,
    ) -> Result<()> {
        let (mut path, mut next) = (vec![at], self.after(at));
        while !led_to.contains(&next)
            && !lengths.contains_key(&next)
            && self.leads(path[path.len() - 1], next, sound)?
        {
            path.push(next);
            next = self.after(next);
        }
        let mut length = lengths.get(&next).copied().unwrap_or(0);
        for at in path.into_iter().rev() {
            length += 1;
            lengths.insert(at, length);
        }
        Ok(())
    }

    /// Whether the record at `from` leads to a sound one at `to` that comes after it.
    fn leads(&self, from: u64, to: u64, sound: &HashSet<u64>) -> Result<bool> {
        if !sound.contains(&to) {
            return Ok(false);
        }
        let to = self.node(to)?;
        Ok(compare(&self.node(from)?, to.key, to.head.seq).is_lt())
    }

    /// Counts the records from the one at `at` to the chain's end or to where it is broken; none of them if they end
    /// where one that counts leads.
    fn count_stretch<'a>(&'a self, at: u64, sound: &HashSet<u64>, counted: &mut Counted<'a>) -> Result<()> {
        let mut stretch = Vec::new();
        let mut next = at;
        loop {
            let leads_on = match stretch.last() {
                None => sound.contains(&next),
                Some(&last) => self.leads(last, next, sound)?,
            };
            // A link that leads back is damaged, and does not count.
            if counted.led_to.contains(&next) && (leads_on || !sound.contains(&next)) {
                return Ok(());
            }
            if !leads_on {
                break;
            }
            stretch.push(next);
            next = self.after(next);
        }
        counted.breaks += u64::from(next != 0);
        counted.led_to.insert(at);
        for at in stretch {
            counted.nodes.push(self.node(at)?);
            counted.led_to.insert(self.after(at));
        }
        Ok(())
    }
}
