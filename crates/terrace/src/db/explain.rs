//! What one read has touched.

use std::fmt;

use terrace_base::Result;
use terrace_base::trail::{BlockFrom, Touch, follow};

use super::{Db, Keyspace, Snapshot};

/// What a read of one key has touched, in that order: see [`Db::explain`]. Shown as text it has a line for each
/// step, and one for the sums.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The length of the value; `None` if the key does not exist.
    pub value_bytes: Option<usize>,
    /// The steps.
    pub steps: Vec<Touch>,
}

impl Db {
    /// Reads `key` as [`get`](Self::get) does, and tells what that touched: memtables, index, filters, tables, blocks
    /// and records, each with its bytes. What it reads is in memory afterwards, so that a second call may tell of less.
    ///
    /// ```
    /// # fn main() -> terrace::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use terrace::{Db, Options, Touch};
    ///
    /// let db = Db::open(dir.path(), Options::default())?;
    /// db.put("apple", "red")?;
    /// let explained = db.explain("apple")?;
    /// assert_eq!(explained.value_bytes, Some(3));
    /// assert_eq!(explained.steps, [Touch::Memtable { found: true }]);
    /// db.flush()?;
    /// let explained = db.explain("apple")?;
    /// assert!(explained.steps.contains(&Touch::Index { found: true }));
    /// assert_eq!((explained.memtables(), explained.tables(), explained.blocks()), (1, 1, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As of [`get`](Self::get).
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        explained(|| self.get_with(key, |value| value.len()))
    }
}

impl Snapshot {
    /// What a read of `key` at that moment touches: see [`Db::explain`].
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        explained(|| self.get_with(key, |value| value.len()))
    }
}

impl Keyspace {
    /// What a read of `key` touches: see [`Db::explain`].
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Result<Explanation> {
        explained(|| self.get_with(key, |value| value.len()))
    }
}

fn explained(read: impl FnOnce() -> Result<Option<usize>>) -> Result<Explanation> {
    let (value_bytes, steps) = follow(read);
    Ok(Explanation { value_bytes: value_bytes?, steps })
}

impl Explanation {
    /// Memtables searched.
    pub fn memtables(&self) -> usize {
        self.count(|step| matches!(step, Touch::Memtable { .. }))
    }

    /// SSTables and lists searched, not counting those that a filter ruled out.
    pub fn tables(&self) -> usize {
        self.count(|step| matches!(step, Touch::Table { .. } | Touch::List { .. }))
    }

    /// SSTables and lists that a filter ruled out.
    pub fn ruled_out(&self) -> usize {
        self.count(|step| matches!(step, Touch::Filter { number: Some(_), may: false }))
    }

    /// Blocks used.
    pub fn blocks(&self) -> usize {
        self.count(|step| matches!(step, Touch::Block { .. }))
    }

    /// Bytes of the blocks, records and slots that were used.
    pub fn bytes(&self) -> u64 {
        self.steps.iter().map(bytes_of).sum()
    }

    /// Bytes of those that were read by a call of the system. A mapping reads what is not in memory by itself, and
    /// that is not counted.
    pub fn bytes_read(&self) -> u64 {
        let is_read =
            |step: &&Touch| matches!(step, Touch::Slot { .. } | Touch::Block { from: BlockFrom::File, .. });
        self.steps.iter().filter(is_read).map(bytes_of).sum()
    }

    fn count(&self, is_counted: impl Fn(&Touch) -> bool) -> usize {
        self.steps.iter().filter(|step| is_counted(step)).count()
    }
}

fn bytes_of(step: &Touch) -> u64 {
    match step {
        Touch::Block { bytes, .. } | Touch::Record { bytes } | Touch::Slot { bytes } => *bytes,
        _ => 0,
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "{}", told(step, self.value_bytes.is_some()))?;
        }
        match self.value_bytes {
            Some(bytes) => write!(f, "found, {bytes} bytes: ")?,
            None => write!(f, "not there: ")?,
        }
        let (memtables, tables, blocks) = (self.memtables(), self.tables(), self.blocks());
        write!(
            f,
            "memtables {memtables}, tables {tables}, ruled out {}, blocks {blocks}, ",
            self.ruled_out()
        )?;
        write!(f, "bytes {}, of these read {}", self.bytes(), self.bytes_read())
    }
}

/// A step in words, of a read that has found a value or not.
fn told(step: &Touch, has_value: bool) -> String {
    let finds = |found: bool| match (found, has_value) {
        (true, true) => "has it",
        (true, false) => "has it, deleted or expired",
        (false, _) => "does not have it",
    };
    match *step {
        Touch::Memtable { found } => format!("memtable           {}", finds(found)),
        Touch::Index { found } => format!("index              {}", finds(found)),
        Touch::Versions { count } => format!("list of versions   {count} for this reader"),
        Touch::Filter { number, may } => {
            let of = number.map_or("of a tree".into(), |number| number.to_string());
            format!("filter {of:<11} {}", if may { "may have it" } else { finds(false) })
        }
        Touch::Table { number, found } => format!("table {number:<12} {}", finds(found)),
        Touch::List { number, found } => format!("list {number:<13} {}", finds(found)),
        Touch::Ends { table } => format!("table {table:<12} opened"),
        Touch::Block { table, offset, bytes, from } => {
            let from = match from {
                BlockFrom::Cache => "from the cache",
                BlockFrom::Mapping => "from the mapping",
                _ => "read",
            };
            format!("block of {table:<9} {bytes} bytes at {offset}, {from}")
        }
        Touch::Record { bytes } => format!("record             {bytes} bytes in the pool"),
        Touch::Slot { bytes } => format!("slot               {bytes} bytes read"),
        ref other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_summed_and_told() {
        let block = |from| Touch::Block { table: 7, offset: 100, bytes: 50, from };
        let steps = vec![
            Touch::Memtable { found: false },
            Touch::Filter { number: Some(9), may: false },
            Touch::Filter { number: Some(7), may: true },
            block(BlockFrom::Cache),
            block(BlockFrom::File),
            Touch::Table { number: 7, found: true },
        ];
        let explained = Explanation { value_bytes: Some(3), steps };
        assert_eq!((explained.bytes(), explained.bytes_read(), explained.blocks()), (100, 50, 2));
        let text = explained.to_string();
        assert_eq!(text.lines().count(), 7, "{text}");
        let sums =
            "found, 3 bytes: memtables 1, tables 1, ruled out 1, blocks 2, bytes 100, of these read 50";
        assert!(text.ends_with(sums), "{text}");
        assert!(text.contains("filter 9           does not have it"), "{text}");
        assert!(text.contains("block of 7         50 bytes at 100, read"), "{text}");
        let deleted = Explanation { value_bytes: None, steps: vec![Touch::Memtable { found: true }] };
        assert!(deleted.to_string().starts_with("memtable           has it, deleted or expired\n"));
    }
}
