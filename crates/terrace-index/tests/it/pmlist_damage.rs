//! Lists and buffers that are damaged, or that another version wrote.

use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

use terrace_base::checksum::{crc32c, crc32c_append, crc32c_words};
use terrace_base::{ErrorKind, Kind};
use terrace_index::kinds;
use terrace_index::pmlist::{Lists, Style, salvage_buffer};
use terrace_pmem::POff;

use crate::bed::memory_pool;
use crate::pmlist::{ROOM, Versions, build, contents, some_versions};

/// A record that is sound and says that further fields follow is a later version's, not damage.
#[test]
fn records_with_further_fields_are_refused_by_name() {
    let pool = memory_pool();
    let lists = Lists::new(&pool, ROOM);
    let model = Versions::from([((b"key".to_vec(), Reverse(1)), (Kind::Put, b"value".to_vec()))]);
    let list = build(&lists, Style::default(), &model).unwrap();
    let buffer = pool.extents(kinds::PM_BUFFER)[0].offset;
    let (id, at) = (pool.atomic(POff::new(buffer + 8)).load(Relaxed), buffer + 64);
    pool.write(at + 23, &[1]);
    // SAFETY: nobody else is at the pool.
    let image = unsafe { pool.bytes(at + 4, 23).unwrap() };
    pool.write(at, &crc32c_append(crc32c_words([id, at]), image).to_le_bytes());
    let found = list.verify().unwrap_err();
    let salvaged =
        salvage_buffer(&pool, buffer, &mut |_, _, _, _| panic!("it is not understood")).unwrap_err();
    assert!(found.is_of_another_version() && salvaged.is_of_another_version(), "{found}, {salvaged}");
}

/// A header whose checksum does not hold is damage, whatever version it says. A sound one of a later version is refused
/// by name.
#[test]
fn a_version_counts_only_with_its_checksum() {
    let pool = memory_pool();
    let lists = Lists::new(&pool, ROOM);
    let list = build(&lists, Style::default(), &some_versions(5, 40)).unwrap();
    list.name();
    let (head, buffer) = (list.head(), pool.extents(kinds::PM_BUFFER)[0].offset);
    drop(list);
    let open = || {
        let fresh = Lists::new(&pool, ROOM);
        fresh.keep_all(true);
        fresh.open(head).map(drop).unwrap_err()
    };
    let salvage = || salvage_buffer(&pool, buffer, &mut |_, _, _, _| Ok(())).map(drop).unwrap_err();
    for (at, crc_at) in [(head, 92), (buffer, 32)] {
        // SAFETY: nobody else is at the pool.
        let image = unsafe { pool.bytes(at, 96).unwrap() }.to_vec();
        let errors = || match at == buffer {
            true => vec![open(), salvage()],
            false => vec![open()],
        };
        for bit in 0..16 {
            let mut other = image.clone();
            other[6 + bit / 8] ^= 1 << (bit % 8);
            pool.write(at, &other);
            for error in errors() {
                assert_eq!(error.kind(), ErrorKind::Corruption, "bit {bit}: {error}");
            }
            let crc = crc32c_append(crc32c(&pool.place(at).to_le_bytes()), &other[..crc_at]);
            pool.write(at + crc_at as u64, &crc.to_le_bytes());
            for error in errors() {
                assert!(error.is_of_another_version(), "bit {bit}: {error}");
            }
        }
        pool.write(at, &image);
    }
}

/// Flips every bit of a list, and every few of its buffer: that is told, or changes nothing.
#[test]
fn damage_is_told() {
    let pool = memory_pool();
    let lists = Lists::new(&pool, ROOM);
    let model = some_versions(5, 40);
    let list = build(&lists, Style::default(), &model).unwrap();
    list.name();
    let (head, buffer) = (list.head(), pool.extents(kinds::PM_BUFFER)[0].offset);
    drop(list);
    let places =
        (head..head + 1024).map(|at| (at, 1 << (at % 8))).chain((buffer..buffer + 4096).map(|at| (at, 0x10)));
    for (at, bit) in places {
        // SAFETY: nobody else is at the pool.
        let byte = unsafe { pool.bytes(at, 1).unwrap()[0] };
        pool.write(at, &[byte ^ bit]);
        let fresh = Lists::new(&pool, ROOM);
        fresh.keep_all(true);
        let opened = fresh.open(head).and_then(|list| list.verify().map(|()| list));
        if let Ok(list) = opened {
            assert!(contents(&list) == model, "a changed byte at {at:#x} changes what is found");
        }
        let mut found = 0;
        if let Ok(damaged) = salvage_buffer(&pool, buffer, &mut |key, seq, kind, value| {
            assert_eq!(model[&(key.to_vec(), Reverse(seq))], (kind, value.to_vec()));
            found += 1;
            Ok(())
        }) {
            assert!(found + damaged >= 40, "{found} records are found, {damaged} places are damaged");
        }
        pool.write(at, &[byte]);
    }
}
