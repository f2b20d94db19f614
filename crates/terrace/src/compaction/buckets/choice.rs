//! The choice itself.

use super::{BucketFigures, BucketOptions, LEVELS};

/// A job to do. Buckets are named by their index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pick {
    /// All tables of this level, 0 or 1, become one sublevel of the next.
    Level {
        /// The bucket.
        bucket: usize,
        /// The level that is relieved.
        level: usize,
    },
    /// All tables of the bucket become one sorted list on its last level, cut if much of it lives.
    Whole {
        /// The bucket.
        bucket: usize,
    },
    /// This bucket and the next become one.
    Join {
        /// The one with the smaller keys.
        left: usize,
    },
}

/// How urgent it is to merge a level, the most urgent last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    /// It may be merged, because it is read.
    Eligible,
    /// It should be merged, because writes have filled it.
    Due,
    /// It precedes whole buckets.
    Urgent,
}

/// A level that may be picked.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    bucket: usize,
    level: usize,
    need: Need,
    progress: f64,
    sublevels: f64,
    reads: f64,
}

/// The most worthwhile job, if there is one. `reads` counts, by bucket and level, lookups that reached the
/// level since its last merge. `oldest` is the oldest moment that somebody sees, or may come to see; `None`
/// if that is the present.
///
/// In this order:
///
/// 1. levels at twice their threshold, the one furthest beyond first;
/// 2. buckets that are full, the largest first. Until its turn comes no other merge of such a bucket starts,
///    since it must be idle;
/// 3. other levels that are due, by priority: `read_weight` times its share of reads, and its share of sublevels, both
///    relative to the average;
/// 4. levels that are only eligible, likewise;
/// 5. neighbours that are small, the smallest first.
///
/// A merge without room is not chosen: smaller ones may make the room, and the levels of a full bucket are
/// still merged.
pub(crate) fn choose(
    buckets: &[BucketFigures],
    reads: &[[u64; LEVELS]],
    options: &BucketOptions,
    oldest: Option<u64>,
) -> Option<Pick> {
    let is_full: Vec<bool> = buckets
        .iter()
        .map(|bucket| bucket.bytes_to_merge() <= options.room && bucket.is_full(options, oldest))
        .collect();
    let candidates = candidates(buckets, reads, options, &is_full);
    let level = best(&candidates, options);
    let pick = |c: &Candidate| Pick::Level { bucket: c.bucket, level: c.level };
    let full = || fullest(buckets, &is_full).map(|bucket| Pick::Whole { bucket });
    match level {
        Some(urgent) if urgent.need == Need::Urgent => Some(pick(urgent)),
        level => full().or(level.map(pick)).or_else(|| smallest_neighbours(buckets, options)),
    }
}

fn candidates(
    buckets: &[BucketFigures],
    reads: &[[u64; LEVELS]],
    options: &BucketOptions,
    is_full: &[bool],
) -> Vec<Candidate> {
    let levels = (0..buckets.len()).flat_map(|bucket| (0..LEVELS - 1).map(move |level| (bucket, level)));
    let candidate = |(bucket, level): (usize, usize)| {
        let figures = &buckets[bucket];
        let reads = reads.get(bucket).map_or(0, |levels| levels[level]);
        let progress = figures.progress(level, options);
        let need = need(figures, level, progress, reads, options)?;
        // The whole bucket is merged next, and its read levels with it.
        let goes = need == Need::Urgent || !is_full[bucket];
        let goes = goes && figures.levels[level].bytes <= options.room;
        let sublevels = figures.levels[level].sublevels as f64;
        goes.then_some(Candidate { bucket, level, need, progress, sublevels, reads: reads as f64 })
    };
    levels.filter_map(candidate).collect()
}

/// Bytes of a level for each read that pays for merging it before it is due.
const BYTES_A_READ: u64 = 64 << 10;

fn need(
    bucket: &BucketFigures,
    level: usize,
    progress: f64,
    reads: u64,
    options: &BucketOptions,
) -> Option<Need> {
    let figures = &bucket.levels[level];
    if figures.is_busy {
        return None;
    }
    let is_read = options.read_aware && reads > 0 && reads.saturating_mul(BYTES_A_READ) >= figures.bytes;
    match progress {
        2.0.. => Some(Need::Urgent),
        1.0.. => Some(Need::Due),
        _ if is_read && figures.sublevels >= options.min_sublevels.max(2) => Some(Need::Eligible),
        _ => None,
    }
}

/// The candidate with the greatest need, and among equals the one to go first.
fn best<'c>(candidates: &'c [Candidate], options: &BucketOptions) -> Option<&'c Candidate> {
    let average = |sum: f64| sum / candidates.len().max(1) as f64;
    let sublevels = average(candidates.iter().map(|c| c.sublevels).sum());
    let reads = average(candidates.iter().map(|c| c.reads).sum());
    let priority = |c: &Candidate| {
        let by_reads = if options.read_aware && reads > 0.0 { c.reads / reads } else { 0.0 };
        options.read_weight * by_reads + c.sublevels / sublevels.max(1.0)
    };
    let rank = |c: &Candidate| if c.need == Need::Urgent { c.progress } else { priority(c) };
    candidates.iter().max_by(|a, b| a.need.cmp(&b.need).then(rank(a).total_cmp(&rank(b))))
}

/// The largest bucket that is full, has room to be merged, and is idle.
fn fullest(buckets: &[BucketFigures], is_full: &[bool]) -> Option<usize> {
    let idle = (0..buckets.len()).filter(|i| is_full[*i] && !buckets[*i].is_busy);
    idle.max_by_key(|i| buckets[*i].bytes)
}

/// The two neighbours with the smallest sum, if they are small enough to be one.
fn smallest_neighbours(buckets: &[BucketFigures], options: &BucketOptions) -> Option<Pick> {
    let limit = options.capacity / (2 * options.split_into.max(1) as u64);
    let sums = buckets.windows(2).enumerate().filter_map(|(left, pair)| {
        let is_idle = !pair[0].is_busy && !pair[1].is_busy;
        let sum = pair[0].bytes.saturating_add(pair[1].bytes);
        (is_idle && sum < limit).then_some((sum, left))
    });
    sums.min().map(|(_, left)| Pick::Join { left })
}
