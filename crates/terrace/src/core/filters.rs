//! Compaction filters, and the places of the entries that they let go.
//!
//! 1. A merge drops nothing for a filter: it notes the place, and the store deletes what lies there by an ordinary
//!    write if that is still to go.
//! 2. What is noted is in memory alone. What is lost of it, or cannot be deleted, stays until another merge meets it.
//! 3. Places are noted one by one as long as they are few, and as a range from then on.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::keyspaces::{CompactionFilter, DATED, DEADLINE_BYTES, FilterEntry, Prefix, Space, is_high};

/// Bytes of places that are noted one by one.
const MOST_BYTES: usize = 1 << 20;

/// Bytes beside those of a place.
const PLACE_BYTES: usize = 32;

/// What a merge has met and a filter lets go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LetGo {
    pub place: Vec<u8>,
    /// The level of the merge.
    pub level: usize,
}

/// Places between which more lies that a filter lets go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The first of them.
    pub from: Vec<u8>,
    /// The last of them.
    pub to: Vec<u8>,
    pub level: usize,
}

type Notify = Box<dyn Fn() + Send + Sync>;

#[derive(Default)]
pub(crate) struct Filters {
    /// Whether there are any.
    any: AtomicBool,
    /// The filter of the default keyspace, and those of others by their numbers.
    all: RwLock<Arc<HashMap<Option<u32>, CompactionFilter>>>,
    noted: Mutex<Noted>,
    /// Called when something was noted.
    notify: OnceLock<Notify>,
    has_panicked: AtomicBool,
}

#[derive(Debug, Default)]
struct Noted {
    places: VecDeque<LetGo>,
    bytes: usize,
    beyond: Option<Stretch>,
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

    /// Has `notify` be called whenever something was noted.
    pub fn on_noted(&self, notify: impl Fn() + Send + Sync + 'static) {
        let _ = self.notify.set(Box::new(notify));
    }

    /// What decides about the entries of a merge into `level`, where the default keyspace lies as in `default`; `None`
    /// if there are no filters.
    pub fn judge(&self, default: Space, level: usize) -> Option<Judge<'_>> {
        if !self.are_there() {
            return None;
        }
        let (all, let_go) = (self.all.read().clone(), Vec::new());
        Some(Judge { filters: self, all, default, level, let_go, bytes: 0 })
    }

    /// Whether there are any: then a compaction that somebody asks for leaves no table as it is.
    pub fn are_there(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether something is noted.
    pub fn has_noted(&self) -> bool {
        let noted = self.noted.lock();
        !noted.places.is_empty() || noted.beyond.is_some()
    }

    /// Takes up to `most` places, which were noted by merges into one level, and that level.
    pub fn take(&self, most: usize) -> Option<(Vec<Vec<u8>>, usize)> {
        let mut noted = self.noted.lock();
        let level = noted.places.front()?.level;
        let count = noted.places.iter().take(most).take_while(|let_go| let_go.level == level).count();
        let taken: Vec<Vec<u8>> = noted.places.drain(..count).map(|let_go| let_go.place).collect();
        noted.bytes -= taken.iter().map(|place| place.len() + PLACE_BYTES).sum::<usize>();
        Some((taken, level))
    }

    /// Takes the stretch.
    pub fn take_beyond(&self) -> Option<Stretch> {
        self.noted.lock().beyond.take()
    }

    /// Notes a stretch.
    pub fn note_beyond(&self, stretch: Stretch) {
        self.noted.lock().extend(stretch);
    }

    /// Forgets what is noted.
    pub fn clear(&self) {
        *self.noted.lock() = Noted::default();
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

    fn extend(&mut self, stretch: Stretch) {
        self.beyond = Some(match self.beyond.take() {
            None => stretch,
            Some(before) => Stretch {
                from: before.from.min(stretch.from),
                to: before.to.max(stretch.to),
                level: stretch.level,
            },
        });
    }
}

/// Decides about the entries of a merge, and notes what is to go once the merge has ended or failed.
pub(crate) struct Judge<'a> {
    filters: &'a Filters,
    all: Arc<HashMap<Option<u32>, CompactionFilter>>,
    default: Space,
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
        let Some((number, filter)) = self.filter_of(place) else { return false };
        let space = number.map_or(self.default, |number| Space::Numbered(Prefix::of(number)));
        let key = space.key_in(place);
        let before = if number.is_some_and(|number| number & DATED != 0) { DEADLINE_BYTES } else { 0 };
        let Some(value) = stored.get(before..) else { return false };
        filter.lets_go(&FilterEntry { key, value, level: self.level }).unwrap_or_else(|why| {
            if !self.filters.has_panicked.swap(true, Ordering::Relaxed) {
                tracing::warn!(why, "a compaction filter has failed: entries about which it does so stay");
            }
            false
        })
    }

    fn filter_of(&self, place: &[u8]) -> Option<(Option<u32>, &CompactionFilter)> {
        let number = if self.default.holds(place) { None } else { Some(Prefix::number_at(place)?) };
        debug_assert!(number.is_none() || is_high(place), "a keyspace lies behind byte 255");
        self.all.get(&number).map(|filter| (number, filter))
    }
}

impl Drop for Judge<'_> {
    fn drop(&mut self) {
        self.filters.note(std::mem::take(&mut self.let_go));
    }
}
