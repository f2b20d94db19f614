//! Flipped bits, cut and missing files, other versions.

use terrace_base::{Error, ErrorKind};
use terrace_log::{FileSegment, LogWriter};

use super::super::codec::encode_group;
use super::super::{FileName, State, locate, replay};
use super::*;

/// A store after the whole script, and every state on the way, from the empty one.
fn scripted() -> (SimFs, Vec<State>) {
    let (fs, manifest) = fresh();
    let mut states = vec![(*manifest.state()).clone()];
    for group in script() {
        manifest.apply(&group).unwrap();
        states.push((*manifest.state()).clone());
    }
    (fs, states)
}

fn open_kind(fs: &SimFs) -> Result<State, ErrorKind> {
    Manifest::open(Arc::new(fs.clone()), dir()).map(|m| (*m.state()).clone()).map_err(|e| e.kind())
}

#[test]
fn every_flipped_bit_is_found_or_only_drops_the_tail() {
    let (fs, states) = scripted();
    let path = FileName::Manifest(1).path(dir());
    let data = fs.read(&path).unwrap();
    let last = &states[states.len() - 1];
    let before_last = &states[states.len() - 2];
    let mut dropped = 0;
    for bit in 0..data.len() * 8 {
        let mut flipped = data.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs.plant(&path, &flipped).unwrap();
        match open_kind(&fs) {
            Ok(state) if state == *before_last => dropped += 1,
            // A log may have padding that nothing depends on.
            Ok(state) => assert_eq!(state, *last, "bit {bit}"),
            Err(kind) => {
                assert!(matches!(kind, ErrorKind::Corruption | ErrorKind::InvalidFormat), "{kind:?}")
            }
        }
    }
    assert!(dropped > 0, "the last record looks torn");
}

#[test]
fn after_a_seal_a_flip_in_any_real_record_is_corruption() {
    let (fs, manifest) = fresh();
    script().iter().for_each(|group| manifest.apply(group).unwrap());
    let path = FileName::Manifest(1).path(dir());
    let unsealed = fs.read(&path).unwrap().len();
    manifest.seal().unwrap();
    let data = fs.read(&path).unwrap();
    assert!(data.len() > unsealed);
    for byte in 0..data.len() {
        let mut flipped = data.clone();
        flipped[byte] ^= 0x10;
        fs.plant(&path, &flipped).unwrap();
        if let Ok(state) = open_kind(&fs) {
            assert_eq!(state, *manifest.state(), "byte {byte} of {unsealed}");
        }
    }
}

#[test]
fn a_cut_manifest_is_a_prefix_or_corruption() {
    let (fs, states) = scripted();
    let path = FileName::Manifest(1).path(dir());
    let data = fs.read(&path).unwrap();
    let mut opened = 0;
    for len in 0..data.len() {
        fs.plant(&path, &data[..len]).unwrap();
        match open_kind(&fs) {
            Ok(state) => {
                assert!(states.contains(&state), "cut to {len}");
                opened += 1;
            }
            Err(kind) => assert_eq!(kind, ErrorKind::Corruption, "cut to {len}"),
        }
    }
    assert!(opened > 0);
}

