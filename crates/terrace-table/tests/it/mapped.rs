//! Tables that are read through mappings: they say what they say by calls, and never anything else.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use terrace_base::{ErrorKind, Result};
use terrace_disk::{Access, Fault, Fs, Maps, RealFs, SimFs};
use terrace_table::*;

use crate::util::*;

const ORIGIN: u64 = 9;

fn items() -> Vec<Item> {
    let value = |i: u64| vec![1 + (i % 250) as u8; [0, 1, 20, 255, 256, 700, 9000][i as usize % 7]];
    let item = |i: u64| Item::put(format!("key{:04}", i / 2).as_bytes(), i, &value(i));
    sorted((0..160).map(item).collect())
}

fn options(compression: Compression) -> TableOptions {
    let (block_bytes, filter_bits_per_key) = (600, 10);
    TableOptions { block_bytes, origin: ORIGIN, filter_bits_per_key, compression, ..TableOptions::default() }
}

fn wanted() -> Arc<Maps> {
    let maps = Maps::new(1 << 30);
    maps.want(true);
    maps
}

/// A simulated disk with a table.
fn made(compression: Compression) -> (SimFs, Built) {
    let fs = SimFs::new();
    fs.create_dir_all(path().parent().unwrap()).unwrap();
    let built = build(&fs, 1, &options(compression), &items());
    (fs, built)
}

fn mapped(fs: &dyn Fs, meta: &TableMeta, maps: &Arc<Maps>) -> Arc<Table> {
    let file = fs.open(path(), Access::Random).unwrap();
    Table::mapped(file, meta.clone(), ORIGIN, Arc::new(BlockCache::new(1 << 20)), maps)
}

/// Everything that is read through mappings, each as a list of what was found.
fn everything(table: &Arc<Table>, built: &Built) -> Vec<Result<Vec<Option<Item>>>> {
    let items = items();
    let of = |item: &Item, found: Option<Entry>| {
        found.map(|e| Item { key: item.key.clone(), seq: e.seq, kind: e.kind, value: e.value.to_vec() })
    };
    // By the block with the newest version of each key.
    let first = |key: &[u8]| items.iter().position(|item| item.key == key).unwrap();
    let asked: Vec<(Position, &[u8])> =
        items.iter().map(|item| (position_of(built, first(&item.key)), &item.key[..])).collect();
    let each = |get: &dyn Fn(usize, &Item) -> Result<Option<Entry>>| {
        items.iter().enumerate().map(|(i, item)| Ok(of(item, get(i, item)?))).collect::<Result<Vec<_>>>()
    };
    let walked = |back: bool| {
        let mut cursor = table.cursor(true, 4096);
        let mut seen = Vec::new();
        if back {
            cursor.seek_last()?
        } else {
            cursor.seek_first()?
        }
        while cursor.valid() {
            let value = cursor.value()?.to_vec();
            seen.push(Some(Item {
                key: cursor.key().to_vec(),
                seq: cursor.seq(),
                kind: cursor.kind(),
                value,
            }));
            if back { cursor.prev()? } else { cursor.next()? }
        }
        if back {
            seen.reverse();
        }
        Ok(seen)
    };
    let many = get_many(table, &asked, u64::MAX)
        .map(|all| items.iter().zip(all).map(|(item, found)| of(item, found)).collect::<Vec<_>>());
    let mut buffers = ReadBuffers::default();
    let ahead = table.get_ahead(&asked, u64::MAX, &mut buffers);
    let ahead = items.iter().zip(ahead).map(|(item, found)| of(item, found)).collect::<Vec<_>>();
    vec![
        each(&|_, item| table.get(&item.key, item.seq)),
        each(&|i, item| table.get_at(position_of(built, i), &item.key, item.seq)),
        many,
        Ok(ahead),
        walked(false),
        walked(true),
        each(&|_, item| table.get(&[&item.key[..], b"!"].concat(), u64::MAX)),
    ]
}

/// What that is of the table as it was made.
fn right() -> Vec<Vec<Option<Item>>> {
    let items = items();
    let all: Vec<Option<Item>> = items.iter().cloned().map(Some).collect();
    let newest: Vec<Option<Item>> =
        items.iter().map(|item| expected(&items, &item.key, u64::MAX).cloned()).collect();
    let none = vec![None; items.len()];
    vec![all.clone(), all.clone(), newest.clone(), newest, all.clone(), all, none]
}

fn assert_right(table: &Arc<Table>, built: &Built) {
    for (at, (found, right)) in everything(table, built).into_iter().zip(right()).enumerate() {
        assert!(found.unwrap() == right, "answers of kind {at}");
    }
}

#[test]
fn a_mapped_table_says_what_it_says_by_calls_and_makes_none() {
    for compression in [Compression::None, Compression::Lz4] {
        let (fs, built) = made(compression);
        let maps = wanted();
        let table = mapped(&fs, &built.meta, &maps);
        assert_right(&table, &built);
        assert_eq!(maps.figures().count, 1);
        assert_right(&table, &built);
        table.verify().unwrap();
        assert_right(&table, &built);
        maps.want(false);
        assert_right(&table, &built);
        drop(table);
        assert_eq!(maps.figures().count, 0);
    }
}

