//! Files of sectors, which are written and read in place, past the page cache where the system allows it.
//!
//! The contract, in addition to that of [`crate::fs`], which the simulated file system enforces to the letter:
//!
//! 1. A *sector* is the unit of reads and writes, a *block* the unit that tears as a whole: a drive with sectors of 512
//!    bytes may keep them in physical blocks of 4 KiB, and writes such a block whole. Offsets and lengths are multiples
//!    of a sector; lengths that a file is grown to, and ranges that are given back, are multiples of a block. A file
//!    that was made on another drive may end within a block; an incomplete sector at its end is ignored.
//! 2. Every reader sees a write's bytes when the write returns; they are durable after the next `sync`. Until then a
//!    power cut leaves each sector as it was at any time since the last `sync`, each for itself; and it may destroy a
//!    block that any write since then has touched, including its other sectors. So a block whose contents must survive
//!    is not written to.
//! 3. A write that fails leaves each of its sectors old or new, and affects other sectors only as (2) says. The other
//!    writes of the same call may have been done or not. The call may be tried again. No write is in progress any more
//!    when the call returns.
//! 4. After a failed `sync` nothing may be assumed about writes since the last successful one, by any thread: not even
//!    a reader may find them. The file stays usable: later writes are not affected. A `sync` that another thread makes
//!    meanwhile does not cover the lost writes; so either one thread at a time writes and syncs, or no thread relies on
//!    another's `sync`.
//! 5. The part that the file was grown by holds arbitrary bytes until it is written. Its space is reserved where the
//!    file system can do that. A range that was given back reads as zeros, and until the next `sync` a power cut may
//!    bring its former bytes back. A write to it may find no space. The first write to either part costs an additional
//!    `sync`.
//! 6. Length and contents survive the death of a process; a write in progress is half done, as in (3).
//! 7. Reads that were begun see the contents of some moment between their beginning and their end.
//!
//! | file | what it owns |
//! |---|---|
//! | `buf.rs` | memory that a drive reads and writes directly |
//! | `reads.rs` | reads that were begun |

mod buf;
mod reads;

use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use terrace_base::{Error, Result};

pub use self::buf::{BLOCK_ALIGN_BYTES, BlockBuf};
pub use self::reads::BlockReads;
pub(crate) use self::reads::read_later;

/// No drive has smaller sectors.
pub const LEAST_SECTOR_BYTES: u32 = 512;

/// How a file of sectors is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a sector, the unit of reads and writes.
    pub sector_bytes: u32,
    /// Bytes of a block, the unit that tears as a whole and that is given back.
    pub block_bytes: u32,
    /// Whether written bytes may be in a cache that a power cut empties. If not, a `sync` after overwriting old data
    /// costs nothing.
    pub is_volatile: bool,
}

impl Geometry {
    /// Refuses `bytes` at `offset` of a file of `len` bytes, unless these are sectors of it.
    pub fn check(&self, path: &Path, offset: u64, bytes: u64, len: u64) -> Result<()> {
        let sector = u64::from(self.sector_bytes);
        if !offset.is_multiple_of(sector) || !bytes.is_multiple_of(sector) {
            let path = path.display();
            return Err(Error::invalid(format!(
                "{bytes} bytes at {offset} of {path} are not sectors of {sector}"
            )));
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= len => Ok(()),
            _ => Err(Error::corruption(
                path,
                offset,
                format!("{bytes} bytes"),
                format!("the file's end at {len}"),
            )),
        }
    }

    /// Refuses `range`, unless it is blocks of a file of `len` bytes.
    pub fn check_blocks(&self, path: &Path, range: &Range<u64>, len: u64) -> Result<()> {
        let blocks = Geometry { sector_bytes: self.block_bytes, ..*self };
        let Some(bytes) = range.end.checked_sub(range.start) else {
            return Err(Error::invalid(format!("{range:?} of {} is no range", path.display())));
        };
        blocks.check(path, range.start, bytes, len)
    }
}

/// A write of consecutive sectors.
#[derive(Debug, Clone)]
pub struct BlockWrite<'a> {
    /// Where they begin.
    pub offset: u64,
    /// The new contents, each part a number of sectors. Memory on multiples of [`BLOCK_ALIGN_BYTES`], as that of a
    /// [`BlockBuf`], is not copied.
    pub parts: Vec<&'a [u8]>,
}

impl BlockWrite<'_> {
    /// Bytes of all parts.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Refuses the write for a file of `len` bytes, unless each part consists of sectors of that file.
    pub(crate) fn check(&self, geometry: &Geometry, path: &Path, len: u64) -> Result<()> {
        self.parts.iter().try_for_each(|part| geometry.check(path, 0, part.len() as u64, u64::MAX))?;
        geometry.check(path, self.offset, self.len(), len)
    }
}

/// A file of sectors. The module's head states its contract.
///
/// ```
/// use std::path::Path;
/// use terrace_disk::{BlockBuf, BlockWrite, Fs, SimFs};
/// let disk = SimFs::new();
/// let file = disk.open_blocks(Path::new("/slots"), true)?;
/// file.grow(1 << 20)?;
/// let item = BlockBuf::holding(b"an item", 512);
/// file.write_many(&[BlockWrite { offset: 4096, parts: vec![&item] }])?;
/// file.sync()?;                            // durable; the name is with `sync_dir`
/// let mut found = BlockBuf::zeroed(512);
/// file.read_many(&mut [(4096, &mut found)])?;
/// assert!(found.starts_with(b"an item"));
/// file.discard(4096..8192)?;               // the space is given back
/// # Ok::<(), terrace_base::Error>(())
/// ```
pub trait BlockFile: Send + Sync + Debug {
    /// How it is written.
    fn geometry(&self) -> Geometry;

    /// Writes all, which do not overlap, submitted together where the system can.
    fn write_many(&self, writes: &[BlockWrite<'_>]) -> Result<()>;

    /// Fills each buffer, a number of sectors, from its offset, all submitted together where the system can. Reading
    /// past the end is `Error::Corruption`.
    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Result<()>;

    /// Begins to read, from each offset as many bytes as its buffer has. Returns at once where the system can do that;
    /// otherwise the reads are made when they are waited for.
    fn begin_reads(self: Arc<Self>, reads: Vec<(u64, BlockBuf)>) -> Box<dyn BlockReads>;

    /// Makes earlier writes, growth and discards durable. Returns whether the device had to be asked.
    fn sync(&self) -> Result<bool>;

    /// Makes the file `len` bytes long, if it is shorter. After a failure it is unchanged.
    fn grow(&self, len: u64) -> Result<()>;

    /// Gives back the space of `range`. Returns whether that can be done; if not, nothing has changed.
    fn discard(&self, range: Range<u64>) -> Result<bool>;

    /// Its length in bytes.
    fn len(&self) -> u64;

    /// Whether it was never grown.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file's path.
    fn path(&self) -> &Path;
}
