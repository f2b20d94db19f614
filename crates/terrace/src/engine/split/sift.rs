//! Tells in one pass over a file of slots what begins at its sectors, and which items are sound.
//!
//! An item may begin within one that is not sound, and another within that. Each byte is read once all the same:
//! a checksum of everything that was read is carried along, and that of an item follows from where it stood
//! behind the item's head and behind the item.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use terrace_base::checksum::{crc32c_append, crc32c_turned};

use super::item::{self, HEAD_BYTES, Head};
use super::stamp::Stamp;

/// What begins at a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begins {
    Stamp(Stamp),
    /// An item, and whether it is sound.
    Item(Head, bool),
}

/// Something that begins at a sector, in the order of the file.
#[derive(Debug)]
struct Begun {
    offset: u64,
    what: Begins,
    /// The checksum of an item's head, and that of everything read up to behind the head.
    crcs: (u32, u32),
    /// The checksum that the item should have.
    stored: u32,
    is_known: bool,
}

/// The pass. Sectors go in one after the other, and what begins at them comes out as soon as it is known.
#[derive(Debug)]
pub(super) struct Sift {
    origin: u64,
    file_bytes: u64,
    /// Of everything up to the next sector.
    crc: u32,
    /// What has not come out. An item is a gigabyte at most, and so nothing waits for longer.
    begun: VecDeque<Begun>,
    /// How many have come out.
    gone: u64,
    /// Where items of `begun` end that are not known, with their numbers from the first of the pass on.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
    /// Where the last sound item ends that came out.
    covered: u64,
}

impl Sift {
    /// A pass over a file of so many bytes of the database with this `origin`.
    pub fn new(origin: u64, file_bytes: u64) -> Sift {
        Sift {
            origin,
            file_bytes,
            crc: 0,
            begun: VecDeque::new(),
            gone: 0,
            ends: BinaryHeap::new(),
            covered: 0,
        }
    }

    /// Takes the sector at `offset`, which follows the one before; the last one of a file may be cut.
    pub fn take(&mut self, offset: u64, sector: &[u8]) {
        if let Some(stamp) = Stamp::decode(self.origin, sector) {
            let what = Begins::Stamp(stamp);
            self.begun.push_back(Begun { offset, what, crcs: (0, 0), stored: 0, is_known: true });
        } else if let Some(head) = Head::of(self.origin, sector) {
            self.begin(offset, head, sector);
        }
        let end = offset + sector.len() as u64;
        while let Some(Reverse((at, number))) = self.ends.peek().copied().filter(|ends| ends.0.0 <= end) {
            self.ends.pop();
            let after = crc32c_append(self.crc, &sector[..(at - offset) as usize]);
            let Some(begun) = self.begun.get_mut((number - self.gone) as usize) else { continue };
            begun.is_known = true;
            if let Begins::Item(_, is_sound) = &mut begun.what {
                let (own, before) = begun.crcs;
                let rest = at - begun.offset - HEAD_BYTES as u64;
                *is_sound = crc32c_turned(own, (before, after), rest) == begun.stored;
            }
        }
        self.crc = crc32c_append(self.crc, sector);
    }

    fn begin(&mut self, offset: u64, head: Head, sector: &[u8]) {
        let (front, end) = (&sector[..HEAD_BYTES], offset + head.bytes() as u64);
        let is_cut = end > self.file_bytes;
        if !is_cut {
            self.ends.push(Reverse((end, self.gone + self.begun.len() as u64)));
        }
        self.begun.push_back(Begun {
            offset,
            what: Begins::Item(head, false),
            crcs: (item::crc(front), crc32c_append(self.crc, front)),
            stored: u32::from_le_bytes([front[8], front[9], front[10], front[11]]),
            is_known: is_cut,
        });
    }

    /// The next thing that is known, with its offset. A sector within a sound item belongs to its value: what
    /// begins there is left out.
    pub fn next(&mut self) -> Option<(u64, Begins)> {
        while self.begun.front().is_some_and(|begun| begun.is_known) {
            let begun = self.begun.pop_front()?;
            self.gone += 1;
            if begun.offset < self.covered {
                continue;
            }
            if let Begins::Item(head, true) = begun.what {
                self.covered = begun.offset + head.bytes() as u64;
            }
            return Some((begun.offset, begun.what));
        }
        None
    }
}

#[cfg(all(test, not(terrace_no_checksums)))]
mod tests {
    use terrace_base::rng::Rng;

    use super::*;
    use crate::engine::pm::Item;

    const ORIGIN: u64 = 7;
    const SECTOR: usize = 512;

    fn sift(file: &[u8]) -> Vec<(u64, Begins)> {
        let (mut sift, mut out) = (Sift::new(ORIGIN, file.len() as u64), Vec::new());
        for (i, sector) in file.chunks(SECTOR).enumerate() {
            sift.take((i * SECTOR) as u64, sector);
            out.extend(std::iter::from_fn(|| sift.next()));
        }
        assert!(sift.begun.is_empty() && sift.ends.is_empty(), "something has not come out");
        out
    }

    /// The same, by a look at all of each item.
    fn looked_at(file: &[u8]) -> Vec<(u64, Begins)> {
        let (mut out, mut covered) = (Vec::new(), 0);
        for at in (0..file.len()).step_by(SECTOR).filter(|at| *at < file.len()) {
            let front = &file[at..];
            if at < covered {
                continue;
            }
            if let Some(stamp) = Stamp::decode(ORIGIN, front) {
                out.push((at as u64, Begins::Stamp(stamp)));
            } else if let Some(head) = Head::of(ORIGIN, front) {
                let is_sound = item::decode(ORIGIN, front).is_some();
                covered = if is_sound { at + head.bytes() } else { covered };
                out.push((at as u64, Begins::Item(head, is_sound)));
            }
        }
        out
    }

    /// Items that were written over one another, stamps, damage, an item that is cut.
    #[test]
    fn what_is_found_in_one_pass_is_what_a_look_at_each_item_finds() {
        let (mut sound, mut unsound) = (0, 0);
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut file = vec![0; SECTOR * (1 + rng.below(60) as usize)];
            for number in 0..rng.below(40) {
                let value = vec![number as u8; rng.below(6000) as usize];
                let key = vec![b'k'; rng.below(40) as usize];
                let bytes = match rng.below(6) {
                    0 => Stamp { number, sector_bytes: 512 }.encode(ORIGIN),
                    _ => item::encode(ORIGIN, &Item { key: &key, value: &value, number }, SECTOR as u32),
                };
                let at = rng.below((file.len() / SECTOR) as u64) as usize * SECTOR;
                let len = bytes.len().min(file.len() - at);
                file[at..at + len].copy_from_slice(&bytes[..len]);
            }
            if rng.one_in(3) {
                file.truncate(file.len() - rng.below(SECTOR as u64) as usize);
            }
            let expected = looked_at(&file);
            let is_sound = |(_, what): &&(u64, Begins)| matches!(what, Begins::Item(_, true));
            sound += expected.iter().filter(is_sound).count();
            unsound += expected.iter().filter(|found| !is_sound(found)).count();
            assert_eq!(sift(&file), expected, "seed {seed}");
        }
        assert!(sound > 500 && unsound > 500, "{sound}, {unsound}");
    }
}
