//! An SSTable.

use std::io::Write;
use std::sync::Arc;

use terrace_disk::{Access, RealFs};
use terrace_table::{BlockCache, Cursor, Kind, Table};

use super::Dump;
use crate::escape::{escaped, preview};
use crate::failure::CommandResult;

pub(super) fn dump(args: &Dump, number: u64, out: &mut dyn Write) -> CommandResult {
    let cache = Arc::new(BlockCache::new(1 << 20));
    let table = Table::open(&RealFs, &args.file, number, cache, Access::Sequential)?;
    let mut text = Vec::new();
    let described = table.dump(&mut text);
    // The readable part is printed before the error.
    out.write_all(&text)?;
    described?;
    if !args.entries {
        return Ok(());
    }
    writeln!(out)?;
    let mut cursor = table.cursor(false, 1 << 20);
    cursor.seek_first()?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    while cursor.valid() && left > 0 {
        entry(args, &cursor, out)?;
        cursor.next()?;
        left -= 1;
    }
    Ok(())
}

/// The sequence number, the operation, the key and the value.
fn entry(args: &Dump, cursor: &dyn Cursor, out: &mut dyn Write) -> CommandResult {
    let key = escaped(cursor.key());
    if cursor.kind() == Kind::Delete {
        return Ok(writeln!(out, "{:>12}  delete  {key}", cursor.seq())?);
    }
    let what = if cursor.kind() == Kind::Operand { "merge" } else { "put" };
    let value = cursor.value()?;
    let value = if args.full { escaped(&value) } else { preview(&value, 60) };
    Ok(writeln!(out, "{:>12}  {what:<6}  {key}\t{value}", cursor.seq())?)
}
