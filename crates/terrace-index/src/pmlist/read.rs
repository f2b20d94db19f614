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

impl PmList {
    /// The newest version of `key` with a sequence number of at most `at`.
    pub fn get(&self, key: &[u8], at: u64) -> Result<Option<Found<'_>>> {
        let inner = &*self.inner;
        let (index, known) = inner.lower_bound(key, at)?;
        let record = match known {
            Some(record) => record,
            None if index >= inner.figures.entries || !inner.may_be_of(index, key)? => return Ok(None),
            None => inner.record(index)?,
        };
        if record.key != key {
            return Ok(None);
        }
        Ok(Some(Found { seq: record.seq, kind: record.kind, value: record.value()? }))
    }

    /// Starts loading the block in which a lookup of `key` searches.
    pub fn prefetch_block(&self, key: &[u8]) {
        if let Some((_, (from, _))) = self.inner.searched(key) {
            let at = self.inner.blocks + from / BLOCK_NODES as u64 * BLOCK_BYTES;
            self.inner.pool().prefetch(at, BLOCK_BYTES);
        }
    }

    /// Starts loading the record that a lookup of `key` reads. The block is read here, without verifying it.
    pub fn prefetch_record(&self, key: &[u8]) {
        let Some((head, (from, to))) = self.inner.searched(key) else { return };
        let at = self.inner.blocks + from / BLOCK_NODES as u64 * BLOCK_BYTES;
        let Ok(block) = self.inner.pool().get::<Block>(POff::new(at)) else { return };
        let nodes = &block.nodes[..(to - from).min(BLOCK_NODES as u64) as usize];
        if let Some(node) = nodes.get(nodes.partition_point(|node| node.head < head)) {
            self.inner.pool().prefetch(node.record, PREFETCHED_BYTES);
        }
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

    /// Whether the key of node `index` has the same head as `key`.
    fn may_be_of(&self, index: u64, key: &[u8]) -> Result<bool> {
        let rest = key.get(self.common..);
        Ok(self.against_common(key).is_eq() && Some(self.node(index)?.head) == rest.map(prefix::head))
    }

    /// The nodes of the blocks with nodes of `head`, which are in no others.
    fn nodes_of(&self, towers: &[u64], head: u64) -> (u64, u64) {
        let first = towers.partition_point(|tower| *tower < head).saturating_sub(1) as u64;
        let last = towers.partition_point(|tower| *tower <= head) as u64;
        (first * BLOCK_NODES as u64, self.figures.entries.min(last * BLOCK_NODES as u64))
    }

    /// The head of `key`, and the nodes among which a lookup searches, if there are any and the towers are in DRAM.
    fn searched(&self, key: &[u8]) -> Option<(u64, (u64, u64))> {
        let towers = self.towers.get().filter(|_| self.against_common(key).is_eq())?;
        let head = prefix::head(&key[self.common..]);
        let nodes = self.nodes_of(towers, head);
        (nodes.0 < nodes.1).then_some((head, nodes))
    }

    /// The first node at or after (`key`, `seq`), and its record if it was read.
    pub fn lower_bound(&self, key: &[u8], seq: u64) -> Result<(u64, Option<PmRecord<'_>>)> {
        let entries = self.figures.entries;
        match self.against_common(key) {
            Ordering::Less => return Ok((0, None)),
            Ordering::Greater => return Ok((entries, None)),
            Ordering::Equal => {}
        }
        let head = prefix::head(&key[self.common..]);
        let (mut low, mut high) = self.nodes_of(self.towers()?, head);
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
            let (order, record) = self.compare(node, head, key, seq)?;
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
