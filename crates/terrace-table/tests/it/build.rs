//! What a builder accepts and refuses, and how it cuts blocks.

use terrace_base::ErrorKind;
use terrace_disk::Fs;
use terrace_table::*;

use crate::memfs::MemFs;
use crate::util::*;

fn builder(options: TableOptions) -> TableBuilder {
    TableBuilder::new(MemFs::default().create(path()).unwrap(), 1, options).unwrap()
}

#[test]
fn entries_out_of_order_are_refused_and_add_nothing() {
    let mut b = builder(TableOptions::default());
    b.add(b"b", 5, Kind::Put, b"").unwrap();
    for (key, seq) in [(&b"b"[..], 5), (b"b", 6), (b"a", 9), (b"", 0)] {
        assert_eq!(b.add(key, seq, Kind::Put, b"").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    b.add(b"b", 4, Kind::Delete, b"").unwrap();
    b.add(b"ba", 9, Kind::Put, b"").unwrap();
    assert_eq!(b.finish().unwrap().meta.entries, 3);
}

#[test]
fn too_large_keys_and_values_are_refused() {
    let mut b = builder(TableOptions::default());
    let refused = |e: terrace_base::Error| assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    refused(b.add(&[0; MAX_KEY_BYTES + 1], 1, Kind::Put, b"").unwrap_err());
    refused(b.add(b"k", 1, Kind::Put, &vec![0; MAX_VALUE_BYTES + 1]).unwrap_err());
    b.add(&[0; MAX_KEY_BYTES], 1, Kind::Put, b"").unwrap();
}

#[test]
fn options_and_numbers_out_of_range_are_refused() {
    let new = |number, options| {
        let file = MemFs::default().create(path()).unwrap();
        TableBuilder::new(file, number, options).map(drop).map_err(|e| e.kind())
    };
    let d = TableOptions::default;
    let refused = Err(ErrorKind::InvalidArgument);
    assert_eq!(new(1, TableOptions { block_bytes: 0, ..d() }), refused);
    assert_eq!(new(1, TableOptions { block_bytes: TableOptions::MAX_BLOCK_BYTES + 1, ..d() }), refused);
    assert_eq!(new(1, TableOptions { restart_interval: 0, ..d() }), refused);
    assert_eq!(new(1, TableOptions { filter_bits_per_key: 65, ..d() }), refused);
    assert_eq!(new(Position::MAX_TABLES, d()), refused);
    assert_eq!(new(Position::MAX_TABLES - 1, d()), Ok(()));
    let fs = MemFs::default();
    let mut file = fs.create(path()).unwrap();
    file.append(b"x").unwrap();
    assert!(TableBuilder::new(file, 1, d()).is_err());
}

#[test]
fn an_empty_table_is_a_table() {
    let (_fs, built, table) = table(1, &TableOptions { filter_bits_per_key: 10, ..Default::default() }, &[]);
    assert!(built.blocks.is_empty());
    table.verify().unwrap();
    assert_eq!(table.get(b"", u64::MAX).unwrap(), None);
    let (forward, back) = both_ways(&mut table.cursor(true, 1 << 20)).unwrap();
    assert!(forward.is_empty() && back.is_empty());
}

#[test]
fn record_mode_gives_every_entry_its_block_and_blocks_keep_to_their_size() {
    let items: Vec<Item> = (0..500u32).map(|i| Item::put(&i.to_be_bytes(), 1, &[7; 100])).collect();
    let options = |block_bytes| TableOptions { block_bytes, ..Default::default() };
    let (_fs, built, _) = table(1, &options(1), &items);
    assert_eq!(built.blocks.len(), items.len());
    for block_bytes in [512, 1000, 4096] {
        let (_fs, built, _) = table(1, &options(block_bytes), &items);
        let mean = items.len() * 108 / built.blocks.len();
        assert!(mean > block_bytes * 3 / 4 && mean < block_bytes, "{mean} of {block_bytes}");
        for span in &built.blocks {
            assert!(span.position.read_len() <= block_bytes.next_multiple_of(512));
        }
    }
}

#[test]
fn compression_is_kept_only_where_it_saves_an_eighth() {
    let mut rng = terrace_base::rng::Rng::new(1);
    let mut noise = vec![0; 1000];
    let lz4 = TableOptions { compression: Compression::Lz4, ..Default::default() };
    let noisy: Vec<Item> = (0..50u32)
        .map(|i| {
            rng.fill(&mut noise);
            Item::put(&i.to_be_bytes(), 1, &noise)
        })
        .collect();
    let plain = table(1, &TableOptions::default(), &noisy).1;
    assert_eq!(table(1, &lz4, &noisy).1.blocks, plain.blocks);
    let dull: Vec<Item> = (0..50u32).map(|i| Item::put(&i.to_be_bytes(), 1, &[b'x'; 1000])).collect();
    assert!(table(1, &lz4, &dull).1.file_bytes * 4 < plain.file_bytes);
}

#[test]
fn entries_are_written_by_the_options_of_their_turn() {
    let items: Vec<Item> = (0..600u32).map(|i| Item::put(&i.to_be_bytes(), 1, &[7; 100])).collect();
    let of = |block_bytes, compression, filter_bits_per_key| TableOptions {
        block_bytes,
        compression,
        filter_bits_per_key,
        ..TableOptions::default()
    };
    let (plain, packed) = (of(1, Compression::None, 0), of(8192, Compression::Lz4, 10));
    let fs = MemFs::default();
    let built = build_changing(&fs, 1, &[(0, plain.clone()), (200, packed), (400, plain.clone())], &items);
    let firsts: Vec<u64> = built.blocks.iter().map(|span| span.first_entry).collect();
    assert_eq!(firsts.iter().filter(|first| **first < 200).count(), 200, "one entry a block");
    assert!(firsts.contains(&200) && firsts.contains(&400), "blocks of their own");
    assert!(firsts.iter().filter(|first| (200..400).contains(*first)).count() < 5);
    let bytes = |at: usize| built.blocks[at + 1].position.offset() - built.blocks[at].position.offset();
    assert!(bytes(200) < 80 * 100 / 4, "{} bytes of a compressed block", bytes(200));
    // Those that ask for no filter are in it.
    let table = open(&fs, 1, 1 << 20).unwrap();
    assert!(items.iter().all(|item| table.get(&item.key, 1).unwrap().is_some()));
    let mut builder =
        TableBuilder::new(MemFs::default().create(path()).unwrap(), 1, TableOptions::default()).unwrap();
    assert!(builder.change_options(&of(0, Compression::None, 0)).is_err());
}

#[test]
fn a_failed_write_fails_every_later_call() {
    #[derive(Debug)]
    struct Full;
    impl terrace_disk::WriteFile for Full {
        fn append(&mut self, _: &[u8]) -> terrace_base::Result<()> {
            Err(terrace_base::Error::NoSpace { path: path().to_path_buf() })
        }
        fn sync(&mut self) -> terrace_base::Result<()> {
            Ok(())
        }
        fn cut(&mut self, _: u64) -> terrace_base::Result<()> {
            Ok(())
        }
        fn len(&self) -> u64 {
            0
        }
        fn path(&self) -> &std::path::Path {
            path()
        }
    }
    let mut b = TableBuilder::new(Box::new(Full), 1, TableOptions::default()).unwrap();
    let value = vec![0; 1 << 20];
    let no_space = |e: terrace_base::Error| assert_eq!(e.kind(), ErrorKind::NoSpace);
    no_space(b.add(b"a", 1, Kind::Put, &value).unwrap_err());
    no_space(b.add(b"b", 1, Kind::Put, b"").unwrap_err());
    no_space(b.finish().unwrap_err());
}
