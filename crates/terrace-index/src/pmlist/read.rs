//! Lookups: the towers in DRAM, one block, and the records whose keys have the same head as the wanted one.

use std::cmp::Ordering;

use terrace_base::{Kind, Result, prefix};
use terrace_pmem::{POff, Pool};

use super::buffer::part_of;
use super::layout::{BLOCK_BYTES, BLOCK_NODES, Block, Node, block_crc, part_crc};
use super::{Inner, PmList};

/// Bytes of a record that are loaded ahead: its head, its key, and the value if that is short.
const PREFETCHED_BYTES: u64 = 192;

/// A record in its place.
#[derive(Debug, Clone, Copy)]
pub struct PmRecord<'a> {
    pub(super) pool: &'a Pool,
    pub(super) at: u64,
    pub(super) key: &'a [u8],
    pub(super) seq: u64,
    pub(super) kind: Kind,
    pub(super) vlen: u32,
    pub(super) value_crc: u32,
}

/// A lookup whose blocks are known and not yet read. Several are made side by side: each step of all of them before the
/// next step of the first.
#[derive(Clone, Copy)]
pub struct Lookup<'l, 'k> {
    inner: &'l Inner,
    key: &'k [u8],
    stretch: Stretch,
}

/// The nodes of the blocks with nodes of `head`, which are in no others.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    head: u64,
    from: u64,
    to: u64,
}

/// A version that was found, its value in place.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// Its sequence number.
    pub seq: u64,
    /// Its kind.
    pub kind: Kind,
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> PmRecord<'a> {
    /// Where it lies in the pool.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Its key.
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Its sequence number.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes of its value.
    pub fn value_len(&self) -> usize {
        self.vlen as usize
    }
}

impl<'l> Lookup<'l, '_> {
    /// Starts loading the block in which it searches.
    pub fn prefetch_block(&self) {
        self.inner.pool().prefetch(self.first_block(), BLOCK_BYTES);
    }

    /// Starts loading the record that it reads. The block is read here, without verifying it.
    pub fn prefetch_record(&self) {
        let Stretch { head, from, to } = self.stretch;
        let Ok(block) = self.inner.pool().get::<Block>(POff::new(self.first_block())) else { return };
        let nodes = &block.nodes[..(to - from).min(BLOCK_NODES as u64) as usize];
        if let Some(node) = nodes.get(nodes.partition_point(|node| node.head < head)) {
            self.inner.pool().prefetch(node.record, PREFETCHED_BYTES);
        }
    }

    /// The newest version with a sequence number of at most `at`.
    pub fn finish(self, at: u64) -> Result<Option<Found<'l>>> {
        // On the way to the place every record whose key has the head of `key` is read. Others have another key.
        let (_, record) = self.inner.lower_bound_in(self.stretch, self.key, at)?;
        match record.filter(|record| record.key == self.key) {
            Some(record) => Ok(Some(Found { seq: record.seq, kind: record.kind, value: record.value()? })),
            None => Ok(None),
        }
    }

    fn first_block(&self) -> u64 {
        self.inner.blocks + self.stretch.from / BLOCK_NODES as u64 * BLOCK_BYTES
    }
}

impl PmList {
    /// The newest version of `key` with a sequence number of at most `at`.
    pub fn get(&self, key: &[u8], at: u64) -> Result<Option<Found<'_>>> {
        match self.lookup(key)? {
            Some(lookup) => lookup.finish(at),
            None => Ok(None),
        }
    }

    /// Begins a lookup of `key` in the towers; `None` if no block can have it.
    pub fn lookup<'l, 'k>(&'l self, key: &'k [u8]) -> Result<Option<Lookup<'l, 'k>>> {
        let inner = &*self.inner;
        if inner.against_common(key).is_ne() {
            return Ok(None);
        }
        let stretch = inner.stretch_of(prefix::head(&key[inner.common..]))?;
        Ok((stretch.from < stretch.to).then_some(Lookup { inner, key, stretch }))
    }

    /// The filter that it was made with.
    pub fn filter(&self) -> Result<Vec<u8>> {
        let tail = self.inner.tail()?;
        Ok(tail[tail.len() - self.inner.filter_bytes as usize..].to_vec())
    }

    /// Reads the towers into DRAM.
    pub fn load(&self) -> Result<()> {
        self.inner.towers().map(drop)
    }

    /// Keys in order that divide the list into pieces of `every` records, each with the bytes of its piece.
    pub fn anchors(&self, every: u64) -> Result<Vec<(Vec<u8>, u64)>> {
        let inner = &*self.inner;
        let average = inner.figures.record_bytes / inner.figures.entries.max(1);
        let mut anchors = Vec::new();
        let mut at = every.max(1) - 1;
        while at < inner.figures.entries {
            anchors.push((inner.record(at)?.key.to_vec(), every * average));
            at += every.max(1);
        }
        Ok(anchors)
    }
}

impl Inner {
    pub fn pool(&self) -> &Pool {
        self.extent.pool()
    }

