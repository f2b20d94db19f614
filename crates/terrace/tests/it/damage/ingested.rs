//! A sample's database in which an ingest was interrupted.

use std::sync::{Arc, Mutex};

use terrace_disk::{FsEvent, Observer};

use super::image::{Bed, Image};
use super::sample::{KEYS, Sample, key, samples_with_tables, value};
use crate::harness::{Contents, Map};

/// The version of the values that are ingested.
const INGESTED: u32 = 24;

/// Takes a picture before the last of the tables gets its name: the others have theirs, a note tells of all, and the
/// manifest names none.
#[derive(Debug)]
struct Camera {
    bed: Bed,
    shot: Mutex<Option<Image>>,
}

impl Observer for Camera {
    fn before(&self, event: FsEvent<'_>) {
        if matches!(event, FsEvent::Rename { from, .. } if from.to_string_lossy().ends_with(".sst.new")) {
            *self.shot.lock().unwrap() = Some(self.bed.image());
        }
    }
}

/// The same, killed while the tables of an ingest over other keys got their names.
pub fn in_an_ingest((image, map): &(Image, Map)) -> (Image, Map) {
    let bed = image.bed();
    let camera = Arc::new(Camera { bed: bed.clone(), shot: Mutex::default() });
    let db = bed.open().unwrap();
    bed.fs().observe(Some(camera.clone()));
    let mut entries: Vec<_> = (0..KEYS).map(|i| (key(i), value(i, INGESTED))).collect();
    entries.sort();
    db.ingest(|ingest| entries.iter().try_for_each(|(key, value)| ingest.put(key, value))).unwrap();
    bed.fs().observe(None);
    let shot = camera.shot.lock().unwrap().take().unwrap();
    let count = |end: &str| shot.files.keys().filter(|path| path.to_string_lossy().ends_with(end)).count();
    assert_eq!((count(".ingest"), count(".sst.new")), (1, 1));
    (shot, map.clone())
}

/// Where the manifest is lost, too, a repair cannot ask it which tables are the database's. It leaves out those of the
/// ingest, since the note tells of them, and would bring in most of them otherwise.
#[test]
fn a_repair_heeds_the_note_of_an_ingest() {
    let samples = samples_with_tables();
    let interrupted = samples.iter().filter(|sample| sample.name.ends_with("killed in an ingest"));
    let count = |image: &Image, lost: &[&str]| {
        let mut image = image.clone();
        image.files.retain(|path, _| !lost.iter().any(|part| path.to_string_lossy().contains(part)));
        let bed = image.bed();
        bed.repair().unwrap();
        let all = bed.open().unwrap().all();
        let ingested = |i: &u32| all.contains(&(key(*i), value(*i, INGESTED)));
        (0..KEYS).filter(ingested).count()
    };
    let manifest = ["MANIFEST", "CURRENT"];
    let mut seen = 0;
    for Sample { name, image, .. } in interrupted {
        assert_eq!(count(image, &manifest), 0, "{name}");
        assert!(count(image, &[&manifest[..], &[".ingest"]].concat()) > 0, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 3);
}
