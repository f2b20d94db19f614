//! What a repair of a database with large items beside its pool must not get wrong.

use std::path::Path;

use terrace::{Db, EngineKind, RepairReport, WriteBatch};
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_index::kinds;
use terrace_pmem::Granularity;

use crate::damage::image::{Bed, Image, options};
use crate::harness::{Contents, Map, assert_clean};

const SLOTS: &str = "/db/SLOTS";

/// The boundary is 64.
const LARGE: usize = 900;

/// Bytes of an item before its key.
const HEAD: usize = 32;

fn value(name: &str, len: usize) -> Vec<u8> {
    name.bytes().chain(std::iter::repeat(b'.')).take(len).collect()
}

/// A database that was opened so often that its numbers are high.
fn old_machine() -> Bed {
    let bed = Image::empty(options(EngineKind::Split), Granularity::CacheLine).bed();
    for round in 0..4 {
        let db = bed.open().unwrap();
        db.put(b"small", format!("round {round}").as_bytes()).unwrap();
        db.close().unwrap();
    }
    bed
}

/// Where the newest item of `key` is in a file of slots.
fn item_of(slots: &[u8], key: &[u8]) -> usize {
    // A mask may lie before the key.
    let is_item = |item: &[u8]| item.starts_with(b"TERSLOT1") || item.starts_with(b"TERSLOT2");
    let is_its =
        |item: &[u8]| is_item(item) && (item[HEAD..].starts_with(key) || item[HEAD + 4..].starts_with(key));
    (0..slots.len()).step_by(512).rev().find(|at| is_its(&slots[*at..])).expect("an item")
}

/// Damages the newest item of `key`.
fn spoil(image: &mut Image, key: &[u8]) {
    let slots = image.files.get_mut(Path::new(SLOTS)).unwrap();
    let at = item_of(slots, key);
    slots[at + HEAD + key.len() + 100] ^= 1;
}

fn repaired(image: &Image) -> (Bed, RepairReport) {
    let mut image = image.clone();
    // What the repair before has set aside.
    image.files.retain(|path, _| path.parent() == Some(Path::new("/db")));
    let bed = image.bed();
    let report = bed.repair().unwrap();
    (bed, report)
}

/// What a walk meets, having been compared with what is found key by key.
fn contents(db: &Db) -> Map {
    let map: Map = db.try_all().unwrap().into_iter().collect();
    for (key, value) in &map {
        assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..]));
    }
    assert_clean(db);
    map
}

/// A database in which `large` is large, and that was killed while a batch replaced that.
fn cut_short() -> Vec<Image> {
    let bed = old_machine();
    let db = bed.open().unwrap();
    db.put(b"large", &value("first", LARGE)).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(b"large", b"second");
    batch.put(b"small", b"second");
    bed.film(|| db.write(batch).unwrap())
}

/// The same with each part of the index damaged in turn.
fn cut_short_and_damaged() -> Vec<Image> {
    let mut damaged = Vec::new();
    for image in cut_short() {
        let pool = image.bed().open_pool();
        for kind in [kinds::SPTREE_HEADER, kinds::SPTREE_LEAF] {
            let extents = pool.extents(kind).into_iter().map(|extent| extent.offset);
            for at in extents.chain(pool.slots(kind).map(|(at, _)| at)) {
                let mut image = image.clone();
                image.pool.as_mut().unwrap()[at as usize + 1] ^= 4;
                damaged.push(image);
            }
        }
    }
    damaged
}

/// A walk after a repair meets what the repair has put back of a group that was cut short.
#[test]
fn what_a_group_had_replaced_is_met_after_a_repair() {
    let mut taken_back = 0;
    for image in cut_short_and_damaged() {
        let (bed, report) = repaired(&image);
        let db = bed.open().unwrap();
        let large = db.get(b"large").unwrap().map(|value| value.to_vec());
        let map = contents(&db);
        assert_eq!(map.get(&b"large"[..]), large.as_ref(), "{report:?}");
        let is_first = large == Some(value("first", LARGE));
        assert!(is_first || large.as_deref() == Some(b"second"), "{report:?}");
        taken_back += u64::from(is_first);
    }
    assert!(taken_back > 0);
}

