use std::fs::OpenOptions;
use std::path::PathBuf;

use super::*;

type Made = (tempfile::TempDir, PathBuf, Box<dyn WriteFile>);

/// A file with room in a directory of its own; `None` where there are none.
fn file_of(room: Room) -> Option<Made> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let mut file = create(&path, room).unwrap();
    // The last of it is appended where there is room.
    for part in [&b"fir"[..], b"s", b"t "] {
        file.append(part).unwrap();
        if room == Room::Called {
            file.sync().unwrap();
        }
    }
    file.has_room().then_some((dir, path, file))
}

/// One that is mapped.
fn file() -> Option<Made> {
    file_of(Room::Mapped)
}

/// One of each kind.
fn files() -> impl Iterator<Item = Made> {
    [Room::Mapped, Room::Called].into_iter().filter_map(file_of)
}

fn assert_holds(path: &Path, bytes: &[u8]) {
    let found = std::fs::read(path).unwrap();
    assert_eq!(&found[..bytes.len()], bytes);
    assert!(found[bytes.len()..].iter().all(|&byte| byte == 0));
}

#[test]
fn what_is_appended_is_there_over_all_borders() {
    for (_dir, path, mut file) in files() {
        let mut all = b"first ".to_vec();
        for i in 0..400usize {
            let data = vec![i as u8 | 1; (i * 37) % 5000 + if i % 50 == 7 { 300_000 } else { 0 }];
            file.append(&data).unwrap();
            all.extend_from_slice(&data);
            assert_eq!(file.len(), all.len() as u64);
            if i % 40 == 0 {
                file.sync().unwrap();
                assert_holds(&path, &all);
            }
        }
        let room = std::fs::metadata(&path).unwrap().len() - file.len();
        assert!(room <= MOST_PIECE_BYTES, "{room}");
        file.trim().unwrap();
        assert!(!file.has_room());
        assert_eq!(std::fs::read(&path).unwrap(), all);
        file.append(b", and on").unwrap();
        file.sync().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [&all[..], b", and on"].concat());
    }
}

#[test]
fn a_small_file_takes_little_room() {
    for (_dir, path, _file) in files() {
        assert_eq!(std::fs::metadata(&path).unwrap().len(), LEAST_PIECE_BYTES);
    }
}

#[test]
fn what_is_cut_is_gone() {
    for (_dir, path, mut file) in files() {
        file.append(b"refused").unwrap();
        file.cut(6).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first ");
        file.append(b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first second");
    }
}

#[test]
fn by_its_length_a_file_that_was_cut_has_no_room() {
    for (_dir, path, mut file) in files() {
        file.append(&[1; 5000]).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len().is_multiple_of(ROOM_UNIT_BYTES));
        file.cut(ROOM_UNIT_BYTES).unwrap();
        assert_eq!(
            (std::fs::metadata(&path).unwrap().len(), file.len()),
            (ROOM_UNIT_BYTES + 1, ROOM_UNIT_BYTES)
        );
        file.append(b"and on").unwrap();
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found[ROOM_UNIT_BYTES as usize..], *b"and on");
    }
}

/// Somebody cuts the file under its mapping. The store faults, the process lives, and the file takes nothing more.
#[test]
fn a_file_that_is_cut_under_its_mapping_fails() {
    let Some((_dir, path, mut file)) = file() else { return };
    OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    let error = file.append(b"into nothing").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("through its mapping"), "{error}");
    assert_eq!(file.append(b"again").unwrap_err().to_string(), error.to_string());
    assert_eq!(file.sync().unwrap_err().to_string(), error.to_string());
    assert!(file.trim().is_err());
    file.cut(6).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "it is not made longer");
    assert!(file.append(b"again").is_err() && file.sync().is_err());
}

