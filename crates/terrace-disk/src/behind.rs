//! Files that a thread writes while the caller makes what comes next.
//!
//! 1. The file gets the same bytes in the same order as without the thread.
//! 2. What fails there is told by a later append, or by the sync: a sync that succeeds covers every append before it.
//!    After a failure nothing is appended before a cut.
//! 3. No thread is left when the file is closed, or when a sync or a cut returns. One that syncs a file beside the
//!    caller has ended when the [`SyncBehind`] is gone.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use terrace_base::{Error, Result};

use crate::fs::WriteFile;

/// Appends shorter than this are made by the caller, as long as there is no thread.
const LEAST_BYTES: usize = 256 << 10;

/// Larger ones are cut, so that little is copied at a time. It is no less than a large page of the system's cache.
const MOST_BYTES: usize = 2 << 20;

/// Appends that may wait for the thread.
const WAITING: usize = 1;

/// A file whose large appends are made by a thread.
#[derive(Debug)]
pub struct BehindFile {
    path: PathBuf,
    len: u64,
    /// The file, while no thread has it.
    kept: Option<Kept>,
    /// The thread that has it.
    writer: Option<Writer>,
}

/// A file that no thread has.
#[derive(Debug)]
struct Kept {
    file: Box<dyn WriteFile>,
    /// Why some of what was appended is lost.
    failure: Option<Error>,
}

impl Kept {
    /// The file, if it has all that was appended.
    fn whole(&mut self) -> Result<&mut Box<dyn WriteFile>> {
        self.failure.clone().map_or(Ok(&mut self.file), Err)
    }

    fn append(&mut self, data: &[u8]) -> Result<()> {
        let appended = self.whole()?.append(data);
        self.failure = appended.as_ref().err().cloned();
        appended
    }
}

/// The thread that writes a file.
#[derive(Debug)]
struct Writer {
    to: SyncSender<Vec<u8>>,
    /// Buffers that were written.
    back: Receiver<Vec<u8>>,
    thread: JoinHandle<Kept>,
}

impl Writer {
    /// A thread that writes `file`, which comes back if there is none.
    fn start(file: Box<dyn WriteFile>) -> std::result::Result<Writer, Box<dyn WriteFile>> {
        let (to, buffers) = sync_channel(WAITING);
        let (give_back, back) = channel();
        let thread = hand_over(file, move |file| write_all(file, &buffers, &give_back))?;
        Ok(Writer { to, back, thread })
    }

    /// Has the thread append `data`. False if it has ended.
    fn append(&self, data: &[u8]) -> bool {
        let mut buffer = self.back.try_recv().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(data);
        self.to.send(buffer).is_ok()
    }

    /// The file, once the thread has ended.
    fn end(self) -> std::thread::Result<Kept> {
        drop(self.to);
        self.thread.join()
    }
}

/// Runs `work` on `file` in a thread; without one the file comes back.
fn hand_over<T: Send + 'static>(
    file: Box<dyn WriteFile>,
    work: impl FnOnce(Box<dyn WriteFile>) -> T + Send + 'static,
) -> std::result::Result<JoinHandle<T>, Box<dyn WriteFile>> {
    let (give, take) = channel();
    let run = move || work(take.recv().expect("the file is sent to every thread that was started"));
    match std::thread::Builder::new().name("terrace-writer".into()).spawn(run) {
        Ok(thread) => {
            // The thread waits for it.
            let _ = give.send(file);
            Ok(thread)
        }
        Err(_) => Err(file),
    }
}

/// Appends every buffer that comes, up to one that fails.
fn write_all(file: Box<dyn WriteFile>, buffers: &Receiver<Vec<u8>>, give_back: &Sender<Vec<u8>>) -> Kept {
    let mut kept = Kept { file, failure: None };
    for buffer in buffers {
        if kept.append(&buffer).is_err() {
            break;
        }
        // Nobody wants it at the end.
        let _ = give_back.send(buffer);
    }
    kept
}

