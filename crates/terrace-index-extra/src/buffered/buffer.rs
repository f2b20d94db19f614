//! The buffered changes of one range of places, in order.

use std::cmp::Ordering;

use terrace_index::Change;

/// A place in an index's order: the key's first bytes, or its hash, and then the key itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub head: u64,
    pub key: Box<[u8]>,
}

impl Place {
    pub fn new(head: u64, key: &[u8]) -> Self {
        Place { head, key: key.into() }
    }
}

/// A place that may borrow its key, so that a lookup allocates nothing.
pub(super) trait AsPlace {
    fn parts(&self) -> (u64, &[u8]);
}

impl AsPlace for Place {
    fn parts(&self) -> (u64, &[u8]) {
        (self.head, &self.key)
    }
}

impl AsPlace for (u64, &[u8]) {
    fn parts(&self) -> (u64, &[u8]) {
        *self
    }
}

impl<'a> std::borrow::Borrow<dyn AsPlace + 'a> for Place {
    fn borrow(&self) -> &(dyn AsPlace + 'a) {
        self
    }
}

impl PartialEq for dyn AsPlace + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn AsPlace + '_ {}

impl PartialOrd for dyn AsPlace + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn AsPlace + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

/// A key; those of 8 bytes, which are frequent, without memory of their own.
#[derive(Debug, Clone)]
enum Key {
    Eight([u8; 8]),
    Other(Box<Box<[u8]>>),
}

impl Key {
    fn new(key: &[u8]) -> Self {
        match key.try_into() {
            Ok(eight) => Key::Eight(eight),
            Err(_) => Key::Other(Box::new(key.into())),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Key::Eight(eight) => eight,
            Key::Other(other) => other,
        }
    }
}

/// A change that has not been merged.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub head: u64,
    key: Key,
    /// 0: removed.
    word: u64,
}

impl Entry {
    pub fn key(&self) -> &[u8] {
        self.key.bytes()
    }

    pub fn word(&self) -> Option<u64> {
        (self.word != 0).then_some(self.word)
    }
}

const _: () = assert!(size_of::<Entry>() == 32);

/// Changes by place, one a key, with the number that they add to the keys of the structure below.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    entries: Vec<Entry>,
    /// Whether the structure below has the key, by entry.
    below: Vec<bool>,
}

impl Buffer {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entries as changes of the structure below.
    pub fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        let all = self.entries.iter().zip(&self.below);
        all.map(|(e, below)| Change { head: e.head, key: e.key(), word: e.word(), is_new: !below })
    }

    /// Where a key's entry is, or belongs.
    pub fn search(&self, head: u64, key: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|e| e.head.cmp(&head).then_with(|| e.key().cmp(key)))
    }

    /// The entry at `at`.
    pub fn get(&self, at: usize) -> Option<&Entry> {
        self.entries.get(at)
    }

    /// Notes a change at the place that [`search`](Self::search) returned; `below` tells whether the structure below
    /// has the key, if there is no entry yet. Returns the change of the number of keys.
    pub fn put(
        &mut self,
        place: Result<usize, usize>,
        (head, key): (u64, &[u8]),
        word: Option<u64>,
        below: bool,
    ) -> i64 {
        let word = word.unwrap_or(0);
        match place {
            Ok(at) => {
                let before = self.surplus_of(at);
                self.entries[at].word = word;
                self.surplus_of(at) - before
            }
            Err(at) => {
                self.entries.insert(at, Entry { head, key: Key::new(key), word });
                self.below.insert(at, below);
                self.surplus_of(at)
            }
        }
    }

    /// Looks up again whether the structure below has each key.
    pub fn look_below(&mut self, has: impl Fn(&[u8]) -> bool) {
        self.below.iter_mut().zip(&self.entries).for_each(|(below, entry)| *below = has(entry.key()));
    }

    fn surplus_of(&self, at: usize) -> i64 {
        i64::from(self.entries[at].word != 0) - i64::from(self.below[at])
    }

    /// Keys more than the structure below has.
    pub fn surplus(&self) -> i64 {
        (0..self.entries.len()).map(|at| self.surplus_of(at)).sum()
    }

    /// Empties the buffer; its memory stays if it was `kept`.
    pub fn clear(&mut self, kept: bool) {
        self.entries.clear();
        self.below.clear();
        if !kept {
            self.entries.shrink_to_fit();
            self.below.shrink_to_fit();
        }
    }

    /// Bytes of DRAM.
    pub fn bytes(&self) -> u64 {
        let own = self.entries.capacity() * size_of::<Entry>() + self.below.capacity();
        let keys = self.entries.iter().map(|e| if e.key().len() == 8 { 0 } else { 16 + e.key().len() });
        (own + keys.sum::<usize>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_keeps_order_and_counts() {
        let mut buffer = Buffer::default();
        let mut sum = 0;
        for (head, key, word, below) in
            [(2u64, &b"b"[..], Some(1), false), (1, b"a", None, true), (2, b"a", Some(3), true)]
        {
            let place = buffer.search(head, key);
            sum += buffer.put(place, (head, key), word, below);
        }
        assert_eq!((sum, buffer.surplus()), (0, 0));
        let order: Vec<_> = buffer.entries().iter().map(|e| (e.head, e.key().to_vec(), e.word())).collect();
        assert_eq!(
            order,
            [(1, b"a".to_vec(), None), (2, b"a".to_vec(), Some(3)), (2, b"b".to_vec(), Some(1))]
        );
        let place = buffer.search(2, b"b");
        assert_eq!(buffer.put(place, (2, b"b"), None, true), -1);
        assert_eq!(buffer.surplus(), -1);
        buffer.clear(false);
        assert!(buffer.is_empty() && buffer.bytes() == 0);
    }

    #[test]
    fn places_are_looked_up_without_owning_them() {
        let map: std::collections::BTreeMap<Place, u8> =
            [(Place::new(0, b""), 0), (Place::new(5, b"m"), 1), (Place::new(9, b""), 2)].into();
        let find = |head: u64, key: &[u8]| {
            let wanted: (u64, &[u8]) = (head, key);
            let wanted: &dyn AsPlace = &wanted;
            let range = (std::ops::Bound::Unbounded, std::ops::Bound::Included(wanted));
            map.range::<dyn AsPlace, _>(range).next_back().map(|(_, v)| *v)
        };
        assert_eq!(find(0, b""), Some(0));
        assert_eq!(find(5, b"a"), Some(0));
        assert_eq!(find(5, b"m"), Some(1));
        assert_eq!(find(6, b""), Some(1));
        assert_eq!(find(u64::MAX, b"z"), Some(2));
    }
}
