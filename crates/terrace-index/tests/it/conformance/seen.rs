//! Keys of changes that are cut off, and what is seen of them.

/// A key of eight bytes, which hash tables keep without a record.
pub fn short(i: u64) -> Vec<u8> {
    format!("k{i:07}").into_bytes()
}

/// A key that takes a record.
pub fn long(i: u64) -> Vec<u8> {
    format!("a/key/with/a/record/{i:05}").into_bytes()
}

/// Whether `seen` goes up somewhere.
pub fn rises(seen: impl Iterator<Item = u64> + Clone) -> bool {
    seen.clone().zip(seen.skip(1)).any(|(before, after)| after > before)
}

/// Whether it goes down somewhere.
pub fn falls(seen: impl Iterator<Item = u64> + Clone) -> bool {
    seen.clone().zip(seen.skip(1)).any(|(before, after)| after < before)
}
