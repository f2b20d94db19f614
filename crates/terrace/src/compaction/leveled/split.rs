//! Cutting one compaction into several that run in parallel.

/// Keys at which a compaction is cut into up to `parts` of about equal size: each part ends before one of
/// them. `anchors` are places in its inputs: a key, and the bytes of one input from the anchor before it.
pub fn split(mut anchors: Vec<(Vec<u8>, u64)>, parts: usize) -> Vec<Vec<u8>> {
    anchors.sort();
    let total: u64 = anchors.iter().map(|(_, bytes)| bytes).sum();
    let share = (total / parts.max(1) as u64).max(1);
    let mut cuts: Vec<Vec<u8>> = Vec::new();
    let mut passed = 0;
    for (key, bytes) in anchors {
        passed += bytes;
        let due = passed >= share * (cuts.len() as u64 + 1);
        if due && cuts.len() + 1 < parts && cuts.last() != Some(&key) {
            cuts.push(key);
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_share_the_bytes() {
        let anchors: Vec<_> = (0..100u8).map(|i| (vec![i], 10)).collect();
        assert_eq!(split(anchors.clone(), 4), [vec![24], vec![49], vec![74]]);
        assert_eq!(split(anchors, 1), Vec::<Vec<u8>>::new());
        assert_eq!(split(vec![(vec![1], 5); 9], 3), [vec![1]], "there is one place to cut at");
        assert_eq!(split(Vec::new(), 3), Vec::<Vec<u8>>::new());
    }
}
