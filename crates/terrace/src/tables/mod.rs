//! The files of tables: writing them, and removing what is no longer needed.
//!
//! | file | what it does |
//! |---|---|
//! | `writer.rs` | writes tables one after the other; what a failed job made goes with it |
//! | `removals.rs` | removes files; those that cannot be removed yet wait in one queue |

mod removals;
mod writer;

pub(crate) use removals::Files;
pub(crate) use writer::{MadeFile, MadeTable, TableWriter, WriterOptions};
