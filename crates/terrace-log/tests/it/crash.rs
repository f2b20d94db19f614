//! Power cuts and kills while a log is written.

use std::path::Path;

use proptest::prelude::*;
use terrace_base::rng::Rng;
use terrace_disk::{Fs, Room, SimFs};
use terrace_log::{
    FileSegment, LogReader, LogWriter, Tail, create_log_file, create_reserved_log_file, unfinished_path,
};

use crate::{Entry, ID, read};

const LOG: &str = "/log";

#[derive(Debug, Clone)]
enum Op {
    Append(Vec<u8>),
    Group(Vec<Vec<u8>>),
    Sync,
    Seal,
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..60),
        1 => prop::collection::vec(any::<u8>(), 0..6000),
        1 => (0..6000usize).prop_map(|len| vec![0; len]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => payload().prop_map(Op::Append),
        3 => prop::collection::vec(payload(), 0..4).prop_map(Op::Group),
        6 => Just(Op::Sync),
        1 => Just(Op::Seal),
    ]
}

/// What was appended, and how much of it synced.
#[derive(Default)]
struct Model {
    records: Vec<Entry>,
    synced: usize,
    sealed: bool,
}

impl Model {
    fn apply(&mut self, log: &mut LogWriter<FileSegment>, op: &Op) {
        if self.sealed {
            assert!(log.append(b"after the end").is_err());
            return;
        }
        match op {
            Op::Append(payload) => {
                let lsn = log.append(payload).unwrap();
                self.records.push((lsn, payload.clone()));
            }
            Op::Group(payloads) => {
                let first = log.append_all(payloads.iter().map(Vec::as_slice)).unwrap();
                self.records.extend((first..).zip(payloads.iter().cloned()));
            }
            Op::Sync => log.sync().unwrap(),
            Op::Seal => log.seal().unwrap(),
        }
        self.sealed = matches!(op, Op::Seal);
        if matches!(op, Op::Sync | Op::Seal) {
            self.synced = self.records.len();
            assert_eq!(log.durable_lsn(), self.records.last().map_or(0, |r| r.0) + u64::from(self.sealed));
        }
    }

    /// Checks the log after a power cut: all that was synced, in order, and no more than was written.
    fn check(&self, data: &[u8]) -> Result<(), TestCaseError> {
        let (records, tail) = read(data);
        let tail = tail.map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert!(records.len() >= self.synced, "{} of {} synced", records.len(), self.synced);
        prop_assert_eq!(&records[..], &self.records[..records.len()]);
        if self.sealed {
            prop_assert_eq!(tail, Tail::Clean);
        }
        Ok(())
    }
}

/// A disk on which a log was removed, so that its blocks turn up again.
fn used_disk() -> SimFs {
    let fs = SimFs::new();
    let mut old = LogWriter::create(FileSegment(fs.create(Path::new("/old")).unwrap()), ID + 1).unwrap();
    for i in 0..200u8 {
        old.append(&[i; 50]).unwrap();
    }
    old.sync().unwrap();
    fs.remove(Path::new("/old")).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    fs
}

fn create(fs: &SimFs, room: bool) -> LogWriter<FileSegment> {
    let (path, first) = (Path::new(LOG), (ID, 1));
    match room {
        true => create_reserved_log_file(fs, path, first, 0, Room::Mapped).unwrap(),
        false => create_log_file(fs, path, first, 0).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn what_was_synced_is_read_back(ops in prop::collection::vec(op(), 1..40), room: bool, seed: u64) {
        let fs = used_disk();
        let mut log = create(&fs, room);
        let (mut model, mut rng) = (Model::default(), Rng::new(seed));
        for op in &ops {
            model.apply(&mut log, op);
            for _ in 0..4 {
                let disk = fs.crash(&mut rng);
                model.check(&disk.read(Path::new(LOG)).unwrap())?;
            }
        }
        // Without a power cut everything is there.
        let (records, tail) = read(&fs.fork().read(Path::new(LOG)).unwrap());
        prop_assert_eq!(records, model.records);
        prop_assert_eq!(tail.unwrap(), Tail::Clean);
    }

    #[test]
    fn what_was_recovered_stays(ops in prop::collection::vec(op(), 1..30), room: bool, seed: u64) {
        let fs = used_disk();
        let mut log = create(&fs, room);
        let (mut model, mut rng) = (Model::default(), Rng::new(seed));
        ops.iter().for_each(|op| model.apply(&mut log, op));
        for next in [fs.fork(), fs.crash(&mut rng)] {
            let mut first = Vec::new();
            LogReader::recover(&next, Path::new(LOG), ID, &mut |lsn, payload| {
                first.push((lsn, payload.to_vec()));
                Ok(())
            }).unwrap();
            let (again, _) = read(&next.crash(&mut rng).read(Path::new(LOG)).unwrap());
            prop_assert_eq!(first, again);
        }
    }

    #[test]
    fn any_bytes_at_all_are_no_panic(data in prop::collection::vec(any::<u8>(), 0..300), cut in 0..300usize) {
        let (records, _) = read(&data);
        prop_assert!(records.is_empty());
        let fs = SimFs::new();
        let mut log = LogWriter::create(FileSegment(fs.create(Path::new(LOG)).unwrap()), ID).unwrap();
        log.append(b"one").unwrap();
        log.append(b"two").unwrap();
        let whole = fs.read(Path::new(LOG)).unwrap();
        let mut garbled = whole[..cut.min(whole.len())].to_vec();
        garbled.extend_from_slice(&data);
        let (records, _) = read(&garbled);
        prop_assert!(records.iter().zip([b"one", b"two"]).all(|(r, written)| r.1 == written));
    }
}

#[test]
fn a_log_file_is_there_whole_or_not_at_all() {
    // The observer's part is played by trying every moment: each step of creation is one operation.
    for steps in 0..6 {
        let fs = used_disk();
        fs.plant(&unfinished_path(Path::new(LOG)), b"left by an earlier crash").unwrap();
        fs.inject(Some(terrace_disk::Fault { after: steps, only_changes: true, sticky: true }));
        let created = create_log_file(&fs, Path::new(LOG), (ID, 9), 0);
        let mut rng = Rng::new(steps);
        for _ in 0..50 {
            let disk = fs.crash(&mut rng);
            if disk.exists(Path::new(LOG)).unwrap() {
                let (records, tail) = read(&disk.read(Path::new(LOG)).unwrap());
                assert_eq!((records, tail.unwrap()), (Vec::new(), Tail::Clean));
            } else {
                assert!(created.is_err());
                create_log_file(&disk, Path::new(LOG), (ID, 9), 0).unwrap();
            }
        }
    }
}

#[test]
fn a_hole_among_unsynced_records_is_a_torn_tail() {
    let fs = SimFs::new();
    let mut log = create_log_file(&fs, Path::new(LOG), (ID, 1), 0).unwrap();
    log.append(b"synced").unwrap();
    log.sync().unwrap();
    let at = log.len() as usize;
    log.append(b"lost").unwrap();
    log.append(b"arrived, but after a hole").unwrap();
    let mut data = fs.read(Path::new(LOG)).unwrap();
    let len = data.len();
    data[at..at + 10].fill(0);
    let (records, tail) = read(&data);
    assert_eq!(records, [(1, b"synced".to_vec())]);
    assert_eq!(tail.unwrap(), Tail::Torn { at: at as u64, dropped: (len - at) as u64 });
}
