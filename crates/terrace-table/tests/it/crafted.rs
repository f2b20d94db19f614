//! Blocks that are wrong inside though their checksums are right: no answer is promised, but no panic and
//! no endless walk either.

use proptest::prelude::*;
use terrace_base::checksum::{crc32c, crc32c_append};
use terrace_table::*;

use crate::memfs::MemFs;
use crate::util::*;

const HEADER: usize = 24;

fn u32_at(data: &[u8], at: usize) -> usize {
    u32::from_le_bytes(data[at..at + 4].try_into().unwrap()) as usize
}

/// The start and stored payload length of every block.
pub fn blocks(data: &[u8]) -> Vec<(usize, usize)> {
    let mut at = 16;
    let mut out = Vec::new();
    while at + 64 < data.len() {
        let stored = u32_at(data, at + 8);
        out.push((at, stored));
        at = (at + HEADER + stored).next_multiple_of(16);
    }
    out
}

/// Makes the checksums of the block at `at` right.
fn seal(data: &mut [u8], at: usize, stored: usize) {
    let payload = crc32c(&data[at + HEADER..at + HEADER + stored]);
    data[at + 16..at + 20].copy_from_slice(&payload.to_le_bytes());
    let origin = &data[data.len() - 20..data.len() - 12];
    let header = crc32c_append(crc32c_append(crc32c(&data[at..at + 20]), &(at as u64).to_le_bytes()), origin);
    data[at + 20..at + 24].copy_from_slice(&header.to_le_bytes());
}

fn ask_everything(fs: &MemFs, built: &Built, items: &[Item]) {
    // Whatever else is made of the file, salvaging and opening it come to an end.
    let _ = salvage(fs, path(), 1, 9, &mut |_, _, _, _| Ok(()));
    let Ok(table) = open(fs, 1, 1 << 20) else { return };
    for (i, item) in items.iter().enumerate() {
        let _ = table.get(&item.key, item.seq);
        let _ = table.get_at(position_of(built, i), &item.key, item.seq);
        let mut cursor = table.cursor(false, 100);
        let _ = cursor.seek(&item.key, item.seq);
        let _ = cursor.seek_back(&item.key, item.seq);
    }
    let _ = both_ways(&mut table.cursor(true, 0));
    let _ = table.verify();
    let _ = table.dump(&mut Vec::new());
}

/// What is kept for a later version is refused by its name by all who read, and none takes it for damage.
#[test]
fn what_a_later_version_writes_is_refused_by_name() {
    let items = [Item::put(b"key", 7, b"value")];
    for bits in [2, 4, 5, 6, 7u8] {
        let fs = MemFs::default();
        let built = build(&fs, 1, &TableOptions::default(), &items);
        let mut data = fs.bytes(path());
        let (at, stored) = blocks(&data)[0];
        // Behind the two lengths of the key: the value's length, and in the lowest bits the kind.
        let tag = &mut data[at + HEADER + 2];
        assert_eq!(*tag, 5 << Kind::BITS | Kind::Put as u8);
        *tag = 5 << Kind::BITS | bits;
        seal(&mut data, at, stored);
        fs.set(path(), data);

        let table = open(&fs, 1, 1 << 20).unwrap();
        let mut cursor = table.cursor(false, 100);
        let outcomes = [
            table.get(b"key", 7).map(drop),
            table.get_at(position_of(&built, 0), b"key", 7).map(drop),
            cursor.seek(b"key", 7).map(drop),
            cursor.seek_first().map(drop),
            table.verify().map(drop),
            salvage(&fs, path(), 1, 9, &mut |_, _, _, _| Ok(())).map(drop),
        ];
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert!(error.is_of_another_version(), "{error}");
            assert!(error.to_string().contains(Kind::reserved(bits).unwrap()), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn nothing_panics_on_payloads_with_right_checksums(
        items in any_items(30),
        options in any_options(),
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        header_change in prop::option::weighted(0.3, (2..16usize, any::<u8>())),
    ) {
        let fs = MemFs::default();
        let built = build(&fs, 1, &options, &items);
        let mut data = fs.bytes(path());
        let all = blocks(&data);
        let (at, stored) = all[which.index(all.len())];
        for (place, byte) in changes {
            data[at + HEADER + place.index(stored)] = byte;
        }
        if let Some((place, byte)) = header_change {
            data[at + place] = byte;
        }
        seal(&mut data, at, stored);
        fs.set(path(), data);
        ask_everything(&fs, &built, &items);
    }

    #[test]
    fn nothing_panics_on_footers_with_right_checksums(
        items in any_items(30),
        changes in prop::collection::vec((0..52usize, any::<u8>()), 1..4),
    ) {
        let fs = MemFs::default();
        let built = build(&fs, 1, &TableOptions { filter_bits_per_key: 5, ..Default::default() }, &items);
        let mut data = fs.bytes(path());
        let foot = data.len() - 64;
        for (place, byte) in changes {
            data[foot + place] = byte;
        }
        let crc = crc32c(&data[foot..foot + 52]);
        data[foot + 52..foot + 56].copy_from_slice(&crc.to_le_bytes());
        fs.set(path(), data);
        ask_everything(&fs, &built, &items);
    }
}
