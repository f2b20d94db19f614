use std::time::Duration;

/// What scrubs have compared, in the background and by [`Db::scrub`](crate::Db::scrub), since the database was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubStats {
    /// Passes over all tables.
    pub passes: u64,
    /// Tables compared to their ends.
    pub tables: u64,
    /// Bytes compared.
    pub bytes: u64,
    /// Damages found: blocks, and other parts of tables. One that stays is found again by each pass.
    pub damaged: u64,
    /// Tables left out because the system could not read them.
    pub unread: u64,
    /// When the last pass ended, since the beginning of 1970.
    pub last_pass: Option<Duration>,
}
