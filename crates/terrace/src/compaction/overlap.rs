//! How much two key ranges overlap.
//!
//! The paper's ratio for ranges \[s1, sp\] and \[t1, tq\] is
//! (min(sp, tq) - max(s1, t1)) / (max(sp, tq) - min(s1, t1)), or zero if that is negative. Our keys are
//! byte strings, which have no difference. Which of two keys is greater is decided on the bytes; the
//! difference is that of two numbers: the first eight bytes, big-endian, after the prefix that the four keys
//! have in common, short keys filled up with zeros. Without the common prefix `user00000017` and
//! `user00000042` are a measurable distance apart.
//!
//! So ranges that meet in a single key overlap with a ratio of zero, and ranges that differ only
//! beyond those eight bytes count as equal.

use terrace_base::prefix;

/// A smallest and a largest key.
type Range<'a> = (&'a [u8], &'a [u8]);

/// Whether the two ranges have a common part, even a single key.
pub fn overlaps(s: Range<'_>, t: Range<'_>) -> bool {
    s.0 <= t.1 && t.0 <= s.1
}

/// The paper's overlap ratio, from 0 to 1; symmetric.
///
/// With the keys `1`, `3`, `5`, `9`: \[1, 5\] and \[3, 9\] share 3 to 5 of 1 to 9, a ratio of 2/8.
pub fn overlap_ratio(s: Range<'_>, t: Range<'_>) -> f64 {
    if !overlaps(s, t) {
        return 0.0;
    }
    let (first, last) = (s.0.min(t.0), s.1.max(t.1));
    // Every key between two others has their common prefix.
    let skip = prefix::common(first, last);
    let head = |key: &[u8]| prefix::head(key.get(skip..).unwrap_or_default());
    let distance = |from: &[u8], to: &[u8]| head(to).saturating_sub(head(from));
    match distance(first, last) {
        0 => 1.0,
        whole => distance(s.0.max(t.0), s.1.min(t.1)) as f64 / whole as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ratio(s: (&str, &str), t: (&str, &str)) -> f64 {
        overlap_ratio((s.0.as_bytes(), s.1.as_bytes()), (t.0.as_bytes(), t.1.as_bytes()))
    }

    #[test]
    fn the_formula_worked() {
        assert_eq!(ratio(("1", "5"), ("3", "9")), 2.0 / 8.0);
        assert_eq!(ratio(("1", "9"), ("3", "5")), 2.0 / 8.0);
        assert_eq!(ratio(("1", "5"), ("1", "5")), 1.0);
        assert_eq!(ratio(("1", "3"), ("5", "9")), 0.0);
        assert_eq!(ratio(("1", "5"), ("5", "9")), 0.0);
        assert_eq!(ratio(("5", "5"), ("5", "5")), 1.0);
    }

    #[test]
    fn a_long_common_prefix_does_not_blur_the_ratio() {
        let prefix = "a long prefix that is the same for every user:";
        let key = |k: &str| format!("{prefix}{k}");
        let (a, b, c, d) = (key("1"), key("5"), key("3"), key("9"));
        assert_eq!(ratio((&a, &b), (&c, &d)), 2.0 / 8.0);
    }

    #[test]
    fn keys_apart_only_by_trailing_zeros_count_as_one() {
        assert_eq!(ratio(("a", "a\0"), ("a", "a")), 1.0);
        assert_eq!(ratio(("a", "a"), ("a\0", "a\0")), 0.0);
    }

    #[test]
    fn touching_counts_as_overlapping() {
        assert!(overlaps((b"a", b"c"), (b"c", b"d")));
        assert!(!overlaps((b"a", b"b"), (b"c", b"d")));
        assert!(overlaps((b"a", b"z"), (b"c", b"d")));
    }

    proptest! {
        #[test]
        fn symmetric_and_between_zero_and_one(mut s in any::<[Vec<u8>; 2]>(), mut t in any::<[Vec<u8>; 2]>()) {
            s.sort();
            t.sort();
            let (s, t) = ((&s[0][..], &s[1][..]), (&t[0][..], &t[1][..]));
            let ratio = overlap_ratio(s, t);
            prop_assert_eq!(ratio, overlap_ratio(t, s));
            prop_assert!((0.0..=1.0).contains(&ratio));
            prop_assert!(overlaps(s, t) || ratio == 0.0);
            prop_assert_eq!(overlap_ratio(s, s), 1.0);
        }
    }
}
