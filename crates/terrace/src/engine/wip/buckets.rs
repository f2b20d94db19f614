//! All buckets at one moment, and the mapping from keys to buckets.

use std::cmp::Ordering;
use std::sync::Arc;

use terrace_base::prefix;

use super::bucket::Bucket;

/// All buckets at one moment, in order.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    all: Vec<Arc<Bucket>>,
    /// The common beginning of all lower bounds but the first, which is empty.
    common: Vec<u8>,
    /// The next eight bytes of each, as a number, so that most of a search touches nothing else.
    heads: Vec<u64>,
}

impl Buckets {
    /// From adjacent buckets.
    pub fn new(all: Vec<Arc<Bucket>>) -> Buckets {
        debug_assert!(all.first().is_some_and(|first| first.lower.is_empty()));
        debug_assert!(all.windows(2).all(|pair| pair[0].upper.as_ref() == Some(&pair[1].lower)));
        debug_assert!(all.last().is_some_and(|last| last.upper.is_none()));
        let common = match &all[..] {
            [_, second, .., last] => &second.lower[..prefix::common(&second.lower, &last.lower)],
            _ => &[],
        };
        let rest = |bucket: &Arc<Bucket>| prefix::head(bucket.lower.get(common.len()..).unwrap_or_default());
        Buckets { heads: all.iter().map(rest).collect(), common: common.to_vec(), all }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Bucket>> + ExactSizeIterator {
        self.all.iter()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn at(&self, at: usize) -> &Arc<Bucket> {
        &self.all[at]
    }

    pub fn last(&self) -> &Arc<Bucket> {
        &self.all[self.all.len() - 1]
    }

    /// The index of the bucket that `key` belongs to.
    pub fn place(&self, key: &[u8]) -> usize {
        let start = &key[..key.len().min(self.common.len())];
        match start.cmp(&self.common) {
            Ordering::Less => return 0,
            Ordering::Greater => return self.all.len() - 1,
            Ordering::Equal => {}
        }
        let head = prefix::head(&key[self.common.len()..]);
        let mut after = self.heads.partition_point(|other| *other <= head);
        if self.heads[..after].last() == Some(&head) {
            // Among bounds with equal heads the rest decides.
            let from = self.heads.partition_point(|other| *other < head);
            after = from + self.all[from..after].partition_point(|bucket| *bucket.lower <= *key);
        }
        after.max(1) - 1
    }

    /// The bucket that `key` belongs to.
    pub fn find(&self, key: &[u8]) -> &Arc<Bucket> {
        &self.all[self.place(key)]
    }

    /// The last bucket that begins before `key`.
    pub fn before(&self, key: &[u8]) -> Option<&Arc<Bucket>> {
        let place = self.place(key);
        match *self.all[place].lower < *key {
            true => Some(&self.all[place]),
            false => place.checked_sub(1).map(|before| &self.all[before]),
        }
    }

    /// The buckets with keys of the range.
    pub fn within<'a>(
        &'a self,
        lower: &[u8],
        upper: Option<&'a [u8]>,
    ) -> impl Iterator<Item = &'a Arc<Bucket>> + use<'a> {
        let begins_before = move |bucket: &&Arc<Bucket>| upper.is_none_or(|upper| *bucket.lower < *upper);
        self.all[self.place(lower)..].iter().take_while(begins_before)
    }

    /// The keys where tables of that range end, ascending: where one of its buckets begins, or may come to begin.
    pub fn cuts(&self, lower: &[u8], upper: Option<&[u8]>) -> Vec<Vec<u8>> {
        let mut cuts = Vec::new();
        for bucket in self.within(lower, upper) {
            cuts.push(bucket.lower.clone());
            cuts.extend(bucket.cuts.lock().iter().cloned());
        }
        cuts
    }

    /// The same with `new` instead of `count` buckets from `at` on.
    pub fn replaced(&self, at: usize, count: usize, new: Vec<Arc<Bucket>>) -> Buckets {
        let mut all = self.all.clone();
        all.splice(at..at + count, new);
        Buckets::new(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::wip::memtable::{BucketMemtable, Memory};
    use crate::memtable::hash::Overflow;

    fn buckets(lowers: &[&str]) -> Buckets {
        let uppers = lowers.iter().skip(1).map(|upper| Some(upper.as_bytes().to_vec())).chain([None]);
        let memory = Memory::new(Overflow::Chain, 0);
        let bucket = |(lower, upper): (&&str, Option<Vec<u8>>)| {
            let active = BucketMemtable::new(&memory, (lower.as_bytes(), upper.as_deref()), false);
            Bucket::new(lower.as_bytes().to_vec(), upper, active.into(), Arc::default())
        };
        Buckets::new(lowers.iter().zip(uppers).map(bucket).collect())
    }

    #[test]
    fn a_key_belongs_to_the_last_bucket_that_begins_at_or_before_it() {
        let all = buckets(&["", "b", "prefix-of-many-1", "prefix-of-many-2", "prefix-of-many-21", "z"]);
        for (key, place) in [
            ("", 0),
            ("a", 0),
            ("b", 1),
            ("prefix-", 1),
            ("prefix-of-many-", 1),
            ("prefix-of-many-1", 2),
            ("prefix-of-many-1x", 2),
            ("prefix-of-many-2", 3),
            ("prefix-of-many-20", 3),
            ("prefix-of-many-21", 4),
            ("prefix-of-many-9", 4),
            ("y", 4),
            ("z", 5),
            ("zz", 5),
        ] {
            assert_eq!(all.place(key.as_bytes()), place, "{key}");
            assert!(all.find(key.as_bytes()).holds(key.as_bytes()), "{key}");
        }
        let before = |key: &str| all.before(key.as_bytes()).map(|bucket| bucket.lower.clone());
        assert_eq!((before(""), before("a"), before("b")), (None, Some(vec![]), Some(vec![])));
        assert_eq!(before("c"), Some(b"b".to_vec()));
        let within =
            |lower: &str, upper: Option<&str>| all.within(lower.as_bytes(), upper.map(str::as_bytes)).count();
        assert_eq!((within("", None), within("b", Some("c")), within("a", Some("b"))), (6, 1, 1));
        assert_eq!((within("a", Some("c")), within("prefix-of-many-2", Some("zz"))), (2, 3));
    }

    /// The common beginning of all is examined once, and bounds with equal heads are not examined one by one.
    #[test]
    fn bounds_may_have_much_in_common() {
        let all = buckets(&["", "user:000000001", "user:000000001-a", "user:000000001-b", "user:000000777"]);
        for (key, place) in [
            ("", 0),
            ("user:", 0),
            ("user:000000000z", 0),
            ("user:000000001", 1),
            ("user:000000001-", 1),
            ("user:000000001-b", 3),
            ("user:000000002", 3),
            ("user:000000777x", 4),
            ("user;", 4),
            ("z", 4),
        ] {
            assert_eq!(all.place(key.as_bytes()), place, "{key}");
        }
        assert_eq!(buckets(&[""]).place(b"x"), 0);
        let two = buckets(&["", "k"]);
        assert_eq!((two.place(b"j"), two.place(b"k"), two.place(b"l")), (0, 1, 1));
    }

    proptest::proptest! {
        #[test]
        fn a_search_finds_what_going_through_all_finds(
            bounds in proptest::collection::btree_set("(common-prefix-)?[a\0]{0,12}", 0..20),
            keys in proptest::collection::vec("(common-prefix-)?[ab\0]{0,12}", 1..20),
        ) {
            let lowers: Vec<&str> = [""].into_iter().chain(bounds.iter().map(String::as_str).filter(|b| !b.is_empty())).collect();
            let all = buckets(&lowers);
            for key in &keys {
                let plain = lowers.iter().rposition(|lower| *lower <= key.as_str()).unwrap();
                proptest::prop_assert_eq!(all.place(key.as_bytes()), plain, "{:?}", key);
            }
        }
    }

    /// Short keys are padded: a key that ends in zeroes has the same number as a shorter one.
    #[test]
    fn keys_that_differ_in_trailing_zeroes_are_told_apart() {
        let all = buckets(&["", "k", "k\0", "k\0\0"]);
        for (key, place) in [(&b"j"[..], 0), (b"k", 1), (b"k\0", 2), (b"k\0\0", 3), (b"k\0\0\0\0\0\0\0\0", 3)]
        {
            assert_eq!(all.place(key), place, "{key:?}");
        }
    }
}
