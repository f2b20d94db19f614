//! Records for a buffer: gathered in DRAM, then copied at once.

use std::sync::Arc;

use terrace_base::checksum::crc32c;
use terrace_base::{Kind, Result};
use terrace_pmem::Extent;

use super::buffer::Buffer;
use super::layout::{
    BUFFER_HEAD_BYTES, BufferHead, RECORD_HEAD_BYTES, RecordFields, record_crc, record_span,
};
use super::lists::{BUFFER_KIND, Lists};

/// Bytes that are gathered before they are copied. A larger record is copied by itself.
const STAGE_BYTES: u64 = 4 << 20;

/// The largest share of the lists' room that is gathered, and the least number of extents.
const ROOM_SHARE: u64 = 64;
const LEAST_EXTENTS: u64 = 4;

/// Bytes that are drained together.
const STRETCH_BYTES: usize = 256 << 10;

/// Records that are to be copied.
pub(super) struct Stage {
    lists: Lists,
    /// Whether each record is made durable by itself, and not all of them by one sequential copy.
    each: bool,
    limit: u64,
    /// The buffer to be, its header first.
    bytes: Vec<u8>,
    /// The nodes of the records in it, and where these begin.
    nodes: Vec<(usize, u64)>,
}

/// A buffer that was written, and the places of nodes' records in it.
pub(super) struct Copied {
    pub buffer: Arc<Buffer>,
    pub nodes: Vec<(usize, u64)>,
    pub live: u64,
}

impl Stage {
    pub fn new(lists: &Lists, each: bool) -> Stage {
        let least = LEAST_EXTENTS * lists.pool().extent_bytes();
        let limit = (lists.limit() / ROOM_SHARE).clamp(least, STAGE_BYTES.max(least));
        let bytes = vec![0; BUFFER_HEAD_BYTES as usize];
        Stage { lists: lists.clone(), each, limit, bytes, nodes: Vec::new() }
    }

    /// Whether the gathered records should be copied before a record of so many bytes is added.
    pub fn is_full_for(&self, klen: usize, vlen: usize) -> bool {
        !self.nodes.is_empty() && self.bytes.len() as u64 + record_span(klen, vlen) > self.limit
    }

    /// Adds the record of `node`.
    pub fn add(&mut self, node: usize, key: &[u8], seq: u64, kind: Kind, value: &[u8]) {
        let fields = RecordFields {
            value_crc: crc32c(value),
            seq,
            vlen: value.len() as u32,
            klen: key.len() as u16,
            kind: kind as u8,
            fields: 0,
        };
        let at = self.bytes.len();
        self.bytes.reserve(fields.span() as usize);
        // Its checksum follows once its place is known.
        self.bytes.extend_from_slice(&fields.encode(0));
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.bytes.resize(at + fields.span() as usize, 0);
        self.nodes.push((node, at as u64));
    }

    /// Copies the gathered records into a new buffer, which is durable on return.
    pub fn copy(&mut self) -> Result<Option<Copied>> {
        if self.nodes.is_empty() {
            return Ok(None);
        }
        let extent = self.lists.reserve(BUFFER_KIND, self.bytes.len() as u64)?;
        let id = crate::skiplist::identity(self.lists.pool(), extent.offset);
        self.seal(&extent, id);
        let pool = self.lists.pool();
        match self.each {
            false => {
                for (at, stretch) in self.bytes.chunks(STRETCH_BYTES).enumerate() {
                    pool.copy_persist(extent.offset + (at * STRETCH_BYTES) as u64, stretch);
                }
            }
            true => self.copy_each(extent.offset),
        }
        let end = extent.offset + self.bytes.len() as u64;
        let buffer = Buffer::new(self.lists.activate(&extent), id, end);
        let live = self.bytes.len() as u64 - BUFFER_HEAD_BYTES;
        let nodes = self.nodes.drain(..).map(|(node, at)| (node, extent.offset + at)).collect();
        self.bytes.truncate(BUFFER_HEAD_BYTES as usize);
        self.bytes.shrink_to(self.limit as usize);
        Ok(Some(Copied { buffer: self.lists.note(buffer), nodes, live }))
    }

    /// Fills in the header and the checksums of the records.
    fn seal(&mut self, extent: &Extent, id: u64) {
        let place = self.lists.pool().place(extent.offset);
        let head = BufferHead::encode(place, id, extent.bytes, self.bytes.len() as u64);
        self.bytes[..BUFFER_HEAD_BYTES as usize].copy_from_slice(&head);
        for (_, at) in &self.nodes {
            let record = &mut self.bytes[*at as usize..];
            let klen = usize::from(u16::from_le_bytes([record[20], record[21]]));
            let (front, rest) = record.split_at(RECORD_HEAD_BYTES as usize);
            let crc = record_crc(id, extent.offset + at, front, &rest[..klen]);
            record[..4].copy_from_slice(&crc.to_le_bytes());
        }
    }

    fn copy_each(&self, offset: u64) {
        let pool = self.lists.pool();
        pool.copy_persist(offset, &self.bytes[..BUFFER_HEAD_BYTES as usize]);
        let ends = self.nodes.iter().skip(1).map(|(_, at)| *at as usize).chain([self.bytes.len()]);
        for ((_, at), end) in self.nodes.iter().zip(ends) {
            pool.copy_persist(offset + at, &self.bytes[*at as usize..end]);
        }
    }
}
