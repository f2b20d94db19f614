//! Damaged, truncated, foreign and recycled logs.

use std::path::Path;

use terrace_base::{Error, ErrorKind};
use terrace_disk::{Fs, Room, SimFs};
use terrace_log::{
    FileSegment, LogReader, LogWriter, Origin, Tail, create_log_file, create_reserved_log_file,
};

use crate::{Entry, ID, read};

const LOG: &str = "/log";

/// A log of five records, each synced by itself, and where each starts.
fn small_log(id: u64, sealed: bool) -> (Vec<u8>, Vec<usize>) {
    let fs = SimFs::new();
    let mut log = LogWriter::create(FileSegment(fs.create(Path::new(LOG)).unwrap()), id).unwrap();
    let mut starts = Vec::new();
    for payload in [&b"first"[..], b"", b"third record", &[0; 20], b"TLG fifth"] {
        starts.push(log.len() as usize);
        log.append(payload).unwrap();
        log.sync().unwrap();
    }
    if sealed {
        starts.push(log.len() as usize);
        log.seal().unwrap();
    }
    (fs.read(Path::new(LOG)).unwrap(), starts)
}

fn corruption_offset(error: &Error) -> u64 {
    match error {
        Error::Corruption { offset, .. } => *offset,
        other => panic!("{other}"),
    }
}

/// Reads damaged bytes and checks that what comes back is a true account of `written`.
fn check(data: &[u8], written: &[Entry], starts: &[usize], damaged_at: usize) {
    let (records, tail) = read(data);
    assert!(written.starts_with(&records), "byte {damaged_at}: a record that was never written");
    let last = *starts.last().unwrap();
    match tail {
        Ok(Tail::Clean) => assert_eq!(records, written, "byte {damaged_at}"),
        Ok(Tail::Torn { at, .. }) => {
            assert!(damaged_at >= last, "byte {damaged_at}: taken for a torn tail");
            assert_eq!(at, last as u64);
        }
        Err(error) if error.kind() == ErrorKind::Corruption => {
            assert!(damaged_at < last, "byte {damaged_at}: {error}");
            assert!(corruption_offset(&error) <= damaged_at as u64);
        }
        Err(error) => panic!("byte {damaged_at}: {error}"),
    }
}

#[test]
fn every_flipped_bit_is_found() {
    for sealed in [false, true] {
        let (data, starts) = small_log(ID, sealed);
        let (written, tail) = read(&data);
        assert_eq!((written.len(), tail.unwrap()), (5, Tail::Clean));
        for bit in 0..data.len() * 8 {
            let mut bad = data.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            check(&bad, &written, &starts, bit / 8);
        }
    }
}

#[test]
fn every_overwritten_stretch_is_found() {
    let (data, starts) = small_log(ID, true);
    let (written, _) = read(&data);
    for from in 0..data.len() {
        for len in [1, 3, 8, 24, 60] {
            for fill in [0x00, 0xff, 0x54] {
                let mut bad = data.clone();
                let to = (from + len).min(bad.len());
                bad[from..to].fill(fill);
                // Where the end record goes too nothing is left to prove that the last one was synced.
                let first = bad.iter().zip(&data).position(|(a, b)| a != b);
                if let Some(first) = first.filter(|&first| to <= starts[5] || first >= starts[5]) {
                    check(&bad, &written, &starts, first);
                }
            }
        }
    }
}

#[test]
fn every_truncation_is_a_torn_tail() {
    let (data, starts) = small_log(ID, false);
    let (written, _) = read(&data);
    for len in 0..data.len() {
        let (records, tail) = read(&data[..len]);
        assert!(written.starts_with(&records));
        let whole = starts.iter().filter(|&&start| start < len).count().saturating_sub(1);
        assert!(records.len() == whole || starts.get(whole + 1) == Some(&len), "{len}");
        match tail.unwrap() {
            Tail::Clean => assert!(len == starts[0] || starts.contains(&len)),
            Tail::Torn { at, dropped } => assert_eq!(at + dropped, len as u64),
        }
    }
}

