//! Manifests that have lost their newest groups, and look as if these had never been written.

use std::path::{Path, PathBuf};

use terrace::EngineKind;
use terrace_log::LogReader;

use super::image::Bed;
use super::sample::{Sample, all_keys, samples_with_tables};
use super::whole::kind_of;
use crate::harness::{Contents, Map};

/// The manifest of a sample, and where each of its records ends.
fn groups(sample: &Sample) -> (PathBuf, Vec<usize>) {
    let mut manifests = sample.image.files.iter().filter(|(path, _)| kind_of(path) == "manifest");
    let (path, bytes) = manifests.next_back().unwrap();
    let number: u64 = path.file_name().unwrap().to_str().unwrap()["MANIFEST-".len()..].parse().unwrap();
    let mut ends = Vec::new();
    let mut note = |_, payload: &[u8]| {
        ends.push(payload.as_ptr() as usize - bytes.as_ptr() as usize + payload.len());
        Ok(())
    };
    LogReader::outline(bytes, Path::new(path), 0x6d61_6e69_6600_0000 ^ number, &mut note).unwrap();
    (path.clone(), ends)
}

/// What is wrong with a repair: it differs from what was there, and does not say so.
fn falsely_whole(sample: &Sample, bed: &Bed) -> Option<String> {
    let report = match bed.repair() {
        Ok(report) => report,
        Err(e) => return Some(format!("repair fails: {e}")),
    };
    let found: Map = bed.open().unwrap().all().into_iter().collect();
    let differ = all_keys().iter().filter(|key| found.get(*key) != sample.right.get(*key)).count();
    let is_told = !report.lost.is_empty() || !report.doubts.is_empty();
    (differ > 0 && !is_told).then(|| format!("{differ} keys differ; it did {:?}", report.actions))
}

/// Repairs each sample without its manifest's newest groups, of which at least `kept` stay, after what `first` does to it.
fn cut_and_repair(samples: impl Iterator<Item = Sample>, kept: usize, first: impl Fn(&Bed)) {
    let (mut tried, mut wrong) = (0, Vec::new());
    for sample in samples {
        let (path, ends) = groups(&sample);
        for (group, end) in ends.iter().enumerate().skip(kept) {
            let mut image = sample.image.clone();
            image.files.get_mut(&path).unwrap().truncate(*end);
            let bed = image.bed();
            first(&bed);
            let fault = falsely_whole(&sample, &bed);
            wrong.extend(fault.map(|fault| format!("{}, {group} of {}: {fault}", sample.name, ends.len())));
            tried += 1;
        }
    }
    assert!(tried > 0 && wrong.is_empty(), "{} of {tried}: {wrong:#?}", wrong.len());
}

/// A repair keeps what is there, or says that it does not know what was.
#[test]
fn a_manifest_without_its_newest_groups_repairs_to_nothing_falsely_whole() {
    cut_and_repair(samples_with_tables().into_iter(), 0, |_| ());
}

/// Opening removes no table that the index names, where the manifest was not closed and the pool was.
#[test]
fn opening_beside_such_a_manifest_takes_nothing_from_a_repair() {
    let is_closed_slm = |sample: &Sample| sample.closed && sample.image.options.engine == EngineKind::Slm;
    // The first record alone is what a creation that was cut off leaves, too: opening begins that anew.
    cut_and_repair(samples_with_tables().into_iter().filter(is_closed_slm), 1, |bed| {
        // What it says of the damage is no matter here.
        let _ = bed.open().map(|db| db.close());
    });
}