#[test]
fn corruption_names_file_and_offset() {
    let (fs, _) = scripted();
    let path = FileName::Manifest(1).path(dir());
    let mut data = fs.read(&path).unwrap();
    let middle = data.len() / 2;
    data[middle] ^= 0xff;
    fs.plant(&path, &data).unwrap();
    match Manifest::open(Arc::new(fs.clone()), dir()).unwrap_err() {
        Error::Corruption { file, offset, .. } => {
            assert_eq!(file, path);
            assert!(offset as usize <= middle && offset > 0, "{offset}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn no_database_is_told_from_a_damaged_one() {
    let fs = SimFs::new();
    assert_eq!(locate(&fs, dir()).unwrap(), None);
    fs.create_dir_all(dir()).unwrap();
    fs.plant(&dir().join("notes.txt"), b"mine").unwrap();
    fs.plant(&dir().join("LOCK"), b"").unwrap();
    assert_eq!(locate(&fs, dir()).unwrap(), None);
    assert_eq!(open_kind(&fs), Err(ErrorKind::NotFound));
    let error = Manifest::open(Arc::new(fs.clone()), dir()).unwrap_err().to_string();
    assert!(error.contains("no database"), "{error}");

    let (fs, _) = scripted();
    for missing in ["MANIFEST-000001", "CURRENT"] {
        let fs = fs.fork();
        fs.plant(&dir().join("000001.sst"), b"").unwrap();
        fs.remove(&dir().join(missing)).unwrap();
        let error = Manifest::open(Arc::new(fs.clone()), dir()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert!(error.to_string().contains("run repair"), "{error}");
        assert!(Manifest::create(Arc::new(fs), dir(), identity()).is_err(), "never over a damaged one");
    }
    fs.plant(&dir().join("CURRENT"), b"MANIFEST-000001\n").unwrap();
    assert_eq!(open_kind(&fs), Err(ErrorKind::Corruption));
}

#[test]
fn a_creation_alone_is_an_older_manifest_beside_a_table_or_a_log() {
    let (fs, _) = fresh();
    let beside = |names: &[&str]| {
        let fs = fs.fork();
        names.iter().for_each(|name| fs.plant(&dir().join(name), b"x").unwrap());
        let whole = fs.fork();
        whole.remove(&FileName::Current.path(dir())).unwrap();
        let opened = open_kind(&fs).map(drop);
        assert_eq!(Manifest::is_whole_without_pointer(&whole, dir()).unwrap(), opened.is_ok(), "{names:?}");
        opened
    };
    // What a creation may leave, started again or not.
    assert_eq!(beside(&["LOCK", "CURRENT.tmp", "pool"]), Ok(()));
    for newer in ["000001.sst", "000001.log", "000007.log"] {
        assert_eq!(beside(&["LOCK", newer]), Err(ErrorKind::Corruption), "{newer}");
    }
}

/// A manifest file of these records, with `CURRENT` naming it.
fn planted(records: &[Vec<u8>]) -> SimFs {
    let fs = SimFs::new();
    fs.create_dir_all(dir()).unwrap();
    let file = fs.create(&FileName::Manifest(3).path(dir())).unwrap();
    let mut log = LogWriter::create(FileSegment(file), replay::log_id(3)).unwrap();
    for record in records {
        log.append(record).unwrap();
    }
    log.sync().unwrap();
    super::super::files::set_current(&fs, dir(), 3).unwrap();
    fs
}

#[test]
fn another_version_or_edit_is_an_invalid_format() {
    let mut identity_record = encode_group(&[Edit::Identity(identity())]);
    let end = encode_group(&[Edit::SnapshotEnd]);
    let unknown = planted(&[identity_record.clone(), end.clone(), vec![99, 0]]);
    assert_eq!(open_kind(&unknown), Err(ErrorKind::InvalidFormat));
    identity_record[2] = 2;
    let newer = planted(&[identity_record, end]);
    match Manifest::open(Arc::new(newer), dir()).unwrap_err() {
        Error::InvalidFormat { file, found, supported, is_other_version: true } => {
            assert_eq!(file, FileName::Manifest(3).path(dir()));
            assert_eq!((found.as_str(), supported.as_str()), ("version 2", "version 1"));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn records_that_make_no_sense_are_corruption() {
    let identity = encode_group(&[Edit::Identity(identity())]);
    let end = encode_group(&[Edit::SnapshotEnd]);
    for records in [
        vec![],
        vec![identity.clone()],
        vec![end.clone()],
        vec![encode_group(&[add(1)]), identity.clone(), end.clone()],
        vec![identity.clone(), end.clone(), end.clone()],
        vec![identity.clone(), end.clone(), identity.clone()],
        vec![identity.clone(), end.clone(), encode_group(&[Edit::RemoveTable { number: 4 }])],
        vec![identity.clone(), end.clone(), vec![9, 1]],
    ] {
        assert_eq!(open_kind(&planted(&records)), Err(ErrorKind::Corruption), "{records:?}");
    }
    assert!(open_kind(&planted(&[identity, end])).is_ok());
}

#[test]
fn what_is_left_is_salvaged_and_rebuilt() {
    let (fs, states) = scripted();
    let path = FileName::Manifest(1).path(dir());
    let mut data = fs.read(&path).unwrap();
    let middle = data.len() / 2;
    data[middle] ^= 0xff;
    fs.plant(&path, &data).unwrap();
    fs.remove(&dir().join("CURRENT")).unwrap();
    let salvaged = Manifest::salvage(&fs, dir()).unwrap().unwrap();
    assert!(states.contains(&salvaged.state));

    let tables = [(0, meta(3)), (2, meta(8))];
    let state = Manifest::state_of(salvaged.state.identity, &tables, 58).unwrap();
    assert!(Manifest::state_of(identity(), &[(0, meta(3)), (1, meta(3))], 0).is_err());
    let rebuilt = Manifest::rebuild(Arc::new(fs.clone()), dir(), state).unwrap();
    let again = reopen(&fs.crash_losing_all());
    assert_eq!(again.state(), rebuilt.state());
    assert_eq!(again.state().flushed_seq, 58);
    assert_eq!(again.state().next_file, 9);
    assert_eq!(again.state().tables[&8].level, 2);
    assert_eq!(super::super::files::manifests(&fs, dir()).unwrap(), [2]);
    assert!(Manifest::salvage(&SimFs::new(), Path::new("/")).unwrap().is_none());
}
