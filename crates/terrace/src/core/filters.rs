//! Compaction filters, and the places of the entries that they let go.
//!
//! 1. A merge drops nothing for a filter: it notes the place, and the store deletes what lies there by an ordinary
//!    write if that is still to go.
//! 2. What is noted is in memory alone. What is lost of it, or cannot be deleted, stays until another merge meets it.
//! 3. Places are noted one by one as long as they are few, and as stretches from then on.
//! 4. No filter is asked about a place that begins with byte 255 unless it is known that there are keyspaces, and so whose
//!    it is: after damage it may be an entry of a keyspace that nobody knows of.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::keyspaces::{CompactionFilter, DATED, DEADLINE_BYTES, FilterEntry, Prefix, Space, is_high};

/// Bytes of places that are noted one by one.
const MOST_BYTES: usize = 1 << 20;

/// Bytes beside those of a place.
const PLACE_BYTES: usize = 32;

/// Stretches that are noted.
const MOST_STRETCHES: usize = 1024;

/// An entry that a filter lets go.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LetGo {
    place: Vec<u8>,
    /// The level of the merge that has met it.
    level: usize,
}

/// Whose a stretch is, and the level of the merges: no stretch leads through several keyspaces, or from one side of
/// them to the other.
type StretchKey = (Option<u32>, bool, usize);

/// Places between which more lies that a filter lets go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The first of them.
    pub from: Vec<u8>,
    /// The last of them.
    pub to: Vec<u8>,
    /// The level of the merges.
    pub level: usize,
}

/// What merges have met and filters let go.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    places: VecDeque<LetGo>,
    bytes: usize,
    stretches: BTreeMap<StretchKey, Stretch>,
}

type Notify = Box<dyn Fn() + Send + Sync>;

/// The filter of the default keyspace, and those of others by their numbers.
type All = HashMap<Option<u32>, CompactionFilter>;

#[derive(Default)]
pub(crate) struct Filters {
    /// Whether there are any.
    any: AtomicBool,
    all: RwLock<Arc<All>>,
    /// Whether the default keyspace is known to lie beside others.
    is_beside: AtomicBool,
    noted: Mutex<Noted>,
    /// Called when something was noted.
    notify: OnceLock<Notify>,
    has_panicked: AtomicBool,
}

impl std::fmt::Debug for Filters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filters").field("noted", &self.noted).finish_non_exhaustive()
    }
}

impl Filters {
    pub fn new(default: Option<&CompactionFilter>) -> Filters {
        let filters = Filters::default();
        if let Some(filter) = default {
            filters.set(None, filter.clone());
        }
        filters
    }

    /// Has `filter` decide about the keyspace `number`; `None`: the default one.
    pub fn set(&self, number: Option<u32>, filter: CompactionFilter) {
        let mut all = self.all.write();
        Arc::make_mut(&mut all).insert(number, filter);
        self.any.store(true, Ordering::Release);
    }

    /// Nobody decides about the keyspace `number` any more.
    pub fn forget(&self, number: u32) {
        let mut all = self.all.write();
        if all.contains_key(&Some(number)) {
            Arc::make_mut(&mut all).remove(&Some(number));
        }
    }

    /// Whether the default keyspace is known to lie beside others from now on.
    pub fn set_beside(&self, is_beside: bool) {
        self.is_beside.store(is_beside, Ordering::Release);
    }

    /// Has `notify` be called whenever something was noted.
    pub fn on_noted(&self, notify: impl Fn() + Send + Sync + 'static) {
        let _ = self.notify.set(Box::new(notify));
    }

    /// What decides about the entries of a merge into `level`; `None` if there are no filters.
    pub fn judge(&self, level: usize) -> Option<Judge<'_>> {
        if !self.are_there() {
            return None;
        }
        let (all, let_go) = (self.all.read().clone(), Vec::new());
        Some(Judge { filters: self, all, level, let_go, bytes: 0 })
    }

    /// Whether there are any: then a compaction that somebody asks for leaves no table as it is.
    pub fn are_there(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether something is noted.
    pub fn have_noted(&self) -> bool {
        self.are_there() && !self.noted.lock().is_empty()
    }

    /// Takes what is noted.
    pub fn take(&self) -> Noted {
        std::mem::take(&mut self.noted.lock())
    }

    fn note(&self, let_go: Vec<LetGo>) {
        if let_go.is_empty() {
            return;
        }
        let mut noted = self.noted.lock();
        let_go.into_iter().for_each(|let_go| noted.add(let_go));
        drop(noted);
        if let Some(notify) = self.notify.get() {
            notify();
        }
    }
}

impl Noted {
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.stretches.is_empty()
    }

    /// Takes up to `most` places, which were noted by merges into one level, and that level.
    pub fn take_places(&mut self, most: usize) -> Option<(Vec<Vec<u8>>, usize)> {
        let level = self.places.front()?.level;
        let count = self.places.iter().take(most).take_while(|let_go| let_go.level == level).count();
        Some((self.places.drain(..count).map(|let_go| let_go.place).collect(), level))
    }

    /// Takes a stretch.
    pub fn take_stretch(&mut self) -> Option<Stretch> {
        self.stretches.pop_first().map(|(_, stretch)| stretch)
    }

    /// Puts back what is left of a stretch that was taken.
    pub fn put_back(&mut self, stretch: Stretch) {
        self.extend(stretch);
    }

    fn add(&mut self, let_go: LetGo) {
        let bytes = let_go.place.len() + PLACE_BYTES;
        if self.bytes + bytes <= MOST_BYTES {
            self.bytes += bytes;
            self.places.push_back(let_go);
        } else {
            let LetGo { place, level } = let_go;
            self.extend(Stretch { from: place.clone(), to: place, level });
        }
    }

    fn extend(&mut self, Stretch { from, to, level }: Stretch) {
        let key = (Prefix::number_at(&from), is_high(&from), level);
        if let Some(stretch) = self.stretches.get_mut(&key) {
            stretch.from = std::mem::take(&mut stretch.from).min(from);
            stretch.to = std::mem::take(&mut stretch.to).max(to);
        } else if self.stretches.len() < MOST_STRETCHES {
            self.stretches.insert(key, Stretch { from, to, level });
        }
    }
}

