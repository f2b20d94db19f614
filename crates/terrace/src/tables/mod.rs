//! The tables of a database: writing them, and the set of existing ones.
//!
//! | file | what it does |
//! |---|---|
//! | `writer.rs` | writes tables one after the other; what a failed job made goes with it |
//! | `ahead.rs` | a merge over several that reads ahead |
//! | `store.rs` | keeps those that the manifest names, which are opened when they are read |

mod ahead;
mod store;
mod writer;

pub(crate) use ahead::{each_newest, merge_ahead};
pub(crate) use store::{TableMap, TableStore, refuse_missing};
pub(crate) use writer::{MadeFile, MadeTable, TableWriter, WriterOptions};
