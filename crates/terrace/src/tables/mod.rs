//! The files of tables: writing and opening them.
//!
//! | file | what it does |
//! |---|---|
//! | `writer.rs` | writes tables one after the other; what a failed job made goes with it |
//! | `open.rs` | opens those that the manifest names, which must be the database's own |

mod open;
mod writer;

pub(crate) use open::{open_table, refuse_missing};
pub(crate) use writer::{MadeFile, MadeTable, TableWriter, WriterOptions};
