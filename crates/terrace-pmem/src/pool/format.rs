//! Access to a medium before it is a pool, and writing a new pool's header.

use std::path::Path;

use terrace_base::rng::Rng;
use terrace_base::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::PoolOptions;
use crate::alloc::Table;
use crate::layout::{
    EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, HEADER_BYTES, MAGIC, OF_PAGES, SIZE_WORD_AT, SUPERBLOCK_AT,
    Superblock, VERSION,
};
use crate::media::{Granularity, Media};
use crate::word::{self, Tag};

/// Bytes of the page that each copy of the superblock has to itself.
pub(super) const SUPERBLOCK_PAGE_BYTES: usize = 4096;

/// A medium seen as bytes. Calls are few and go through the trait.
pub(super) struct Raw<'a> {
    media: &'a dyn Media,
}

impl<'a> Raw<'a> {
    /// A medium that holds at least the header.
    pub(super) fn new(media: &'a dyn Media, name: &Path) -> Result<Self> {
        if media.len() < HEADER_BYTES {
            let found = format!("{} bytes", media.len());
            return Err(Error::foreign(name, found, format!("pools of at least {HEADER_BYTES} bytes")));
        }
        Ok(Raw { media })
    }

    pub(super) fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        assert!(at + N as u64 <= self.media.len(), "header reads stay inside the medium");
        // SAFETY: in range; nobody else uses the medium while a pool is created, opened or closed on it.
        unsafe { self.media.base().add(at as usize).cast::<[u8; N]>().read_unaligned() }
    }

    /// Copies and flushes; not drained.
    pub(super) fn write(&self, at: u64, data: &[u8]) {
        self.media.copy_flush(at, data);
    }

    /// Makes a written range durable in the medium's way.
    pub(super) fn make_durable(&self, at: u64, len: u64) -> Result<()> {
        self.media.drain();
        if self.media.power_safe() { Ok(()) } else { self.media.sync_range(at, len) }
    }
}

/// Whether these options can make a pool at all.
pub(super) fn validate_options(options: &PoolOptions) -> Result<()> {
    let units = [Some(options.extent_bytes), options.extent_bytes_in_file];
    units.into_iter().flatten().try_for_each(|extent| validate_extent(options, extent))
}

fn validate_extent(options: &PoolOptions, extent: u64) -> Result<()> {
    if !is_extent(extent) {
        return Err(Error::invalid(format!(
            "extent_bytes {extent}: must be a power of two from {EXTENT_BYTES_MIN} to {EXTENT_BYTES_MAX}"
        )));
    }
    if options.size.min(options.max_size) < HEADER_BYTES + 2 * extent {
        let (size, max) = (options.size, options.max_size);
        return Err(Error::invalid(format!(
            "a pool of {size} bytes, {max} at most, with extents of {extent}"
        )));
    }
    Ok(())
}

fn is_extent(bytes: u64) -> bool {
    bytes.is_power_of_two() && (EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&bytes)
}

/// The shape of a new pool on a medium.
pub(super) fn plan(options: &PoolOptions, media: &dyn Media, name: &Path) -> Result<(Superblock, u64)> {
    validate_options(options)?;
    let extent = match media.granularity() {
        Granularity::Page => options.extent_bytes_in_file.unwrap_or(options.extent_bytes),
        _ => options.extent_bytes,
    };
    let units = media.len() / extent;
    let mut uuid = [0; 16];
    Rng::new(Rng::fresh_seed()).fill(&mut uuid);
    let granularity = match media.granularity() {
        Granularity::Byte => 1,
        Granularity::CacheLine => 2,
        Granularity::Page => OF_PAGES,
    };
    let superblock = Superblock {
        magic: MAGIC,
        version: VERSION,
        granularity,
        uuid,
        extent_bytes: extent,
        max_size: options.max_size,
        first_units: Table::first_units(units, options.max_size / extent, extent),
        reserved: [0; 68],
        crc: 0,
    }
    .sealed();
    let table = Table::new(&superblock);
    if units <= table.first_extent() {
        let least = (table.first_extent() + 1) * extent;
        return Err(Error::invalid(format!(
            "pool {}: {} bytes are too few, with extents of {extent} it takes {least}",
            name.display(),
            media.len()
        )));
    }
    if units > word::VALUE_MAX {
        return Err(Error::invalid("pool too large".to_owned()));
    }
    Ok((superblock, units))
}

/// Writes everything but the superblocks, which come last: a crash before them leaves no pool.
pub(super) fn write_header(raw: &Raw<'_>, superblock: &Superblock, units: u64) -> Result<()> {
    for at in SUPERBLOCK_AT {
        raw.write(at, &[0; 128]);
    }
    raw.make_durable(0, HEADER_BYTES)?;
    raw.write(SUPERBLOCK_AT[1] + 4096, &[0; (HEADER_BYTES - 8192) as usize]);
    raw.write(SIZE_WORD_AT, &word::seal(Tag::Size, SIZE_WORD_AT, units).to_le_bytes());
    let table = Table::new(superblock);
    let first = table.first_segment();
    raw.write(first.at, &table.format(&first));
    raw.make_durable(0, table.first_extent() * superblock.extent_bytes)
}