#[test]
fn tails_of_zeros_and_of_garbage_are_dropped() {
    let (data, _) = small_log(ID, false);
    let (written, _) = read(&data);
    let (other, _) = small_log(ID + 1, true);
    let markers = b"TLG".repeat(1000);
    for tail in [&[0; 5000][..], &[0xff; 77], b"T", &markers, &other, &other[64..], &data[..20]] {
        let (records, found) = read(&[&data, tail].concat());
        assert_eq!(records, written);
        let (at, dropped) = (data.len() as u64, tail.len() as u64);
        assert_eq!(found.unwrap(), Tail::Torn { at, dropped });
    }
}

#[test]
fn a_segments_own_records_out_of_place_are_not_read() {
    let (data, starts) = small_log(ID, false);
    let (written, _) = read(&data);
    // Again at the end: the ordinal does not go on, and nothing after it proves a loss.
    let (records, tail) = read(&[&data[..], &data[starts[1]..]].concat());
    assert_eq!(records, written);
    assert!(matches!(tail.unwrap(), Tail::Torn { .. }));
    // One left out: those behind it prove the loss.
    let (records, tail) = read(&[&data[..starts[2]], &data[starts[3]..]].concat());
    assert_eq!(records, written[..2]);
    assert_eq!(corruption_offset(&tail.unwrap_err()), starts[2] as u64);
}

#[test]
fn a_payload_that_looks_like_a_log_is_a_payload() {
    let fs = SimFs::new();
    let (inner, _) = small_log(ID, false);
    let mut log = LogWriter::create(FileSegment(fs.create(Path::new(LOG)).unwrap()), ID).unwrap();
    log.append(&inner).unwrap();
    log.sync().unwrap();
    let whole = fs.read(Path::new(LOG)).unwrap();
    let (records, tail) = read(&whole);
    assert_eq!((records, tail.unwrap()), (vec![(1, inner)], Tail::Clean));
    // Torn within the payload, whose records are of this very id: no proof of anything.
    let (records, tail) = read(&whole[..whole.len() - 1]);
    assert!(records.is_empty());
    assert!(matches!(tail.unwrap(), Tail::Torn { at: 64, .. }));
}

#[test]
fn another_segment_is_an_error() {
    let (data, _) = small_log(ID + 1, false);
    let (records, tail) = read(&data);
    assert!(records.is_empty());
    let error = tail.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.to_string().contains("0x1d") && error.to_string().contains("0x1e"), "{error}");
}

#[test]
fn empty_short_and_zero_files_hold_nothing() {
    for data in [&[][..], b"TERRALOG", &[0; 32], &[0; 4096]] {
        let (records, tail) = read(data);
        assert!(records.is_empty());
        assert_eq!(tail.unwrap(), Tail::Torn { at: 0, dropped: data.len() as u64 });
    }
}

#[test]
fn a_later_version_says_so() {
    let (mut data, _) = small_log(ID, false);
    data[8] = 3;
    let check =
        terrace_base::checksum::crc32c_append(terrace_base::checksum::crc32c(&data[..12]), &data[16..64]);
    data[12..16].copy_from_slice(&check.to_le_bytes());
    let error = read(&data).1.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidFormat);
    assert!(error.to_string().contains("version 3"), "{error}");
}

#[test]
fn a_visitor_ends_the_reading() {
    let (data, _) = small_log(ID, false);
    let mut seen = 0;
    let read = LogReader::read_file(&data, Path::new(LOG), ID, &mut |lsn, _| {
        seen = lsn;
        if lsn == 3 { Err(Error::invalid("enough")) } else { Ok(()) }
    });
    assert_eq!((seen, read.unwrap_err().kind()), (3, ErrorKind::InvalidArgument));
}

