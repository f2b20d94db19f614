//! Many reads or writes of one file, by system calls that may do only a part of their work.
//!
//! A [`Flight`] keeps a [`Queue`] full and resumes calls that were done in part, until all is done, or until something
//! has failed and no call is under way any more; [`drive`] waits for that. [`Calls`] is the queue that makes a call for
//! each; `ring.rs` has another.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};

use libc::{c_int, iovec};

/// Bytes and parts of memory of one call, at most.
pub(super) const PIECE_BYTES: usize = 1 << 20;
const PIECE_PARTS: usize = 256;

/// How often a call that did nothing is repeated before it counts as failed.
const ATTEMPTS: usize = 1000;

/// The operation on the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Read,
    Write,
    /// A write that is durable when it is done.
    WriteDurably,
}

impl Way {
    /// Flags of the call.
    pub(super) fn flags(self) -> c_int {
        if self == Way::WriteDurably { libc::RWF_DSYNC } else { 0 }
    }
}

/// One call: memory, in parts, for consecutive bytes of a file. It stands for a borrow of that memory.
#[derive(Debug)]
pub(super) struct Piece<'a> {
    pub(super) offset: u64,
    parts: Vec<iovec>,
    left: usize,
    memory: PhantomData<&'a mut [u8]>,
}

impl Piece<'_> {
    /// The memory that is left to transfer.
    pub(super) fn parts(&self) -> &[iovec] {
        &self.parts
    }

    /// The first `bytes` bytes of those that are left are done.
    fn advance(&mut self, mut bytes: usize) {
        (self.offset, self.left) = (self.offset + bytes as u64, self.left - bytes);
        let mut whole = 0;
        for part in &mut self.parts {
            let done = part.iov_len.min(bytes);
            // This stays within the part or reaches its end.
            part.iov_base = part.iov_base.wrapping_byte_add(done);
            part.iov_len -= done;
            bytes -= done;
            whole += usize::from(part.iov_len == 0);
            if bytes == 0 {
                break;
            }
        }
        self.parts.drain(..whole);
    }
}

/// Cuts transfers into pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces<'a>(Vec<Piece<'a>>);

