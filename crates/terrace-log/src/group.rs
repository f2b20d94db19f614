//! Group commit: one thread writes and syncs for all waiting threads.
//!
//! Thread safety: any number of threads append and commit. A thread that finds no leader takes the segment and all
//! records appended so far, writes them in one piece and syncs once. Meanwhile the others append records for the next
//! leader.
//!
//! 1. Records lie in the segment in the order of their lsns, without gaps.
//! 2. `written` and `durable` only grow, and only after the segment has said so.
//! 3. The first error stays: every waiter whose record may be lost gets it, and so does every later append. Records
//!    that were durable before it remain committed.

use parking_lot::{Condvar, Mutex, MutexGuard};
use terrace_base::{Error, Result};

use crate::frame::RecordKind;
use crate::segment::Segment;
use crate::writer::{Framer, LogWriter};

/// A log that many threads write.
///
/// ```
/// use std::path::Path;
/// use terrace_disk::{Fs, SimFs};
/// use terrace_log::{FileSegment, GroupLog, LogWriter};
/// let file = SimFs::new().create(Path::new("/log"))?;
/// let log = GroupLog::new(LogWriter::create(FileSegment(file), 77)?);
/// let lsn = log.append(b"payload")?;
/// log.commit(lsn)?; // durable
/// # Ok::<(), terrace_base::Error>(())
/// ```
#[derive(Debug)]
pub struct GroupLog {
    inner: Mutex<Inner>,
    /// Signalled when a leader is done.
    led: Condvar,
}

#[derive(Debug)]
struct Inner {
    /// `None` while a leader has it.
    segment: Option<Box<dyn Segment>>,
    framer: Framer,
    /// Framed records that no leader has taken, and an empty buffer to put in their place.
    pending: Vec<u8>,
    spare: Vec<u8>,
    /// Every record below was handed to the segment; every record below is durable.
    written: u64,
    durable: u64,
    bytes: u64,
    failed: Option<Error>,
}

/// The state that a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Written,
    Durable,
}

/// The largest buffer kept from one group to the next.
const KEPT_BUFFER_BYTES: usize = 4 << 20;

impl Inner {
    fn reached(&self, goal: Goal) -> u64 {
        match goal {
            Goal::Written => self.written,
            Goal::Durable => self.durable,
        }
    }

    fn usable(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn frame(&mut self, kind: RecordKind, payload: &[u8]) -> Result<u64> {
        self.usable()?;
        let before = self.pending.len();
        let lsn = self.framer.frame(kind, payload, &mut self.pending)?;
        self.bytes += (self.pending.len() - before) as u64;
        Ok(lsn)
    }
}

impl GroupLog {
    /// Goes on from where `writer` is. Its records are synced with the first group.
    pub fn new<S: Segment + 'static>(writer: LogWriter<S>) -> Self {
        let (framer, bytes) = (writer.framer, writer.segment.len());
        let (written, durable) = (framer.next_lsn(), framer.durable_lsn() + 1);
        let inner = Inner {
            segment: Some(Box::new(writer.segment)),
            framer,
            pending: Vec::new(),
            spare: Vec::new(),
            written,
            durable,
            bytes,
            failed: None,
        };
        GroupLog { inner: Mutex::new(inner), led: Condvar::new() }
    }

    /// Queues a record; says its lsn. It is in no file before a [`commit`](Self::commit) or
    /// [`write_out`](Self::write_out) of that lsn or a later one.
    pub fn append(&self, payload: &[u8]) -> Result<u64> {
        self.inner.lock().frame(RecordKind::Data, payload)
    }

    /// Waits until the record `lsn`, and every one before it, is durable.
    pub fn commit(&self, lsn: u64) -> Result<()> {
        self.reach(lsn, Goal::Durable)
    }

    /// Waits until the record `lsn`, and every one before it, survives a crash of the process.
    pub fn write_out(&self, lsn: u64) -> Result<()> {
        self.reach(lsn, Goal::Written)
    }

    /// Makes everything appended so far durable.
    pub fn sync(&self) -> Result<()> {
        let next = self.next_lsn();
        self.reach(next - 1, Goal::Durable)
    }

    /// Ends the log, durably: see [`LogWriter::seal`].
    pub fn seal(&self) -> Result<()> {
        self.sync()?;
        let lsn = self.inner.lock().frame(RecordKind::End, &[])?;
        self.reach(lsn, Goal::Durable)
    }

    /// The lsn that the next record gets.
    pub fn next_lsn(&self) -> u64 {
        self.inner.lock().framer.next_lsn()
    }

    /// The last lsn that is durable; one less than the first when none is.
    pub fn durable_lsn(&self) -> u64 {
        self.inner.lock().durable - 1
    }

    /// Bytes appended, those not yet written included.
    pub fn len(&self) -> u64 {
        self.inner.lock().bytes
    }

    /// Whether nothing was appended, which is never so: there is a header.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn reach(&self, lsn: u64, goal: Goal) -> Result<()> {
        let mut inner = self.inner.lock();
        if lsn >= inner.framer.next_lsn() {
            return Err(Error::invalid(format!("no record has lsn {lsn} yet")));
        }
        while inner.reached(goal) <= lsn {
            inner.usable()?;
            match inner.segment.take() {
                Some(segment) => self.lead(&mut inner, segment, goal),
                None => self.led.wait(&mut inner),
            }
        }
        Ok(())
    }

    /// Writes out pending records, with the lock released meanwhile.
    fn lead(&self, inner: &mut MutexGuard<'_, Inner>, mut segment: Box<dyn Segment>, goal: Goal) {
        let next = inner.framer.next_lsn();
        let spare = std::mem::take(&mut inner.spare);
        let mut group = std::mem::replace(&mut inner.pending, spare);
        let outcome = MutexGuard::unlocked(inner, || {
            // If the segment panics the others must not wait for ever.
            let abandoned = Abandoned(self);
            let outcome = write_group(&mut *segment, &group, goal);
            std::mem::forget(abandoned);
            outcome
        });
        inner.segment = Some(segment);
        group.clear();
        if group.capacity() <= KEPT_BUFFER_BYTES {
            inner.spare = group;
        }
        match outcome {
            Err(error) => inner.failed = Some(error),
            Ok(()) => {
                inner.written = next;
                if goal == Goal::Durable {
                    inner.durable = next;
                    inner.framer.set_durable(next);
                }
            }
        }
        self.led.notify_all();
    }
}

fn write_group(segment: &mut dyn Segment, group: &[u8], goal: Goal) -> Result<()> {
    if !group.is_empty() {
        segment.append(group)?;
    }
    if goal == Goal::Durable { segment.sync() } else { Ok(()) }
}

/// Fails the log if dropped: its leader is gone and has taken the segment along.
struct Abandoned<'a>(&'a GroupLog);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        let cause = Error::invalid("the thread that wrote the log panicked");
        self.0.inner.lock().failed = Some(Error::Poisoned { cause: std::sync::Arc::new(cause) });
        self.0.led.notify_all();
    }
}