#[test]
fn an_outline_tells_what_there_is() {
    let (data, starts) = small_log(ID, true);
    let outline = LogReader::outline(&data, Path::new(LOG), ID, &mut |_, _| Ok(())).unwrap();
    assert_eq!((outline.first_lsn, outline.records, outline.sealed), (Some(1), 6, true));
    assert_eq!((outline.end, outline.tail), (data.len() as u64, Tail::Clean));
    let unsealed = LogReader::outline(&data[..starts[5]], Path::new(LOG), ID, &mut |_, _| Ok(())).unwrap();
    assert_eq!((unsealed.records, unsealed.sealed), (5, false));
}

/// The worked example of `docs/formats/log.md`.
#[test]
fn golden_segment() {
    let fs = SimFs::new();
    let file = FileSegment(fs.create(Path::new(LOG)).unwrap());
    let origin = Origin { epoch: 0x0201, database: 0x0403 };
    let mut log = LogWriter::create_of(file, 7, 100, origin).unwrap();
    log.append(b"put k v").unwrap();
    log.append(b"del k").unwrap();
    log.sync().unwrap();
    log.append(b"put k w").unwrap();
    log.seal().unwrap();
    let page = include_str!("../../../../docs/formats/log.md");
    let dump = page.lines().filter(|line| line.get(4..6) == Some("  ") && line.starts_with("00"));
    let bytes: Vec<u8> = dump
        .flat_map(|line| line[6..].split("   ").next().unwrap_or("").split(' '))
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    assert_eq!(bytes, fs.read(Path::new(LOG)).unwrap());
}

/// Where the page cache is still the one that the log was written through, every flipped bit is damage: what a killed
/// process leaves unfinished is less than a record, or more than the file.
#[test]
fn within_one_epoch_every_flipped_bit_is_damage_or_a_shorter_record() {
    let fs = SimFs::new();
    let mut log = create_log_file(&fs, Path::new(LOG), (ID, 1), 9).unwrap();
    for payload in [&b"first"[..], b"", b"third record", &[0; 20], b"TLG fifth"] {
        log.append(payload).unwrap();
    }
    let data = fs.read(Path::new(LOG)).unwrap();
    for bit in 0..data.len() * 8 {
        let mut bad = data.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        fs.plant(Path::new(LOG), &bad).unwrap();
        let look = || LogReader::look(&fs, Path::new(LOG), ID, &mut |_, _| Ok(()));
        fs.set_epoch(1);
        let error = look().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Corruption | ErrorKind::InvalidFormat),
            "bit {bit}: {error}"
        );
        // After a power cut none of them was promised. The header was.
        fs.set_epoch(2);
        assert_eq!(look().is_ok(), bit / 8 >= 64, "bit {bit}");
    }
}

#[test]
fn within_one_epoch_a_log_may_end_within_a_record_and_not_in_anything_else() {
    let fs = SimFs::new();
    let mut log = create_log_file(&fs, Path::new(LOG), (ID, 1), 9).unwrap();
    let mut starts = vec![log.len() as usize];
    for payload in [&b"one"[..], &[7; 100], b"three"] {
        log.append(payload).unwrap();
        starts.push(log.len() as usize);
    }
    let data = fs.read(Path::new(LOG)).unwrap();
    let look = |bytes: &[u8]| {
        fs.plant(Path::new(LOG), bytes).unwrap();
        LogReader::look(&fs, Path::new(LOG), ID, &mut |_, _| Ok(()))
    };
    for len in 64..data.len() {
        let whole = starts.iter().filter(|&&start| start <= len).count() - 1;
        assert_eq!(look(&data[..len]).unwrap().records as usize, whole, "cut to {len}");
    }
    for len in 0..64 {
        assert_eq!(look(&data[..len]).unwrap_err().kind(), ErrorKind::Corruption, "cut to {len}");
    }
    for tail in [&[0; 24][..], &[0; 5000], b"TLGTLGTLGTLGTLGTLGTLGTLG", &data[starts[0]..]] {
        assert_eq!(look(&[&data, tail].concat()).unwrap_err().kind(), ErrorKind::Corruption);
    }
    assert!(look(&[&data, &[0; 23][..]].concat()).is_ok());
    log.seal().unwrap();
    let origin = Origin { epoch: fs.epoch(Path::new("/")), database: 9 };
    let whole = LogReader::look(&fs, Path::new(LOG), ID, &mut |_, _| Ok(()));
    // What was planted is another file than the one that is still written.
    assert_eq!(whole.unwrap().origin, origin);
}