/// What a group had replaced and cannot be read is lost, and the rest is brought back.
#[test]
fn what_a_group_had_replaced_may_be_damaged() {
    for mut image in cut_short_and_damaged() {
        spoil(&mut image, b"large");
        let (bed, report) = repaired(&image);
        let map = contents(&bed.open().unwrap());
        assert!(map.contains_key(&b"small"[..]), "{report:?}");
        let is_told = report.lost.iter().any(|lost| lost.contains("large"));
        assert!(map.contains_key(&b"large"[..]) || is_told, "{report:?}");
    }
}

/// What is written after a repair is newer than what that has left in the file of slots.
#[test]
fn numbers_go_on_after_a_repair() {
    let bed = old_machine();
    let db = bed.open().unwrap();
    db.put(b"other", &value("other", LARGE)).unwrap();
    db.put(b"large", &value("first", LARGE)).unwrap();
    db.delete(b"large").unwrap();
    db.close().unwrap();
    let mut image = bed.image();
    spoil(&mut image, b"other");
    let (bed, _) = repaired(&image);
    let db = bed.open().unwrap();
    db.put(b"large", &value("second", LARGE)).unwrap();
    db.close().unwrap();
    let mut image = bed.image();
    image.pool = None;
    let (bed, report) = repaired(&image);
    let map = contents(&bed.open().unwrap());
    assert!(map.get(&b"large"[..]) == Some(&value("second", LARGE)), "{report:?}");
}

/// A value with an item's bytes in it is a value, also in an item that was written before such items were masked.
#[test]
fn an_item_within_an_item_is_none() {
    let bed = old_machine();
    let db = bed.open().unwrap();
    db.put(b"inner", &value("inner", LARGE)).unwrap();
    let slots = bed.fs().image().remove(Path::new(SLOTS)).unwrap();
    let first = item_of(&slots, b"inner");
    let inner = slots[first..][..1024].to_vec();
    let outer = [value("outer", 512 - HEAD - b"outer".len()), inner, value("end", 600)].concat();
    db.put(b"outer", &outer).unwrap();
    db.delete(b"inner").unwrap();
    db.close().unwrap();
    let mut masked = bed.image();
    masked.pool = None;
    let slots = masked.files.get_mut(Path::new(SLOTS)).unwrap();
    slots[first..][..1024].fill(0);
    let mut plain = masked.clone();
    let slots = plain.files.get_mut(Path::new(SLOTS)).unwrap();
    let at = item_of(slots, b"outer");
    let bytes = HEAD + b"outer".len() + outer.len();
    let item = forged(&[&slots[at..][..HEAD], b"outer", &outer].concat(), bytes, |item| {
        item[7] = b'1';
        item[12..16].copy_from_slice(&(outer.len() as u32).to_le_bytes());
    });
    slots[at..at + bytes].copy_from_slice(&item);
    assert_eq!(item_of(slots, b"inner"), at + 512);
    for image in [masked, plain] {
        let (bed, report) = repaired(&image);
        let map = contents(&bed.open().unwrap());
        assert_eq!(map.into_iter().collect::<Vec<_>>(), [(b"outer".to_vec(), outer.clone())], "{report:?}");
    }
}

/// A copy of an item of `bytes`, or of a stamp, that is changed and sound.
fn forged(original: &[u8], bytes: usize, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut copy = original.to_vec();
    change(&mut copy);
    let crc = crc32c_append(crc32c(&copy[..8]), &copy[12..bytes]);
    copy[8..12].copy_from_slice(&crc.to_le_bytes());
    copy
}

