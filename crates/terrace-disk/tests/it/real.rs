//! What only real files can show.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use terrace_base::{Error, ErrorKind};
use terrace_disk::{Access, Fs, RealFs};

#[test]
fn a_full_device_is_no_space() {
    let full = Path::new("/dev/full");
    if let Ok(mut device) = std::fs::OpenOptions::new().write(true).open(full) {
        let error = Error::io(full, "write", device.write_all(b"x").unwrap_err());
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }
}

#[test]
fn a_file_cut_short_while_read_is_corruption() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    RealFs.create(&path).unwrap().append(&[7; 10_000]).unwrap();
    for access in [Access::Random, Access::Direct] {
        let file = RealFs.open(&path, access).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
        let mut buf = [0; 100];
        file.read_at(4900, &mut buf).unwrap();
        assert_eq!(file.read_at(4950, &mut buf).unwrap_err().kind(), ErrorKind::Corruption);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
    }
}

#[test]
fn a_lock_ends_with_its_process_not_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LOCK");
    std::fs::write(&path, b"kept").unwrap();
    let held = RealFs.lock(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    let error = RealFs.lock(&path).unwrap_err();
    assert!(matches!(error, Error::Locked { path: p, .. } if p == path));
    drop(held);
    RealFs.lock(&path).unwrap();
}

#[test]
fn directories_in_the_way_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let sub = dir.path().join("sub");
    RealFs.create_dir_all(&sub).unwrap();
    assert_eq!(RealFs.create(&sub).map(drop).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(RealFs.remove(&sub).unwrap_err().kind(), ErrorKind::Io);
    let mut buf = [0; 1];
    let opened = RealFs.open(&sub, Access::Random);
    assert!(opened.and_then(|f| f.read_at(0, &mut buf)).is_err());
}

#[test]
fn a_reader_is_shared_by_threads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let data: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    RealFs.create(&path).unwrap().append(&data).unwrap();
    let file = RealFs.open(&path, Access::Direct).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4usize {
            let (file, data) = (&file, &data);
            scope.spawn(move || {
                for i in 0..200 {
                    let from = (i * 487 + t * 13_001) % 90_000;
                    let mut buf = vec![0; 1 + i * 37];
                    file.read_at(from as u64, &mut buf).unwrap();
                    assert_eq!(buf, data[from..from + buf.len()]);
                }
            });
        }
    });
}

/// A process may wait for a lock whose file its holder removes. It then does not hold the lock beside the process
/// that has made the file anew.
#[test]
fn a_lock_whose_file_goes_has_one_holder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("LOCK");
    let (inside, entered) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let Ok(held) = RealFs.lock(&path) else { continue };
                    assert!(!inside.swap(true, Ordering::SeqCst), "two have it");
                    entered.fetch_add(1, Ordering::Relaxed);
                    inside.store(false, Ordering::SeqCst);
                    RealFs.remove(&path).unwrap();
                    drop(held);
                }
            });
        }
    });
    assert!(entered.into_inner() > 0 && !path.exists());
}

#[test]
fn a_directory_goes_if_it_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    RealFs.create_dir_all(&path).unwrap();
    drop(RealFs.create(&path.join("file")).unwrap());
    assert!(RealFs.remove_dir(&path).is_err() && path.join("file").exists());
    RealFs.remove(&path.join("file")).unwrap();
    RealFs.remove_dir(&path).unwrap();
    assert!(!path.exists());
}
