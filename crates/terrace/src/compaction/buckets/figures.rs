//! The input of a choice.

use super::ranges::{heaviest, sublevels};
use super::{BucketOptions, KeyRange, LEVELS};

/// One table of a bucket, as far as a choice needs it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BucketTable<'a> {
    /// The table's number.
    pub(crate) number: u64,
    /// Its level, 0 to 2.
    pub(crate) level: u32,
    /// Bytes of its file.
    pub(crate) bytes: u64,
    /// Entries, tombstones included.
    pub(crate) entries: u64,
    /// Tombstones.
    pub(crate) deletes: u64,
    /// Its smallest key.
    pub(crate) smallest: &'a [u8],
    /// Its largest key.
    pub(crate) largest: &'a [u8],
    /// It holds versions beside the newest of their key, which were kept for snapshots.
    pub(crate) keeps_old: bool,
    /// Its largest sequence number.
    pub(crate) max_seq: u64,
    /// A job reads it.
    pub(crate) busy: bool,
}

impl<'a> BucketTable<'a> {
    pub(super) fn range(&self) -> KeyRange<'a> {
        (self.smallest, self.largest)
    }

    fn level(&self) -> usize {
        (self.level as usize).min(LEVELS - 1)
    }
}

/// One level of a bucket. All figures but the last cover only tables that are not busy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LevelFigures {
    /// The most tables that overlap at one key.
    pub(crate) sublevels: usize,
    /// Tables.
    pub(crate) tables: usize,
    /// Bytes of them.
    pub(crate) bytes: u64,
    /// A job reads tables of it.
    pub(crate) is_busy: bool,
}

/// What can be dropped from a table when no snapshot needs it any more.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Droppable {
    /// The table's largest sequence number: no snapshot from there on needs any of it.
    max_seq: u64,
    /// Bytes that its tombstones free.
    freed: u64,
    /// Bytes of the table if it had to keep what it would not otherwise hold; otherwise 0.
    stuck: u64,
}

/// A summary of one bucket, to be made again when its tables change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BucketFigures {
    /// Its levels.
    pub(crate) levels: [LevelFigures; LEVELS],
    /// Bytes of all its tables.
    pub(crate) bytes: u64,
    /// A job reads tables of it.
    pub(crate) is_busy: bool,
    /// The source of its thresholds' jitter.
    pub(crate) seed: u64,
    /// Bytes of its last level that lie on one sublevel.
    base: u64,
    /// Estimated bytes of versions that newer ones hide.
    hidden: u64,
    /// What the last merge of the whole bucket left in it, if that did not cut it.
    merged: u64,
    /// Bytes of tables that a merge of the whole bucket leaves as they are.
    kept: u64,
    droppable: Vec<Droppable>,
}

