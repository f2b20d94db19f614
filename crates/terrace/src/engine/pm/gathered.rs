//! Versions that a repair gathers, in sorted tables, so that they need not fit into memory.
//!
//! There a version has its number with a rank above it, so that certain versions precede those that were
//! merely found.

use bytes::Bytes;
use terrace_base::{Error, Result};
use terrace_table::{Kind, TableMeta};

use crate::core::Core;
use crate::salvage::{TableSorter, each_newest_in};

/// The content found of a version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Content {
    /// The key is deleted.
    #[default]
    Nothing,
    Value(Vec<u8>),
    /// The word of the place of the value, which stays there.
    At(u64),
}

impl Content {
    fn encode(&self) -> Vec<u8> {
        match self {
            Content::Nothing => Vec::new(),
            Content::Value(value) => [&[0], &value[..]].concat(),
            Content::At(word) => [&[1], &word.to_le_bytes()[..]].concat(),
        }
    }

    fn decode(kind: Kind, bytes: &[u8]) -> Option<Content> {
        match (kind, bytes.split_first()) {
            (Kind::Delete, _) => Some(Content::Nothing),
            (Kind::Put, Some((0, value))) => Some(Content::Value(value.to_vec())),
            (Kind::Put, Some((1, word))) => word.try_into().ok().map(u64::from_le_bytes).map(Content::At),
            (Kind::Put | Kind::Operand, _) => None,
        }
    }
}

/// Receives a key, the number and rank of its newest version, and that version's content.
pub(super) type EachContent<'a> = dyn FnMut(&[u8], u64, Content) -> Result<()> + 'a;

/// Bits of a version's number; its rank stands above them.
const NUMBER_BITS: u32 = 48;

/// How certain it is that a version is a key's newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// It was found.
    Found,
    /// The index leads to it.
    Named,
    /// It was the newest before a group that was cut short.
    Undone,
}

/// Whether this number and rank belong to a version that nothing leads to.
pub(super) fn is_merely_found(seq: u64) -> bool {
    seq >> NUMBER_BITS == Rank::Found as u64
}

/// The number of a version that was gathered.
pub(super) fn number_of(seq: u64) -> u64 {
    seq & ((1 << NUMBER_BITS) - 1)
}

/// Gathers a version of `key`.
pub(super) fn take(
    runs: &mut TableSorter<'_>,
    key: &[u8],
    number: u64,
    content: &Content,
    rank: Rank,
) -> Result<()> {
    let kind = if *content == Content::Nothing { Kind::Delete } else { Kind::Put };
    let seq = number | (rank as u64) << NUMBER_BITS;
    runs.add(key, seq, kind, Bytes::from(content.encode()))
}

/// Calls `each` with the newest gathered version of each key.
pub(super) fn each_content(core: &Core, tables: &[TableMeta], each: &mut EachContent<'_>) -> Result<()> {
    each_newest_in(core, tables, &mut |key, seq, kind, value| match Content::decode(kind, value) {
        Some(content) => each(key, seq, content),
        None => Err(Error::corruption(&core.dir, 0, "what was gathered", "something else")),
    })
}

/// The highest number of a version; 0 if there is none. Numbers continue from there.
pub(super) fn highest_number(core: &Core, tables: &[TableMeta]) -> Result<u64> {
    let mut highest = 0;
    each_content(core, tables, &mut |_, seq, _| {
        highest = highest.max(number_of(seq));
        Ok(())
    })?;
    Ok(highest)
}
