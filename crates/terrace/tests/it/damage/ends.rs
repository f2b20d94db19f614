//! Manifests that have lost their newest groups, and look as if these had never been written.

use std::path::{Path, PathBuf};

use terrace::{EngineKind, ErrorKind};
use terrace_base::codec::Reader;
use terrace_disk::{Fs, SimFs};
use terrace_log::{FileSegment, LogReader, LogWriter};
use terrace_pmem::Granularity;

use super::image::{Bed, DIR, Image, options};
use super::judge::differing;
use super::sample::{Sample, samples, samples_with_tables};
use super::spaces::all_of;
use super::whole::kind_of;
use crate::harness::{Contents, Map};

/// The newest manifest of an image, and its log's identity.
fn manifest(image: &Image) -> (PathBuf, u64) {
    let path = image.files.keys().rfind(|path| kind_of(path) == "manifest").unwrap();
    let number: u64 = path.file_name().unwrap().to_str().unwrap()["MANIFEST-".len()..].parse().unwrap();
    (path.clone(), 0x6d61_6e69_6600_0000 ^ number)
}

/// The manifest of an image, and where each of its records ends.
pub fn groups(image: &Image) -> (PathBuf, Vec<usize>) {
    let (path, id) = manifest(image);
    let bytes = &image.files[&path];
    let mut ends = Vec::new();
    let mut note = |_, payload: &[u8]| {
        ends.push(payload.as_ptr() as usize - bytes.as_ptr() as usize + payload.len());
        Ok(())
    };
    LogReader::outline(bytes, &path, id, &mut note).unwrap();
    (path, ends)
}

/// The image with a manifest that tells of its creation alone, closed in order or not.
pub fn as_created(image: &Image, sealed: bool) -> Image {
    let (path, id) = manifest(image);
    let mut first = Vec::new();
    let mut take = |_, payload: &[u8]| {
        if first.is_empty() {
            let mut identity = Reader::new(payload);
            assert_eq!(identity.u8(), Some(1));
            identity.bytes().unwrap();
            first.extend_from_slice(&payload[..identity.position()]);
        }
        Ok(())
    };
    LogReader::outline(&image.files[&path], &path, id, &mut take).unwrap();
    // Nothing is flushed, the next file is the first, no log was needed, and that is all.
    first.extend([8, 1, 0, 9, 1, 1, 10, 1, 0, 11, 0]);
    let fs = SimFs::new();
    fs.create_dir_all(Path::new(DIR)).unwrap();
    let mut log = LogWriter::create(FileSegment(fs.create(&path).unwrap()), id).unwrap();
    log.append(&first).unwrap();
    log.sync().unwrap();
    if sealed {
        log.seal().unwrap();
    }
    let mut image = image.clone();
    image.files.insert(path.clone(), fs.read(&path).unwrap());
    image
}

/// What is wrong with opening an image of which only a repair brings back what was there.
pub fn not_refused(image: &Image, bed: &Bed) -> Option<String> {
    let fault = match bed.open() {
        Ok(_) => "it opens".into(),
        Err(e) if e.kind() != ErrorKind::Corruption || !e.to_string().contains("run repair") => e.to_string(),
        Err(_) if bed.image().files != image.files => "its files are others afterwards".into(),
        Err(_) if bed.image().pool != image.pool => "its pool is another one afterwards".into(),
        Err(_) => return None,
    };
    Some(fault)
}

/// What is wrong with a repair: it differs from what was there, and does not say so.
fn falsely_whole(sample: &Sample, bed: &Bed) -> Option<String> {
    let report = match bed.repair() {
        Ok(report) => report,
        Err(e) => return Some(format!("repair fails: {e}")),
    };
    let found = all_of(&bed.open().unwrap()).unwrap();
    let differ = differing(&found, &sample.right).len();
    let is_told = !report.lost.is_empty() || !report.doubts.is_empty();
    (differ > 0 && !is_told).then(|| format!("{differ} keys differ; it did {:?}", report.actions))
}

/// Repairs each sample without its manifest's newest groups after what `first` does to it.
fn cut_and_repair(samples: impl Iterator<Item = Sample>, first: impl Fn(&Bed)) {
    let (mut tried, mut wrong) = (0, Vec::new());
    for sample in samples {
        let (path, ends) = groups(&sample.image);
        for (group, end) in ends.iter().enumerate() {
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

/// Must catch a repair that calls a database whole although its manifest has lost what named the newest tables or logs.
#[test]
fn a_manifest_without_its_newest_groups_repairs_to_nothing_falsely_whole() {
    cut_and_repair(samples_with_tables().into_iter(), |_| ());
}

/// Must catch an opening that removes tables which the index names because a manifest that was cut off does not.
#[test]
fn opening_beside_such_a_manifest_takes_nothing_from_a_repair() {
    let is_closed_slm = |sample: &Sample| sample.closed && sample.image.options.engine == EngineKind::Slm;
    cut_and_repair(samples_with_tables().into_iter().filter(is_closed_slm), |bed| {
        // What it says of the damage is no matter here.
        let _ = bed.open().map(|db| db.close());
    });
}

/// Must catch a database that is begun anew, its files gone, because its manifest tells no more than a creation that
/// was cut off.
#[test]
fn a_manifest_that_tells_of_a_creation_alone_is_refused_beside_a_database() {
    let mut wrong = Vec::new();
    for sample in samples() {
        for sealed in [false, true] {
            let image = as_created(&sample.image, sealed);
            let bed = image.bed();
            let fault = not_refused(&image, &bed).or_else(|| falsely_whole(&sample, &bed));
            wrong.extend(fault.map(|fault| format!("{}, sealed: {sealed}: {fault}", sample.name)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Must catch the same where there is no table to give it away: everything is in the pool, or in a log.
#[test]
fn a_manifest_that_tells_of_a_creation_alone_is_refused_beside_a_pool_or_a_log() {
    let mut wrong = Vec::new();
    let on = |&engine: &EngineKind| [(engine, Granularity::CacheLine), (engine, Granularity::Page)];
    for (engine, granularity) in EngineKind::ALL.iter().flat_map(on) {
        let bed = Image::empty(options(engine), granularity).bed();
        let Ok(db) = bed.open() else {
            assert!(engine.needs_memory() && granularity == Granularity::Page);
            continue;
        };
        let right: Map = (0..3u8).map(|i| (vec![i], vec![i; 10])).collect();
        right.iter().for_each(|(key, value)| db.put(key, value).unwrap());
        let killed = bed.image();
        db.close().unwrap();
        for (state, image) in [("killed", killed), ("closed", bed.image())] {
            let image = as_created(&image, false);
            let bed = image.bed();
            let fault = not_refused(&image, &bed).or_else(|| {
                let report = bed.repair().unwrap();
                let found: Map = bed.open().unwrap().all().into_iter().collect();
                (found != right).then(|| format!("{} keys: {report:?}", found.len()))
            });
            wrong.extend(fault.map(|fault| format!("{engine:?} on {granularity:?}, {state}: {fault}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
