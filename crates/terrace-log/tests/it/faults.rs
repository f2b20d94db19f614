//! I/O errors and a full disk under a log.

use std::path::Path;

use terrace_base::{ErrorKind, Result};
use terrace_disk::{Fault, Fs, SimFs};
use terrace_log::{FileSegment, LogWriter, create_log_file};

use crate::{Entry, ID, read};

const LOG: &str = "/log";

/// Writes until done or refused; says which records were synced.
fn write_some(fs: &SimFs) -> Result<Vec<Entry>> {
    let mut synced = Vec::new();
    let mut log = create_log_file(fs, Path::new(LOG), (ID, 1), 0)?;
    for round in 0..4u8 {
        let mut group = Vec::new();
        for i in 0..3 {
            let payload = vec![round * 3 + i; 40];
            match log.append(&payload) {
                Ok(lsn) => group.push((lsn, payload)),
                // A refused record is gone; those after it go on, or are refused too.
                // Some syncs fail as on a disk that is full only now.
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace)),
            }
        }
        match log.sync() {
            Ok(()) => synced.extend(group),
            Err(_) => assert!(log.append(b"x").is_err() && log.sync().is_err()),
        }
    }
    Ok(synced)
}

#[test]
fn no_error_costs_a_synced_record() {
    let counting = SimFs::new();
    assert_eq!(write_some(&counting).unwrap().len(), 12);
    let (operations, _) = counting.operations();
    for sticky in [false, true] {
        for after in 0..operations {
            let fs = SimFs::new();
            fs.inject(Some(Fault { after, only_changes: false, sticky }));
            let synced = write_some(&fs);
            fs.inject(None);
            let Ok(synced) = synced else { continue };
            let (records, tail) = read(&fs.crash_losing_all().read(Path::new(LOG)).unwrap());
            tail.unwrap();
            assert_eq!(records, synced, "fault after {after}");
        }
    }
}

#[test]
fn a_full_disk_stops_a_log_until_there_is_room() {
    let fs = SimFs::new();
    fs.set_capacity(Some(300));
    let mut log = LogWriter::create(FileSegment(fs.create(Path::new(LOG)).unwrap()), ID).unwrap();
    let mut written = Vec::new();
    let refused = loop {
        match log.append(&[7; 50]) {
            Ok(lsn) => written.push((lsn, vec![7; 50])),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(log.append_all([&[1; 10][..], &[2; 100]]).is_err(), "all or none");
    fs.set_capacity(None);
    let lsn = log.append(b"there is room").unwrap();
    written.push((lsn, b"there is room".to_vec()));
    log.sync().unwrap();
    let (records, tail) = read(&fs.crash_losing_all_named(LOG));
    tail.unwrap();
    assert_eq!(records, written);
}

/// The synced bytes of a file, its name taken for durable.
trait Synced {
    fn crash_losing_all_named(&self, path: &str) -> Vec<u8>;
}

impl Synced for SimFs {
    fn crash_losing_all_named(&self, path: &str) -> Vec<u8> {
        self.sync_dir(Path::new("/")).unwrap();
        self.crash_losing_all().read(Path::new(path)).unwrap()
    }
}

#[test]
fn misuse_is_an_argument_error() {
    let fs = SimFs::new();
    let mut file = fs.create(Path::new(LOG)).unwrap();
    file.append(b"not empty").unwrap();
    let error = LogWriter::create(FileSegment(file), ID).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    for lsn in [0, 1 << 63] {
        let file = FileSegment(fs.create(&Path::new("/").join(lsn.to_string())).unwrap());
        assert_eq!(LogWriter::create_at(file, ID, lsn).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    let mut log = create_log_file(&fs, Path::new("/sealed"), (ID, 5), 0).unwrap();
    log.seal().unwrap();
    assert_eq!(log.append(b"").unwrap_err().kind(), ErrorKind::InvalidArgument);
}
