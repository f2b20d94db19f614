//! Errors on demand, a full disk, and being watched.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use terrace_base::rng::Rng;
use terrace_base::{ErrorKind, Result};
use terrace_disk::{Access, Fault, Fs, FsEvent, Observer, SimFs};

/// A little of everything; says what it got done.
fn script(fs: &SimFs) -> Result<()> {
    let (root, a, b) = (Path::new("/d"), Path::new("/d/a"), Path::new("/d/b"));
    fs.create_dir_all(root)?;
    let mut file = fs.create(a)?;
    file.append(b"bytes")?;
    file.sync()?;
    fs.rename(a, b)?;
    fs.sync_dir(root)?;
    fs.open(b, Access::Random)?.read_at(0, &mut [0; 5])?;
    fs.list(root)?;
    fs.remove(b)?;
    fs.sync_dir(root)
}

#[test]
fn the_nth_operation_fails_and_no_other() {
    let counting = SimFs::new();
    script(&counting).unwrap();
    let (all, changes) = counting.operations();
    assert_eq!((all, changes), (11, 8));
    for (count, only_changes) in [(all, false), (changes, true)] {
        for after in 0..=count {
            let fs = SimFs::new();
            fs.inject(Some(Fault { after, only_changes, sticky: false }));
            let done = script(&fs);
            assert_eq!(done.is_ok(), after == count, "after {after} of {count}");
            if let Err(error) = done {
                assert_eq!(error.kind(), ErrorKind::Io);
                assert!(error.to_string().contains("injected"), "{error}");
                fs.list(Path::new("/")).unwrap();
            }
        }
    }
}

#[test]
fn a_sticky_fault_goes_on_until_healed() {
    let fs = SimFs::new();
    fs.inject(Some(Fault { after: 1, only_changes: true, sticky: true }));
    fs.create(Path::new("/a")).unwrap();
    for _ in 0..3 {
        assert!(fs.create(Path::new("/b")).is_err());
        fs.list(Path::new("/")).unwrap();
    }
    assert!(fs.fork().create(Path::new("/b")).is_ok());
    fs.inject(None);
    fs.create(Path::new("/b")).unwrap();
}

#[test]
fn a_failed_sync_is_never_made_good() {
    let fs = SimFs::new();
    let mut file = fs.create(Path::new("/f")).unwrap();
    file.append(b"synced").unwrap();
    file.sync().unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    file.append(b" lost").unwrap();
    fs.inject(Some(Fault { after: 0, only_changes: true, sticky: false }));
    assert!(file.sync().is_err());
    assert!(file.sync().is_err());
    assert!(file.append(b"more").is_err());
    assert_eq!(fs.crash_losing_all().read(Path::new("/f")).unwrap(), b"synced");
}

/// A failed sync may have dropped pages: then nobody reads them any more, and a sync through another handle is well
/// and makes nothing of them durable. It may also be where a full disk is met.
#[test]
fn a_failed_sync_may_drop_pages_and_the_next_is_well() {
    let (mut dropped, mut kept, mut full) = (0, 0, 0);
    for after in 0..12 {
        let fs = SimFs::new();
        let mut file = fs.create(Path::new("/f")).unwrap();
        for _ in 0..after {
            file.append(b"a").unwrap();
        }
        file.append(&[b's'; 5000]).unwrap();
        file.sync().unwrap();
        fs.sync_dir(Path::new("/")).unwrap();
        let durable = fs.read(Path::new("/f")).unwrap();
        file.append(&[b'x'; 20_000]).unwrap();
        fs.inject(Some(Fault { after: 0, only_changes: true, sticky: false }));
        full += u32::from(file.sync().unwrap_err().kind() == ErrorKind::NoSpace);
        let now = fs.read(Path::new("/f")).unwrap();
        assert_eq!((&now[..durable.len()], now.len()), (&durable[..], durable.len() + 20_000));
        let gone = now[durable.len()..].iter().filter(|&&b| b == 0).count();
        assert_eq!(fs.has_dropped_pages(), gone > 0);
        *if gone > 0 { &mut dropped } else { &mut kept } += 1;
        fs.sync_file(Path::new("/f")).unwrap();
        assert_eq!(fs.crash_losing_all().read(Path::new("/f")).unwrap(), now);
        assert!(file.sync().is_err() && file.append(b"more").is_err());
    }
    assert!(dropped > 2 && kept > 2 && full > 2, "{dropped} {kept} {full}");
}

/// What a failed sync has dropped may be shown as if nothing had happened, until the power goes.
#[test]
fn what_a_failed_sync_has_dropped_may_be_shown_until_a_power_cut() {
    let mut dropped = 0;
    for after in 0..12 {
        let fs = SimFs::new();
        fs.show_dropped(true);
        let mut file = fs.create(Path::new("/f")).unwrap();
        (0..after).for_each(|_| file.append(b"a").unwrap());
        file.sync().unwrap();
        fs.sync_dir(Path::new("/")).unwrap();
        let durable = file.len() as usize;
        file.append(&[b'x'; 20_000]).unwrap();
        fs.inject(Some(Fault { after: 0, only_changes: true, sticky: false }));
        file.sync().unwrap_err();
        fs.sync_file(Path::new("/f")).unwrap();
        let shown = fs.fork().read(Path::new("/f")).unwrap();
        assert!(shown[durable..].iter().all(|&b| b == b'x'));
        let left = fs.crash_losing_all().read(Path::new("/f")).unwrap();
        assert_eq!((&left[..durable], left.len()), (&shown[..durable], shown.len()));
        assert_eq!(left != shown, fs.has_dropped_pages());
        dropped += u32::from(left != shown);
    }
    assert!((3..12).contains(&dropped), "{dropped}");
}

