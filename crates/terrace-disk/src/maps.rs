//! Files that are read without system calls, and an account of them.
//!
//! A reader of a [`Mapping`] may meet zeros in place of bytes that the system could not read. So the order is: announce
//! the bytes ([`Mapping::touch`]), read them, and then ask [`Mapping::has_failed`] before relying on them. Once a
//! mapping has failed it stays failed. System calls then tell which bytes of the file can be read, or why not.
//!
//! Holding [bytes](Mapping::bytes) of a mapping holds all of it, also of a removed file.
//!
//! [`Maps`] keeps account for one user of many files: whether they are to be mapped at all, and how many bytes of
//! addresses that may take. How many mappings a process has at a time is bounded for all users together
//! (`real/region.rs`). A reader that gets no mapping reads by system calls.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::fs::ReadFile;
use crate::real::bus;
use crate::real::region::Region;

/// All bytes of an immutable file; see the module's head.
#[derive(Clone)]
pub struct Mapping {
    bytes: Bytes,
    region: Arc<Region>,
    /// A simulation of whether the system can read bytes that are about to be read.
    trial: Option<Arc<dyn Trial>>,
}

/// Whether bytes can be read; asked before they are.
pub(crate) trait Trial: Send + Sync {
    /// Which byte of `range` cannot, if any.
    fn fails_at(&self, range: Range<usize>) -> Option<usize>;
}

/// Keeps a region for those who share its bytes.
struct Owner(Arc<Region>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl Mapping {
    pub(crate) fn of_region(region: Region) -> Mapping {
        let region = Arc::new(region);
        Mapping { bytes: Bytes::from_owner(Owner(region.clone())), region, trial: None }
    }

    /// The owner of the bytes.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// A mapping in which `trial` decides what can be read.
    pub(crate) fn with_trial(self, trial: Arc<dyn Trial>) -> Mapping {
        Mapping { trial: Some(trial), ..self }
    }

    /// The file's bytes.
    #[inline]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Announces that bytes `range` will be read.
    #[inline]
    pub fn touch(&self, range: Range<usize>) {
        if let Some(trial) = &self.trial {
            self.try_out(&**trial, range);
        }
    }

    #[cold]
    fn try_out(&self, trial: &dyn Trial, range: Range<usize>) {
        if let Some(at) = trial.fails_at(range) {
            self.region.fail(at);
        }
    }

    /// Whether any byte could not be read, by any reader at any time.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.region.has_failed()
    }

    /// Asks the system to read bytes `range` soon, together.
    pub fn will_need(&self, range: Range<usize>) {
        self.region.will_need(range);
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("region", &self.region).finish_non_exhaustive()
    }
}

/// Figures about mappings now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MapFigures {
    /// Mappings, including those that only a reader of some bytes still holds.
    pub count: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes of these that are in memory, as the system counts them.
    pub resident: u64,
    /// Those that have failed since the first.
    pub failed: u64,
}

/// The mappings of one user.
#[derive(Debug)]
pub struct Maps {
    is_wanted: AtomicBool,
    most_bytes: u64,
    failed: AtomicU64,
    /// The process's number of faults when failed mappings were last counted.
    counted_at: AtomicU64,
    regions: Mutex<Regions>,
}

/// Regions, of which some may be gone.
#[derive(Debug, Default)]
struct Regions {
    all: Vec<Held>,
    bytes: u64,
}

#[derive(Debug)]
struct Held {
    region: Weak<Region>,
    bytes: u64,
    /// It has failed, and was counted.
    is_counted: bool,
}

impl Regions {
    /// Forgets those that are gone.
    fn tidy(&mut self) {
        self.all.retain(|held| held.region.strong_count() > 0);
        self.bytes = self.all.iter().map(|held| held.bytes).sum();
    }
}

impl Maps {
    /// None yet, and none wanted; at most `most_bytes` of addresses.
    pub fn new(most_bytes: u64) -> Arc<Maps> {
        let (is_wanted, failed) = (AtomicBool::new(false), AtomicU64::new(0));
        let counted_at = AtomicU64::new(bus::faults());
        Arc::new(Maps { is_wanted, most_bytes, failed, counted_at, regions: Mutex::default() })
    }

    /// Whether files are to be read through mappings now.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Sets whether they are; existing mappings stay.
    pub fn want(&self, is_wanted: bool) {
        self.is_wanted.store(is_wanted, Ordering::Relaxed);
    }

