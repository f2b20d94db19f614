//! Keyspaces: named maps in one database, each with keys of its own.
//!
//! All of them lie in one engine, as ranges of its keys ([`space`]). So batches, snapshots and transactions across them
//! are whole because those of the engine are, and a database without them is as it was before there were any. What
//! keyspaces there are is in records of one range, the catalogue, which the database keeps (`db/keyspace`).

pub(crate) mod callbacks;
mod compaction_filter;
mod dated;
pub(crate) mod merge_operator;
mod open;
mod space;
mod spans;
mod table_settings;

pub use compaction_filter::{CompactionFilter, FilterDecision, FilterEntry};
pub(crate) use dated::{DATED, DEADLINE_BYTES, NEVER, all_dated, dated, deadline_of, is_dated, millis};
pub use merge_operator::MergeOperator;
pub(crate) use merge_operator::OperatorName;
pub(crate) use open::{KeyspaceCounts, OpenKeyspace, Writing};
pub use space::MAX_NUMBERED_KEY_BYTES;
pub(crate) use space::{ESCAPE, Places, Prefix, Space, after_prefix, is_high};
pub(crate) use spans::{Span, Spans};
pub use table_settings::TableSettings;