#[test]
fn blocks_that_are_mapped_take_no_place_in_the_cache() {
    let (fs, built) = made(Compression::None);
    let (maps, cache) = (wanted(), Arc::new(BlockCache::new(1 << 20)));
    let file = fs.open(path(), Access::Random).unwrap();
    let table = Table::mapped(file, built.meta.clone(), ORIGIN, cache.clone(), &maps);
    assert_right(&table, &built);
    assert_eq!(cache.usage(), 0);
    assert_eq!(cache.table_bytes() as usize, table.memory_bytes());
    maps.want(false);
    assert_right(&table, &built);
    assert!(cache.usage() > 0);
    drop(table);
    assert_eq!(cache.table_bytes(), 0);
}

/// One read fails, any of them: what is found is right or an error, and afterwards everything is right.
#[test]
fn a_read_that_fails_is_told_or_made_good() {
    for compression in [Compression::None, Compression::Lz4] {
        let (fs, built) = made(compression);
        let (mut failed_maps, mut told) = (0, 0);
        for after in 0.. {
            let maps = wanted();
            let table = mapped(&fs, &built.meta, &maps);
            let before = fs.operations().0;
            fs.inject(Some(Fault { after, only_changes: false, sticky: false }));
            let all = everything(&table, &built);
            let done = fs.operations().0 - before;
            for (at, (found, right)) in all.into_iter().zip(right()).enumerate() {
                match found {
                    // What is read ahead is left out where it cannot be read.
                    Ok(found) if at == 3 => {
                        assert!(found.iter().zip(&right).all(|(f, r)| f.is_none() || f == r), "{after}");
                    }
                    Ok(found) => assert!(found == right, "answers of kind {at} after {after}"),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
                        told += 1;
                    }
                }
            }
            fs.inject(None);
            assert_right(&table, &built);
            failed_maps += maps.figures().failed;
            if done < after {
                break;
            }
        }
        assert!(failed_maps > 50 && told > 0, "{failed_maps} mappings failed, {told} errors");
    }
}

/// The disk fails for good: everything is an error or right.
#[test]
fn a_disk_that_fails_for_good_is_an_error() {
    let (fs, built) = made(Compression::None);
    for after in (0..400).step_by(13) {
        let table = mapped(&fs, &built.meta, &wanted());
        fs.inject(Some(Fault { after, only_changes: false, sticky: true }));
        for (at, (found, right)) in everything(&table, &built).into_iter().zip(right()).enumerate() {
            match found {
                Ok(found) if at == 3 => assert!(found.iter().zip(&right).all(|(f, r)| f.is_none() || f == r)),
                Ok(found) => assert!(found == right),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Io, "{e}"),
            }
        }
        fs.inject(None);
        assert_right(&table, &built);
    }
}

/// Every bit of the file in turn, damaged before it was read: errors or right answers.
#[test]
fn damage_is_told_before_anything_is_believed() {
    let (fs, built) = made(Compression::None);
    let len = built.meta.file_bytes as usize;
    for at in (0..len).step_by(97) {
        let flip = |data: &mut Vec<u8>| data[at] ^= 1 << (at % 8);
        fs.damage(path(), flip).unwrap();
        let table = mapped(&fs, &built.meta, &wanted());
        for (kind, (found, right)) in everything(&table, &built).into_iter().zip(right()).enumerate() {
            match found {
                Ok(found) if kind == 3 => {
                    assert!(found.iter().zip(&right).all(|(f, r)| f.is_none() || f == r))
                }
                Ok(found) => assert!(found == right, "kind {kind}, byte {at}"),
                Err(e) => {
                    assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::InvalidFormat), "{e}")
                }
            }
        }
        assert!(table.verify().is_err());
        fs.damage(path(), flip).unwrap();
    }
}

fn on_a_real_disk() -> (tempfile::TempDir, PathBuf, Built, Arc<Table>, Arc<Maps>) {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("000001.sst");
    let mut builder = TableBuilder::new(RealFs.create(&at).unwrap(), 1, options(Compression::None)).unwrap();
    for item in items() {
        builder.add(&item.key, item.seq, item.kind, &item.value).unwrap();
    }
    let built = builder.finish().unwrap();
    let maps = wanted();
    let file = RealFs.open(&at, Access::Random).unwrap();
    let cache = Arc::new(BlockCache::new(1 << 20));
    let table = Table::mapped(file, built.meta.clone(), ORIGIN, cache, &maps);
    (dir, at, built, table, maps)
}

#[test]
fn a_real_file_is_mapped_and_stays_readable_when_it_is_removed() {
    let (_dir, at, built, table, maps) = on_a_real_disk();
    assert_right(&table, &built);
    let figures = maps.figures();
    assert_eq!((figures.count, figures.bytes, figures.failed), (1, built.meta.file_bytes, 0));
    assert!(figures.resident > 0 && figures.resident <= figures.bytes);
    std::fs::remove_file(at).unwrap();
    assert_right(&table, &built);
    let items = items();
    let large = items.iter().position(|item| item.value.len() == 9000).unwrap();
    let held = table.get(&items[large].key, items[large].seq).unwrap().unwrap().value;
    drop(table);
    assert_eq!(maps.figures().count, 1, "a value holds it");
    assert!(held == items[large].value);
    drop(held);
    assert_eq!(maps.figures().count, 0);
}

