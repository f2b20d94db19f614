//! A sample's database with a deleted range.

use std::sync::Arc;

use super::image::Image;
use super::sample::{KEYS, key, value};
use super::spaces;
use crate::harness::{Deferred, Map, key_in};

/// The same, closed with a deleted range of which nothing was swept, and into which some keys were put again.
pub fn with_a_deleted_range((image, map): &(Image, Map)) -> (Image, Map) {
    let bed = image.bed();
    let (db, mut map) = (bed.open_with(Arc::new(Deferred::default())).unwrap(), map.clone());
    let range = b"a rather long common prefix/00010".to_vec()..b"k8".to_vec();
    db.delete_range(range.clone()).unwrap();
    map.retain(|key, _| !spaces::is_of_default(key) || !range.contains(key));
    for name in spaces::names(&map) {
        let range = key(3)..key(9);
        db.keyspace(name).unwrap().delete_range(range.clone()).unwrap();
        map.retain(|at, _| !(key_in(Some(name), &range.start)..key_in(Some(name), &range.end)).contains(at));
    }
    for i in (0..KEYS).filter(|i| i % 5 == 1) {
        db.put(&key(i), &value(i, 22)).unwrap();
        map.insert(key(i), value(i, 22));
    }
    db.close().unwrap();
    (bed.image(), map)
}
