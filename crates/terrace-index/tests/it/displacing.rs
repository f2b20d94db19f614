//! A pool's blocks put where they were not written, for ordered indexes.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrace_base::rng::Rng;
use terrace_base::{ErrorKind, Result};
use terrace_index::{OrderedIndex, ScanBatch};
use terrace_pmem::{Granularity, Kind, Media, MemMedia, Pool};

use crate::bed::options;
use crate::displaced::blocks;

pub type Pairs = Vec<(Vec<u8>, u64)>;

/// Bytes of the blocks that are displaced.
const BLOCK_BYTES: [u64; 3] = [64, 256, 4096];

/// A pool as a killed process leaves it.
pub struct Image {
    pub bytes: Vec<u8>,
    /// What its index holds.
    pub pairs: Pairs,
    /// The blocks in which anything of the index lies, by their sizes.
    blocks: [Vec<u64>; 3],
}

impl Image {
    /// The image of `pool`, whose index consists of `kinds`.
    pub fn of(pool: &Pool, pairs: Pairs, kinds: &[Kind]) -> Image {
        let media = pool.media();
        // SAFETY: the medium's mapping is so long and does not move; nobody stores to it meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(media.base(), media.len() as usize) }.to_vec();
        Image { bytes, pairs, blocks: BLOCK_BYTES.map(|bytes| blocks(pool, kinds, bytes)) }
    }
}

/// The pool that `image` is.
pub fn opened(image: &[u8]) -> Result<Pool> {
    let media = MemMedia::new(image.len() as u64, 64 << 20, Granularity::CacheLine).unwrap();
    media.copy_flush(0, image);
    Pool::open_on(Arc::new(media), Path::new("memory"), &options())
}

/// What became of the questions asked: each is answered rightly, or with an error.
pub struct Judge<'c> {
    pub case: &'c str,
    pub is_told: bool,
}

impl Judge<'_> {
    pub fn right(&mut self, found: Result<bool>, what: &str) {
        match found {
            Ok(right) => assert!(right, "{what}: {}", self.case),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{}", self.case);
                self.is_told = true;
            }
        }
    }

    /// Scans give `pairs`, upward and downward.
    pub fn scans(&mut self, index: &dyn OrderedIndex, pairs: &Pairs) {
        for reverse in [false, true] {
            let mut batch = ScanBatch::new();
            let scanned = index.scan(Bound::Unbounded, reverse, usize::MAX, &mut batch);
            let mut found: Pairs = batch.iter().map(|(key, word)| (key.to_vec(), word)).collect();
            if reverse {
                found.reverse();
            }
            self.right(scanned.map(|()| found == *pairs), "scan");
        }
    }
}

/// In `cases` cases, what lies at one place of `image` is put at another, or changes places with it, or is of the pool
/// `other`. `judge` says of a damaged image and its case whether anything was told, which blocks of each size are
/// enough to bring about.
pub fn displace(seed: u64, cases: u64, image: &Image, other: &Image, judge: impl Fn(&[u8], &str) -> bool) {
    assert!(!judge(&image.bytes, "sound"));
    let mut rng = Rng::new(seed);
    let mut told = [0; 3];
    for case in 0..cases {
        let i = rng.below(3) as usize;
        let (bytes, blocks) = (BLOCK_BYTES[i] as usize, &image.blocks[i]);
        let mut any = || blocks[rng.below(blocks.len() as u64) as usize] as usize;
        let (from, to) = (any(), any());
        let mut damaged = image.bytes.clone();
        let what = match case % 3 {
            0 => {
                damaged.copy_within(from..from + bytes, to);
                "put at"
            }
            1 => {
                (0..bytes).for_each(|i| damaged.swap(from + i, to + i));
                "swapped with"
            }
            _ if other.blocks[i].contains(&(to as u64)) => {
                damaged[to..to + bytes].copy_from_slice(&other.bytes[to..to + bytes]);
                "or rather another pool's at"
            }
            _ => continue,
        };
        let case = format!("case {case}: {bytes} bytes at {from:#x} {what} {to:#x}");
        told[i] += u64::from(judge(&damaged, &case));
    }
    assert!(told.iter().all(|count| *count > 15), "{told:?}");
}
