//! Writing a list: records or places of records in order, then all of it at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use terrace_base::checksum::seal48;
use terrace_base::{Error, Kind, Result, prefix};
use terrace_pmem::POff;

use super::about::NamedPart;
use super::buffer::Buffer;
use super::layout::{
    BLOCK_BYTES, BLOCK_NODES, END_AT, LIST_HEAD_BYTES, LIST_MAGIC, ListHead, block_crc, part_crc, record_span,
};
use super::lists::{LIST_KIND, Lists};
use super::stage::Stage;
use super::{About, Figures, Inner, Part, PmList};

/// Bytes that are drained together.
const STRETCH_BYTES: usize = 256 << 10;

/// Bytes of a node with its share of towers and checksums.
const NODE_SHARE: u64 = 18;

/// How records are written to buffers: the paper's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// Each record is made durable by itself, and not all of them by one sequential copy.
    pub each: bool,
    /// Merges copy records, too, and not only their places.
    pub copies: bool,
}

/// A list being built. Unless it is finished, everything that it has written is removed with it.
pub struct ListBuilder {
    lists: Lists,
    style: Style,
    stage: Stage,
    /// The place of each node's record; not known for staged records.
    nodes: Vec<u64>,
    keys: Vec<u8>,
    ends: Vec<usize>,
    parts: BTreeMap<u64, Used>,
    figures: Figures,
    copied: u64,
}

/// Where the parts of a list lie, from its start.
struct Plan {
    blocks: u64,
    tail: u64,
    whole: u64,
}

impl Plan {
    fn new(nodes: usize, about: usize, filter: usize) -> Plan {
        let count = nodes.div_ceil(BLOCK_NODES) as u64;
        let blocks = (LIST_HEAD_BYTES + about as u64).next_multiple_of(BLOCK_BYTES);
        let tail = blocks + count * BLOCK_BYTES;
        Plan { blocks, tail, whole: tail + 8 * count + filter as u64 }
    }
}

struct Used {
    buffer: Arc<Buffer>,
    live: u64,
    is_sparse: bool,
}

impl Lists {
    /// A list to be.
    pub fn builder(&self, style: Style) -> ListBuilder {
        ListBuilder {
            lists: self.clone(),
            style,
            stage: Stage::new(self, style.each),
            nodes: Vec::new(),
            keys: Vec::new(),
            ends: Vec::new(),
            parts: BTreeMap::new(),
            figures: Figures { min_seq: u64::MAX, ..Figures::default() },
            copied: 0,
        }
    }
}

impl ListBuilder {
    /// Records so far.
    pub fn entries(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Bytes that the list will stand for, records included.
    pub fn bytes(&self) -> u64 {
        self.figures.record_bytes + NODE_SHARE * self.entries()
    }

    /// Bytes of records that were copied for it.
    pub fn copied_bytes(&self) -> u64 {
        self.copied
    }

    /// The key that was added last.
    pub fn last_key(&self) -> &[u8] {
        let from = self.ends.len().checked_sub(2).map_or(0, |before| self.ends[before]);
        self.ends.last().map_or(&[], |end| &self.keys[from..*end])
    }

    /// Adds a record, which is copied; records come in order.
    ///
    /// # Errors
    /// `PoolFull` if there is no room; `InvalidArgument` for a value of more than 4 GiB.
    pub fn add(&mut self, key: &[u8], seq: u64, kind: Kind, value: &[u8]) -> Result<()> {
        if u32::try_from(value.len()).is_err() || u16::try_from(key.len()).is_err() {
            return Err(Error::invalid("a record this long"));
        }
        if self.stage.is_full_for(key.len(), value.len()) {
            self.copy()?;
        }
        self.stage.add(self.nodes.len(), key, seq, kind, value);
        self.copied += record_span(key.len(), value.len());
        self.count(key, seq, kind, value.len());
        self.nodes.push(0);
        Ok(())
    }

    /// Adds the record at `at`, which lies in a buffer of an open list and stays there; false if it should be
    /// [added](Self::add) as a copy, since its buffer has few other live records.
    pub fn point(&mut self, key: &[u8], seq: u64, kind: Kind, vlen: usize, at: u64) -> Result<bool> {
        if self.style.copies {
            return Ok(false);
        }
        let before = self.parts.range(..=at).next_back().map(|(offset, _)| *offset);
        let known = before.filter(|offset| self.parts[offset].buffer.holds(at));
        let offset = match known {
            Some(offset) => offset,
            None => {
                let buffer = self.lists.buffer_of(at);
                let buffer = buffer.ok_or_else(|| {
                    self.lists.pool().corruption(at, "a record of an open list", "another place")
                })?;
                let (offset, is_sparse) = (buffer.extent.offset, buffer.is_sparse());
                self.parts.insert(offset, Used { buffer, live: 0, is_sparse });
                offset
            }
        };
        let Some(part) = self.parts.get_mut(&offset).filter(|part| !part.is_sparse) else { return Ok(false) };
        part.live += record_span(key.len(), vlen);
        self.count(key, seq, kind, vlen);
        self.nodes.push(at);
        Ok(true)
    }

    fn count(&mut self, key: &[u8], seq: u64, kind: Kind, vlen: usize) {
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len());
        let figures = &mut self.figures;
        figures.entries += 1;
        figures.deletes += u64::from(kind == Kind::Delete);
        figures.min_seq = figures.min_seq.min(seq);
        figures.max_seq = figures.max_seq.max(seq);
        figures.raw_bytes += (key.len() + vlen) as u64;
        figures.record_bytes += record_span(key.len(), vlen);
    }

