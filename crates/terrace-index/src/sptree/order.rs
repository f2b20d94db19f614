//! The order of a few words, by counting for each how many are smaller: all comparisons are independent, so that a
//! vector unit makes eight at a time, and none is a branch to be mispredicted.

use super::layout::SLOTS;

/// In which order the first `len` words ascend, as their places; `None` if two are equal. The others are `u64::MAX`.
pub(super) fn ascending(words: &[u64; SLOTS], len: usize) -> Option<[u8; SLOTS]> {
    let ranks = ranks(words, len);
    let (mut order, mut seen) = ([0; SLOTS], 0u64);
    for (place, rank) in ranks[..len].iter().enumerate() {
        order[*rank as usize] = place as u8;
        seen |= 1 << rank;
    }
    // Equal words have the same rank, and leave another one out.
    (seen.count_ones() as usize == len).then_some(order)
}

/// For each word how many of the first `len` are smaller.
fn ranks(words: &[u64; SLOTS], len: usize) -> [u64; SLOTS] {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl")]
        fn avx512(words: &[u64; SLOTS], len: usize) -> [u64; SLOTS] {
            count_smaller(words, len)
        }
        #[target_feature(enable = "avx2")]
        fn avx2(words: &[u64; SLOTS], len: usize) -> [u64; SLOTS] {
            count_smaller(words, len)
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: this processor has the features.
            return unsafe { avx512(words, len) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { avx2(words, len) };
        }
    }
    count_smaller(words, len)
}

#[inline(always)]
fn count_smaller(words: &[u64; SLOTS], len: usize) -> [u64; SLOTS] {
    let mut ranks = [0; SLOTS];
    for word in &words[..len] {
        for (rank, other) in ranks.iter_mut().zip(words) {
            *rank += u64::from(word < other);
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_base::rng::Rng;

    #[test]
    fn words_come_in_order_and_equal_ones_are_refused() {
        let mut rng = Rng::new(7);
        for len in (0..=SLOTS).chain([3; 50]) {
            let mut words = [u64::MAX; SLOTS];
            words[..len].fill_with(|| rng.below(u64::MAX));
            let order = ascending(&words, len).unwrap();
            let sorted: Vec<u64> = order[..len].iter().map(|place| words[usize::from(*place)]).collect();
            assert!(sorted.is_sorted(), "{sorted:?}");
            assert_eq!(ranks(&words, len)[..len], count_smaller(&words, len)[..len]);
            if len > 1 {
                words[len - 1] = words[0];
                assert_eq!(ascending(&words, len), None);
            }
        }
    }
}
