//! Whether tables are read through mappings of their files or by calls of the system.
//!
//! A mapping costs no call and no copy, and leaves it to the page cache what is kept in memory: whole pages. The cache of blocks
//! keeps what was read, and no more. So mappings are for tables that fit into memory, and calls for those that are far larger.
//! It is decided as tables come and go, by how large they are together and what memory the system has for them; and now and
//! then as snapshots are made and figures are told, since other programs take memory and give it back, too.
//!
//! Deciding is apart from asking the system, which is done in one place (`Fs::available_memory`).

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use terrace_base::{Error, Result};
use terrace_disk::{Fs, MapFigures, Maps};

use crate::options::TableReads;

/// Addresses that the tables of a database take at most: an eighth of those that a process has.
const MOST_ADDRESSES: u64 = 16 << 40;

/// How the tables of a database are read.
#[derive(Debug)]
pub(crate) struct TableReader {
    choice: TableReads,
    maps: Arc<Maps>,
    asked: Mutex<Asked>,
    /// Milliseconds until when it is not decided anew unless tables change.
    due: AtomicU64,
}

/// What there was when the system was last asked.
#[derive(Debug, Default)]
struct Asked {
    at: Duration,
    tables: u64,
    /// `u64::MAX` where it is not known.
    available: u64,
}

/// The system is not asked again before so long, unless tables have changed by more than a share: it looks at some files for
/// that.
const SELDOM: Duration = Duration::from_secs(1);
const MUCH: u64 = 16;

/// Who only reads has the system asked less often: a reader waits for it.
const FOR_READERS: Duration = Duration::from_secs(10);

impl Asked {
    fn is_outdated(&self, now: Duration, tables: u64) -> bool {
        now >= self.at + SELDOM || tables.abs_diff(self.tables) > self.tables / MUCH
    }
}

impl TableReader {
    /// As `choice` says, for no tables yet.
    pub fn new(choice: TableReads) -> TableReader {
        let maps = Maps::new(MOST_ADDRESSES);
        maps.want(choose(choice, true, 0, 0));
        TableReader { choice, maps, asked: Mutex::default(), due: AtomicU64::new(0) }
    }

    /// The mappings of tables.
    pub fn maps(&self) -> &Arc<Maps> {
        &self.maps
    }

    /// There are `bytes` of tables now, at `now`.
    pub fn decide(&self, fs: &dyn Fs, now: Duration, bytes: u64) {
        if self.choice != TableReads::Auto {
            return;
        }
        let mut asked = self.asked.lock();
        self.decide_by(&mut asked, fs, now, bytes);
    }

    /// The same for the tables that there were then, if that is long ago and nobody else does it.
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

    /// Refuses what was read of several tables since as many mappings had failed as in `before`, if more have by now: what was
    /// sound when it was read may be zeros.
    #[inline]
    pub fn intact_since(&self, before: u64, dir: &Path) -> Result<()> {
        if self.maps.failures() == before {
            return Ok(());
        }
        let why = "a mapped table could not be read: an I/O error, or a file was cut";
        Err(Error::io(dir, "read", io::Error::other(why)))
    }

    /// How it is done and why, in words, and what there is of mappings.
    pub fn told(&self) -> (String, MapFigures) {
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

/// Whether `tables` bytes of tables are mapped where `available` bytes of memory are there for them. A little more memory is
/// needed to begin with it than to stay with it, so that it does not go to and fro.
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
            (reader.maps().is_wanted(), reader.told().0.split(':').next().map(str::to_owned))
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
