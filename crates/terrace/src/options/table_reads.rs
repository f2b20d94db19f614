//! How tables are read, and how they are compressed, by name.

use terrace_table::Compression;

use super::settings::Choice;

/// How the blocks of tables are read: through mappings of their files, or by system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TableReads {
    /// Through mappings as long as tables fit into the memory that the system has for them, otherwise by
    /// calls.
    #[default]
    Auto,
    /// Through mappings, however large they are, if the system has any to give.
    Mapped,
    /// By calls, through the block cache.
    Calls,
}

impl Choice for TableReads {
    const NAMES: &'static [&'static str] = &["auto", "mapped", "calls"];

    fn number(&self) -> usize {
        *self as usize
    }

    fn take(&mut self, number: usize) {
        *self = [Self::Auto, Self::Mapped, Self::Calls][number];
    }
}

impl Choice for Compression {
    const NAMES: &'static [&'static str] = &["none", "lz4"];

    fn number(&self) -> usize {
        usize::from(*self == Compression::Lz4)
    }

    fn take(&mut self, number: usize) {
        *self = [Compression::None, Compression::Lz4][number];
    }
}