    /// Maps `file`, if there may be one more.
    pub fn map(&self, file: &dyn ReadFile) -> Option<Mapping> {
        let bytes = file.len();
        {
            let mut regions = self.regions.lock();
            if regions.bytes.saturating_add(bytes) > self.most_bytes {
                regions.tidy();
            }
            if regions.bytes.saturating_add(bytes) > self.most_bytes {
                return None;
            }
        }
        let mapping = file.map()?;
        let mut regions = self.regions.lock();
        // Done now and then, so that the list is not much longer than the number of regions.
        if regions.all.len() >= 64 && regions.all.len().is_power_of_two() {
            regions.tidy();
        }
        regions.all.push(Held { region: Arc::downgrade(&mapping.region), bytes, is_counted: false });
        regions.bytes += bytes;
        Some(mapping)
    }

    /// How many of these mappings have failed until now. A reader that gathers bytes of several mappings asks before
    /// the first read and again before passing the bytes on: if the answers are equal, all bytes are those of the
    /// files.
    #[inline]
    pub fn failures(&self) -> u64 {
        let faults = bus::faults();
        if faults != self.counted_at.load(Ordering::Acquire) {
            self.count_failures(faults);
        }
        self.failed.load(Ordering::Acquire)
    }

    /// Counts the mappings that have failed since the last count; `faults` is the process's number of faults before
    /// this one.
    #[cold]
    fn count_failures(&self, faults: u64) {
        let mut regions = self.regions.lock();
        for held in regions.all.iter_mut().filter(|held| !held.is_counted) {
            held.is_counted = held.region.upgrade().is_some_and(|region| region.has_failed());
            self.failed.fetch_add(u64::from(held.is_counted), Ordering::AcqRel);
        }
        self.counted_at.store(faults, Ordering::Release);
    }

    /// The figures now.
    pub fn figures(&self) -> MapFigures {
        let regions: Vec<Arc<Region>> = {
            let mut regions = self.regions.lock();
            regions.tidy();
            regions.all.iter().filter_map(|held| held.region.upgrade()).collect()
        };
        let bytes = |region: &Arc<Region>| (**region).as_ref().len() as u64;
        MapFigures {
            count: regions.len() as u64,
            bytes: regions.iter().map(bytes).sum(),
            resident: regions.iter().map(|region| region.resident_bytes()).sum(),
            failed: self.failures(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fs::{Access, Fs};
    use crate::sim::{Fault, SimFs};

    fn file(fs: &SimFs, path: &str, len: usize) -> Arc<dyn ReadFile> {
        fs.plant(Path::new(path), &vec![5; len]).unwrap();
        fs.open(Path::new(path), Access::Random).unwrap()
    }

    #[test]
    fn addresses_are_bounded_and_come_back() {
        let (fs, maps) = (SimFs::new(), Maps::new(10_000));
        let (one, other) = (file(&fs, "/one", 6000), file(&fs, "/other", 5000));
        let first = maps.map(&*one).unwrap();
        assert!(maps.map(&*other).is_none() && maps.map(&*file(&fs, "/third", 4000)).is_some());
        let share = first.bytes().slice(7..9);
        drop((first, one));
        assert_eq!((maps.figures().count, maps.figures().bytes, &share[..]), (1, 6000, &[5, 5][..]));
        drop(share);
        assert_eq!(maps.figures(), MapFigures::default());
        assert!(maps.map(&*other).is_some());
    }

    #[test]
    fn what_a_simulated_disk_cannot_read_is_zeros_and_told() {
        let (fs, maps) = (SimFs::new(), Maps::new(1 << 20));
        let file = file(&fs, "/one", 5000);
        let (mapping, others) = (maps.map(&*file).unwrap(), Maps::new(1));
        assert_eq!(maps.failures(), 0);
        fs.inject(Some(Fault { after: 1, only_changes: false, sticky: false }));
        mapping.touch(0..10);
        assert!(mapping.bytes().iter().all(|&b| b == 5) && !mapping.has_failed());
        mapping.touch(4500..4600);
        assert!(mapping.has_failed() && mapping.bytes()[4500] == 0 && mapping.bytes()[0] == 5);
        assert_eq!((maps.failures(), others.failures()), (1, 0));
        mapping.touch(0..10);
        assert_eq!((maps.failures(), maps.figures().failed), (1, 1), "each is counted once");
        let mut read = [0; 1];
        file.read_at(4500, &mut read).unwrap();
        assert_eq!(read, [5]);
    }

    #[test]
    fn a_disk_may_have_no_mappings() {
        let fs = SimFs::new();
        fs.set_maps(false);
        assert!(Maps::new(1 << 20).map(&*file(&fs, "/one", 100)).is_none());
    }

    #[test]
    fn the_list_of_regions_stays_short() {
        let (fs, maps) = (SimFs::new(), Maps::new(1 << 30));
        let file = file(&fs, "/one", 10);
        for _ in 0..1000 {
            drop(maps.map(&*file).unwrap());
        }
        assert!(maps.regions.lock().all.len() <= 64, "{}", maps.regions.lock().all.len());
    }
}
