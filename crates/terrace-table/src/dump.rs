//! Describing a table to a human.

use std::io::{self, Write};

use bytes::Bytes;
use terrace_base::{Error, Result};

use crate::block::{Block, BlockCursor, Held};
use crate::footer::Footer;
use crate::frame::{BlockKind, Handle, Header, Malformed};
use crate::scan::walk;
use crate::table::Table;
use crate::tail::decode_block;

/// Keys are shown up to this many bytes.
const SHOWN_KEY_BYTES: usize = 40;

impl Table {
    /// Writes a description of the table to `out`: its figures, then a line for each block.
    pub fn dump(&self, out: &mut dyn Write) -> Result<()> {
        let footer = *self.footer()?;
        self.dump_meta(&footer, out).map_err(|e| self.unwritten(e))?;
        walk(self.file(), footer.origin, |handle, header, bytes| {
            let contents = self.contents(handle, header, bytes)?;
            let shown = writeln!(
                out,
                "{:>12}  {:<6} {:>10} {:>10}  {:<4}  {contents}",
                handle.offset,
                format!("{:?}", header.kind).to_lowercase(),
                handle.len,
                header.raw,
                format!("{:?}", header.compression).to_lowercase(),
            );
            shown.map_err(|e| self.unwritten(e))
        })
    }

    fn unwritten(&self, e: io::Error) -> Error {
        Error::io(self.path(), "describe", e)
    }

    fn dump_meta(&self, footer: &Footer, out: &mut dyn Write) -> io::Result<()> {
        let meta = self.meta();
        writeln!(out, "table {} in {}", meta.number, self.path().display())?;
        writeln!(out, "  file      {} bytes, of which {} data blocks", meta.file_bytes, footer.data_end)?;
        writeln!(out, "  entries   {}, of which {} tombstones", meta.entries, meta.deletes)?;
        writeln!(out, "  contents  {} bytes of keys and values", meta.raw_bytes)?;
        writeln!(out, "  sequence  {} to {}", meta.min_seq, meta.max_seq)?;
        writeln!(out, "  keys      {} to {}", shown(&meta.smallest), shown(&meta.largest))?;
        let filter = footer.filter.map_or("none".to_string(), |f| format!("{} bytes", f.len));
        writeln!(out, "  filter    {filter}")?;
        writeln!(
            out,
            "{:>12}  {:<6} {:>10} {:>10}  {:<4}  contents",
            "offset", "block", "bytes", "unpacked", "as"
        )
    }

    fn contents(&self, handle: Handle, header: &Header, bytes: Bytes) -> Result<String> {
        if matches!(header.kind, BlockKind::Filter | BlockKind::Meta) {
            return Ok(String::new());
        }
        let block = decode_block(self.file(), bytes, handle, header.kind, self.footer()?.owner())?;
        describe(block).map_err(|m| m.at(self.path(), handle.offset))
    }
}

fn describe(block: Block) -> Result<String, Malformed> {
    let mut cursor = BlockCursor::default();
    cursor.set(Some(Held::Own(block)));
    cursor.first()?;
    if !cursor.valid() {
        return Ok("no entries".to_string());
    }
    let first = format!("{} @ {}", shown(cursor.key()), cursor.seq());
    let mut count = 0;
    while cursor.valid() {
        count += 1;
        cursor.next()?;
    }
    cursor.last()?;
    Ok(format!("{count} entries, {first} to {} @ {}", shown(cursor.key()), cursor.seq()))
}

fn shown(key: &[u8]) -> String {
    let cut = &key[..key.len().min(SHOWN_KEY_BYTES)];
    let more = if cut.len() < key.len() { format!("... ({} bytes)", key.len()) } else { String::new() };
    format!("\"{}\"{more}", cut.escape_ascii())
}
