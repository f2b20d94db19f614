//! What every file system does alike.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_base::{ErrorKind, Result};
use terrace_disk::{Access, Fs, IoStats, MeteredFs, RealFs, Room, SimFs, Toll};

const ALL_ACCESS: [Access; 3] = [Access::Random, Access::Sequential, Access::Direct];

/// Runs `test` on each file system, in an empty directory of it.
fn everywhere(test: impl Fn(&dyn Fs, &Path)) {
    let real = tempfile::tempdir().unwrap();
    test(&RealFs, real.path());
    let metered = tempfile::tempdir().unwrap();
    test(&MeteredFs::new(Arc::new(RealFs)), metered.path());
    let sim = SimFs::new();
    sim.create_dir_all(Path::new("/sim/dir")).unwrap();
    let shared: Arc<dyn Fs> = Arc::new(sim.fork());
    test(&sim, Path::new("/sim/dir"));
    test(&shared, Path::new("/sim/dir"));
}

fn put(fs: &dyn Fs, path: &Path, data: &[u8]) {
    let mut file = fs.create(path).unwrap();
    file.append(data).unwrap();
    file.sync().unwrap();
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.map(drop).unwrap_err().kind()
}

#[test]
fn what_is_appended_is_read() {
    everywhere(|fs, dir| {
        let path = dir.join("f");
        let mut file = fs.create(&path).unwrap();
        assert!(file.is_empty());
        file.append(b"one ").unwrap();
        file.append(b"").unwrap();
        file.append(b"two").unwrap();
        assert_eq!((file.len(), file.path()), (7, path.as_path()));
        file.sync().unwrap();
        fs.sync_file(&path).unwrap();
        fs.sync_dir(dir).unwrap();
        assert_eq!(fs.read(&path).unwrap(), b"one two");
    });
}

#[test]
fn any_range_is_read_by_any_access() {
    let data: Vec<u8> = (0..600_001u32).map(|i| (i ^ (i >> 8)) as u8).collect();
    everywhere(|fs, dir| {
        let path = dir.join("f");
        put(fs, &path, &data);
        for access in ALL_ACCESS {
            let file = fs.open(&path, access).unwrap();
            assert_eq!(file.len(), data.len() as u64);
            for (from, len) in
                [(0, 0), (0, 1), (1, 4096), (4095, 2), (4096, 4096), (511, 300_000), (0, 600_001)]
            {
                let mut buf = vec![0; len];
                file.read_at(from as u64, &mut buf).unwrap();
                assert_eq!(buf, data[from..from + len], "{access:?} {from}+{len}");
            }
            let (mut a, mut b, mut end) = ([0; 10], [0; 5000], [0; 1]);
            file.read_many(&mut [(9, &mut a), (100_000, &mut b), (600_000, &mut end)]).unwrap();
            assert_eq!((&a[..], &b[..], &end[..]), (&data[9..19], &data[100_000..105_000], &data[600_000..]));
        }
    });
}

#[test]
fn reading_past_the_end_is_corruption() {
    everywhere(|fs, dir| {
        let path = dir.join("f");
        put(fs, &path, b"0123456789");
        for access in ALL_ACCESS {
            let file = fs.open(&path, access).unwrap();
            for (from, len) in [(0, 11), (10, 1), (11, 1), (4096, 1), (u64::MAX, 2)] {
                let error = file.read_at(from, &mut vec![0; len]).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corruption, "{access:?} {from}+{len}");
            }
            file.read_at(10, &mut []).unwrap();
        }
    });
}

#[test]
fn a_reader_keeps_what_it_opened() {
    everywhere(|fs, dir| {
        let path = dir.join("f");
        let mut writer = fs.create(&path).unwrap();
        writer.append(b"first").unwrap();
        let reader = fs.open(&path, Access::Random).unwrap();
        writer.append(b" second").unwrap();
        fs.rename(&path, &dir.join("g")).unwrap();
        fs.remove(&dir.join("g")).unwrap();
        writer.append(b" third").unwrap();
        let mut buf = [0; 5];
        reader.read_at(0, &mut buf).unwrap();
        assert_eq!((reader.len(), &buf), (5, b"first"));
        assert_eq!(kind(reader.read_at(1, &mut buf)), ErrorKind::Corruption);
    });
}

