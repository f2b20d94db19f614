//! Writing a table.

use std::mem;

use terrace_base::{Error, Result};
use terrace_disk::WriteFile;

use crate::block::{BlockWriter, Compressor, seal};
use crate::entry::{Kind, MAX_KEY_BYTES, MAX_VALUE_BYTES, order};
use crate::filter::FilterBuilder;
use crate::footer::{FOOTER_BYTES, Footer, encode_head};
use crate::frame::{BlockKind, HEADER_BYTES, Handle, Owner};
use crate::index::{encode_handle, separator};
use crate::meta::TableMeta;
use crate::options::{Compression, TableOptions};
use crate::position::Position;

/// The file is appended to in pieces of this length that begin at multiples of it: a file system with large pages in its
/// cache makes one of each piece, and one entry maps it, which saves time at each read. What lies around a value that is
/// written without a copy comes in shorter ones.
const WRITE_BYTES: u64 = 2 << 20;
/// A value of at least this length, alone in its block, is written to the file without a copy.
const DIRECT_VALUE_BYTES: usize = 256 << 10;
/// Bytes at the front of a direct value that are compressed to see whether compressing all is worth it.
const SAMPLE_BYTES: usize = 64 << 10;
/// Values over this are never compressed: it would take twice their size in memory to read them.
const MAX_COMPRESSED_VALUE_BYTES: usize = 64 << 20;
/// Target length of an index block.
const INDEX_BLOCK_BYTES: usize = 16 << 10;
const INDEX_RESTART_INTERVAL: usize = 4;

/// A data block of a finished table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSpan {
    /// The ordinal, counted from 0 over the table, of the block's first entry.
    pub first_entry: u64,
    /// Where the block is.
    pub position: Position,
}

/// A finished, synced table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The table's figures.
    pub meta: TableMeta,
    /// Its data blocks in order.
    pub blocks: Vec<BlockSpan>,
    /// The file's length in bytes.
    pub file_bytes: u64,
}

/// A closed data block: its separator ends at `key_end` of the separators' arena.
#[derive(Debug)]
struct Indexed {
    key_end: usize,
    seq: u64,
    handle: Handle,
}

/// Writes one table, entry by entry in order.
///
/// Invariants: `out` holds what the file lacks of whole blocks, and behind that the open block if there
/// is one; `flushed` is the file's length; `closed` is the last closed block, until the next key is
/// known and with it a separator. Every distinct key is in `filter` if there may be one at the end.
#[derive(Debug)]
pub struct TableBuilder {
    file: Box<dyn WriteFile>,
    number: u32,
    options: TableOptions,
    out: Vec<u8>,
    flushed: u64,
    writer: BlockWriter,
    open: bool,
    closed: Option<Handle>,
    last_key: Vec<u8>,
    last_seq: u64,
    separators: Vec<u8>,
    index: Vec<Indexed>,
    /// How the blocks of data to come are written.
    block_bytes: usize,
    compression: Compression,
    filter: FilterBuilder,
    has_filter: bool,
    /// Bits of filter that the next entries ask for, and the most that any has.
    asked_bits: u32,
    filter_bits: u32,
    meta: TableMeta,
    blocks: Vec<BlockSpan>,
    failed: Option<Error>,
}

impl TableBuilder {
    /// A builder of table `number` in the new, empty `file`.
    pub fn new(file: Box<dyn WriteFile>, number: u64, options: TableOptions) -> Result<Self> {
        options.validate()?;
        if number >= Position::MAX_TABLES {
            return Err(Error::invalid(format!(
                "table number {number} is not below {}",
                Position::MAX_TABLES
            )));
        }
        if !file.is_empty() {
            return Err(Error::invalid(format!("{} is not empty", file.path().display())));
        }
        Ok(TableBuilder {
            number: number as u32,
            writer: BlockWriter::new(options.restart_interval),
            block_bytes: options.block_bytes,
            compression: options.compression,
            has_filter: options.filter_bits_per_key > 0,
            asked_bits: options.filter_bits_per_key,
            filter_bits: options.filter_bits_per_key,
            options,
            out: encode_head(number as u32).to_vec(),
            flushed: 0,
            open: false,
            closed: None,
            last_key: Vec::new(),
            last_seq: 0,
            separators: Vec::new(),
            index: Vec::new(),
            filter: FilterBuilder::default(),
            meta: TableMeta { number, ..TableMeta::default() },
            blocks: Vec::new(),
            failed: None,
            file,
        })
    }