impl<'a> Pieces<'a> {
    /// The bytes from `offset` on are `parts`, to be written.
    pub(super) fn write(&mut self, offset: u64, parts: &[&'a [u8]]) {
        // It is never stored through, since it is the memory of a write.
        self.cut(offset, parts.iter().map(|part| (part.as_ptr().cast_mut(), part.len())));
    }

    /// The bytes from `offset` on are to be read into `buf`.
    pub(super) fn read(&mut self, offset: u64, buf: &'a mut [u8]) {
        self.cut(offset, [(buf.as_mut_ptr(), buf.len())].into_iter());
    }

    fn cut(&mut self, mut offset: u64, parts: impl Iterator<Item = (*mut u8, usize)>) {
        let mut is_open = false;
        for (mut base, mut len) in parts {
            while len > 0 {
                let has_room = |piece: &&mut Piece<'a>| {
                    is_open && piece.left < PIECE_BYTES && piece.parts.len() < PIECE_PARTS
                };
                if self.0.last_mut().filter(has_room).is_none() {
                    self.0.push(Piece { offset, parts: Vec::new(), left: 0, memory: PhantomData });
                    is_open = true;
                }
                let Some(piece) = self.0.last_mut() else { return };
                let take = len.min(PIECE_BYTES - piece.left);
                piece.parts.push(iovec { iov_base: base.cast(), iov_len: take });
                piece.left += take;
                base = base.wrapping_add(take);
                (len, offset) = (len - take, offset + take as u64);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Takes calls and does them.
pub(super) trait Queue {
    /// How many may be under way.
    fn room(&self) -> usize;

    /// Begins a call, which is called by `token`.
    ///
    /// # Safety
    ///
    /// The piece stays as and where it is, and its memory is used by nobody else, to be read for a write and to be
    /// written for a read, until [`complete`](Self::complete) has told of the token. There is room.
    unsafe fn submit(&mut self, token: usize, file: RawFd, way: Way, piece: &Piece<'_>);

    /// Waits until a call is done, if one is under way; reports the bytes that each finished call has moved.
    fn complete(&mut self, done: &mut Vec<(usize, io::Result<usize>)>);
}

/// Does all of `pieces`. Sectors have `sector` bytes; a call that was done in part is resumed at the start of one of
/// them.
pub(super) fn drive(
    queue: &mut dyn Queue,
    file: &File,
    way: Way,
    pieces: Pieces<'_>,
    sector: usize,
) -> io::Result<()> {
    let mut flight = Flight::new(way, pieces, sector);
    while flight.begin(queue, file) {
        flight.wait(queue);
    }
    flight.outcome()
}

/// Pieces, some of which are under way.
#[derive(Debug)]
pub(super) struct Flight<'a> {
    pieces: Vec<Piece<'a>>,
    /// The pieces that are not under way, the next one last.
    waiting: Vec<usize>,
    under_way: usize,
    attempts: usize,
    failed: Option<io::Error>,
    way: Way,
    sector: usize,
    done: Vec<(usize, io::Result<usize>)>,
}

impl<'a> Flight<'a> {
    pub(super) fn new(way: Way, pieces: Pieces<'a>, sector: usize) -> Flight<'a> {
        let pieces = pieces.0;
        let waiting = (0..pieces.len()).rev().collect();
        let (failed, done) = (None, Vec::new());
        Flight { pieces, waiting, under_way: 0, attempts: ATTEMPTS, failed, way, sector, done }
    }

    /// Fills the queue with calls, unless something has failed; whether any call is under way.
    pub(super) fn begin(&mut self, queue: &mut dyn Queue, file: &File) -> bool {
        while self.failed.is_none() && self.under_way < queue.room() {
            let Some(token) = self.waiting.pop() else { break };
            // SAFETY: `pieces` stands for the borrow of all memory, and neither moves nor is changed before the token
            // is reported; the owner of the flight waits until nothing is under way before that borrow ends.
            unsafe { queue.submit(token, file.as_raw_fd(), self.way, &self.pieces[token]) };
            self.under_way += 1;
        }
        self.under_way > 0
    }

    /// Waits until a call that is under way is done.
    pub(super) fn wait(&mut self, queue: &mut dyn Queue) {
        let mut done = std::mem::take(&mut self.done);
        queue.complete(&mut done);
        for (token, moved) in done.drain(..) {
            self.under_way -= 1;
            self.finish(token, moved);
        }
        self.done = done;
    }

    /// Notes the outcome of a call: the piece is done, is resumed, or has failed.
    fn finish(&mut self, token: usize, moved: io::Result<usize>) {
        let piece = &mut self.pieces[token];
        match moved {
            Ok(moved) if moved >= piece.left => {}
            // Less than a sector means the end of the file.
            Ok(moved) if self.way == Way::Read && moved < self.sector => {
                self.failed = Some(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(0) => self.failed = Some(io::ErrorKind::WriteZero.into()),
            Ok(moved) if moved >= self.sector => {
                piece.advance(moved - moved % self.sector);
                self.waiting.push(token);
            }
            Err(e) if !is_passing(&e) => self.failed = self.failed.take().or(Some(e)),
            again if self.attempts == 0 => {
                self.failed = Some(again.err().unwrap_or_else(|| io::ErrorKind::WriteZero.into()));
            }
            _ => {
                self.attempts -= 1;
                self.waiting.push(token);
            }
        }
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way > 0
    }

    /// Whether all has been done.
    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.under_way == 0 && self.failed.is_none()
    }

    /// The failure, if any, once no call is under way any more.
    pub(super) fn outcome(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// Whether the call is to be repeated at once.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// Makes each call when it is begun.
#[derive(Debug, Default)]
pub(super) struct Calls(Option<(usize, io::Result<usize>)>);

impl Queue for Calls {
    fn room(&self) -> usize {
        1
    }

    unsafe fn submit(&mut self, token: usize, file: RawFd, way: Way, piece: &Piece<'_>) {
        let (parts, count) = (piece.parts.as_ptr(), piece.parts.len() as c_int);
        let offset = piece.offset as libc::off_t;
        // SAFETY: the caller vouches for the memory of the parts, of which there are `count`.
        let moved = unsafe {
            match way {
                Way::Read => libc::preadv(file, parts, count, offset),
                Way::Write => libc::pwritev(file, parts, count, offset),
                Way::WriteDurably => libc::pwritev2(file, parts, count, offset, way.flags()),
            }
        };
        self.0 = Some((token, usize::try_from(moved).map_err(|_| io::Error::last_os_error())));
    }

    fn complete(&mut self, done: &mut Vec<(usize, io::Result<usize>)>) {
        done.extend(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_base::rng::Rng;

    /// Moves less than it is asked, in any order, is interrupted, and fails at the call of number `fails_at`.
    struct Grudging {
        rng: Rng,
        calls: usize,
        fails_at: usize,
        under_way: Vec<(usize, io::Result<usize>)>,
        written: Vec<u8>,
    }

    impl Queue for Grudging {
        fn room(&self) -> usize {
            4
        }

        unsafe fn submit(&mut self, token: usize, _file: RawFd, way: Way, piece: &Piece<'_>) {
            self.calls += 1;
            assert!(way == Way::Write && self.under_way.len() < 4);
            let outcome = match self.rng.below(4) {
                _ if self.calls == self.fails_at => Err(io::ErrorKind::StorageFull.into()),
                0 => Err(io::ErrorKind::Interrupted.into()),
                1 => Err(io::ErrorKind::WouldBlock.into()),
                2 => Ok(1 + self.rng.below(piece.left as u64) as usize),
                _ => Ok(piece.left),
            };
            let (mut at, mut left) = (piece.offset as usize, *outcome.as_ref().unwrap_or(&0));
            for part in piece.parts() {
                let take = part.iov_len.min(left);
                // SAFETY: the parts are a piece's, whose memory may be read.
                let data = unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), take) };
                self.written[at..at + take].copy_from_slice(data);
                (at, left) = (at + take, left - take);
            }
            self.under_way.push((token, outcome));
        }

        fn complete(&mut self, done: &mut Vec<(usize, io::Result<usize>)>) {
            self.rng.shuffle(&mut self.under_way);
            let some = 1 + self.rng.below(self.under_way.len() as u64) as usize;
            done.extend(self.under_way.drain(..some));
        }
    }

    fn grudging(seed: u64, fails_at: usize, bytes: usize) -> Grudging {
        let (rng, written) = (Rng::new(seed), vec![0; bytes]);
        Grudging { rng, calls: 0, fails_at, under_way: Vec::new(), written }
    }

    /// Calls that are done in part or interrupted are resumed, and when a failure is reported no call is under way.
    #[test]
    fn short_and_interrupted_calls_are_gone_on_with() {
        let file = File::open("/dev/null").unwrap();
        let data: Vec<u8> = (0..PIECE_BYTES * 2 + 9 * 512).map(|i| (i / 7) as u8 | 1).collect();
        for seed in 0..60 {
            let fails_at = if seed % 3 == 0 { 1 + seed as usize / 3 } else { 0 };
            let mut queue = grudging(seed, fails_at, data.len());
            let mut pieces = Pieces::default();
            // Several writes, of parts that are cut in the middle.
            let (one, other) = data.split_at(512 * 11);
            pieces.write(0, &one.chunks(512).collect::<Vec<_>>());
            pieces.write(one.len() as u64, &other.chunks(512 * 700).collect::<Vec<_>>());
            assert_eq!(pieces.len(), 3);
            let done = drive(&mut queue, &file, Way::Write, pieces, 512);
            assert!(queue.under_way.is_empty());
            match done {
                Ok(()) => assert!(queue.written == data),
                Err(e) => {
                    assert!(e.kind() == io::ErrorKind::StorageFull && queue.calls >= fails_at && fails_at > 0)
                }
            }
        }
    }

    #[test]
    fn pieces_have_so_many_bytes_and_parts() {
        let data = vec![0; 512 * (PIECE_PARTS + 1)];
        let mut pieces = Pieces::default();
        pieces.write(4096, &data.chunks(512).collect::<Vec<_>>());
        pieces.write(0, &[&[]]);
        assert_eq!(pieces.0.iter().map(|p| p.left).collect::<Vec<_>>(), [512 * PIECE_PARTS, 512]);
        assert_eq!(pieces.0[1].offset, 4096 + 512 * PIECE_PARTS as u64);
    }

    #[test]
    fn a_file_that_ends_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [7; 700]).unwrap();
        let (file, mut buf) = (File::open(&path).unwrap(), [0; 1024]);
        let mut pieces = Pieces::default();
        pieces.read(0, &mut buf);
        let done = drive(&mut Calls::default(), &file, Way::Read, pieces, 512);
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