impl BucketFigures {
    /// The figures of a bucket that has these tables.
    ///
    /// * `overlap`: the share of tables' keys that older tables hold, too, by a sample; 0 if unknown.
    /// * `merged`: bytes that the last merge of the whole bucket left in it; 0 if it was cut, or not merged
    ///   since the opening.
    /// * `seed`: a number of its own, for instance a hash of its lower bound.
    pub(crate) fn new(tables: &[BucketTable<'_>], overlap: f64, merged: u64, seed: u64) -> Self {
        let levels: [LevelFigures; LEVELS] = std::array::from_fn(|level| level_figures(tables, level));
        let bytes = tables.iter().map(|t| t.bytes).sum();
        let weigh = |level: Option<usize>| {
            let wanted = tables.iter().filter(|t| level.is_none_or(|level| t.level() == level));
            heaviest(&wanted.map(|t| (t.range(), t.bytes)).collect::<Vec<_>>())
        };
        // Tables on one sublevel hide nothing of each other.
        let hidden = ((bytes - weigh(None)) as f64 * overlap.clamp(0.0, 1.0)) as u64;
        let is_fully_merged = is_fully_merged(&levels);
        let found = (put_bytes(tables) as f64 * overlap.clamp(0.0, 1.0)) as u64;
        BucketFigures {
            levels,
            bytes,
            is_busy: tables.iter().any(|t| t.busy),
            seed,
            base: weigh(Some(LEVELS - 1)),
            hidden,
            // A single table of one key is what a merge would leave.
            merged: if is_fully_merged && is_one_key(tables) { bytes } else { merged },
            kept: 0,
            droppable: tables.iter().filter_map(|t| droppable(t, found, is_fully_merged)).collect(),
        }
    }

    /// The same for a bucket in which a merge of the whole leaves this many bytes of tables as they are
    /// ([`kept`](super::kept)).
    pub(crate) fn keeping(self, bytes: u64) -> Self {
        BucketFigures { kept: bytes, ..self }
    }

    /// Bytes that a merge of the whole bucket reads, and the most that it writes.
    pub(crate) fn bytes_to_merge(&self) -> u64 {
        self.bytes.saturating_sub(self.kept)
    }

    /// Estimated bytes that merging all of it would leave. `oldest` is that of [`choose`](super::choose).
    pub(crate) fn live_bytes(&self, oldest: Option<u64>) -> u64 {
        let freed: u64 = self.released(oldest).map(|d| d.freed).sum();
        self.bytes.saturating_sub(self.hidden).saturating_sub(freed)
    }

    /// How many times its intended size it holds: for all bytes, relative to twice its capacity, since they are no
    /// garbage and would lie in other buckets otherwise; for garbage, relative to the live bytes. From 2 on all of it
    /// should be merged, or some of it is being merged.
    /// `oldest` is that of [`choose`](super::choose).
    pub(crate) fn excess(&self, options: &BucketOptions, oldest: Option<u64>) -> f64 {
        let live = self.live_bytes(oldest);
        let piece = options.capacity / options.split_into.max(2) as u64;
        let little = piece.max(options.memtable_bytes.saturating_mul(4)).max(1);
        let by_garbage = (self.bytes - live) as f64 / live.max(little) as f64;
        by_garbage.max(self.bytes as f64 / self.most_bytes(options).max(1) as f64 / 2.0)
    }

    /// Sublevels at which `level` is due.
    pub(crate) fn threshold(&self, level: usize, options: &BucketOptions) -> usize {
        options.threshold() + self.vary(level, options.jitter)
    }

    /// The progress of `level`, 0 or 1, towards being due; from 1 on it is.
    pub(super) fn progress(&self, level: usize, options: &BucketOptions) -> f64 {
        let figures = &self.levels[level];
        // Ascending keys lie on one sublevel, in tables as small as a memtable.
        let most_tables = options.threshold().saturating_pow(2).max(64);
        let by_depth = figures.sublevels as f64 / self.threshold(level, options) as f64;
        by_depth.max(figures.tables as f64 / most_tables as f64)
    }

    /// Whether all of it should be merged. `oldest` is that of [`choose`](super::choose).
    pub(crate) fn is_full(&self, options: &BucketOptions, oldest: Option<u64>) -> bool {
        self.is_over_capacity(options)
            || self.has_deep_end(options)
            || self.is_garbage(options, oldest)
            || self.was_released(oldest)
    }

    fn is_over_capacity(&self, options: &BucketOptions) -> bool {
        let idle: u64 = self.levels.iter().map(|level| level.bytes).sum();
        idle > 0 && idle >= self.most_bytes(options)
    }

    /// The size at which it has outgrown its capacity.
    fn most_bytes(&self, options: &BucketOptions) -> u64 {
        let eighths = 8 + self.vary(LEVELS, 3) as u64;
        // A bucket that could not be split is merged again only when that has become worth it.
        let grown = self.merged.saturating_add(self.merged / 2);
        (options.capacity / 8).saturating_mul(eighths).max(grown)
    }

    /// Its last level has too many sublevels. If most of it lies on one of them, and little on the others, it
    /// may have twice as many: merging them rewrites all of it.
    fn has_deep_end(&self, options: &BucketOptions) -> bool {
        let last = &self.levels[LEVELS - 1];
        let threshold = self.threshold(LEVELS - 1, options);
        let others = last.bytes.saturating_sub(self.base);
        last.sublevels >= if others >= self.base / 2 { threshold } else { 2 * threshold }
    }

    fn is_garbage(&self, options: &BucketOptions, oldest: Option<u64>) -> bool {
        let live = self.live_bytes(oldest);
        let garbage = self.bytes - live;
        garbage as f64 > 0.6 * live as f64 && garbage > options.memtable_bytes.saturating_mul(4)
    }

    /// Whether it holds what had to stay for snapshots that are released. In that case this is much of the
    /// bucket, or everything else is fully merged: nothing will come that would remove it, and tables without such
    /// entries need not be rewritten.
    fn was_released(&self, oldest: Option<u64>) -> bool {
        let stuck: u64 = self.released(oldest).map(|d| d.stuck).sum();
        stuck > 0 && (is_fully_merged(&self.levels) || stuck >= self.bytes / 2)
    }

    fn released(&self, oldest: Option<u64>) -> impl Iterator<Item = &Droppable> {
        self.droppable.iter().filter(move |d| oldest.is_none_or(|oldest| d.max_seq <= oldest))
    }

    /// A number from 0 to `most`, always the same for this bucket and `what`.
    fn vary(&self, what: usize, most: usize) -> usize {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.seed.to_le_bytes());
        bytes[8..].copy_from_slice(&(what as u64).to_le_bytes());
        (terrace_base::checksum::hash64(&bytes) % (most as u64 + 1)) as usize
    }
}

