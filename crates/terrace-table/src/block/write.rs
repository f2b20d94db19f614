//! Encoding a block in place at the end of an output buffer.

use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_base::codec::{put_varint, varint_len};

use super::compress::Compressor;
use crate::entry::{Kind, shared_prefix};
use crate::frame::{BlockKind, HEADER_BYTES, Header, Owner, pad};
use crate::options::Compression;

/// Appends one block at a time to a buffer that it does not own.
///
/// Invariants while a block is open: the buffer holds room for its header at `start` and the entries
/// so far behind it; nobody else appends to the buffer.
#[derive(Debug)]
pub(crate) struct BlockWriter {
    interval: usize,
    start: usize,
    restarts: Vec<u32>,
    since_restart: usize,
    entries: u64,
    last_key: Vec<u8>,
    compressor: Compressor,
}

impl BlockWriter {
    pub fn new(interval: usize) -> Self {
        BlockWriter {
            interval,
            start: 0,
            restarts: Vec::new(),
            since_restart: 0,
            entries: 0,
            last_key: Vec::new(),
            compressor: Compressor::default(),
        }
    }

    /// Opens a block at the end of `out`.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        self.start = out.len();
        out.resize(out.len() + HEADER_BYTES, 0);
        self.restarts.clear();
        self.since_restart = 0;
        self.entries = 0;
        self.last_key.clear();
    }

    /// Where in the buffer the open block starts.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Entries in the open block.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The open block's length if it were closed now, header included.
    pub fn len(&self, out: &[u8]) -> usize {
        out.len() - self.start + 4 * self.restarts.len().max(1)
    }

    /// An upper bound of what one more entry adds: all of its key, and a restart.
    pub fn entry_bound(key: &[u8], seq: u64, value_len: usize) -> usize {
        let lengths = 2 * varint_len(key.len() as u64) + varint_len((value_len as u64) << Kind::BITS);
        lengths + varint_len(seq) + key.len() + value_len + size_of::<u32>()
    }

    /// Appends all of an entry but its value.
    pub fn add_head(&mut self, out: &mut Vec<u8>, key: &[u8], seq: u64, kind: Kind, value_len: usize) {
        let restart = self.entries == 0 || self.since_restart == self.interval;
        let shared = if restart { 0 } else { shared_prefix(&self.last_key, key) };
        if restart {
            self.restarts.push((out.len() - self.start - HEADER_BYTES) as u32);
            self.since_restart = 0;
        }
        put_varint(out, shared as u64);
        put_varint(out, (key.len() - shared) as u64);
        put_varint(out, (value_len as u64) << Kind::BITS | kind as u64);
        put_varint(out, seq);
        out.extend_from_slice(&key[shared..]);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
        self.since_restart += 1;
        self.entries += 1;
    }

    /// Appends an entry.
    pub fn add(&mut self, out: &mut Vec<u8>, key: &[u8], seq: u64, kind: Kind, value: &[u8]) {
        self.add_head(out, key, seq, kind, value.len());
        out.extend_from_slice(value);
    }

    fn put_restarts(&self, out: &mut Vec<u8>) {
        for restart in self.restarts.iter().skip(1) {
            out.extend_from_slice(&restart.to_le_bytes());
        }
        out.extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
    }

    /// Closes the block, which starts at file offset `offset`, and pads it; returns its length
    /// without padding.
    pub fn finish(
        &mut self,
        out: &mut Vec<u8>,
        kind: BlockKind,
        owner: Owner,
        offset: u64,
        compression: Compression,
    ) -> u64 {
        self.put_restarts(out);
        seal(out, self.start, &mut self.compressor, kind, owner, offset, compression)
    }

    /// Closes a block whose only entry's `value` is not in `out` but follows it in the file: writes the
    /// header, and returns the block's length and the bytes (restarts, padding) that follow the value.
    pub fn finish_around(
        &mut self,
        out: &mut [u8],
        value: &[u8],
        owner: Owner,
        offset: u64,
    ) -> (u64, Vec<u8>) {
        let mut tail = Vec::new();
        self.put_restarts(&mut tail);
        let head = &out[self.start + HEADER_BYTES..];
        let stored = (head.len() + value.len() + tail.len()) as u32;
        let payload_crc = crc32c_append(crc32c_append(crc32c(head), value), &tail);
        let header = Header {
            kind: BlockKind::Data,
            compression: Compression::None,
            number: owner.number,
            stored,
            raw: stored,
            payload_crc,
        };
        out[self.start..self.start + HEADER_BYTES].copy_from_slice(&header.encode(offset, owner.origin));
        pad(&mut tail, offset + header.block_len());
        (header.block_len(), tail)
    }
}

/// Turns the bytes of `out` from `start` on (room for a header, then a payload) into a block at file offset `offset`,
/// padded; returns its length without padding.
pub(crate) fn seal(
    out: &mut Vec<u8>,
    start: usize,
    compressor: &mut Compressor,
    kind: BlockKind,
    owner: Owner,
    offset: u64,
    compression: Compression,
) -> u64 {
    let payload = start + HEADER_BYTES;
    let raw = out.len() - payload;
    let smaller = match compression {
        Compression::None => None,
        Compression::Lz4 => compressor.compress(&out[payload..]),
    };
    let used = if smaller.is_some() { compression } else { Compression::None };
    if let Some(bytes) = smaller {
        out.truncate(payload);
        out.extend_from_slice(bytes);
    }
    let stored = &out[payload..];
    let header = Header {
        kind,
        compression: used,
        number: owner.number,
        stored: stored.len() as u32,
        raw: raw as u32,
        payload_crc: crc32c(stored),
    };
    out[start..payload].copy_from_slice(&header.encode(offset, owner.origin));
    pad(out, offset + header.block_len());
    header.block_len()
}
