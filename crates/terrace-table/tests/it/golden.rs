//! The exact bytes of a table, as `docs/formats/sstable.md` explains them.

use terrace_table::*;

use crate::memfs::MemFs;
use crate::util::*;

fn items() -> Vec<Item> {
    let delete = Item { key: b"apricot".to_vec(), seq: 300, kind: Kind::Delete, value: Vec::new() };
    vec![Item::put(b"apple", 7, b"red"), Item::put(b"apple", 5, b"green"), delete, Item::put(b"fig", 6, b"")]
}

const GOLDEN: &str = "\
54 45 52 52 54 42 4c 0a 04 00 00 00 07 00 00 00
0c b1 01 00 07 00 00 00 2a 00 00 00 2a 00 00 00
10 d2 51 99 16 e8 fb 06 00 05 19 07 61 70 70 6c
65 72 65 64 05 00 29 05 67 72 65 65 6e 02 05 00
ac 02 72 69 63 6f 74 00 03 01 06 66 69 67 01 00
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0c b1 02 00 07 00 00 00 0d 00 00 00 0d 00 00 00
0e f6 86 ae 17 4c f1 5a 00 03 11 06 66 69 67 01
42 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0c b1 03 00 07 00 00 00 0d 00 00 00 0d 00 00 00
1e db 40 ac b3 a2 a0 85 00 03 11 06 66 69 67 06
25 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0c b1 04 00 07 00 00 00 20 00 00 00 20 00 00 00
d5 ee 51 d5 fd 1f b2 84 00 80 08 40 40 00 00 14
01 0c 00 00 02 00 48 00 80 20 10 00 00 01 80 00
00 02 81 00 80 00 00 28 00 00 00 00 00 00 00 00
0c b1 05 00 07 00 00 00 19 00 00 00 19 00 00 00
ff e0 2d b7 2c eb 23 1d 80 01 00 00 00 00 00 00
07 04 01 05 ac 02 1c 05 61 70 70 6c 65 03 66 69
67 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
09 00 00 00 25 00 00 00 0c 00 00 00 38 00 00 00
10 00 00 00 31 00 00 00 06 00 00 00 07 00 00 00
80 01 00 00 00 00 00 00 04 00 00 00 01 02 03 04
05 06 07 08 c5 2c 92 b0 0a 4c 42 54 52 52 45 54
";

/// Every byte another.
const ORIGIN: u64 = 0x0807_0605_0403_0201;

#[test]
fn a_table_has_these_bytes() {
    let fs = MemFs::default();
    let options = TableOptions {
        block_bytes: 80,
        restart_interval: 16,
        filter_bits_per_key: 10,
        origin: ORIGIN,
        ..Default::default()
    };
    build(&fs, 7, &options, &items());
    let hex: String = fs
        .bytes(path())
        .chunks(16)
        .map(|row| row.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ") + "\n")
        .collect();
    assert_eq!(hex, GOLDEN);
}
