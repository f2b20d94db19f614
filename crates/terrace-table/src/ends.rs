//! The two ends of a table, by which everything else in it is found.

use std::sync::Arc;

use terrace_base::{Error, Result};
use terrace_disk::ReadFile;

use crate::block::Block;
use crate::footer::Footer;
use crate::frame::BlockKind;
use crate::meta::TableMeta;
use crate::tail::Tail;

/// Where things lie in a table, and its root index.
#[derive(Debug)]
pub(crate) struct Ends {
    pub footer: Footer,
    pub root: Arc<Block>,
}

impl Ends {
    /// Reads both ends of the table `number` and checks them; also gives its figures.
    pub fn read(file: &dyn ReadFile, number: u64) -> Result<(Ends, TableMeta)> {
        let tail = Tail::read(file)?;
        let footer = tail.footer(file)?;
        if u64::from(footer.number) != number {
            let found = format!("table {}", footer.number);
            return Err(Error::corruption(file.path(), 12, format!("table {number}"), found));
        }
        let meta = tail.meta(file, &footer)?;
        let root = tail.block(file, &footer, footer.root, BlockKind::Root)?;
        Ok((Ends { footer, root: Arc::new(root) }, meta))
    }

    /// Reads both ends of a table that a manifest names, and compares them with the manifest's figures.
    pub fn read_named(file: &dyn ReadFile, meta: &TableMeta, origin: u64) -> Result<Ends> {
        let (ends, found) = Ends::read(file, meta.number)?;
        if ends.footer.origin != origin {
            let expected = "a table of this database (try `repair`)";
            return Err(Error::corruption(file.path(), 0, expected, "another database's table"));
        }
        if found != *meta {
            let expected = "the table that the manifest names (try `repair`)";
            let other = "one with other figures";
            return Err(Error::corruption(file.path(), ends.footer.meta.offset, expected, other));
        }
        Ok(ends)
    }
}