/// Several files fault at the same time, and each reports only its own failure.
#[test]
fn only_the_file_that_faulted_fails() {
    std::thread::scope(|scope| {
        for t in 0..4 {
            scope.spawn(move || {
                for i in 0..50 {
                    let Some((_dir, path, mut file)) = file() else { return };
                    let is_cut = (t + i) % 3 == 0;
                    if is_cut {
                        OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
                    }
                    assert_eq!(file.append(b"second").is_err(), is_cut);
                    if !is_cut {
                        assert_holds(&path, b"first second");
                    }
                }
            });
        }
    });
}

/// Somebody cuts the file so that the next store meets nothing of it: what is appended then needs more room than is
/// ready, or than there is, or is as large as what was cut off. None of it is acknowledged.
#[test]
fn a_file_that_is_cut_fails_where_no_store_meets_it() {
    let ready = 6 + LEAST_PIECE_BYTES as usize;
    for (before, cut_to, then) in [(0, 0, ready), (200_000, 0, 300_000), (200_000, 70_000, 60_000)] {
        let Some((_dir, path, mut file)) = file() else { return };
        file.append(&vec![1; before]).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(cut_to).unwrap();
        let error = file.append(&vec![2; then]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("was cut"), "{error}");
        assert!(file.append(b"again").is_err() && file.sync().is_err() && file.trim().is_err());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), cut_to, "it is not made longer");
    }
}

/// The page with the file's end stays mapped, and takes bytes that nobody finds again.
#[test]
fn a_file_that_is_cut_within_a_page_fails_at_its_sync_or_end() {
    for cut_to in [3, 4096] {
        let Some((_dir, path, mut file)) = file() else { return };
        OpenOptions::new().write(true).open(&path).unwrap().set_len(cut_to).unwrap();
        file.append(b"nowhere").unwrap();
        assert!(file.trim().is_err() && file.sync().is_err() && file.append(b"again").is_err());
        let Some((_dir, path, mut file)) = self::file() else { return };
        OpenOptions::new().write(true).open(&path).unwrap().set_len(cut_to).unwrap();
        assert!(file.sync().is_err() && file.trim().is_err());
    }
}

#[test]
fn a_page_that_is_gone_behind_the_first_is_found_too() {
    let Some((_dir, path, mut file)) = file() else { return };
    file.append(&[7; 3000]).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert!(file.append(&[8; 3000]).is_err());
    file.cut(3006).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), [&b"first "[..], &[7; 3000]].concat());
}

/// Writes by calls reach behind an end that somebody has moved. No sync that follows acknowledges them, before there is
/// room and after.
#[test]
fn a_file_written_by_calls_that_is_cut_fails_at_its_next_sync_or_end() {
    for (cut_to, then) in [(0, 7), (3, 7), (4096, 9000), (0, LEAST_PIECE_BYTES as usize - 7), (3, 100_000)] {
        for (is_trimmed, has_synced) in [(false, false), (false, true), (true, false), (true, true)] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("f");
            let mut file = create(&path, Room::Called).unwrap();
            for _ in 0..3 {
                file.append(&[1; 3000]).unwrap();
                if has_synced {
                    file.sync().unwrap();
                }
            }
            if !file.has_room() {
                return;
            }
            OpenOptions::new().write(true).open(&path).unwrap().set_len(cut_to).unwrap();
            let appended = file.append(&vec![2; then]);
            let ended = if is_trimmed { file.trim() } else { file.sync() };
            let case = (cut_to, then, is_trimmed, has_synced);
            assert!(appended.is_err() || ended.is_err(), "{case:?}");
            assert!(
                file.append(b"again").is_err() && file.sync().is_err() && file.trim().is_err(),
                "{case:?}"
            );
        }
    }
}

/// Also where what was appended ends with a page, and nothing has to be cut.
#[test]
fn a_file_that_is_left_as_it_is_has_no_room_either() {
    for room in [Room::Mapped, Room::Called] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut file = create(&path, room).unwrap();
        file.append(&vec![1; LEAST_PIECE_BYTES as usize]).unwrap();
        if !file.has_room() {
            return;
        }
        file.cut(file.len()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), LEAST_PIECE_BYTES + 1);
        file.append(b"and on").unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[LEAST_PIECE_BYTES as usize..], *b"and on");
    }
}

