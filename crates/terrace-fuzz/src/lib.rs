//! Every decoder as a function over bytes: it must not panic, run for ever or contradict itself on any bytes.
//!
//! `fuzz/` runs each under libFuzzer; the tests of this crate run them over the corpus kept in `fuzz/corpus` and
//! over drawn bytes. Most inputs are edits of a sound image (`patch`), which is made by the writers of the same
//! build. So built with `--cfg terrace_no_checksums`, where every checksum is a constant, an edit goes past the
//! checks to what they protect; built without, it shows that they protect it.
#![expect(clippy::unwrap_used, reason = "sound images are made without errors, or the target is broken")]

mod index;
mod log;
mod manifest;
mod memory;
mod patch;
mod pool;
mod slots;
mod table;
mod text;
mod words;

pub use patch::patched;

/// A decoder and its checks.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also that of its file in `fuzz/fuzz_targets` and its folder of the corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("batch", words::batch),
    ("block", table::block),
    ("cceh", index::cceh),
    ("commit_record", words::commit_record),
    ("compaction_record", words::compaction_record),
    ("fastfair", index::fastfair),
    ("file_log", log::file),
    ("filter", table::filter),
    ("manifest", manifest::manifest),
    ("pm_log", log::pm),
    ("pmlist", index::pmlist),
    ("pool", pool::pool),
    ("repair_note", words::repair_note),
    ("repair_record", words::repair_record),
    ("skiplist", index::skiplist),
    ("slot_item", slots::item),
    ("slots", slots::file),
    ("spot_on", index::spot_on),
    ("sptree", index::sptree),
    ("table", table::table),
    ("text", text::records),
    ("turbohash", index::turbohash),
];

/// Runs the target called `name`.
///
/// # Panics
///
/// If there is no such target, and if it finds a defect.
pub fn run(name: &str, data: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a target of this name");
    target(data);
}