impl BehindFile {
    /// `file`, written by a thread from the first large append on.
    pub fn new(file: Box<dyn WriteFile>) -> BehindFile {
        let (path, len) = (file.path().to_path_buf(), file.len());
        BehindFile { path, len, kept: Some(Kept { file, failure: None }), writer: None }
    }

    /// The file, which no thread has any more.
    fn here(&mut self) -> Result<&mut Kept> {
        if let Some(writer) = self.writer.take() {
            self.kept = Some(writer.end().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        // It went with a thread that panicked.
        self.kept.as_mut().ok_or(Error::Closed)
    }

    /// Has a thread append `data`. False if there is none.
    fn append_there(&mut self, data: &[u8]) -> bool {
        if data.len() >= LEAST_BYTES {
            self.start();
        }
        self.writer.as_ref().is_some_and(|writer| writer.append(data))
    }

    /// Starts a thread, if the system gives one.
    fn start(&mut self) {
        if let Some(Kept { file, .. }) = self.kept.take_if(|kept| kept.failure.is_none()) {
            match Writer::start(file) {
                Ok(writer) => self.writer = Some(writer),
                Err(file) => self.kept = Some(Kept { file, failure: None }),
            }
        }
    }
}

impl WriteFile for BehindFile {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        for part in data.chunks(MOST_BYTES) {
            if !self.append_there(part) {
                self.here()?.append(part)?;
            }
            self.len += part.len() as u64;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.here()?.whole()?.sync()
    }

    fn cut(&mut self, len: u64) -> Result<()> {
        let kept = self.here()?;
        let has_all = len <= kept.file.len();
        kept.file.cut(len)?;
        if has_all {
            kept.failure = None;
        }
        self.len = kept.file.len();
        Ok(())
    }

    fn trim(&mut self) -> Result<()> {
        self.here()?.whole()?.trim()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BehindFile {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            // A panic there has been reported by its hook.
            let _ = writer.end();
        }
    }
}

/// The last sync of a file, which the caller awaits later; the file is closed then.
#[derive(Debug)]
pub struct SyncBehind(Option<Syncing>);

#[derive(Debug)]
enum Syncing {
    /// A thread does it.
    There(JoinHandle<Result<()>>),
    /// Who waits does it.
    Later(Box<dyn WriteFile>),
}

impl SyncBehind {
    /// Syncs `file` beside what the caller does; without a thread, when it is awaited.
    pub fn start(file: Box<dyn WriteFile>) -> SyncBehind {
        let syncing = match hand_over(file, |mut file| file.sync()) {
            Ok(thread) => Syncing::There(thread),
            Err(file) => Syncing::Later(file),
        };
        SyncBehind(Some(syncing))
    }

    /// Syncs `file` when it is awaited.
    pub fn later(file: Box<dyn WriteFile>) -> SyncBehind {
        SyncBehind(Some(Syncing::Later(file)))
    }

    /// Waits until everything is durable.
    ///
    /// # Errors
    ///
    /// Those of the sync, and of what was appended before it.
    pub fn wait(mut self) -> Result<()> {
        match self.0.take() {
            Some(Syncing::There(thread)) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Some(Syncing::Later(mut file)) => file.sync(),
            None => Ok(()),
        }
    }
}

impl Drop for SyncBehind {
    fn drop(&mut self) {
        if let Some(Syncing::There(thread)) = self.0.take() {
            // Nobody has asked whether it is durable.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use terrace_base::rng::Rng;

    use super::*;
    use crate::fs::Fs;
    use crate::sim::{Fault, FsEvent, Observer, SimFs};

    #[test]
    fn the_file_gets_every_byte_in_order() {
        let (fs, path, mut rng) = (SimFs::new(), Path::new("/f"), Rng::new(1));
        let (mut file, mut wanted) = (BehindFile::new(fs.create(path).unwrap()), Vec::new());
        for round in 0..60u64 {
            let len = [7, LEAST_BYTES - 1, LEAST_BYTES, 3 * MOST_BYTES + 5][rng.below(4) as usize];
            let data: Vec<u8> = (0..len as u64).map(|i| (i ^ round) as u8).collect();
            file.append(&data).unwrap();
            wanted.extend(data);
            match rng.below(8) {
                0 => file.sync().unwrap(),
                1 => {
                    let len = rng.below(wanted.len() as u64 + 1);
                    wanted.truncate(len as usize);
                    file.cut(len).unwrap();
                }
                _ => {}
            }
            assert_eq!(file.len(), wanted.len() as u64);
        }
        drop(file);
        assert!(fs.read(path).unwrap() == wanted);
    }

    /// The bytes that each change is about to append.
    #[derive(Debug, Default)]
    struct Changes(Mutex<Vec<u64>>);

    impl Observer for Changes {
        fn before(&self, event: FsEvent<'_>) {
            self.0.lock().push(if let FsEvent::Write { bytes, .. } = event { bytes } else { 0 });
        }
    }

    impl Changes {
        fn count(&self) -> u64 {
            self.0.lock().len() as u64
        }
    }

    /// A file on a new disk, of which the change after so many fails.
    fn file_with_fault(after: Option<u64>) -> (SimFs, BehindFile, Arc<Changes>) {
        let fs = SimFs::new();
        let file = BehindFile::new(fs.create(Path::new("/f")).unwrap());
        fs.sync_dir(Path::new("/")).unwrap();
        fs.inject(after.map(|after| Fault { after, only_changes: true, sticky: false }));
        let changes = Arc::new(Changes::default());
        fs.observe(Some(changes.clone()));
        (fs, file, changes)
    }

    #[test]
    fn a_last_sync_tells_of_everything_before_it() {
        let part = vec![7; MOST_BYTES];
        for begin in [SyncBehind::later, SyncBehind::start] {
            let written = |after| {
                let (fs, mut file, changes) = file_with_fault(after);
                let taken = (0..2).all(|_| file.append(&part).is_ok());
                let synced = begin(Box::new(file)).wait();
                assert!(taken || synced.is_err());
                (fs, synced, changes.count())
            };
            let (_, _, changes) = written(None);
            assert!(changes >= 3);
            for after in 0..=changes {
                let (fs, synced, _) = written(Some(after));
                assert_eq!(synced.is_ok(), after == changes, "after {after}");
                if synced.is_ok() {
                    assert_eq!(fs.crash_losing_all().read(Path::new("/f")).unwrap().len(), 2 * MOST_BYTES);
                }
            }
        }
    }

    #[test]
    fn a_sync_after_a_lost_append_fails() {
        const PARTS: usize = 8;
        let part = vec![7; MOST_BYTES];
        let (_fs, mut file, changes) = file_with_fault(None);
        (0..PARTS).for_each(|_| file.append(&part).unwrap());
        file.sync().unwrap();
        let all = changes.count() - 1;
        // An append of which half is seen is two changes, the second one of the rest.
        let whole_after = |done: u64| {
            let (bytes, done) = (changes.0.lock(), done as usize);
            let begun = bytes.iter().take(done).filter(|bytes| **bytes == MOST_BYTES as u64).count();
            let is_half = bytes.get(done).is_some_and(|rest| (1..MOST_BYTES as u64).contains(rest));
            begun - usize::from(is_half)
        };
        for after in 0..all + 2 {
            let (fs, mut file, _) = file_with_fault(Some(after));
            let taken: Vec<bool> = (0..PARTS).map(|_| file.append(&part).is_ok()).collect();
            // Nothing is taken after what was refused.
            assert!(taken.is_sorted_by(|before, later| before >= later), "{taken:?}");
            assert_eq!(file.sync().is_ok(), after > all, "after {after}");
            fs.inject(None);
            let there = whole_after(after) * MOST_BYTES;
            // A part of what was refused may be there.
            let len = || fs.read(Path::new("/f")).unwrap().len();
            assert!(len() >= there);
            // Cut to what it has it goes on, unless it takes no more.
            file.cut(there as u64).unwrap();
            let goes_on = file.append(&part).and_then(|()| file.sync()).is_ok();
            assert!(!goes_on || len() == there + MOST_BYTES);
        }
    }
}