/// Writes the superblocks: now it is a pool. The magic comes last, in one word, so that superblocks that a crash cuts
/// off are still [blank](is_blank).
pub(super) fn write_superblocks(raw: &Raw<'_>, superblock: &Superblock) -> Result<()> {
    let (magic, rest) = superblock.as_bytes().split_at(MAGIC.len());
    for at in SUPERBLOCK_AT {
        raw.write(at + MAGIC.len() as u64, rest);
        raw.make_durable(at, 128)?;
        raw.write(at, magic);
        raw.make_durable(at, 128)?;
    }
    Ok(())
}

/// Takes the superblocks away, the magic first: while one copy has its magic, it is whole.
pub(super) fn erase_superblocks(raw: &Raw<'_>) -> Result<()> {
    for at in SUPERBLOCK_AT {
        raw.write(at, &[0; MAGIC.len()]);
        raw.make_durable(at, MAGIC.len() as u64)?;
    }
    for at in SUPERBLOCK_AT {
        raw.write(at, &[0; SUPERBLOCK_PAGE_BYTES]);
        raw.make_durable(at, SUPERBLOCK_PAGE_BYTES as u64)?;
    }
    Ok(())
}

/// Whether the pages of the superblocks are empty, or hold a superblock without its magic, as a creation or removal
/// leaves it that was cut short.
pub(super) fn is_blank(raw: &Raw<'_>) -> bool {
    SUPERBLOCK_AT.iter().all(|&at| is_blank_page(&raw.read::<SUPERBLOCK_PAGE_BYTES>(at)))
}

/// The same of one page.
pub(super) fn is_blank_page(page: &[u8]) -> bool {
    let zero = |bytes: &[u8]| bytes.iter().all(|&b| b == 0);
    zero(&page[..MAGIC.len()]) && zero(&page[size_of::<Superblock>()..])
}

fn copies(raw: &Raw<'_>) -> [Superblock; 2] {
    SUPERBLOCK_AT.map(|at| {
        let bytes: [u8; 128] = raw.read(at);
        Superblock::read_from_bytes(&bytes).expect("128 bytes are a superblock")
    })
}

/// Reads the superblock from a sound copy.
pub(super) fn read_superblock(raw: &Raw<'_>, name: &Path) -> Result<Superblock> {
    let copies = copies(raw);
    let sound = |s: &Superblock| s.magic == MAGIC && s.is_sound();
    let Some(good) = copies.iter().copied().find(sound) else {
        return Err(no_superblock(&copies, name));
    };
    if good.version != VERSION {
        return Err(Error::other_version(
            name,
            format!("pool version {}", good.version),
            format!("pool version {VERSION}"),
        ));
    }
    validate(&good, name)?;
    Ok(good)
}

/// Rewrites a copy of the superblock that differs from the sound one.
pub(super) fn mend_superblock(raw: &Raw<'_>, good: &Superblock) -> Result<()> {
    for (at, copy) in SUPERBLOCK_AT.into_iter().zip(&copies(raw)) {
        if copy != good {
            raw.write(at, good.as_bytes());
            raw.make_durable(at, 128)?;
        }
    }
    Ok(())
}

/// What an error says was found where both copies of the superblock are zeros.
pub const BLANK: &str = "no pool (zeros)";

fn no_superblock(copies: &[Superblock; 2], name: &Path) -> Error {
    if copies.iter().any(|c| c.magic == MAGIC) {
        return Error::corruption(name, 0, "a sound superblock", "two copies with wrong checksums");
    }
    let found = match copies[0].magic {
        [0, 0, 0, 0, 0, 0, 0, 0] => BLANK.to_owned(),
        magic => format!("magic {:?}", String::from_utf8_lossy(&magic)),
    };
    Error::foreign(name, found, "Terrace pools")
}

/// The checksum proves that the bytes were written so; this checks that they make sense to this build.
fn validate(s: &Superblock, name: &Path) -> Result<()> {
    let table_ok = s.first_units.is_power_of_two() && s.first_units <= word::VALUE_MAX;
    if is_extent(s.extent_bytes) && table_ok {
        return Ok(());
    }
    let found = format!("extents of {} bytes, {} in the first table segment", s.extent_bytes, s.first_units);
    Err(Error::corruption(name, 32, "powers of two in range", found))
}

/// Bytes of the whole extents in a file of `len` bytes, if they hold the table and more.
pub(super) fn whole_extents(s: &Superblock, len: u64) -> Option<u64> {
    let units = len / s.extent_bytes;
    (units > Table::new(s).first_extent()).then_some(units * s.extent_bytes)
}

/// The pool's size in bytes, from its size word.
pub(super) fn read_size(raw: &Raw<'_>, s: &Superblock, media_len: u64, name: &Path) -> Result<u64> {
    let stored = u64::from_le_bytes(raw.read(SIZE_WORD_AT));
    let units = word::unseal(Tag::Size, SIZE_WORD_AT, stored).ok_or_else(|| {
        Error::corruption(name, SIZE_WORD_AT, "a sound size word", format!("{stored:#018x}"))
    })?;
    let size = units.checked_mul(s.extent_bytes).filter(|_| units > Table::new(s).first_extent());
    let size = size.ok_or_else(|| {
        Error::corruption(name, SIZE_WORD_AT, "a size that holds the table", format!("{units} extents"))
    })?;
    if size > media_len {
        let found = format!("a file cut to {media_len}");
        return Err(Error::corruption(name, media_len, format!("{size} bytes"), found));
    }
    Ok(size)
}
