//! How the tables with a keyspace's keys are written, where it is to be otherwise than for the database.

use terrace_base::Result;
use terrace_table::{Compression, TableOptions};

/// How the keys of a keyspace are written into tables. What is `None` is as for the database.
///
/// It holds for tables that flushes and compactions write from then on. A table may have the keys of several keyspaces:
/// their blocks are apart, and its filter has the most bits a key that any of them asks for.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use terrace::{Compression, Db, KeyspaceOptions, Options, TableSettings};
///
/// let db = Db::open(dir.path(), Options::default())?;
/// let tables = TableSettings { compression: Some(Compression::Lz4), ..TableSettings::default() };
/// let options = KeyspaceOptions { tables: Some(tables), ..KeyspaceOptions::default() };
/// let pages = db.keyspace_with("pages", options)?;
/// assert_eq!(pages.tables().compression, Some(Compression::Lz4));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableSettings {
    /// Whether blocks are compressed.
    pub compression: Option<Compression>,
    /// Bytes at which a block is closed, before compression; 1 to 64 MiB.
    pub block_bytes: Option<usize>,
    /// Bits of filter a key, up to 64; 0 for none. Only engines whose tables have filters take it.
    pub filter_bits_per_key: Option<u32>,
}

impl TableSettings {
    /// Whether anything is otherwise than for the database.
    pub(crate) fn are_there(&self) -> bool {
        *self != TableSettings::default()
    }

    /// # Errors
    ///
    /// `InvalidArgument` if one is not in its range.
    pub(crate) fn check(&self) -> Result<()> {
        self.over(&TableOptions::default()).validate()
    }

    /// `all`, as far as these say nothing else.
    pub(crate) fn over(&self, all: &TableOptions) -> TableOptions {
        TableOptions {
            compression: self.compression.unwrap_or(all.compression),
            block_bytes: self.block_bytes.unwrap_or(all.block_bytes),
            filter_bits_per_key: self.filter_bits_per_key.unwrap_or(all.filter_bits_per_key),
            ..all.clone()
        }
    }
}
