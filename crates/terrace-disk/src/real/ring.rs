//! System calls that are submitted together and run in parallel (io_uring).
//!
//! 1. A call that a ring was given and has not reported is under way, or waits in `unsent`, in order of submission.
//! 2. A ring from which the system takes nothing any more is broken: unsent calls are reported as failed, and calls
//!    under way are waited for. It is not used again, and no other one is made for the file.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::queue::{Calls, Piece, Queue, Way};

/// Calls under way at a time.
const DEPTH: u32 = 64;

/// The rings of one file: as many as threads have used at the same time.
#[derive(Debug, Default)]
pub(super) struct Rings {
    idle: Mutex<Vec<Ring>>,
    is_refused: AtomicBool,
}

impl Rings {
    /// False once the system was found to have no rings.
    pub(super) fn are_usable(&self) -> bool {
        !self.is_refused.load(Ordering::Relaxed)
    }

    /// Runs `run` with a ring, or with one call for each piece if there is no ring.
    pub(super) fn with<T>(&self, run: impl FnOnce(&mut dyn Queue) -> T) -> T {
        let Some(mut ring) = self.take() else { return run(&mut Calls::default()) };
        let outcome = run(&mut ring);
        self.put_back(ring);
        outcome
    }

    /// No call is under way in `ring` any more.
    pub(super) fn put_back(&self, ring: Ring) {
        if ring.is_broken {
            self.is_refused.store(true, Ordering::Relaxed);
        } else {
            self.idle.lock().push(ring);
        }
    }

    /// A ring to begin calls with, to be given [back](Self::put_back).
    pub(super) fn take(&self) -> Option<Ring> {
        if !self.are_usable() {
            return None;
        }
        if let Some(ring) = self.idle.lock().pop() {
            return Some(ring);
        }
        match IoUring::new(DEPTH) {
            Ok(ring) => Some(Ring { ring, unsent: VecDeque::new(), not_taken: Vec::new(), is_broken: false }),
            // A descriptor may become available later.
            Err(e)
                if [Errno::MFILE, Errno::NFILE]
                    .map(|e| Some(e.raw_os_error()))
                    .contains(&e.raw_os_error()) =>
            {
                None
            }
            Err(_) => {
                self.is_refused.store(true, Ordering::Relaxed);
                None
            }
        }
    }
}

pub(super) struct Ring {
    ring: IoUring,
    unsent: VecDeque<usize>,
    /// Calls that were given but not taken, to be reported as failed.
    not_taken: Vec<usize>,
    is_broken: bool,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("unsent", &self.unsent.len()).finish_non_exhaustive()
    }
}

impl Ring {
    /// Sends unsent calls without waiting.
    pub(super) fn send(&mut self) {
        self.enter(0);
    }

    /// Sends unsent calls and waits until `count` are done.
    fn enter(&mut self, count: usize) {
        let sent = self.ring.submit_and_wait(count);
        let left = self.ring.submission().len();
        self.unsent.drain(..self.unsent.len().saturating_sub(left));
        match sent {
            Err(e) if !is_passing(&e) => {
                self.is_broken = true;
                // Finished calls are seen without a system call, too.
                std::thread::yield_now();
            }
            _ => {}
        }
    }
}

impl Queue for Ring {
    fn room(&self) -> usize {
        DEPTH as usize
    }

    unsafe fn submit(&mut self, token: usize, file: RawFd, way: Way, piece: &Piece<'_>) {
        let (file, parts) = (types::Fd(file), piece.parts());
        let (at, count) = (parts.as_ptr(), parts.len() as u32);
        let entry = match way {
            Way::Read => opcode::Readv::new(file, at, count).offset(piece.offset).build(),
            Way::Write | Way::WriteDurably => {
                opcode::Writev::new(file, at, count).offset(piece.offset).rw_flags(way.flags()).build()
            }
        };
        // SAFETY: the caller vouches for the piece and its memory until the token was told of, which is when the system
        // has said that it is done with them, or has never got the entry.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(token as u64)) };
        // There is room: calls are reported before more are given, and the queue has as many entries. A panic is not
        // allowed here: the system would go on using memory that is freed.
        match pushed {
            Ok(()) => self.unsent.push_back(token),
            Err(_) => self.not_taken.push(token),
        }
    }