#[test]
fn there_is_room_from_the_second_sync_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let mut file = create(&path, Room::Called).unwrap();
    if !file.has_room() {
        return;
    }
    let mut lens = Vec::new();
    for _ in 0..4 {
        file.append(b"12345").unwrap();
        lens.push(std::fs::metadata(&path).unwrap().len());
        file.sync().unwrap();
    }
    assert_eq!(lens, [5, 10, LEAST_PIECE_BYTES, LEAST_PIECE_BYTES]);
}

/// Appends until the file has large pages, if the system makes some.
fn append_much(file: &mut dyn WriteFile, all: &mut Vec<u8>) {
    for i in 0..3000usize {
        let data = vec![i as u8 | 1; (i * 37) % 5000];
        file.append(&data).unwrap();
        all.extend_from_slice(&data);
    }
    assert!(all.len() > 7 << 20);
}

#[test]
fn large_pages_hold_what_was_appended_before_and_after_syncs() {
    for first in [0, 1, 3] {
        let Some((_dir, path, mut file)) = file() else { return };
        let mut all = b"first ".to_vec();
        for i in 0..4 {
            append_much(&mut *file, &mut all);
            assert_holds(&path, &all);
            if i >= first {
                file.sync().unwrap();
                file.sync().unwrap();
            }
        }
        assert_eq!(file.len(), all.len() as u64);
        file.trim().unwrap();
        file.append(b", and on").unwrap();
        assert!(std::fs::read(&path).unwrap() == [&all[..], b", and on"].concat());
    }
}

/// Appends that take a few large pages each, when the file has no large pages yet and when it has some.
#[test]
fn an_append_is_longer_than_a_large_page() {
    const LARGE: usize = LARGE_BYTES;
    for len in [LARGE - 9000, LARGE - 1, LARGE + 1, 2 * LARGE, 5 * LARGE / 2, 10 * LARGE + 7] {
        for small in [3000, 60_000, 1 << 20] {
            let Some((_dir, path, mut file)) = file() else { return };
            let mut all = b"first ".to_vec();
            for i in 0..12u8 {
                let large = if i.is_multiple_of(3) { len } else { small };
                for len in [small, large, small, 5] {
                    let data = vec![i + 1; len];
                    file.append(&data).unwrap();
                    all.extend_from_slice(&data);
                }
                if i == 7 {
                    file.sync().unwrap();
                }
            }
            assert_eq!(file.len(), all.len() as u64);
            assert!(std::fs::read(&path).unwrap()[..all.len()] == all);
        }
    }
}

#[test]
fn what_is_cut_of_large_pages_is_gone() {
    for is_synced in [false, true] {
        let Some((_dir, path, mut file)) = file() else { return };
        let mut all = b"first ".to_vec();
        append_much(&mut *file, &mut all);
        if is_synced {
            file.sync().unwrap();
            append_much(&mut *file, &mut all);
        }
        let cut = 5_000_001;
        file.cut(cut).unwrap();
        file.append(b"and on").unwrap();
        file.sync().unwrap();
        assert!(std::fs::read(&path).unwrap() == [&all[..cut as usize], b"and on"].concat());
    }
}

#[test]
fn a_file_that_is_cut_under_its_large_pages_fails() {
    for len in [0, 3 << 20, (4 << 20) + 5] {
        let Some((_dir, path, mut file)) = file() else { return };
        append_much(&mut *file, &mut b"first ".to_vec());
        OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
        let failed = (0..3000).any(|_| file.append(&[9; 4000]).is_err());
        assert!(failed && file.append(b"again").is_err() && file.sync().is_err());
        file.cut(6).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() <= len, "it is not made longer");
    }
}
