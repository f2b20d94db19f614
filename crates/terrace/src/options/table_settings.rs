//! Settings of a keyspace's tables by name, as the options of the database are.

use std::fmt;

use terrace_base::{Error, Result};

use super::settings::{BLOCK_BYTES, FILTER_BITS, Setting, Slot};
use crate::keyspaces::TableSettings;
use crate::options::Compression;

/// Their names, which are those of the database's options.
const COMPRESSION: &str = "compression";
const BLOCKS: &str = "block_bytes";
const FILTER: &str = "filter_bits_per_key";

impl TableSettings {
    /// Sets one by its name, such as `block_bytes` to `16KiB`; `default` is what holds for the database.
    ///
    /// ```
    /// let mut tables = terrace::TableSettings::default();
    /// tables.set("block_bytes", "16KiB")?;
    /// tables.set("compression", "lz4")?;
    /// assert_eq!(tables.to_string(), "compression=lz4,block_bytes=16384");
    /// tables.set("compression", "default")?;
    /// assert_eq!(tables.to_string(), "block_bytes=16384");
    /// # Ok::<(), terrace::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is no such setting, or if it cannot have that value, with what it may be.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match (name, value) {
            (COMPRESSION, "default") => self.compression = None,
            (BLOCKS, "default") => self.block_bytes = None,
            (FILTER, "default") => self.filter_bits_per_key = None,
            (COMPRESSION, _) => {
                let mut to = Compression::None;
                Setting { name: COMPRESSION, slot: Slot::OneNamed(&mut to) }.set(value)?;
                self.compression = Some(to);
            }
            (BLOCKS, _) => {
                let mut to = 0usize;
                Setting { name: BLOCKS, slot: Slot::Whole(&mut to, BLOCK_BYTES) }.set(value)?;
                self.block_bytes = Some(to);
            }
            (FILTER, _) => {
                let mut to = 0u32;
                Setting { name: FILTER, slot: Slot::Whole(&mut to, FILTER_BITS) }.set(value)?;
                self.filter_bits_per_key = Some(to);
            }
            _ => {
                return Err(Error::invalid(format!(
                    "tables have no setting {name:?}; there are: {COMPRESSION}, {BLOCKS}, {FILTER}"
                )));
            }
        }
        Ok(())
    }
}

/// What is set, as [`set`](TableSettings::set) takes it, with commas between.
impl fmt::Display for TableSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut compression = self.compression;
        let compression = compression.as_mut().map(|kept| Slot::OneNamed(kept).shown());
        let all = [
            (COMPRESSION, compression),
            (BLOCKS, self.block_bytes.map(|bytes| bytes.to_string())),
            (FILTER, self.filter_bits_per_key.map(|bits| bits.to_string())),
        ];
        let set = all.iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
        f.write_str(&set.collect::<Vec<_>>().join(","))
    }
}