/// A log with room, of three records, and where each ends. The last byte of the last one is not zero.
fn log_with_room(fs: &SimFs) -> (LogWriter<FileSegment>, Vec<usize>) {
    let mut log = create_reserved_log_file(fs, Path::new(LOG), (ID, 1), 9, Room::Mapped).unwrap();
    let mut ends = vec![log.len() as usize];
    for payload in [&b"one"[..], &[7; 100], b"three \0\0\0 and"] {
        log.append(payload).unwrap();
        ends.push(log.len() as usize);
    }
    (log, ends)
}

/// What a killed process leaves of a log with room is a first part of it, and zeros.
#[test]
fn within_one_epoch_a_log_with_room_ends_with_a_first_part_of_a_record_and_zeros() {
    let fs = SimFs::new();
    let (log, ends) = log_with_room(&fs);
    let data = fs.read(Path::new(LOG)).unwrap();
    let end = *ends.last().unwrap();
    assert!(log.has_room() && data.len() > end && data[end..].iter().all(|&byte| byte == 0));
    let look = |bytes: &[u8]| {
        fs.plant(Path::new(LOG), bytes).unwrap();
        LogReader::look(&fs, Path::new(LOG), ID, &mut |_, _| Ok(()))
    };
    for len in ends[0]..=end {
        let outline = look(&[&data[..len], &vec![0; data.len() - len]].concat()).unwrap();
        let whole = ends.iter().filter(|&&end| end <= len).count() - 1;
        assert_eq!(outline.records as usize, whole, "{len} bytes");
        let is_clean = ends.contains(&len) || data[ends[whole]..len].iter().all(|&byte| byte == 0);
        assert_eq!(outline.tail == Tail::Clean, is_clean, "{len} bytes");
    }
    for tail in
        [&b"TLGTLGTLGTLGTLGTLGTLGTLG"[..], &[1; 24], &data[ends[0]..end], &[&[0; 200][..], b"x"].concat()]
    {
        let error = look(&[&data[..end], tail, &[0; 1000]].concat()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
    }
    for bit in 0..end * 8 {
        let mut bad = data.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let error = look(&bad).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Corruption | ErrorKind::InvalidFormat),
            "bit {bit}: {error}"
        );
    }
}

#[test]
fn a_log_that_is_sealed_has_no_room_and_zeros_behind_its_end_are_nothing() {
    let fs = SimFs::new();
    let (mut log, _) = log_with_room(&fs);
    log.seal().unwrap();
    assert!(!log.has_room());
    let data = fs.crash_losing_all().read(Path::new(LOG)).unwrap();
    assert_eq!(data.len() as u64, log.len());
    fs.plant(Path::new(LOG), &[&data[..], &[0; 5000]].concat()).unwrap();
    let outline = LogReader::look(&fs, Path::new(LOG), ID, &mut |_, _| Ok(())).unwrap();
    assert_eq!((outline.end, outline.sealed, outline.tail), (data.len() as u64, true, Tail::Clean));
    fs.plant(Path::new(LOG), &[&data[..], &[0; 5000], b"x"].concat()).unwrap();
    let error = LogReader::look(&fs, Path::new(LOG), ID, &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
}