#[test]
fn names_come_and_go() {
    everywhere(|fs, dir| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        put(fs, &b, b"old");
        put(fs, &a, b"new");
        fs.create_dir_all(&dir.join("sub/deep")).unwrap();
        fs.create_dir_all(&dir.join("sub/deep")).unwrap();
        assert_eq!(fs.list(dir).unwrap(), [a.clone(), b.clone()]);
        assert!(fs.exists(&dir.join("sub/deep")).unwrap() && fs.exists(&a).unwrap());
        fs.rename(&a, &b).unwrap();
        assert!(!fs.exists(&a).unwrap());
        assert_eq!(fs.read(&b).unwrap(), b"new");
        let moved = dir.join("sub/c");
        fs.rename(&b, &moved).unwrap();
        assert_eq!(fs.list(dir).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(fs.list(&dir.join("sub")).unwrap(), std::slice::from_ref(&moved));
        fs.remove(&moved).unwrap();
        assert!(!fs.exists(&moved).unwrap());
    });
}

#[test]
fn what_is_not_there_is_an_error_that_names_it() {
    everywhere(|fs, dir| {
        let missing = dir.join("missing");
        let errors = [
            fs.open(&missing, Access::Random).map(drop).unwrap_err(),
            fs.remove(&missing).unwrap_err(),
            fs.rename(&missing, &dir.join("x")).unwrap_err(),
            fs.sync_file(&missing).unwrap_err(),
            fs.sync_dir(&missing).unwrap_err(),
            fs.list(&missing).unwrap_err(),
            fs.create(&missing.join("f")).map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains("missing"), "{error}");
        }
        put(fs, &dir.join("f"), b"there");
        assert_eq!(kind(fs.create(&dir.join("f"))), ErrorKind::Io);
        assert_eq!(fs.read(&dir.join("f")).unwrap(), b"there");
        assert_eq!(kind(fs.create_dir_all(&dir.join("f"))), ErrorKind::Io);
    });
}

#[test]
fn one_holder_of_a_lock() {
    everywhere(|fs, dir| {
        let path = dir.join("LOCK");
        let held = fs.lock(&path).unwrap();
        assert_eq!(kind(fs.lock(&path)), ErrorKind::Locked);
        let other = fs.lock(&dir.join("OTHER")).unwrap();
        drop(held);
        let again = fs.lock(&path).unwrap();
        drop((again, other));
        assert!(fs.exists(&path).unwrap());
    });
}

#[test]
fn there_is_room() {
    everywhere(|fs, dir| {
        assert!(fs.free_bytes(dir).unwrap() > 0);
        assert!(fs.free_bytes(&dir.join("not/yet")).unwrap() > 0);
    });
}

#[test]
fn the_meter_counts() {
    let fs = MeteredFs::new(Arc::new(SimFs::new()));
    let (a, b) = (Path::new("/a"), Path::new("/b"));
    let mut file = fs.create(a).unwrap();
    file.append(b"12345").unwrap();
    file.sync().unwrap();
    file.append(b"678").unwrap();
    file.sync().unwrap();
    let before = fs.stats();
    fs.rename(a, b).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    fs.read(b).unwrap();
    let (mut x, mut y) = ([0; 2], [0; 3]);
    fs.open(b, Access::Random).unwrap().read_many(&mut [(0, &mut x), (4, &mut y)]).unwrap();
    fs.remove(b).unwrap();
    assert!(fs.read(b).is_err());
    let added = fs.stats().since(&before);
    let expected_before =
        IoStats { bytes_written: 8, bytes_synced: 8, writes: 2, syncs: 2, creates: 1, ..IoStats::default() };
    let expected =
        IoStats { bytes_read: 13, reads: 3, dir_syncs: 1, removes: 1, renames: 1, ..IoStats::default() };
    assert_eq!((before, added), (expected_before, expected));
    assert_eq!(fs.clone().stats().since(&before), added);
}

