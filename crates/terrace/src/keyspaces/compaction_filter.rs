//! What a compaction is to let go of.

use std::fmt;
use std::sync::Arc;

use super::callbacks;

/// An entry that a compaction has met.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct FilterEntry<'a> {
    /// Its key, as the user of its keyspace knows it.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// The level that the compaction writes to; 0 in engines without levels.
    pub level: usize,
}

/// What becomes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterDecision {
    /// It stays.
    Keep,
    /// It is deleted.
    Remove,
}

type Decide = dyn Fn(&FilterEntry<'_>) -> FilterDecision + Send + Sync;

/// Decides about entries as compactions meet them: which are kept, and which are deleted.
///
/// Given with [`Options::compaction_filter`](crate::Options::compaction_filter) for the default keyspace, and with
/// [`KeyspaceOptions::compaction_filter`](crate::KeyspaceOptions::compaction_filter) for another one, at each opening.
///
/// What is to go is deleted by an ordinary write, soon after the compaction, if it is the newest version of its key then
/// and the filter says the same of it again. So snapshots, iterators and transactions see what they would see of any
/// delete. What no compaction meets stays, and so does what was to go when the database was closed, until the next
/// compaction meets it.
///
/// A filter is called by threads that compact and by those that delete, more than once for an entry. It decides by its
/// argument alone, keeps no handle of a database and must not use one: writes are refused, and reads may wait for ever.
/// An entry about which it panics stays.
///
/// ```
/// # fn main() -> terrace::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use terrace::{CompactionFilter, Db, FilterDecision, KeyspaceOptions, Options};
///
/// let no_drafts = CompactionFilter::new(|entry| match entry.value.starts_with(b"draft") {
///     true => FilterDecision::Remove,
///     false => FilterDecision::Keep,
/// });
/// let db = Db::open(dir.path(), Options::default())?;
/// let options = KeyspaceOptions { compaction_filter: Some(no_drafts), ..KeyspaceOptions::default() };
/// let pages = db.keyspace_with("pages", options)?;
/// pages.put("a", "draft of a")?;
/// pages.put("b", "about b")?;
/// db.compact_range(..)?;
/// assert!(pages.get("a")?.is_none());
/// assert!(pages.get("b")?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct CompactionFilter(Arc<Decide>);

impl CompactionFilter {
    /// The filter that decides as `decide` does.
    pub fn new(
        decide: impl Fn(&FilterEntry<'_>) -> FilterDecision + Send + Sync + 'static,
    ) -> CompactionFilter {
        CompactionFilter(Arc::new(decide))
    }

    /// Whether an entry is to go; why that is not known, if the filter panicked.
    pub(crate) fn lets_go(&self, entry: &FilterEntry<'_>) -> Result<bool, String> {
        callbacks::run(|| (self.0)(entry) == FilterDecision::Remove)
    }
}

impl fmt::Debug for CompactionFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactionFilter").finish_non_exhaustive()
    }
}

/// Two are the same if one was made from the other.
impl PartialEq for CompactionFilter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CompactionFilter {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_decides_nothing() {
        let filter = CompactionFilter::new(|entry| match entry.value {
            b"bad" => panic!("no idea"),
            b"old" => FilterDecision::Remove,
            _ => FilterDecision::Keep,
        });
        let decide = |value: &[u8]| filter.lets_go(&FilterEntry { key: b"k", value, level: 1 });
        assert_eq!(decide(b"old"), Ok(true));
        assert_eq!(decide(b"new"), Ok(false));
        assert!(decide(b"bad").unwrap_err().contains("no idea"));
        assert!(callbacks::check_none_runs().is_ok(), "it runs no more");
    }
}