    /// Towers and filter, checked.
    fn tail(&self) -> Result<&[u8]> {
        let (at, len) = (self.tail.start, self.tail.end - self.tail.start);
        self.pool().charge_read(at, len);
        // SAFETY: a whole list does not change, and is not freed before its last handle is gone.
        let bytes = unsafe { self.pool().bytes(at, len)? };
        match part_crc(self.id, bytes) == self.tail_crc {
            true => Ok(bytes),
            false => Err(self.pool().corruption(at, "towers and filter of a list", "another checksum")),
        }
    }

    /// The head of the first node of each block.
    pub fn towers(&self) -> Result<&[u64]> {
        if let Some(towers) = self.towers.get() {
            return Ok(towers);
        }
        let tail = self.tail()?;
        let bytes = &tail[..tail.len() - self.filter_bytes as usize];
        let (words, _) = bytes.as_chunks::<8>();
        Ok(self.towers.get_or_init(|| words.iter().map(|word| u64::from_le_bytes(*word)).collect()))
    }

    /// The block `number`, checked.
    pub fn block(&self, number: u64) -> Result<&Block> {
        let at = self.blocks + number * BLOCK_BYTES;
        let block = self.pool().get::<Block>(POff::new(at))?;
        self.pool().charge_read(at, BLOCK_BYTES);
        // SAFETY: as in `tail`.
        let nodes = unsafe { self.pool().bytes(at, 16 * BLOCK_NODES as u64)? };
        let left = self.figures.entries - number * BLOCK_NODES as u64;
        let count = left.min(BLOCK_NODES as u64) as u32;
        if block_crc(self.id, number, nodes) != block.crc || block.count != count || block.reserved != 0 {
            return Err(self.pool().corruption(at, "a block of a list", "another checksum"));
        }
        Ok(block)
    }

    pub fn node(&self, index: u64) -> Result<Node> {
        let block = self.block(index / BLOCK_NODES as u64)?;
        Ok(block.nodes[(index % BLOCK_NODES as u64) as usize])
    }

    /// The record that `node` leads to.
    pub fn follow(&self, node: &Node) -> Result<PmRecord<'_>> {
        match part_of(&self.parts, node.record) {
            Some(buffer) => buffer.record(node.record, false),
            None => Err(self.pool().corruption(
                node.record,
                "a record of a list",
                "a place in none of its buffers",
            )),
        }
    }

    pub fn record(&self, index: u64) -> Result<PmRecord<'_>> {
        self.follow(&self.node(index)?)
    }

    /// How `key` compares with the common beginning of all keys.
    fn against_common(&self, key: &[u8]) -> Ordering {
        let common = &self.about.smallest[..self.common];
        match key.get(..self.common) {
            Some(front) => front.cmp(common),
            // It is shorter: keys with that beginning are greater.
            None => key.cmp(common),
        }
    }

    fn stretch_of(&self, head: u64) -> Result<Stretch> {
        let towers = self.towers()?;
        let below = towers.partition_point(|tower| *tower < head);
        // Rarely does a block begin with the very head.
        let last = match towers.get(below) {
            Some(tower) if *tower == head => below + towers[below..].partition_point(|tower| *tower <= head),
            _ => below,
        };
        let from = below.saturating_sub(1) as u64 * BLOCK_NODES as u64;
        Ok(Stretch { head, from, to: self.figures.entries.min(last as u64 * BLOCK_NODES as u64) })
    }

    /// The first node at or after (`key`, `seq`), and its record if it was read.
    pub fn lower_bound(&self, key: &[u8], seq: u64) -> Result<(u64, Option<PmRecord<'_>>)> {
        let entries = self.figures.entries;
        match self.against_common(key) {
            Ordering::Less => return Ok((0, None)),
            Ordering::Greater => return Ok((entries, None)),
            Ordering::Equal => {}
        }
        self.lower_bound_in(self.stretch_of(prefix::head(&key[self.common..]))?, key, seq)
    }

    /// [`lower_bound`](Self::lower_bound), where `stretch` is that of `key`.
    fn lower_bound_in(&self, stretch: Stretch, key: &[u8], seq: u64) -> Result<(u64, Option<PmRecord<'_>>)> {
        let (mut low, mut high) = (stretch.from, stretch.to);
        let (mut at_high, mut loaded) = (None, None);
        while low < high {
            let middle = low + (high - low) / 2;
            let number = middle / BLOCK_NODES as u64;
            let block = match loaded {
                Some((known, block)) if known == number => block,
                _ => self.block(number)?,
            };
            loaded = Some((number, block));
            let node = &block.nodes[(middle % BLOCK_NODES as u64) as usize];
            let (order, record) = self.compare(node, stretch.head, key, seq)?;
            if order.is_lt() {
                low = middle + 1;
            } else {
                (high, at_high) = (middle, record);
            }
        }
        Ok((low, at_high))
    }

    /// How a node compares with (`key`, `seq`), and its record if it was read for that.
    fn compare(
        &self,
        node: &Node,
        head: u64,
        key: &[u8],
        seq: u64,
    ) -> Result<(Ordering, Option<PmRecord<'_>>)> {
        match node.head.cmp(&head) {
            Ordering::Equal => {
                let record = self.follow(node)?;
                Ok((record.key.cmp(key).then(seq.cmp(&record.seq)), Some(record)))
            }
            order => Ok((order, None)),
        }
    }
}
