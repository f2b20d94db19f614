//! Tables on the real and on the simulated disk, and disks that fail.

use std::path::PathBuf;
use std::sync::Arc;

use terrace_base::{Error, ErrorKind, Result};
use terrace_disk::{Access, Fault, Fs, RealFs, SimFs};
use terrace_table::*;

use crate::util::*;

fn items() -> Vec<Item> {
    let value = |i: u32| vec![i as u8; if i.is_multiple_of(50) { 300_000 } else { 200 }];
    (0..300u32).map(|i| Item::put(&i.to_be_bytes(), 1, &value(i))).collect()
}

#[test]
fn a_table_on_a_real_disk_reads_back_by_every_access() {
    let dir = tempfile::tempdir().unwrap();
    let at: PathBuf = dir.path().join("000001.sst");
    let items = items();
    let mut builder = TableBuilder::new(RealFs.create(&at).unwrap(), 1, TableOptions::default()).unwrap();
    for item in &items {
        builder.add(&item.key, item.seq, item.kind, &item.value).unwrap();
    }
    let built = builder.finish().unwrap();
    for access in [Access::Random, Access::Sequential, Access::Direct] {
        let table = Table::open(&RealFs, &at, 1, Arc::new(BlockCache::new(0)), access).unwrap();
        for (i, item) in items.iter().enumerate() {
            assert_entry(table.get_at(position_of(&built, i), &item.key, 1).unwrap().as_ref(), Some(item));
        }
        table.verify().unwrap();
        let (forward, back) = both_ways(&mut table.cursor(false, 1 << 20)).unwrap();
        assert!(forward == items && back == items);
    }
}

fn simulated() -> SimFs {
    let fs = SimFs::new();
    fs.create_dir_all(path().parent().unwrap()).unwrap();
    fs
}

fn try_build(fs: &dyn Fs, items: &[Item]) -> Result<Built> {
    let mut builder = TableBuilder::new(fs.create(path())?, 1, TableOptions::default())?;
    for item in items {
        builder.add(&item.key, item.seq, item.kind, &item.value)?;
    }
    builder.finish()
}

#[test]
fn a_finished_table_survives_a_power_cut() {
    let fs = simulated();
    build(&fs, 1, &TableOptions::default(), &items());
    fs.sync_dir(path().parent().unwrap()).unwrap();
    let after = fs.crash_losing_all();
    open(&after, 1, 0).unwrap().verify().unwrap();
}

#[test]
fn every_failing_operation_of_a_build_is_reported() {
    let items = items();
    let fs = simulated();
    let before = fs.operations().0;
    try_build(&fs, &items).unwrap();
    for after in 0..fs.operations().0 - before {
        let fs = simulated();
        fs.inject(Some(Fault { after, only_changes: false, sticky: false }));
        let refused = try_build(&fs, &items).unwrap_err().kind();
        // Some syncs fail as on a disk that is full only now.
        assert!(matches!(refused, ErrorKind::Io | ErrorKind::NoSpace), "operation {after}: {refused:?}");
    }
    let full = simulated();
    full.set_capacity(Some(500_000));
    assert_eq!(try_build(&full, &items).unwrap_err().kind(), ErrorKind::NoSpace);
}

#[test]
fn a_failing_read_fails_its_call_and_nothing_after_it() {
    let items = items();
    let fs = simulated();
    let built = build(&fs, 1, &TableOptions { filter_bits_per_key: 10, ..Default::default() }, &items);
    type Ask = fn(&Arc<Table>, Position, &Item) -> Result<bool>;
    let asks: [Ask; 5] = [
        |t, _, item| Ok(t.get(&item.key, 1)?.is_some()),
        |t, position, item| Ok(t.get_at(position, &item.key, 1)?.is_some()),
        |t, position, item| Ok(get_many(t, &[(position, &item.key)], 1)?[0].is_some()),
        |t, _, _| both_ways(&mut t.cursor(false, 100_000)).map(|(forward, _)| forward.len() == 300),
        |t, _, _| t.verify().map(|()| true),
    ];
    let fail = |after| fs.inject(Some(Fault { after, only_changes: false, sticky: false }));
    for ask in asks {
        let mut failures = 0;
        loop {
            let table = open(&fs, 1, 1 << 20).unwrap();
            fail(failures);
            let answer = ask(&table, position_of(&built, 50), &items[50]);
            fs.inject(None);
            assert!(ask(&table, position_of(&built, 50), &items[50]).unwrap());
            match answer {
                Ok(found) => break assert!(found),
                Err(Error::Io { .. }) => failures += 1,
                Err(e) => panic!("{e}"),
            }
        }
        assert!(failures > 0);
    }
}

#[test]
fn salvage_gives_up_only_what_cannot_be_read() {
    let items = items();
    let fs = simulated();
    build(&fs, 1, &TableOptions::default(), &items);
    for after in 1..20 {
        fs.inject(Some(Fault { after, only_changes: false, sticky: false }));
        let mut count = 0;
        let report = salvage(&fs, path(), 1, 0, &mut |_, _, _, _| {
            count += 1;
            Ok(())
        });
        fs.inject(None);
        // Opening the file may fail; a piece that fails once is read again.
        assert!(report.is_err_and(|e| e.kind() == ErrorKind::Io) || count == items.len(), "{after}: {count}");
    }
}
