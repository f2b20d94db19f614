//! Keys within nodes: slices, common prefixes, separators, and how many bytes a node skips.

use std::cmp::Ordering;

/// The target of a descent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target<'k> {
    /// The node that a key belongs to.
    At(&'k [u8]),
    /// The node that the keys just under one belong to.
    Before(&'k [u8]),
    /// The last node.
    Last,
}

impl Target<'_> {
    /// Whether the target lies at or after a node whose least key is `low`.
    pub fn reaches(&self, low: &[u8]) -> bool {
        match self {
            Target::At(key) => low <= *key,
            Target::Before(key) => low < *key,
            Target::Last => true,
        }
    }

    /// The slice to compare with those of a node that skips `skip` bytes: less means before it, greater
    /// means at or after it, equal means that the keys decide.
    pub fn slice(&self, skip: usize) -> u64 {
        match self {
            Target::At(key) | Target::Before(key) => slice(key, skip),
            Target::Last => u64::MAX,
        }
    }

    /// How the target compares with all keys that begin with `prefix`.
    pub fn against(&self, prefix: &[u8]) -> Ordering {
        match self {
            Target::At(key) | Target::Before(key) if key.starts_with(prefix) => Ordering::Equal,
            Target::At(key) | Target::Before(key) => (*key).cmp(prefix),
            Target::Last => Ordering::Greater,
        }
    }
}

/// The eight bytes of `key` after the first `skip`, big-endian, zeros past its end.
pub(super) fn slice(key: &[u8], skip: usize) -> u64 {
    let rest = key.get(skip..).unwrap_or_default();
    match rest.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut padded = [0; 8];
            padded[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(padded)
        }
    }
}

/// Bytes that `a` and `b` begin with in common.
pub(super) fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The shortest key greater than `left` and at most `right`, given `left < right`.
pub(super) fn separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    &right[..(common(left, right) + 1).min(right.len())]
}

/// The bytes that a node skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Skip {
    /// Leading bytes skipped.
    pub bytes: usize,
    /// Whether only the node's entries share them: keys that are looked for must be compared with the
    /// prefix first. Otherwise its fences share them, and so does every key that belongs there.
    pub checked: bool,
}

/// Chooses how much a node with these fences and ascending keys should skip.
///
/// Skipping bytes that the fences share costs nothing. Only if many neighbours would still have the same slice, a node
/// skips more of the bytes that its keys share, and then as few as tell them apart: a later key that differs within the
/// slice is fine, while one that differs in the prefix makes the node be rebuilt.
pub(super) fn choose_skip(low: Option<&[u8]>, high: Option<&[u8]>, keys: &[&[u8]]) -> Skip {
    let by_fences = match (low, high) {
        (Some(low), Some(high)) => common(low, high),
        _ => 0,
    };
    let fenced = Skip { bytes: by_fences, checked: false };
    let ties = keys.windows(2).filter(|w| slice(w[0], by_fences) == slice(w[1], by_fences)).count();
    if ties * 4 < keys.len() || keys.len() < 2 {
        return fenced;
    }
    let shared = common(keys[0], keys[keys.len() - 1]);
    let deepest = keys.windows(2).map(|w| common(w[0], w[1])).max().unwrap_or(0);
    let bytes = (deepest + 1).saturating_sub(8).min(shared);
    if bytes > by_fences { Skip { bytes, checked: true } } else { fenced }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_order_as_keys_do_unless_they_tie() {
        let keys: [&[u8]; 6] = [b"", b"\0", b"a", b"a\0", b"abcdefgh", b"abcdefghi"];
        for pair in keys.windows(2) {
            assert!(slice(pair[0], 0) <= slice(pair[1], 0));
        }
        assert_eq!(slice(b"abc", 5), 0);
        assert_eq!(slice(b"xxabcdefghz", 2), u64::from_be_bytes(*b"abcdefgh"));
    }

    #[test]
    fn separators_are_short_and_separate() {
        for (left, right, want) in [
            ("abc", "abd", "abd"),
            ("a", "b", "b"),
            ("ab", "abc", "abc"),
            ("", "zz", "z"),
            ("apple", "banana", "b"),
        ] {
            let sep = separator(left.as_bytes(), right.as_bytes());
            assert_eq!(sep, want.as_bytes());
            assert!(left.as_bytes() < sep && sep <= right.as_bytes());
        }
    }

    #[test]
    fn long_common_prefixes_are_skipped_but_for_what_tells_keys_apart() {
        let keys: Vec<_> = (0..20).map(|i| format!("user{i:020}").into_bytes()).collect();
        let refs: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        assert_eq!(choose_skip(None, None, &refs), Skip { bytes: 16, checked: true });
        let fences = (Some(&b"user000000000000000000"[..]), Some(&b"user0000000000000000002"[..]));
        assert_eq!(choose_skip(fences.0, fences.1, &refs), Skip { bytes: 22, checked: false });
        assert_eq!(choose_skip(None, None, &[b"a", b"b", b"c"]), Skip { bytes: 0, checked: false });
    }

    #[test]
    fn targets() {
        assert!(Target::At(b"b").reaches(b"b") && !Target::Before(b"b").reaches(b"b"));
        assert!(Target::Last.reaches(&[0xff; 300]));
        assert_eq!(Target::At(b"abz").against(b"ab"), Ordering::Equal);
        assert_eq!(Target::At(b"a").against(b"ab"), Ordering::Less);
        assert_eq!(Target::At(b"b").against(b"ab"), Ordering::Greater);
    }
}
