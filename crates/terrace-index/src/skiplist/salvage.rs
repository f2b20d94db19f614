//! What can still be read of a damaged list.
//!
//! The chain breaks at a damaged record, and what comes after it is found by looking all over the arena.
//!
//! 1. A record counts if the head or a record that counts leads to it. What was staged and not linked has nobody that leads
//!    to it.
//! 2. Where the chain is broken, the records that nobody leads to count, too: one of them is the one that the damaged
//!    record led to.
//! 3. Of batches that are not whole the newest is dropped, which a crash may have cut short, if no whole one is newer.

use std::collections::{HashMap, HashSet};

use terrace_base::Result;
use terrace_pmem::{Kind, Pool};

use super::arena::Arena;
use super::layout::OWNER_BYTES;
use super::read::{Node, compare};
use super::{Inner, Record, SkipList};

/// What was found missing of a list that was salvaged.
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
    /// Gives the records of the list at `head` that are sound, in order, however it is damaged, and says what is missing.
    /// Changes nothing.
    ///
    /// # Errors
    /// `Corruption` if not even the list's first extent can be read; what `each` returns.
    pub fn salvage(
        pool: &Pool,
        kind: Kind,
        head: u64,
        each: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<Missing> {
        let (arena, id, extents) = Arena::open_damaged(pool, kind, head)?;
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
                kind: fields.kind,
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

impl Inner {
    /// The places of all sound records, linked or not.
    fn sound_records(&self, extents: &[terrace_pmem::Extent]) -> HashSet<u64> {
        let mut sound = HashSet::new();
        for extent in extents {
            let of = std::slice::from_ref(extent);
            let mut at = self.first_byte(extent) + OWNER_BYTES;
            while at < extent.offset + extent.bytes {
                match self.sound_node(of, at).filter(|_| self.may_be_node(of, at)) {
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

    /// Those of the sound records that count; adds the places where the chain is broken.
    fn linked(&self, sound: &HashSet<u64>, breaks: &mut u64) -> Result<Vec<Node<'_>>> {
        let mut linked = HashSet::new();
        let mut nodes = Vec::with_capacity(sound.len());
        self.follow(self.after(self.head), sound, &mut linked, (&mut nodes, breaks))?;
        if *breaks == 0 {
            return Ok(nodes);
        }
        let led_to: HashSet<u64> = sound.iter().map(|&at| self.after(at)).collect();
        let mut begins: Vec<u64> =
            sound.iter().copied().filter(|at| !linked.contains(at) && !led_to.contains(at)).collect();
        begins.sort_unstable();
        for at in begins {
            self.follow(at, sound, &mut linked, (&mut nodes, breaks))?;
        }
        Ok(nodes)
    }

    /// Follows the chain from the record at `at` to its end, to what was met before, or to where it is broken.
    fn follow<'a>(
        &'a self,
        mut at: u64,
        sound: &HashSet<u64>,
        linked: &mut HashSet<u64>,
        (nodes, breaks): (&mut Vec<Node<'a>>, &mut u64),
    ) -> Result<()> {
        let mut last: Option<Node<'_>> = None;
        while at != 0 {
            if !sound.contains(&at) {
                *breaks += 1;
                return Ok(());
            }
            let node = self.node(at)?;
            if last.as_ref().is_some_and(|last| compare(last, node.key, node.head.seq).is_ge()) {
                *breaks += 1;
                return Ok(());
            }
            if !linked.insert(at) {
                return Ok(());
            }
            nodes.push(node);
            last = Some(node);
            at = self.after(at);
        }
        Ok(())
    }
}
