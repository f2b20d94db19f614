//! Whether tables are read through mappings of their files or by system calls.
//!
//! A mapping costs no call and no copy, and lets the page cache decide what is kept in memory: whole pages.
//! The block cache keeps only what was read. So mappings are for tables that fit into memory, and calls for
//! much larger ones. The choice is made when tables are added and removed, by their total size and the memory
//! that the system has for them; and now and then when snapshots and walks are made, and figures requested, since
//! other programs take memory and give it back, too.
//!
//! The decision is separate from asking the system, which is done in one place (`Fs::available_memory`).

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_disk::{Fs, MapFigures, Maps};

use crate::options::TableReads;

/// The most addresses for a database's tables: an eighth of those of a process.
const MOST_ADDRESSES: u64 = 16 << 40;

/// How the tables of a database are read.
#[derive(Debug)]
pub(crate) struct TableReader {
    choice: TableReads,
    maps: Arc<Maps>,
    asked: Mutex<Asked>,
    /// The time in milliseconds before which the choice is not made again unless tables change.
    due: AtomicU64,
}

/// The system's answer when it was last asked.
#[derive(Debug, Default)]
struct Asked {
    at: Duration,
    tables: u64,
    /// `u64::MAX` if it is unknown.
    available: u64,
}

/// The least time between two questions to the system, unless tables have changed by more than a share: it
/// reads some files for that.
const SELDOM: Duration = Duration::from_secs(1);
const MUCH: u64 = 16;

/// Readers alone ask the system less often: a reader waits for it.
const FOR_READERS: Duration = Duration::from_secs(10);

impl Asked {
    fn is_outdated(&self, now: Duration, tables: u64) -> bool {
        now >= self.at + SELDOM || tables.abs_diff(self.tables) > self.tables / MUCH
    }
}

impl TableReader {
    /// By `choice`, for no tables yet.
    pub fn new(choice: TableReads) -> TableReader {
        let maps = Maps::new(MOST_ADDRESSES);
        maps.want(choose(choice, true, 0, 0));
        TableReader { choice, maps, asked: Mutex::default(), due: AtomicU64::new(0) }
    }

    /// The mappings of tables.
    pub fn maps(&self) -> &Arc<Maps> {
        &self.maps
    }

    /// Decides for `bytes` of tables, at `now`.
    pub fn decide(&self, fs: &dyn Fs, now: Duration, bytes: u64) {
        if self.choice != TableReads::Auto {
            return;
        }
        let mut asked = self.asked.lock();
        self.decide_by(&mut asked, fs, now, bytes);
    }

    /// Decides again for the same tables, if that is long ago and nobody else does it.
    #[inline]
    pub fn reconsider(&self, fs: &dyn Fs, now: Duration) {
        if self.choice == TableReads::Auto && millis(now) >= self.due.load(Ordering::Relaxed) {
            self.reconsider_now(fs, now);
        }
    }

    #[cold]
    fn reconsider_now(&self, fs: &dyn Fs, now: Duration) {
        let Some(mut asked) = self.asked.try_lock() else { return };
        let tables = asked.tables;
        match tables {
            // Nothing is read from them.
            0 => self.due.store(millis(now + FOR_READERS), Ordering::Relaxed),
            _ => self.decide_by(&mut asked, fs, now, tables),
        }
    }

    fn decide_by(&self, asked: &mut Asked, fs: &dyn Fs, now: Duration, bytes: u64) {
        if asked.is_outdated(now, bytes) {
            let available = fs.available_memory().unwrap_or(u64::MAX);
            *asked = Asked { at: now, tables: bytes, available };
            self.due.store(millis(now + FOR_READERS), Ordering::Relaxed);
        }
        let were_mapped = self.maps.is_wanted();
        let are_mapped = choose(self.choice, were_mapped, bytes, asked.available);
        self.maps.want(are_mapped);
        if were_mapped != are_mapped {
            tracing::info!(are_mapped, bytes, available = asked.available, "how tables are read");
        }
    }

    /// Refuses what was read from several tables if more mappings have failed than the `before` at its start:
    /// data that was sound when it was read may be zeros.
    #[inline]
    pub fn intact_since(&self, before: u64, dir: &Path) -> Result<()> {
        if self.maps.failures() == before {
            return Ok(());
        }
        let why = "a mapped table could not be read: an I/O error, or a file was cut";
        Err(Error::io(dir, "read", io::Error::other(why)))
    }