/// A real signal: somebody cuts the file under its mapping.
#[test]
fn a_file_that_is_cut_under_its_mapping_is_an_error_and_not_the_end() {
    let (_dir, at, built, table, maps) = on_a_real_disk();
    assert_right(&table, &built);
    OpenOptions::new().write(true).open(&at).unwrap().set_len(8192).unwrap();
    let (mut right_ones, mut errors) = (0, 0);
    for (i, item) in items().iter().enumerate() {
        match table.get_at(position_of(&built, i), &item.key, item.seq) {
            Ok(found) => {
                assert_entry(found.as_ref(), Some(item));
                right_ones += 1;
            }
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Io), "{e}");
                errors += 1;
            }
        }
    }
    assert!(right_ones > 0 && errors > 0, "{right_ones} right, {errors} errors");
    assert_eq!(maps.figures().failed, 1);
}

/// Within the page where the file ends there is no signal: what was not verified before is told by its checksum.
#[test]
fn a_file_that_is_cut_within_a_page_gives_no_zeros_of_what_was_not_read_before() {
    for cut_to in [4096 + 1, 8192 + 700, 8192 + 4000] {
        let (_dir, at, built, table, maps) = on_a_real_disk();
        let (first, items) = (position_of(&built, 0), items());
        assert_entry(table.get_at(first, &items[0].key, items[0].seq).unwrap().as_ref(), Some(&items[0]));
        assert_eq!(maps.figures().count, 1);
        OpenOptions::new().write(true).open(&at).unwrap().set_len(cut_to).unwrap();
        let mut cursor = table.cursor(true, 4096);
        let mut walked = 0;
        let mut step = cursor.seek_first();
        while step.is_ok() && cursor.valid() {
            let item = &items[walked];
            match cursor.value() {
                Ok(value) => assert!(cursor.key() == item.key && *value == item.value[..], "item {walked}"),
                Err(e) => step = Err(e),
            }
            walked += 1;
            if step.is_ok() {
                step = cursor.next();
            }
        }
        let told = step.unwrap_err();
        assert!(matches!(told.kind(), ErrorKind::Corruption | ErrorKind::Io), "{told}");
        assert!(walked < items.len() - 1);
    }
}

/// What `verify` is for: bytes that change after they were believed.
#[test]
fn damage_after_the_first_read_is_found_by_verify_and_then_by_readers() {
    use std::os::unix::fs::FileExt;
    let (_dir, at, built, table, _maps) = on_a_real_disk();
    assert_right(&table, &built);
    let file = OpenOptions::new().read(true).write(true).open(&at).unwrap();
    let offset = built.blocks[3].position.offset() + 24 + 9;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    assert_eq!(table.verify().unwrap_err().kind(), ErrorKind::Corruption);
    let item = &items()[built.blocks[3].first_entry as usize];
    let told = table.get_at(built.blocks[3].position, &item.key, item.seq).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Corruption);
    file.write_all_at(&byte, offset).unwrap();
    table.verify().unwrap();
    assert_right(&table, &built);
}

#[test]
fn threads_that_read_a_table_first_side_by_side_find_the_same() {
    let (_fs, built) = made(Compression::None);
    for _ in 0..20 {
        let table = mapped(&_fs, &built.meta, &wanted());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_right(&table, &built));
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// In whatever order and however often keys are asked for, side by side in their blocks or not, and beside keys that
    /// are in no block.
    #[test]
    fn keys_side_by_side_are_found_as_each_alone(
        items in any_items(80),
        table_options in any_options(),
        asked in prop::collection::vec((0..80usize, any_key(), any::<bool>()), 0..60),
        ascends: bool,
        max_seq in any_seq(),
    ) {
        prop_assume!(!items.is_empty());
        let fs = SimFs::new();
        fs.create_dir_all(path().parent().unwrap()).unwrap();
        let built = build(&fs, 3, &TableOptions { origin: ORIGIN, ..table_options }, &items);
        let table = mapped(&fs, &built.meta, &wanted());
        let mut requests: Vec<(Position, &[u8])> = asked
            .iter()
            .map(|(i, other, is_own)| {
                let item = &items[i % items.len()];
                let position = position_of(&built, first_of(&items, &item.key));
                (position, if *is_own { &item.key[..] } else { &other[..] })
            })
            .collect();
        requests.sort_by(|a, b| a.0.cmp(&b.0).then(if ascends { a.1.cmp(b.1) } else { b.1.cmp(a.1) }));
        let found = table.get_ahead(&requests, max_seq, &mut ReadBuffers::default());
        prop_assert_eq!(found.len(), requests.len());
        for ((position, key), found) in requests.iter().zip(found) {
            prop_assert_eq!(table.get_at(*position, key, max_seq).unwrap(), found);
        }
    }
}