/// Notes what it was to charge for.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<(&'static str, u64, u64)>>);

impl Toll for Notes {
    fn read(&self, offset: u64, bytes: u64) {
        self.0.lock().push(("read", offset, bytes));
    }
    fn write(&self, offset: u64, bytes: u64) {
        self.0.lock().push(("write", offset, bytes));
    }
    fn sync(&self) {
        self.0.lock().push(("sync", 0, 0));
    }
}

#[test]
fn a_toll_is_told_of_all_that_was_done_and_of_nothing_else() {
    let notes = Arc::new(Notes::default());
    let fs = MeteredFs::charging(Arc::new(SimFs::new()), notes.clone());
    let path = Path::new("/a");
    let mut file = fs.create(path).unwrap();
    file.append(b"12345").unwrap();
    file.append(b"678").unwrap();
    file.sync().unwrap();
    let (mut x, mut y) = ([0; 2], [0; 3]);
    let open = fs.open(path, Access::Random).unwrap();
    open.read_at(1, &mut x).unwrap();
    open.read_many(&mut [(0, &mut x), (4, &mut y)]).unwrap();
    assert!(open.read_at(7, &mut x).is_err());
    let told = notes.0.lock().clone();
    let writes = [("write", 0, 5), ("write", 5, 3), ("sync", 0, 0)];
    let reads = [("read", 1, 2), ("read", 0, 2), ("read", 4, 3)];
    assert_eq!(told, [writes, reads].concat());
}

fn everywhere_with_room(test: impl Fn(&dyn Fs, &Path, Room)) {
    everywhere(|fs, dir| test(fs, dir, Room::Mapped));
    everywhere(|fs, dir| test(fs, dir, Room::Called));
}

/// The bytes of the file at `path`, behind which there are only zeros.
fn assert_begins(fs: &dyn Fs, path: &Path, bytes: &[u8]) {
    let found = fs.read(path).unwrap();
    assert!(found.starts_with(bytes) && found[bytes.len()..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_file_with_room_holds_what_was_appended_and_zeros() {
    everywhere_with_room(|fs, dir, room| {
        let path = dir.join("f");
        let mut file = fs.create_reserved(&path, room).unwrap();
        assert!(fs.create_reserved(&path, room).is_err() && file.is_empty());
        let mut all = Vec::new();
        for i in 0..300usize {
            let data = vec![i as u8 | 1; i * 7 % 900];
            file.append(&data).unwrap();
            all.extend_from_slice(&data);
            assert_eq!(file.len(), all.len() as u64);
            if i % 30 == 0 {
                file.sync().unwrap();
            }
        }
        assert_begins(fs, &path, &all);
        file.trim().unwrap();
        file.trim().unwrap();
        assert!(!file.has_room());
        assert_eq!(fs.read(&path).unwrap(), all);
        file.append(b"and on").unwrap();
        file.sync().unwrap();
        assert_eq!(fs.read(&path).unwrap(), [&all[..], b"and on"].concat());
    });
}

#[test]
fn what_is_cut_off_a_file_with_room_is_gone() {
    everywhere_with_room(|fs, dir, room| {
        let path = dir.join("f");
        let mut file = fs.create_reserved(&path, room).unwrap();
        file.append(b"kept, refused").unwrap();
        file.cut(4).unwrap();
        file.cut(9).unwrap();
        assert_eq!((fs.read(&path).unwrap(), file.len()), (b"kept".to_vec(), 4));
        file.append(b", and on").unwrap();
        assert_begins(fs, &path, b"kept, and on");
    });
}
