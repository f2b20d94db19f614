//! Append-only, checksummed logs on files and on persistent memory.
//!
//! A log is a segment of bytes with a header and numbered records. Synced records are always read back; other records
//! are read back as far as they are whole; a record that was never written is never read. `docs/formats/log.md` has the
//! bytes.
//!
//! | want | use |
//! |---|---|
//! | a log one thread writes | [`LogWriter`] over a [`Segment`]; [`create_log_file`] for a file |
//! | a log on PM that continues after a restart | [`PmLog`]; [`PmSegment`] under the others |
//! | logs on PM in two generations, the older of which goes as a whole | [`LogSet`], named by [`SetWords`] |
//! | the records back | [`LogReader`] |

mod file;
mod frame;
mod pm;
mod reader;
mod segment;
mod writer;

pub use file::{create_log_file, create_reserved_log_file, unfinished_path};
pub use frame::Origin;
pub use pm::{LogPlaces, LogSet, MAX_SET_LOGS, PmLog, PmSegment, SetKinds, SetWords};
pub use reader::{LogReader, Outline, Tail, Visit};
pub use segment::{FileSegment, Segment};
pub use writer::{FIRST_LSN, LogWriter};
