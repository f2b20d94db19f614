//! A sample's database in which an ingest was interrupted.

use std::sync::{Arc, Mutex};

use terrace_disk::{FsEvent, Observer};

use super::image::{Bed, Image};
use super::sample::{KEYS, key, value};
use crate::harness::Map;

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
    let mut entries: Vec<_> = (0..KEYS).map(|i| (key(i), value(i, 24))).collect();
    entries.sort();
    db.ingest(|ingest| entries.iter().try_for_each(|(key, value)| ingest.put(key, value))).unwrap();
    bed.fs().observe(None);
    let shot = camera.shot.lock().unwrap().take().unwrap();
    let count = |end: &str| shot.files.keys().filter(|path| path.to_string_lossy().ends_with(end)).count();
    assert_eq!((count(".ingest"), count(".sst.new")), (1, 1));
    (shot, map.clone())
}
