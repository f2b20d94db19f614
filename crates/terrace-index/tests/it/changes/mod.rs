//! Changes of hash tables' structures, and of those behind write buffers, cut off at every event. Those of trees stand
//! with the trees.

mod cceh;
mod skiplist;
mod spot_on;
mod turbohash;
mod values;

/// A key of eight bytes, which hash tables keep without a record.
fn short(i: u64) -> Vec<u8> {
    format!("k{i:07}").into_bytes()
}

/// A key that takes a record.
fn long(i: u64) -> Vec<u8> {
    format!("a/key/with/a/record/{i:05}").into_bytes()
}

/// Whether `seen` goes up somewhere.
fn rises(seen: impl Iterator<Item = u64> + Clone) -> bool {
    seen.clone().zip(seen.skip(1)).any(|(before, after)| after > before)
}

/// Whether it goes down somewhere.
fn falls(seen: impl Iterator<Item = u64> + Clone) -> bool {
    seen.clone().zip(seen.skip(1)).any(|(before, after)| after < before)
}