    /// Copies staged records.
    fn copy(&mut self) -> Result<()> {
        if let Some(copied) = self.stage.copy()? {
            copied.nodes.iter().for_each(|(node, at)| self.nodes[*node] = *at);
            let offset = copied.buffer.extent.offset;
            self.parts.insert(offset, Used { buffer: copied.buffer, live: copied.live, is_sparse: false });
        }
        Ok(())
    }

    fn key(&self, node: usize) -> &[u8] {
        let from = node.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[from..self.ends[node]]
    }

    /// Writes the list with `filter`, whose meaning is the maker's, and with `about`, whose first and last key are
    /// filled in. On return it is whole and durable; `None` if nothing was added.
    ///
    /// # Errors
    /// `PoolFull` if there is no room.
    pub fn finish(mut self, about: About, filter: &[u8]) -> Result<Option<PmList>> {
        let Some(last) = self.nodes.len().checked_sub(1) else { return Ok(None) };
        self.copy()?;
        self.parts.retain(|_, part| part.live > 0);
        let about = About { smallest: self.key(0).to_vec(), largest: self.key(last).to_vec(), ..about };
        let common = prefix::common(&about.smallest, &about.largest);
        let parts: Vec<NamedPart> =
            self.parts.iter().map(|(offset, part)| (*offset, part.buffer.id, part.live)).collect();
        let about_bytes = about.encode(&parts);
        let plan = Plan::new(self.nodes.len(), about_bytes.len(), filter.len());

        let extent = self.lists.reserve(LIST_KIND, plan.whole)?;
        let pool = self.lists.pool().clone();
        let id = crate::skiplist::identity(&pool, extent.offset);
        let mut image = Vec::with_capacity(plan.whole as usize);
        image.resize(LIST_HEAD_BYTES as usize, 0);
        image.extend_from_slice(&about_bytes);
        image.resize(plan.blocks as usize, 0);
        let towers = self.put_blocks(&mut image, id, common);
        towers.iter().for_each(|tower| image.extend_from_slice(&tower.to_le_bytes()));
        image.extend_from_slice(filter);
        let mut head = self.head(id, extent.bytes, common);
        (head.filter_bytes, head.about_bytes) = (filter.len() as u32, about_bytes.len() as u32);
        head.about_crc = part_crc(id, &about_bytes);
        head.tail_crc = part_crc(id, &image[plan.tail as usize..]);
        image[..LIST_HEAD_BYTES as usize].copy_from_slice(&head.encode(pool.place(extent.offset)));
        for (at, stretch) in image.chunks(STRETCH_BYTES).enumerate() {
            pool.copy_persist(extent.offset + (at * STRETCH_BYTES) as u64, stretch);
        }
        let owned = self.lists.activate(&extent);
        let parts = self.parts.into_values().map(|part| Part { buffer: part.buffer, live: part.live });
        let inner = Inner {
            id,
            parts: parts.collect(),
            figures: self.figures,
            about,
            common,
            blocks: extent.offset + plan.blocks,
            tail: extent.offset + plan.tail..extent.offset + plan.whole,
            filter_bytes: filter.len() as u64,
            tail_crc: head.tail_crc,
            towers: OnceLock::from(towers),
            named: AtomicBool::new(false),
            extent: owned,
        };
        pool.publish(POff::new(extent.offset + END_AT), seal48(id, inner.figures.entries));
        Ok(Some(PmList { inner: Arc::new(inner) }))
    }

    /// The header, without the fields about other parts.
    fn head(&self, id: u64, bytes: u64, common: usize) -> ListHead {
        let Figures { entries, deletes, min_seq, max_seq, raw_bytes, record_bytes } = self.figures;
        ListHead {
            magic: LIST_MAGIC,
            id,
            bytes,
            entries,
            deletes,
            min_seq,
            max_seq,
            raw_bytes,
            record_bytes,
            common: common as u32,
            filter_bytes: 0,
            about_bytes: 0,
            about_crc: 0,
            tail_crc: 0,
            crc: 0,
            reserved: [0; 3],
            end: AtomicU64::new(0),
        }
    }

    /// Appends the blocks; returns the first head of each.
    fn put_blocks(&self, image: &mut Vec<u8>, id: u64, common: usize) -> Box<[u64]> {
        let mut towers = Vec::with_capacity(self.nodes.len().div_ceil(BLOCK_NODES));
        for (number, nodes) in self.nodes.chunks(BLOCK_NODES).enumerate() {
            let from = image.len();
            for (slot, record) in nodes.iter().enumerate() {
                let head = prefix::head(&self.key(number * BLOCK_NODES + slot)[common..]);
                if slot == 0 {
                    towers.push(head);
                }
                image.extend_from_slice(&record.to_le_bytes());
                image.extend_from_slice(&head.to_le_bytes());
            }
            image.resize(from + 16 * BLOCK_NODES, 0);
            let crc = block_crc(id, number as u64, &image[from..]);
            image.extend_from_slice(&crc.to_le_bytes());
            image.extend_from_slice(&(nodes.len() as u32).to_le_bytes());
            image.resize(from + BLOCK_BYTES as usize, 0);
        }
        towers.into()
    }
}
