//! The memtables that may be read at one moment.

use std::sync::Arc;

/// The memtables at one moment, newest first. The first is the active one; there always is one.
#[derive(Debug)]
pub(crate) struct Memtables<M>(Vec<Arc<M>>);

// By hand: a derived one would require memtables that can be cloned.
impl<M> Clone for Memtables<M> {
    fn clone(&self) -> Self {
        Memtables(self.0.clone())
    }
}

impl<M> From<Arc<M>> for Memtables<M> {
    fn from(active: Arc<M>) -> Self {
        Memtables(vec![active])
    }
}

impl<M> Memtables<M> {
    /// The set of `memtables`, newest first; not empty.
    pub fn new(memtables: Vec<Arc<M>>) -> Self {
        debug_assert!(!memtables.is_empty(), "there is always a memtable to write to");
        Memtables(memtables)
    }

    /// The active memtable.
    pub fn active(&self) -> &Arc<M> {
        &self.0[0]
    }

    /// The oldest that waits for its flush.
    pub fn oldest_immutable(&self) -> Option<&Arc<M>> {
        if self.0.len() > 1 { self.0.last() } else { None }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Arc<M>> {
        self.0.iter()
    }

    pub fn contains(&self, memtable: &Arc<M>) -> bool {
        self.0.iter().any(|other| Arc::ptr_eq(other, memtable))
    }

    /// Those begun after `memtable`, newest first.
    pub fn newer_than(&self, memtable: &M) -> impl Iterator<Item = &Arc<M>> {
        self.0.iter().take_while(move |other| !std::ptr::eq(&***other, memtable))
    }

    /// The set after a rotation to `active`.
    pub fn rotated(&self, active: &Arc<M>) -> Self {
        Memtables(std::iter::once(active).chain(&self.0).cloned().collect())
    }

    /// The set without those for which `leaves` is true. The active one stays.
    pub fn without(&self, leaves: impl Fn(&Arc<M>) -> bool) -> Self {
        Memtables::new(self.0.iter().filter(|memtable| !leaves(memtable)).cloned().collect())
    }
}

impl<'a, M> IntoIterator for &'a Memtables<M> {
    type Item = &'a Arc<M>;
    type IntoIter = std::slice::Iter<'a, Arc<M>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_put_the_newest_first_and_flushes_take_the_oldest() {
        let [first, second, third] = [1, 2, 3].map(Arc::new);
        let set = Memtables::from(first.clone());
        assert!(set.oldest_immutable().is_none(), "the one being written waits for no flush");
        let set = set.rotated(&second).rotated(&third);
        assert_eq!(set.iter().map(|m| **m).collect::<Vec<i32>>(), [3, 2, 1]);
        assert_eq!((**set.active(), set.oldest_immutable().map(|m| **m)), (3, Some(1)));
        assert_eq!(set.newer_than(&first).map(|m| **m).collect::<Vec<i32>>(), [3, 2]);
        let set = set.without(|memtable| Arc::ptr_eq(memtable, &first));
        assert!(!set.contains(&first) && set.contains(&second));
        assert_eq!((set.len(), set.oldest_immutable().map(|m| **m)), (2, Some(2)));
    }
}