    fn complete(&mut self, done: &mut Vec<(usize, io::Result<usize>)>) {
        let again = || Err(io::ErrorKind::WouldBlock.into());
        done.extend(self.not_taken.drain(..).map(|token| (token, again())));
        while done.is_empty() {
            if self.is_broken {
                // The entries stay in the ring, which is never entered again.
                let refused = || io::Error::from(io::ErrorKind::Unsupported);
                done.extend(self.unsent.drain(..).map(|token| (token, Err(refused()))));
                std::thread::yield_now();
            } else {
                self.enter(1);
            }
            let moved = |moved: i32| usize::try_from(moved).map_err(|_| io::Error::from_raw_os_error(-moved));
            done.extend(
                self.ring.completion().map(|entry| (entry.user_data() as usize, moved(entry.result()))),
            );
        }
    }
}

/// Whether entering the ring again may succeed: a signal came, or the system has to do something first.
fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::INTR, Errno::AGAIN, Errno::BUSY].map(|e| Some(e.raw_os_error()));
    passing.contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::queue::{PIECE_BYTES, Pieces, drive};
    use std::fs::File;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, bytes).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        (dir, file)
    }

    /// More than the ring has room for, of several parts each; and a ring is used again.
    #[test]
    fn many_are_written_and_read() {
        let rings = Rings::default();
        let data: Vec<u8> = (0..300 * 4096).map(|i| (i / 11) as u8).collect();
        let (_dir, file) = file(&vec![0; data.len()]);
        for way in [Way::Write, Way::WriteDurably] {
            let mut pieces = Pieces::default();
            for (i, data) in data.chunks(4096).enumerate() {
                pieces.write(i as u64 * 4096, &data.chunks(512).collect::<Vec<_>>());
            }
            rings.with(|queue| drive(queue, &file, way, pieces, 512)).unwrap();
        }
        let mut found = vec![0; data.len()];
        let mut pieces = Pieces::default();
        found.chunks_mut(4096).enumerate().for_each(|(i, buf)| pieces.read(i as u64 * 4096, buf));
        rings.with(|queue| drive(queue, &file, Way::Read, pieces, 512)).unwrap();
        assert!(found == data && rings.idle.lock().len() <= 1);
    }

    /// An error of one does not come before the others are done; and the ring is as good as before.
    #[test]
    fn errors_are_told_when_nothing_is_under_way() {
        let rings = Rings::default();
        let (_dir, file) = file(&[1; 4096]);
        let read_only = File::open("/dev/null").unwrap();
        let data = vec![7; 100 * 4096];
        let mut pieces = Pieces::default();
        data.chunks(4096).enumerate().for_each(|(i, data)| pieces.write(i as u64 * 4096, &[data]));
        let error = rings.with(|queue| drive(queue, &read_only, Way::Write, pieces, 512)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::BADF.raw_os_error()));
        let mut found = vec![0; 2 * 4096];
        let mut pieces = Pieces::default();
        found.chunks_mut(4096).enumerate().for_each(|(i, buf)| pieces.read(i as u64 * 4096, buf));
        let error = rings.with(|queue| drive(queue, &file, Way::Read, pieces, 512)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(found[..4096] == [1; 4096] && rings.are_usable());
    }

    #[test]
    fn where_there_are_no_rings_calls_are_made() {
        let rings = Rings { is_refused: AtomicBool::new(true), ..Rings::default() };
        let (_dir, file) = file(&[1; 3 * PIECE_BYTES]);
        let mut found = vec![0; 3 * PIECE_BYTES];
        let mut pieces = Pieces::default();
        pieces.read(0, &mut found);
        rings.with(|queue| drive(queue, &file, Way::Read, pieces, 512)).unwrap();
        assert!(found.iter().all(|&byte| byte == 1) && rings.idle.lock().is_empty());
    }
}
