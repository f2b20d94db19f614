//! The files of tables: writing and opening them, and removing what is no longer needed.
//!
//! | file | what it does |
//! |---|---|
//! | `writer.rs` | writes tables one after the other; what a failed job made goes with it |
//! | `open.rs` | opens those that the manifest names, which must be the database's own |
//! | `removals.rs` | removes files; those that cannot be removed yet wait in one queue |

mod open;
mod removals;
mod writer;

pub(crate) use open::{open_table, refuse_missing};
pub(crate) use removals::Files;
pub(crate) use writer::{MadeFile, MadeTable, TableWriter, WriterOptions};