/// What a value holds is never taken for an item or a stamp, whatever becomes of the item around it: not for one of
/// another key, nor for one of a later version, over which a repair would refuse for good.
#[test]
fn what_a_value_holds_is_no_item_when_the_one_around_it_is_gone() {
    let bed = old_machine();
    let db = bed.open().unwrap();
    db.put(b"inner", &value("inner", LARGE)).unwrap();
    let slots = bed.fs().image().remove(Path::new(SLOTS)).unwrap();
    let inner = &slots[item_of(&slots, b"inner")..][..1024];
    let stamp = (0..slots.len()).step_by(512).find(|at| slots[*at..].starts_with(b"TERSTAMP")).unwrap();
    let of_key = forged(inner, HEAD + 5 + LARGE, |item| item[HEAD..HEAD + 5].copy_from_slice(b"forge"));
    let of_later_version = forged(inner, HEAD + 5 + LARGE, |item| item[7] = b'9');
    let stamp = forged(&slots[stamp..][..512], 32, |stamp| {
        stamp[12..16].copy_from_slice(&4096u32.to_le_bytes());
        stamp[22] = 1;
    });
    let all = [of_key, of_later_version, stamp].concat();
    let outer = [value("outer", 512 - HEAD - b"outer".len()), all, value("end", 600)].concat();
    db.put(b"outer", &outer).unwrap();
    assert!(contents(&db)[&b"outer"[..]] == outer);
    db.close().unwrap();
    let whole = bed.image();
    let at = item_of(&whole.files[Path::new(SLOTS)], b"outer");
    for (is_overwritten, has_manifest) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut image = whole.clone();
        match has_manifest {
            true => image.pool = None,
            // The stamps tell how large sectors are, and the pool tells of whom.
            false => image.files.retain(|path, _| path.ends_with("SLOTS")),
        }
        let slots = image.files.get_mut(Path::new(SLOTS)).unwrap();
        match is_overwritten {
            true => slots[at..at + 512].fill(0),
            false => slots[at + 16] ^= 1,
        }
        let (bed, report) = repaired(&image);
        let mut map = contents(&bed.open().unwrap());
        assert_eq!(map.remove(&b"small"[..]).is_some(), !has_manifest);
        let keys: Vec<_> = map.into_keys().collect();
        assert_eq!(keys, [b"inner"], "{is_overwritten}, {has_manifest}: {report:?}");
    }
}

/// An older copy of the file of slots is told, also where it has an older item of the same key in the same place; and a
/// repair says so, and has what is there.
#[test]
fn an_older_file_of_slots_is_told() {
    let bed = Image::empty(options(EngineKind::Split), Granularity::CacheLine).bed();
    let mut copies = Vec::new();
    for round in 0..8 {
        let db = bed.open().unwrap();
        assert_clean(&db);
        db.put(b"large", &value(&format!("round {round}"), LARGE)).unwrap();
        db.put(b"small", b"written beside it").unwrap();
        db.close().unwrap();
        copies.push(bed.fs().image().remove(Path::new(SLOTS)).unwrap());
    }
    let newest = bed.image();
    copies.pop();
    for (round, copy) in copies.into_iter().enumerate() {
        let mut image = newest.clone();
        image.files.insert(SLOTS.into(), copy);
        let error = image.bed().open().map(drop).unwrap_err();
        assert!(error.to_string().contains("older copy"), "round {round}: {error}");
        let (bed, report) = repaired(&image);
        assert!(report.lost.iter().any(|lost| lost.contains("older copy")), "{report:?}");
        assert!(contents(&bed.open().unwrap()).contains_key(&b"small"[..]));
    }
    // A life in which nothing large is written leaves the file as it is.
    let db = bed.open().unwrap();
    db.put(b"small", b"written later").unwrap();
    db.close().unwrap();
    let mut image = bed.image();
    image.files.insert(SLOTS.into(), newest.files[Path::new(SLOTS)].clone());
    assert_eq!(contents(&image.bed().open().unwrap())[&b"large"[..]], value("round 7", LARGE));
}

/// A repair without a manifest finds large items by the sectors of the drive that they were written to.
#[test]
fn sectors_are_found_without_a_manifest() {
    for (made_on, found_on) in [(512, 4096), (4096, 512)] {
        let bed = Image::empty(options(EngineKind::Split), Granularity::CacheLine).bed();
        bed.fs().set_sectors(made_on, 4096);
        let db = bed.open().unwrap();
        let mut batch = WriteBatch::new();
        let keys: Vec<Vec<u8>> = (0..6).map(|i| format!("large {i}").into_bytes()).collect();
        keys.iter().for_each(|key| batch.put(key, &value("in a batch", LARGE)));
        db.write(batch).unwrap();
        db.close().unwrap();
        let mut image = bed.image();
        image.files.retain(|path, _| path.ends_with("SLOTS"));
        let bed = image.bed();
        bed.fs().set_sectors(found_on, 4096);
        let report = bed.repair().unwrap();
        let map = contents(&bed.open().unwrap());
        assert_eq!(map.into_keys().collect::<Vec<_>>(), keys, "{made_on} to {found_on}: {report:?}");
    }
}
