//! The state of the simulated disk after a power cut.
//!
//! Files' contents and directories' names are drawn independently of each other, as the contract in
//! [`crate::fs`] allows:
//!
//! 1. A file's synced bytes are there, unchanged. Of the bytes after them all, none, a prefix, or pieces with holes of
//!    zeros or of old bytes survive, up to the length that was written. The bytes that a file had before it was cut may
//!    be back. Zeros may follow, up to the longest length that the file had since a length was durable.
//! 2. In the synced part of a file of sectors, each sector has a content that it had at any time since the sync. A
//!    block that was written to since then may be destroyed.
//! 3. Any of a directory's pending changes have happened: those of one name in their order.
//!
//! The survivor has nothing pending: everything that it shows is durable.

use std::ops::Range;
use std::sync::Arc;

use terrace_base::rng::Rng;

use super::content::Content;
use super::state::{Dir, Inode, State};

/// How unkind a power cut is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing that was not synced survives.
    Least,
    /// Everything survives.
    Most,
    /// Anything allowed.
    Any,
}

impl Fate {
    fn draw(rng: &mut Rng) -> Self {
        match rng.below(8) {
            0 => Fate::Least,
            1 => Fate::Most,
            _ => Fate::Any,
        }
    }
}

/// A disk that `state` may have become.
pub(super) fn survivor(state: &State, rng: &mut Rng) -> State {
    let (names, contents) = (Fate::draw(rng), Fate::draw(rng));
    build(state, rng, names, contents)
}

/// The disk on which everything not synced is lost.
pub(super) fn least_survivor(state: &State) -> State {
    // No random numbers are drawn if everything is lost.
    build(state, &mut Rng::new(0), Fate::Least, Fate::Least)
}

/// The disk on which nothing is lost.
pub(super) fn most_survivor(state: &State) -> State {
    build(state, &mut Rng::new(0), Fate::Most, Fate::Most)
}

fn build(state: &State, rng: &mut Rng, names: Fate, contents: Fate) -> State {
    let mut next = state.clone();
    next.epoch += 1;
    next.dropped_pages = false;
    for dir in next.dirs.values_mut() {
        if !dir.pending.is_empty() {
            *dir = Arc::new(surviving_names(dir, rng, names));
        }
    }
    next.forget_unreachable(&Default::default());
    for inode in next.files.values_mut() {
        if inode.is_pending() {
            *inode = Arc::new(surviving_bytes(inode, rng, contents, &state.removed));
        }
    }
    next
}

fn surviving_names(dir: &Dir, rng: &mut Rng, fate: Fate) -> Dir {
    // Often a first part survives, as in a journal, and sometimes each change independently.
    let by_itself = fate == Fate::Any && rng.one_in(2);
    let first = if fate == Fate::Any { rng.below(dir.pending.len() as u64 + 1) as usize } else { 0 };
    let mut durable = dir.durable.clone();
    for (at, change) in dir.pending.iter().enumerate() {
        let done = match fate {
            Fate::Least => false,
            Fate::Most => true,
            Fate::Any => {
                if by_itself {
                    rng.one_in(2)
                } else {
                    at < first
                }
            }
        };
        if done {
            change.apply(&mut durable);
        }
    }
    Dir { now: durable.clone(), durable, pending: Vec::new() }
}

fn surviving_bytes(inode: &Inode, rng: &mut Rng, fate: Fate, old: &Content) -> Inode {
    let survivor = surviving_writes(inode, rng, fate, old);
    match inode.dropped.is_empty() {
        true => survivor,
        false => Inode { content: inode.without_dropped(survivor.content.clone()), ..survivor },
    }
}

