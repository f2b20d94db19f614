//! How a table is written.

use terrace_base::{Error, Result};

/// How block payloads are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Compression {
    /// As they are.
    #[default]
    None = 0,
    /// LZ4 block format, for each block that shrinks by an eighth or more.
    Lz4 = 1,
}

impl Compression {
    /// The compression stored as `byte`.
    pub fn from_u8(byte: u8) -> Option<Compression> {
        match byte {
            0 => Some(Compression::None),
            1 => Some(Compression::Lz4),
            _ => None,
        }
    }
}

/// Options of a [`TableBuilder`](crate::TableBuilder). Readers need none: a table says how it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableOptions {
    /// Bytes of a block, header included and before compression, at which it is closed; 1 to 64 MiB.
    ///
    /// A block is over this only by holding a single larger entry, so 1 gives every entry a block of
    /// its own (record mode): gets read exactly the record and decode nothing else.
    pub block_bytes: usize,
    /// Entries from one full key to the next, 1 to 65,535: more compress better and are searched slower.
    pub restart_interval: usize,
    /// How blocks are compressed.
    pub compression: Compression,
    /// Bits of Bloom filter per distinct key, up to 64; 0 for no filter. 10 give one false positive in 90.
    pub filter_bits_per_key: u32,
    /// The table's origin, such as its database; 0 for none. Every block is bound to it.
    pub origin: u64,
}

impl Default for TableOptions {
    fn default() -> Self {
        TableOptions {
            block_bytes: 4096,
            restart_interval: 16,
            compression: Compression::None,
            filter_bits_per_key: 0,
            origin: 0,
        }
    }
}

impl TableOptions {
    /// The largest [`block_bytes`](Self::block_bytes).
    pub const MAX_BLOCK_BYTES: usize = 64 << 20;

    /// # Errors
    ///
    /// `InvalidArgument` if one is not in its range.
    pub fn validate(&self) -> Result<()> {
        let within = |name, value: usize, low: usize, high: usize| {
            let ok = (low..=high).contains(&value);
            ok.then_some(()).ok_or_else(|| Error::invalid(format!("{name} {value} is not in {low}..={high}")))
        };
        within("block_bytes", self.block_bytes, 1, Self::MAX_BLOCK_BYTES)?;
        within("restart_interval", self.restart_interval, 1, 65_535)?;
        within("filter_bits_per_key", self.filter_bits_per_key as usize, 0, 64)
    }
}
