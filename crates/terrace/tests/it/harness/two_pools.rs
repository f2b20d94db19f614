//! Persistent memory with room for two pools, such as a repair needs, and with locks, as files have them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use terrace::{Error, PmSpace, Result};
use terrace_disk::{Fs, SimFs};
use terrace_pmem::{Granularity, Media, MemMedia, Pool, PoolOptions};
use terrace_sim::SimPm;

/// What a new pool has at least.
const SMALLEST_BYTES: u64 = 64 << 10;

/// The pools of one process on a machine. A pool's name is a file, which says in which half of the medium it lies.
#[derive(Debug)]
pub struct TwoPools {
    fs: SimFs,
    media: Arc<SimPm>,
    boot_id: String,
    /// The pools that this process has open, by their half. What another one had open is free again when it dies.
    open: Mutex<BTreeMap<u64, Weak<Part>>>,
}

/// A part of a medium as a medium of its own.
#[derive(Debug)]
struct Part {
    media: Arc<dyn Media>,
    at: u64,
    capacity: u64,
}

impl TwoPools {
    pub fn new(fs: SimFs, media: Arc<SimPm>, boot_id: &str) -> TwoPools {
        TwoPools { fs, media, boot_id: boot_id.into(), open: Mutex::default() }
    }

    fn half_of(&self, path: &Path) -> Result<u64> {
        Ok(u64::from(self.fs.read(path)?.first() == Some(&b'1')))
    }

    /// The half in which no pool lies that the directory of `path` or its folder of lost ones names.
    fn free_half(&self, path: &Path) -> Result<u64> {
        let dir = path.parent().unwrap();
        let mut taken = Vec::new();
        let files = self.fs.list(dir)?.into_iter();
        // What a creation left that was cut short has no name yet.
        for file in files.filter(|file| file.extension().is_none_or(|e| e != "new")) {
            let text = self.fs.read(&file)?;
            if text.len() == 2 && text.ends_with(b"P") {
                taken.push(u64::from(text[0] == b'1'));
            }
        }
        Ok((0..2).find(|half| !taken.contains(half)).expect("room for a second pool"))
    }

    fn lock(&self, half: u64, path: &Path) -> Result<Arc<Part>> {
        let mut open = self.open.lock().unwrap();
        if open.get(&half).is_some_and(|part| part.strong_count() > 0) {
            return Err(Error::locked(path));
        }
        let capacity = self.media.capacity() / 2;
        let part = Arc::new(Part { media: self.media.clone(), at: half * capacity, capacity });
        open.insert(half, Arc::downgrade(&part));
        Ok(part)
    }

    fn options(&self, options: &PoolOptions) -> PoolOptions {
        PoolOptions { boot_id: Some(self.boot_id.clone()), private: false, ..options.clone() }
    }
}

impl PmSpace for TwoPools {
    fn create(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        let half = self.free_half(path)?;
        let part = self.lock(half, path)?;
        part.grow(SMALLEST_BYTES.max(part.len()))?;
        let pool = Pool::recreate_on(part, path, &self.options(options))?;
        let temporary = path.with_extension("new");
        if self.fs.exists(&temporary)? {
            self.fs.remove(&temporary)?;
        }
        let mut file = self.fs.create(&temporary)?;
        file.append(&[b'0' + half as u8, b'P'])?;
        file.sync()?;
        drop(file);
        self.fs.rename(&temporary, path)?;
        self.fs.sync_dir(path.parent().unwrap())?;
        Ok(pool)
    }

    fn open(&self, path: &Path, options: &PoolOptions) -> Result<Pool> {
        let part = self.lock(self.half_of(path)?, path)?;
        // Real ones are mapped privately in both cases, any number of them side by side.
        let part = if options.private || options.read_only { part.copied()? } else { part };
        Pool::open_on(part, path, &self.options(options))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.fs.exists(path)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        if self.fs.exists(path)? { self.fs.remove(path) } else { Ok(()) }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (from_dir, to_dir) = (from.parent().unwrap(), to.parent().unwrap());
        if from_dir != to_dir {
            // As journalling file systems do it: never neither.
            self.fs.link(from, to)?;
            self.fs.sync_dir(to_dir)?;
            self.fs.remove(from)?;
            return self.fs.sync_dir(from_dir);
        }
        self.fs.rename(from, to)?;
        self.fs.sync_dir(to_dir)
    }

    fn sync_name(&self, path: &Path) -> Result<()> {
        self.fs.sync_dir(path.parent().unwrap())
    }
}

impl Part {
    fn copied(&self) -> Result<Arc<Part>> {
        let copy = MemMedia::new(self.len(), self.capacity, self.granularity())?;
        // SAFETY: the part is mapped as far as its length says; nobody stores to it while it is locked here.
        let bytes = unsafe { std::slice::from_raw_parts(self.base(), self.len() as usize) };
        copy.copy_flush(0, bytes);
        let capacity = self.capacity;
        Ok(Arc::new(Part { media: Arc::new(copy), at: 0, capacity }))
    }
}

impl Media for Part {
    fn base(&self) -> *mut u8 {
        self.media.base().wrapping_add(self.at as usize)
    }

    fn len(&self) -> u64 {
        self.media.len().saturating_sub(self.at).min(self.capacity)
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn grow(&self, len: u64) -> Result<()> {
        if len > self.capacity {
            return Err(Error::PoolFull { path: "half".into(), requested: len, size: self.capacity });
        }
        self.media.grow(self.at + len)
    }

    fn granularity(&self) -> Granularity {
        self.media.granularity()
    }

    fn flush(&self, offset: u64, len: u64) {
        self.media.flush(self.at + offset, len);
    }

    fn drain(&self) {
        self.media.drain();
    }

    fn order(&self, offset: u64) {
        self.media.order(self.at + offset);
    }

    fn charge_read(&self, _offset: u64, _len: u64) {}

    fn sync(&self) -> Result<()> {
        self.media.sync()
    }

    fn describe(&self) -> String {
        self.media.describe()
    }
}