fn level_figures(tables: &[BucketTable<'_>], level: usize) -> LevelFigures {
    let of_level = || tables.iter().filter(move |t| t.level() == level);
    let ranges: Vec<KeyRange<'_>> = of_level().filter(|t| !t.busy).map(BucketTable::range).collect();
    LevelFigures {
        sublevels: sublevels(&ranges),
        tables: ranges.len(),
        bytes: of_level().filter(|t| !t.busy).map(|t| t.bytes).sum(),
        is_busy: of_level().any(|t| t.busy),
    }
}

/// Whether everything is one sorted list on the last level: the result of a merge of the whole bucket.
fn is_fully_merged(levels: &[LevelFigures; LEVELS]) -> bool {
    levels[..LEVELS - 1].iter().all(|level| level.tables == 0) && levels[LEVELS - 1].sublevels <= 1
}

fn is_one_key(tables: &[BucketTable<'_>]) -> bool {
    matches!(tables, [only] if only.smallest == only.largest)
}

/// The average size of an entry that is no tombstone. What tombstones of one table hide lies in others, and may be
/// much larger than they are.
fn put_bytes(tables: &[BucketTable<'_>]) -> u64 {
    let sums = tables.iter().fold((0, 0, 0), |(bytes, entries, deletes), t| {
        (bytes + t.bytes, entries + t.entries, deletes + t.deletes)
    });
    let (bytes, entries, deletes): (u64, u64, u64) = sums;
    bytes / entries.saturating_sub(deletes).max(entries / 2).max(1)
}

/// `found`: bytes that a tombstone hides in the other tables, as far as samples tell.
fn droppable(table: &BucketTable<'_>, found: u64, is_fully_merged: bool) -> Option<Droppable> {
    let puts = table.entries.saturating_sub(table.deletes);
    let average = table.bytes / puts.max(table.entries / 2).max(1);
    // A tombstone frees what it hides and itself.
    let freed = table.deletes.saturating_mul(average.saturating_add(average.max(found)));
    // A sorted list at the bottom has tombstones only because of snapshots; elsewhere they hide something.
    let is_stuck = table.keeps_old || (is_fully_merged && table.deletes > 0);
    let stuck = if is_stuck { table.bytes } else { 0 };
    (freed > 0 || stuck > 0).then_some(Droppable { max_seq: table.max_seq, freed, stuck })
}