#[test]
fn what_is_cut_is_back_only_after_a_power_cut() {
    let fs = SimFs::new();
    let mut file = fs.create(Path::new("/f")).unwrap();
    file.append(b"synced").unwrap();
    file.sync().unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    file.append(b" refused").unwrap();
    fs.inject(Some(Fault { after: 0, only_changes: true, sticky: false }));
    assert!(file.sync().is_err());
    file.cut(6).unwrap();
    assert_eq!((fs.fork().read(Path::new("/f")).unwrap(), file.len()), (b"synced".to_vec(), 6));
    let lengths: BTreeSet<usize> =
        (0..60).map(|seed| fs.crash(&mut Rng::new(seed)).read(Path::new("/f")).unwrap().len()).collect();
    assert!(lengths.contains(&6) && lengths.contains(&14), "{lengths:?}");
    fs.sync_file(Path::new("/f")).unwrap();
    for seed in 0..60 {
        assert_eq!(fs.crash(&mut Rng::new(seed)).read(Path::new("/f")).unwrap(), b"synced");
    }
}

#[test]
fn a_lock_may_fail() {
    let fs = SimFs::new();
    fs.inject(Some(Fault { after: 0, only_changes: true, sticky: false }));
    assert_eq!(fs.lock(Path::new("/LOCK")).map(drop).unwrap_err().kind(), ErrorKind::Io);
    let held = fs.lock(Path::new("/LOCK")).unwrap();
    assert_eq!(fs.lock(Path::new("/LOCK")).map(drop).unwrap_err().kind(), ErrorKind::Locked);
    drop(held);
    fs.lock(Path::new("/LOCK")).unwrap();
}

#[test]
fn a_failed_append_leaves_nothing_or_ends_the_file() {
    let mut outcomes = [false; 2];
    for after in 0..4 {
        let fs = SimFs::new();
        let mut file = fs.create(Path::new("/f")).unwrap();
        fs.inject(Some(Fault { after, only_changes: true, sticky: false }));
        let mut kept = Vec::new();
        while file.append(b"0123456789").is_ok() {
            kept.extend_from_slice(b"0123456789");
        }
        let ended = file.append(b"next").is_err();
        let data = fs.read(Path::new("/f")).unwrap();
        outcomes[usize::from(ended)] = true;
        match ended {
            true => assert_eq!(data, [&kept[..], b"01234"].concat()),
            false => assert_eq!(data, [&kept[..], b"next"].concat()),
        }
        assert_eq!(file.len(), data.len() as u64);
    }
    assert_eq!(outcomes, [true; 2]);
}

#[test]
fn a_full_disk_takes_no_more_until_there_is_room() {
    let fs = SimFs::new();
    fs.set_capacity(Some(100));
    let (a, b) = (Path::new("/a"), Path::new("/b"));
    let mut first = fs.create(a).unwrap();
    first.append(&[1; 60]).unwrap();
    let mut second = fs.create(b).unwrap();
    assert_eq!(second.append(&[2; 41]).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!((second.len(), fs.free_bytes(b).unwrap()), (0, 40));
    second.append(&[2; 40]).unwrap();
    fs.remove(a).unwrap();
    assert_eq!(fs.used_bytes(), 100, "a removed file that is open takes room");
    drop(first);
    assert_eq!(fs.used_bytes(), 40);
    second.append(&[2; 60]).unwrap();
    assert_eq!(
        fs.crash(&mut Rng::new(1)).create(Path::new("/c")).unwrap().append(&[0; 101]).unwrap_err().kind(),
        ErrorKind::NoSpace
    );
    fs.set_capacity(None);
    second.append(&[2; 1000]).unwrap();
}

/// Writes down each event, and what the disk showed before it.
#[derive(Debug)]
struct Diary {
    fs: SimFs,
    entries: Mutex<Vec<(String, usize)>>,
}

impl Observer for Diary {
    fn before(&self, event: FsEvent<'_>) {
        let word = match event {
            FsEvent::Create { path } => format!("create {}", path.display()),
            FsEvent::Write { path, bytes } => format!("write {} {bytes}", path.display()),
            FsEvent::Sync { path } => format!("sync {}", path.display()),
            FsEvent::Rename { from, to } => format!("rename {} {}", from.display(), to.display()),
            FsEvent::Remove { path } => format!("remove {}", path.display()),
            FsEvent::SyncDir { path } => format!("sync_dir {}", path.display()),
            FsEvent::Lock { path } => format!("lock {}", path.display()),
            FsEvent::CreateDir { path } => format!("create_dir {}", path.display()),
        };
        // The observer may use the disk; nothing of the event has happened.
        let survivor = self.fs.crash(&mut Rng::new(1));
        assert!(survivor.image().len() <= 1);
        let bytes = self.fs.image().values().map(Vec::len).sum();
        self.entries.lock().unwrap().push((word, bytes));
    }
}

#[test]
fn observers_see_each_change_before_it_happens() {
    let fs = SimFs::new();
    let diary = Arc::new(Diary { fs: fs.clone(), entries: Mutex::default() });
    fs.observe(Some(diary.clone()));
    script(&fs).unwrap();
    fs.observe(None);
    fs.create(Path::new("/unseen")).unwrap();
    let entries = std::mem::take(&mut *diary.entries.lock().unwrap());
    let words: Vec<_> = entries.iter().map(|(word, bytes)| (word.as_str(), *bytes)).collect();
    assert_eq!(
        words,
        [
            ("create_dir /d", 0),
            ("create /d/a", 0),
            ("write /d/a 5", 0),
            ("sync /d/a", 5),
            ("rename /d/a /d/b", 5),
            ("sync_dir /d", 5),
            ("remove /d/b", 5),
            ("sync_dir /d", 0),
        ]
    );
}
