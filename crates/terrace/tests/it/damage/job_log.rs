//! The logs of jobs of `slm`: an opening needs them, and a repair does not.

use terrace::{EngineKind, ErrorKind};
use terrace_base::codec::{put_bytes, put_varint};
use terrace_index::kinds;
use terrace_log::PmLog;
use terrace_pmem::Granularity;

use super::image::{Bed, Image, options};

const KEYS: u8 = 100;

fn key(i: u8) -> [u8; 2] {
    [b'k', i]
}

/// A database with tables and memtables, as a kill leaves it.
fn killed() -> Image {
    let bed = Image::empty(options(EngineKind::Slm), Granularity::CacheLine).bed();
    let db = bed.open().unwrap();
    (0..KEYS).for_each(|i| db.put(&key(i), &[i; 100]).unwrap());
    bed.image()
}

/// A move within a chain as earlier versions logged it: it does not say of which version it is.
fn move_of_form_1() -> Vec<u8> {
    let mut record = vec![1];
    put_varint(&mut record, 300);
    put_varint(&mut record, 301);
    record.extend([0, 0]);
    put_bytes(&mut record, &key(7));
    record
}

/// Puts the log of a job with the number 9 into the pool, which did not end.
fn begin_job(bed: &Bed, record: &[u8]) {
    let pool = bed.open_pool();
    let mut log = PmLog::create(&pool, kinds::JOB_LOG, 0).unwrap();
    log.append(&[9]).unwrap();
    log.append(record).unwrap();
    log.persist().unwrap();
    pool.set_root("slm.job.c0", log.head()).unwrap();
}

fn assert_has_all(bed: &Bed) {
    let db = bed.open().unwrap();
    (0..KEYS).for_each(|i| assert_eq!(db.get(&key(i)).unwrap().as_deref(), Some(&[i; 100][..]), "{i}"));
    assert!(db.check().unwrap().is_clean());
}

/// Must catch a job log of an earlier form that is read as if it were of this one, or that costs a repair any key.
#[test]
fn a_job_log_of_an_earlier_form_is_refused_and_costs_a_repair_nothing() {
    let bed = killed().bed();
    begin_job(&bed, &move_of_form_1());
    let image = bed.image();

    let refused = image.bed().open().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corruption, "{refused}");
    assert!(refused.to_string().contains("of form 1"), "{refused}");

    let bed = image.bed();
    let report = bed.repair().unwrap();
    assert!(report.lost.is_empty(), "{report:?}");
    assert_eq!(report.keys, u64::from(KEYS), "{report:?}");
    assert_has_all(&bed);
}