    /// What `read` makes of values that may lie in mappings. If a mapping fails meanwhile, they may be zeros, and it is
    /// asked again. It returns the values as well: the failure of a mapping that nobody has any more is not noticed.
    pub fn soundly<T>(&self, mut read: impl FnMut() -> T) -> T {
        loop {
            let failures = self.maps.failures();
            let made = read();
            if self.maps.failures() == failures {
                return made;
            }
        }
    }

    /// The current way of reading and its reason, in words, and the figures of mappings.
    pub fn describe(&self) -> (String, MapFigures) {
        let (is_mapped, is_auto) = (self.maps.is_wanted(), self.choice == TableReads::Auto);
        let words = match (is_mapped, is_auto) {
            (true, false) => "through mappings, as asked",
            (false, false) => "by calls, as asked",
            (true, true) => "through mappings: they fit into memory",
            (false, true) => "by calls: they are larger than what memory there is",
        };
        (words.into(), self.maps.figures())
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Whether `tables` bytes of tables are mapped, with `available` bytes of memory for them. Starting to map
/// needs a little more memory than continuing, so that the choice does not alternate.
fn choose(choice: TableReads, were_mapped: bool, tables: u64, available: u64) -> bool {
    match choice {
        TableReads::Mapped => true,
        TableReads::Calls => false,
        TableReads::Auto if were_mapped => tables <= available.saturating_add(available / 4),
        TableReads::Auto => tables <= available,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_disk::SimFs;

    #[test]
    fn tables_that_fit_are_mapped() {
        use TableReads::{Auto, Calls, Mapped};
        assert!(choose(Auto, false, 100, 100) && !choose(Auto, false, 101, 100));
        assert!(choose(Auto, true, 125, 100) && !choose(Auto, true, 126, 100));
        assert!(choose(Auto, false, 1 << 50, u64::MAX) && choose(Auto, true, 0, 0));
        assert!(choose(Mapped, false, 1 << 50, 0) && !choose(Calls, true, 0, u64::MAX));
    }

    #[test]
    fn it_is_decided_anew_as_tables_and_memory_change() {
        let (fs, reader) = (SimFs::new(), TableReader::new(TableReads::Auto));
        let is_mapped = |available: Option<u64>, now: u64, bytes: u64| {
            fs.set_available_memory(available);
            reader.decide(&fs, Duration::from_millis(now), bytes);
            (reader.maps().is_wanted(), reader.describe().0.split(':').next().map(str::to_owned))
        };
        let (maps, calls) = (Some("through mappings".to_string()), Some("by calls".to_string()));
        assert_eq!(is_mapped(None, 0, 1 << 40), (true, maps.clone()));
        assert_eq!(is_mapped(Some(1000), 0, 1200), (true, maps.clone()));
        assert_eq!(is_mapped(Some(900), 10, 1200), (true, maps.clone()), "it is not asked again at once");
        assert_eq!(is_mapped(Some(900), 1000, 1200), (false, calls.clone()));
        assert_eq!(is_mapped(Some(1100), 2000, 1200), (false, calls.clone()));
        assert_eq!(is_mapped(Some(1300), 3000, 1200), (true, maps));
        assert_eq!(is_mapped(Some(1000), 3000, 1300), (false, calls), "but when much has changed");
    }

    #[test]
    fn who_only_reads_has_it_decided_anew_now_and_then() {
        let (fs, reader) = (SimFs::new(), TableReader::new(TableReads::Auto));
        let is_mapped = |available: u64, now: u64| {
            fs.set_available_memory(Some(available));
            reader.reconsider(&fs, Duration::from_millis(now));
            reader.maps().is_wanted()
        };
        assert!(is_mapped(0, 0), "there are no tables");
        fs.set_available_memory(Some(1000));
        reader.decide(&fs, Duration::from_millis(5000), 1000);
        assert!(is_mapped(100, 14_999));
        assert!(!is_mapped(100, 15_000));
        assert!(!is_mapped(2000, 24_999));
        assert!(is_mapped(2000, 25_000));
    }
}
