//! What a scenario does.

/// One operation. A key is named by a number, a value by its length: see [`key`] and [`value`].
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    Put {
        key: u16,
        len: u32,
    },
    /// A put that is acknowledged as power-safe.
    PutSynced {
        key: u16,
        len: u32,
    },
    Delete {
        key: u16,
    },
    /// A put of what a filter lets go.
    PutJunk {
        key: u16,
        len: u32,
    },
    /// Puts and deletes that take effect together.
    Batch(Vec<Write>),
    /// Deletes all keys between two, whichever comes first, at once.
    DeleteRange {
        from: u16,
        to: u16,
    },
    /// A put in the place of the value that the key has, by a swap.
    Swap {
        key: u16,
        len: u32,
    },
    /// Puts and deletes that take effect together, by a transaction that reads keys first.
    Transact {
        reads: Vec<u16>,
        writes: Vec<Write>,
    },
    /// Puts that take effect together, ingested.
    Ingest(Vec<Write>),
    /// Makes everything so far power-safe.
    Sync,
    /// Takes a snapshot.
    Snapshot,
    /// Compares every snapshot with what it saw when it was taken.
    ReadSnapshots,
    /// Lets go of the oldest snapshot.
    Release,
    /// Compares all contents, by iteration and by gets.
    Compare,
    Flush,
    /// Compacts the keys between two; all keys from the first on if the second comes before it.
    Compact {
        from: u16,
        to: u16,
    },
    /// Compacts all keys.
    CompactAll,
    /// Runs one background job.
    Background,
    /// Closes and opens again.
    Reopen,
    /// The process dies with whatever it was about to do; another opens the database.
    Kill,
    /// Leaves so many bytes of room on the disk.
    DiskFull {
        slack: u32,
    },
    /// Lets the pool grow by so many bytes.
    PoolFull {
        slack: u32,
    },
    /// Makes room on both media.
    Room,
}

impl Op {
    /// Compacts from the empty key to the last one with the long beginning. The other two thirds of the keys sort
    /// behind these: they are merged only where they share tables with them.
    pub const COMPACT_LONG_KEYS: Op = Op::Compact { from: 0, to: u16::MAX };
}

/// A change of one key.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    Put { key: u16, len: u32 },
    Junk { key: u16, len: u32 },
    Delete { key: u16 },
}

impl Write {
    /// The number of the key that it changes.
    pub fn key(&self) -> u16 {
        match self {
            Write::Put { key, .. } | Write::Junk { key, .. } | Write::Delete { key } => *key,
        }
    }

    /// The `stamp`th value, which it writes; `None` if it deletes.
    pub fn value(&self, stamp: u32) -> Option<Vec<u8>> {
        match self {
            Write::Put { len, .. } => Some(value(stamp, *len)),
            Write::Junk { len, .. } => Some([JUNK, &value(stamp, *len)].concat()),
            Write::Delete { .. } => None,
        }
    }
}

/// The key called `number`: one is empty, some share a long beginning, some are beginnings of others.
pub fn key(number: u16) -> Vec<u8> {
    match number {
        0 => Vec::new(),
        n if n % 3 == 0 => {
            format!("a-long-beginning-that-many-keys-have-in-common/{:03}", n / 3).into_bytes()
        }
        n if n % 3 == 1 => format!("k{n}").into_bytes(),
        n => format!("k{}\0{n}", n - 1).into_bytes(),
    }
}

/// Keys have lower numbers than this where ranges of them are deleted.
const MOST_KEYS: u16 = 128;

/// The keys called `from` and `to`, in their order.
pub fn ends(from: u16, to: u16) -> (Vec<u8>, Vec<u8>) {
    let (a, b) = (key(from), key(to));
    if a <= b { (a, b) } else { (b, a) }
}

/// What a deletion of the range between two keys is: the deletion of each.
pub fn deletes_between(from: u16, to: u16) -> Vec<Write> {
    let (first, last) = ends(from, to);
    let is_between = |number: &u16| (&first..=&last).contains(&&key(*number));
    (0..MOST_KEYS).filter(is_between).map(|key| Write::Delete { key }).collect()
}

/// The `stamp`th value, of `len` bytes; no two of four bytes or more are the same.
pub fn value(stamp: u32, len: u32) -> Vec<u8> {
    let mut value = vec![(stamp % 251) as u8; len as usize];
    let stamp = stamp.to_le_bytes();
    let n = value.len().min(4);
    value[..n].copy_from_slice(&stamp[..n]);
    value
}

/// What junk begins with. No stamp is so high that another value does.
const JUNK: &[u8] = b"junk";

/// Whether a filter lets go of a value.
pub fn is_junk(value: &[u8]) -> bool {
    value.starts_with(JUNK)
}
