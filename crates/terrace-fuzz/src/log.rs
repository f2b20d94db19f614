//! Logs in files and on persistent memory.

use std::path::Path;
use std::sync::OnceLock;

use terrace_disk::Fs;
use terrace_log::{FileSegment, LogReader, LogWriter, PmLog};
use terrace_pmem::Kind;

use crate::memory::{dir, files, image, new_pool, open_pool, typed};
use crate::patched;

const ID: u64 = 77;
const KIND: Kind = Kind(11);
const ROOT: &str = "log";

fn payloads() -> impl Iterator<Item = Vec<u8>> {
    (0..12u8).map(|i| vec![i; usize::from(i) * 9])
}

fn sound_file() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let fs = files(&[]);
        let path = dir().join("log");
        let mut log = LogWriter::create(FileSegment(fs.create(&path).unwrap()), ID).unwrap();
        for (i, payload) in payloads().enumerate() {
            log.append(&payload).unwrap();
            if i % 3 == 2 {
                log.sync().unwrap();
            }
        }
        log.seal().unwrap();
        fs.read(&path).unwrap()
    })
}

/// A log file: the records that are read are the first ones that are salvaged.
pub fn file(data: &[u8]) {
    let image = patched(sound_file(), data);
    let mut read: Vec<Vec<u8>> = Vec::new();
    let outcome = typed(LogReader::outline(&image, Path::new("log"), ID, &mut |_, payload| {
        read.push(payload.to_vec());
        Ok(())
    }));
    let mut salvaged: Vec<Vec<u8>> = Vec::new();
    let damaged = LogReader::salvage(&image, ID, &mut |payload| {
        salvaged.push(payload.to_vec());
        Ok(())
    })
    .unwrap();
    assert!(damaged.iter().all(|range| range.start < range.end && range.end <= image.len() as u64));
    let Some(outline) = outcome else { return };
    assert!(outline.end <= image.len() as u64);
    assert!(read.len() as u64 <= u64::from(outline.records) && outline.records as usize <= read.len() + 1);
    if outline.first_lsn.is_some() {
        assert!(salvaged.starts_with(&read), "salvage misses what is read");
    }
}

fn sound_pool() -> &'static [u8] {
    static SOUND: OnceLock<Vec<u8>> = OnceLock::new();
    SOUND.get_or_init(|| {
        let pool = new_pool();
        let mut log = PmLog::create(&pool, KIND, 256).unwrap();
        pool.set_root(ROOT, log.head()).unwrap();
        for _ in 0..12 {
            for payload in payloads() {
                log.append(&payload).unwrap();
            }
            log.persist().unwrap();
        }
        image(&pool)
    })
}

/// A log in a pool: once opened it can be read and appended to.
pub fn pm(data: &[u8]) {
    let Some(pool) = typed(open_pool(&patched(sound_pool(), data))) else { return };
    let Some(Some(head)) = typed(pool.root(ROOT)) else { return };
    let Some(mut log) = typed(PmLog::open(&pool, head)) else { return };
    let entries: Vec<Vec<u8>> = log.iter().unwrap().collect();
    assert_eq!(entries.len() as u64, log.entries());
    assert!(log.check().is_empty(), "{:?}", log.check());
    let mut marks = pool.marks();
    typed(log.mark(&mut marks));
    if log.append(b"one more").is_ok() {
        log.persist().unwrap();
        if let Some(again) = typed(PmLog::open(&pool, head)) {
            let found: Vec<Vec<u8>> = again.iter().unwrap().collect();
            assert_eq!(found.len(), entries.len() + 1);
            assert!(found.starts_with(&entries));
        }
    }
}