/// The same for the content without the parts that a failed sync has dropped.
fn surviving_writes(inode: &Inode, rng: &mut Rng, fate: Fate, old: &Content) -> Inode {
    let uncut = inode.uncut.as_ref().filter(|_| fate == Fate::Any && rng.one_in(2));
    let (synced, longest) = (inode.synced, inode.longest);
    let before = uncut.map(|content| Inode { content: content.clone(), synced, longest, ..Inode::default() });
    let survived = inode.blocks.as_ref().map(|blocks| {
        let (content, blocks) = blocks.survivor(inode, rng, fate);
        Inode { content, synced, longest, blocks: Some(blocks), ..Inode::default() }
    });
    let inode = survived.as_ref().or(before.as_ref()).unwrap_or(inode);
    let pending = inode.synced..inode.content.len();
    let mut content = match fate {
        Fate::Least => inode.content.prefix(pending.start),
        Fate::Most => inode.content.clone(),
        Fate::Any => match rng.below(5) {
            0 => inode.content.prefix(pending.start),
            1 => inode.content.prefix(cut(rng, &pending)),
            2 => prefix_then_filler(inode, rng, &pending, old),
            _ => pieces(inode, rng, &pending, old),
        },
    };
    let len = surviving_len(inode, rng, fate, content.len());
    content.append_zeros(len - content.len());
    let mut blocks = inode.blocks.clone();
    if let Some(blocks) = &mut blocks {
        // Bytes behind the end take no space, given back or not.
        blocks.holes.remove(&(content.len()..u64::MAX));
    }
    Inode { blocks, ..Inode::durable(content) }
}

/// The surviving length of a file, at least `least` bytes.
fn surviving_len(inode: &Inode, rng: &mut Rng, fate: Fate, least: u64) -> u64 {
    if inode.longest <= least.max(inode.content.len()) && inode.room == 0 {
        return least;
    }
    match fate {
        Fate::Least => least,
        Fate::Most => inode.len().max(least),
        Fate::Any if rng.one_in(2) => inode.longest.max(least),
        Fate::Any => cut(rng, &(least..inode.longest.max(least))),
    }
}

/// The file grew before its bytes arrived.
fn prefix_then_filler(inode: &Inode, rng: &mut Rng, pending: &Range<u64>, old: &Content) -> Content {
    let kept = cut(rng, pending);
    let end = cut(rng, &(kept..pending.end));
    let mut content = inode.content.prefix(kept);
    content.append(&filler(rng, kept..end, old));
    content
}

/// Some of the bytes arrived, in any order.
fn pieces(inode: &Inode, rng: &mut Rng, pending: &Range<u64>, old: &Content) -> Content {
    let mut cuts: Vec<u64> = (0..1 + rng.below(6)).map(|_| cut(rng, pending)).collect();
    let end = if rng.one_in(2) { pending.end } else { cut(rng, pending) };
    cuts.push(end);
    cuts.retain(|&at| at <= end);
    cuts.sort_unstable();
    let mut content = inode.content.prefix(pending.start);
    for at in cuts {
        let piece = content.len()..at;
        if rng.one_in(2) {
            content.append(&inode.content.range(piece));
        } else {
            content.append(&filler(rng, piece, old));
        }
    }
    content
}

/// The contents of a block that was allocated but not written: zeros, or older bytes.
fn filler(rng: &mut Rng, range: Range<u64>, old: &Content) -> Vec<u8> {
    let len = range.end - range.start;
    let mut data = vec![0; len as usize];
    match rng.below(3) {
        0 => {}
        1 if old.len() > 0 => {
            // Blocks change owner whole: old bytes keep their place within the block.
            let from = range.start % old.len().min(BLOCK_BYTES);
            old.read(from, &mut data);
        }
        _ => rng.fill(&mut data),
    }
    data
}

/// A disk's block, the usual size.
const BLOCK_BYTES: u64 = 4096;

/// A place within `range`, ends included: anywhere, or where a sector or a block ends.
fn cut(rng: &mut Rng, range: &Range<u64>) -> u64 {
    let at = range.start + rng.below(range.end - range.start + 1);
    let unit = [1, 512, BLOCK_BYTES][rng.below(3) as usize];
    (at - at % unit).max(range.start)
}