/// Decides about the entries of a merge, and notes what is to go.
pub(crate) struct Judge<'a> {
    filters: &'a Filters,
    all: Arc<All>,
    level: usize,
    let_go: Vec<LetGo>,
    bytes: usize,
}

impl Judge<'_> {
    /// Whether a filter decides about what lies at `place`.
    pub fn concerns(&self, place: &[u8]) -> bool {
        self.filter_of(place).is_some()
    }

    /// The merge keeps the version at `place` with the value `stored`, which is the newest there that it has met.
    pub fn see(&mut self, place: &[u8], stored: &[u8]) {
        if self.lets_go(place, stored) {
            self.bytes += place.len() + PLACE_BYTES;
            self.let_go.push(LetGo { place: place.to_vec(), level: self.level });
            if self.bytes > MOST_BYTES / 4 {
                self.bytes = 0;
                self.filters.note(std::mem::take(&mut self.let_go));
            }
        }
    }

    /// Whether what lies at `place`, with the value `stored`, is to go.
    pub fn lets_go(&self, place: &[u8], stored: &[u8]) -> bool {
        let Some((number, filter, key)) = self.filter_of(place) else { return false };
        let before = if number.is_some_and(|number| number & DATED != 0) { DEADLINE_BYTES } else { 0 };
        let Some(value) = stored.get(before..) else { return false };
        filter.lets_go(&FilterEntry { key, value, level: self.level }).unwrap_or_else(|why| {
            if !self.filters.has_panicked.swap(true, Ordering::Relaxed) {
                tracing::warn!(why, "a compaction filter has failed: entries about which it does so stay");
            }
            false
        })
    }

    /// The keyspace at `place`, its filter and the key there.
    fn filter_of<'p>(&self, place: &'p [u8]) -> Option<(Option<u32>, &CompactionFilter, &'p [u8])> {
        if is_high(place) && !self.filters.is_beside.load(Ordering::Acquire) {
            return None;
        }
        let number = if Space::Default.holds(place) { None } else { Some(Prefix::number_at(place)?) };
        let space = number.map_or(Space::Default, |number| Space::Numbered(Prefix::of(number)));
        self.all.get(&number).map(|filter| (number, filter, space.key_in(place)))
    }
}

impl Drop for Judge<'_> {
    fn drop(&mut self) {
        self.filters.note(std::mem::take(&mut self.let_go));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspaces::FilterDecision;

    fn removing() -> CompactionFilter {
        CompactionFilter::new(|entry| match entry.key {
            b"kept" => FilterDecision::Keep,
            _ => FilterDecision::Remove,
        })
    }

    #[test]
    fn places_of_nobody_knows_whom_stay() {
        let filters = Filters::new(Some(&removing()));
        let high = [0xff, 7, b'k'];
        let lets_go = |place: &[u8]| filters.judge(1).unwrap().lets_go(place, b"v");
        assert!(lets_go(b"k") && !lets_go(b"kept") && !lets_go(&high));
        filters.set_beside(true);
        assert!(!lets_go(&high), "another keyspace's");
        assert!(lets_go(&[0xff, 0xff, b'k']) && !lets_go(&[0xff, 0, b'i']));
        filters.set(Some(7), removing());
        assert!(lets_go(&high));
        filters.forget(7);
        assert!(!lets_go(&high));
    }

    #[test]
    fn what_is_too_much_for_places_is_a_stretch_for_each_keyspace_and_level() {
        let filters = Filters::new(Some(&removing()));
        filters.set_beside(true);
        let long = "x".repeat(1000);
        let see = |level: usize, prefix: &[u8]| {
            let mut judge = filters.judge(level).unwrap();
            (0..1500).for_each(|i| judge.see(&[prefix, format!("{i:04}{long}").as_bytes()].concat(), b"v"));
        };
        see(1, b"");
        see(2, b"");
        see(2, &[0xff, 0xff]);
        assert!(filters.have_noted());
        let mut noted = filters.take();
        assert!(!filters.have_noted());
        let mut places = 0;
        while let Some((some, level)) = noted.take_places(100) {
            assert!(some.len() <= 100 && level == 1);
            places += some.len();
        }
        assert!((900..1100).contains(&places), "{places}");
        let stretches: Vec<Stretch> = std::iter::from_fn(|| noted.take_stretch()).collect();
        let of = |stretch: &Stretch| (stretch.level, is_high(&stretch.from));
        assert_eq!(stretches.iter().map(of).collect::<Vec<_>>(), [(1, false), (2, false), (2, true)]);
        assert!(stretches[1].from.starts_with(b"0000") && stretches[1].to.starts_with(b"1499"));
        assert!(noted.is_empty());
        noted.put_back(stretches[0].clone());
        assert!(noted.take_places(1).is_none() && noted.take_stretch().as_ref() == Some(&stretches[0]));
    }
}