    /// The same; [`change_options`](Self::change_options) may give a table a filter that has none by its own.
    pub fn with_filter_by_entries(self) -> Self {
        TableBuilder { has_filter: true, ..self }
    }

    /// The entries that follow are written by the block size and the compression of `options`, in blocks of their own if
    /// these are others than before. The filter has the most bits a key that any entry asks for. All else is as it was
    /// for the whole table. Without [`with_filter_by_entries`](Self::with_filter_by_entries) a table that has no filter
    /// gets none.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new) for the options, and of [`add`](Self::add) for writing.
    pub fn change_options(&mut self, options: &TableOptions) -> Result<()> {
        options.validate()?;
        let is_other = (options.block_bytes, options.compression) != (self.block_bytes, self.compression);
        if is_other && self.open {
            self.close_block()?;
        }
        (self.block_bytes, self.compression) = (options.block_bytes, options.compression);
        self.asked_bits = options.filter_bits_per_key;
        Ok(())
    }

    /// Appends a version of `key`. Keys ascend, and sequence numbers descend within a key; anything else
    /// is `InvalidArgument` and adds nothing. After a failed write every call repeats that error.
    pub fn add(&mut self, key: &[u8], seq: u64, kind: Kind, value: &[u8]) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)?;
        self.check_entry(key, seq, value)?;
        let bound = BlockWriter::entry_bound(key, seq, value.len());
        if self.open && self.writer.len(&self.out) + bound > self.block_bytes {
            self.close_block()?;
        }
        if !self.open {
            self.open_block(key)?;
        }
        if self.has_filter && (self.meta.entries == 0 || self.last_key != key) {
            self.filter.add(key);
            self.filter_bits = self.filter_bits.max(self.asked_bits);
        }
        self.meta.count(key, seq, kind == Kind::Delete, value.len());
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.last_seq = seq;
        let full = HEADER_BYTES + bound > self.block_bytes;
        if full && value.len() >= DIRECT_VALUE_BYTES && !self.worth_compressing(value) {
            return self.write_direct(key, seq, kind, value);
        }
        self.writer.add(&mut self.out, key, seq, kind, value);
        if full { self.close_block() } else { Ok(()) }
    }

    fn check_entry(&self, key: &[u8], seq: u64, value: &[u8]) -> Result<()> {
        if key.len() > MAX_KEY_BYTES {
            return Err(Error::invalid(format!("a key of {} bytes is over {MAX_KEY_BYTES}", key.len())));
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(Error::invalid(format!(
                "a value of {} bytes is over {MAX_VALUE_BYTES}",
                value.len()
            )));
        }
        if self.meta.entries > 0 && !order((&self.last_key, self.last_seq), (key, seq)).is_lt() {
            let what = format!("{} @ {seq}", key.escape_ascii());
            return Err(Error::invalid(format!(
                "entries must come in order: {what} after {} @ {}",
                self.last_key.escape_ascii(),
                self.last_seq
            )));
        }
        Ok(())
    }

    /// Bytes of the file if it were finished now, as an estimate that lacks index and filter.
    pub fn estimated_bytes(&self) -> u64 {
        self.flushed + self.out.len() as u64 + self.separators.len() as u64
    }

    /// Entries so far.
    pub fn entries(&self) -> u64 {
        self.meta.entries
    }

    /// The data blocks closed so far, in order; they may not have reached the file yet.
    pub fn blocks(&self) -> &[BlockSpan] {
        &self.blocks
    }

    /// Opens a block whose first key is `key`.
    fn open_block(&mut self, key: &[u8]) -> Result<()> {
        if self.end() >= Position::MAX_OFFSET {
            return Err(Error::invalid(format!(
                "{} is full: blocks must start below 4 GiB",
                self.file.path().display()
            )));
        }
        if let Some(handle) = self.closed.take() {
            match separator(&self.last_key, key) {
                Some(len) => self.index_block(&key[..len], 0, handle),
                None => self.index_after_last(handle),
            }
        }
        self.writer.begin(&mut self.out);
        self.open = true;
        Ok(())
    }

    fn index_block(&mut self, separator: &[u8], seq: u64, handle: Handle) {
        self.separators.extend_from_slice(separator);
        self.index.push(Indexed { key_end: self.separators.len(), seq, handle });
    }

    /// Lets the last entry be the separator after the block at `handle`.
    fn index_after_last(&mut self, handle: Handle) {
        let last = mem::take(&mut self.last_key);
        self.index_block(&last, self.last_seq, handle);
        self.last_key = last;
    }

    /// The table that every block is bound to.
    fn owner(&self) -> Owner {
        Owner { number: self.number, origin: self.options.origin }
    }

    /// The file offset at the end of `out`.
    fn end(&self) -> u64 {
        self.flushed + self.out.len() as u64
    }

    /// The file offset at which the open block starts.
    fn open_offset(&self) -> u64 {
        self.flushed + self.writer.start() as u64
    }

    fn close_block(&mut self) -> Result<()> {
        let offset = self.open_offset();
        let first_entry = self.meta.entries - self.writer.entries();
        let (owner, compression) = (self.owner(), self.compression);
        let len = self.writer.finish(&mut self.out, BlockKind::Data, owner, offset, compression);
        self.block_closed(first_entry, Handle { offset, len });
        self.flush_pieces()
    }

    fn block_closed(&mut self, first_entry: u64, handle: Handle) {
        let position = Position::new(u64::from(self.number), handle.offset, handle.len);
        let position = position.expect("the number and the offset were checked when the block was opened");
        self.blocks.push(BlockSpan { first_entry, position });
        self.closed = Some(handle);
        self.open = false;
    }

    /// Whether a value that could be written directly is better copied and compressed.
    fn worth_compressing(&self, value: &[u8]) -> bool {
        let sample = &value[..value.len().min(SAMPLE_BYTES)];
        self.compression == Compression::Lz4
            && value.len() <= MAX_COMPRESSED_VALUE_BYTES
            && Compressor::default().compress(sample).is_some()
    }

    /// Writes the open, empty block with one entry, whose value goes to the file without a copy.
    fn write_direct(&mut self, key: &[u8], seq: u64, kind: Kind, value: &[u8]) -> Result<()> {
        let offset = self.open_offset();
        self.writer.add_head(&mut self.out, key, seq, kind, value.len());
        let owner = self.owner();
        let (len, tail) = self.writer.finish_around(&mut self.out, value, owner, offset);
        self.block_closed(self.meta.entries - 1, Handle { offset, len });
        self.flush()?;
        self.append(value)?;
        self.out.extend_from_slice(&tail);
        Ok(())
    }

    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.file.append(data).inspect_err(|e| self.failed = Some(e.clone()))?;
        self.flushed += data.len() as u64;
        // While the next blocks are made, so that the sync at the end has little left.
        self.file.start_sync();
        Ok(())
    }

    /// Appends everything to the file; no block is open.
    fn flush(&mut self) -> Result<()> {
        self.flush_first(self.out.len())
    }

    /// Appends the whole pieces that there are; no block is open.
    fn flush_pieces(&mut self) -> Result<()> {
        let end = self.end() / WRITE_BYTES * WRITE_BYTES;
        if end > self.flushed { self.flush_first((end - self.flushed) as usize) } else { Ok(()) }
    }

    /// Appends the first `len` bytes of `out`, each piece by itself.
    fn flush_first(&mut self, len: usize) -> Result<()> {
        let mut out = mem::take(&mut self.out);
        let mut done = Ok(());
        let mut rest = &out[..len];
        while done.is_ok() && !rest.is_empty() {
            let room = WRITE_BYTES - self.flushed % WRITE_BYTES;
            let (piece, behind) = rest.split_at(rest.len().min(room as usize));
            done = self.append(piece);
            rest = behind;
        }
        out.drain(..len);
        self.out = out;
        done
    }

    /// Writes the parts behind the data and syncs the file. The caller makes its name durable.
    pub fn finish(self) -> Result<Built> {
        let (built, mut file) = self.finish_unsynced()?;
        file.sync()?;
        Ok(built)
    }

    /// Writes the parts behind the data. The caller syncs the file and makes its name durable.
    pub fn finish_unsynced(mut self) -> Result<(Built, Box<dyn WriteFile>)> {
        self.failed.clone().map_or(Ok(()), Err)?;
        if self.open {
            self.close_block()?;
        }
        if let Some(handle) = self.closed.take() {
            self.index_after_last(handle);
        }
        let data_end = self.end();
        let root = self.write_index()?;
        let filter = match self.filter_bits {
            0 => None,
            bits => Some(self.write_block(BlockKind::Filter, &self.filter.finish(bits))?),
        };
        let meta = self.write_meta()?;
        let number = self.number;
        let file_bytes = self.meta.file_bytes;
        let origin = self.options.origin;
        let footer = Footer { root, filter, meta, data_end, number, file_bytes, origin };
        self.out.extend_from_slice(&footer.encode());
        self.flush()?;
        Ok((Built { meta: self.meta, blocks: self.blocks, file_bytes }, self.file))
    }

    fn write_block(&mut self, kind: BlockKind, payload: &[u8]) -> Result<Handle> {
        let (start, offset, owner) = (self.out.len(), self.end(), self.owner());
        self.out.resize(start + HEADER_BYTES, 0);
        self.out.extend_from_slice(payload);
        let len =
            seal(&mut self.out, start, &mut Compressor::default(), kind, owner, offset, Compression::None);
        self.flush_pieces()?;
        Ok(Handle { offset, len })
    }

    fn write_meta(&mut self) -> Result<Handle> {
        self.meta.largest = mem::take(&mut self.last_key);
        let mut payload = Vec::new();
        self.meta.encode(&mut payload);
        let offset = self.end();
        let handle = Handle { offset, len: (HEADER_BYTES + payload.len()) as u64 };
        self.meta.file_bytes = handle.end() + FOOTER_BYTES as u64;
        payload.clear();
        self.meta.encode(&mut payload);
        self.write_block(BlockKind::Meta, &payload)
    }

    /// Writes the index blocks and the root over them.
    fn write_index(&mut self) -> Result<Handle> {
        let index = mem::take(&mut self.index);
        let separators = mem::take(&mut self.separators);
        let mut root = BlockWriter::new(INDEX_RESTART_INTERVAL);
        let mut root_out = Vec::new();
        root.begin(&mut root_out);
        let mut value = Vec::new();
        let mut key_start = 0;
        for (i, block) in index.iter().enumerate() {
            if !self.open {
                self.writer = BlockWriter::new(INDEX_RESTART_INTERVAL);
                self.writer.begin(&mut self.out);
                self.open = true;
            }
            let key = &separators[key_start..block.key_end];
            key_start = block.key_end;
            value.clear();
            encode_handle(block.handle, &mut value);
            self.writer.add(&mut self.out, key, block.seq, Kind::Put, &value);
            if i + 1 == index.len() || self.writer.len(&self.out) >= INDEX_BLOCK_BYTES {
                let handle = self.close_index_block()?;
                value.clear();
                encode_handle(handle, &mut value);
                root.add(&mut root_out, key, block.seq, Kind::Put, &value);
            }
        }
        let offset = self.end();
        let len = root.finish(&mut root_out, BlockKind::Root, self.owner(), offset, Compression::None);
        self.out.extend_from_slice(&root_out);
        self.flush_pieces()?;
        Ok(Handle { offset, len })
    }

    fn close_index_block(&mut self) -> Result<Handle> {
        let offset = self.open_offset();
        let (owner, compression) = (self.owner(), self.options.compression);
        let len = self.writer.finish(&mut self.out, BlockKind::Index, owner, offset, compression);
        self.open = false;
        self.flush_pieces()?;
        Ok(Handle { offset, len })
    }
}
