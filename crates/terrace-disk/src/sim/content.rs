//! A file's bytes, shared between copies of the simulated disk.
//!
//! Bytes lie in chunks behind `Arc`s; a copy of a file copies the list of chunks, and a write copies
//! the chunk it touches. Invariant: every chunk but the last holds exactly [`CHUNK_BYTES`].

use std::sync::Arc;

/// Bytes in a chunk.
const CHUNK_BYTES: usize = 8 << 10;

/// The bytes of one file.
#[derive(Clone, Default)]
pub(super) struct Content {
    chunks: Vec<Arc<Vec<u8>>>,
    len: u64,
}

impl Content {
    pub(super) fn new(data: &[u8]) -> Self {
        let mut content = Content::default();
        content.append(data);
        content
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn append(&mut self, mut data: &[u8]) {
        self.len += data.len() as u64;
        while !data.is_empty() {
            let used = self.chunks.last().map_or(CHUNK_BYTES, |c| c.len());
            if used == CHUNK_BYTES {
                self.chunks.push(Arc::default());
            }
            let Some(last) = self.chunks.last_mut() else { return };
            let take = data.len().min(CHUNK_BYTES - used % CHUNK_BYTES);
            Arc::make_mut(last).extend_from_slice(&data[..take]);
            data = &data[take..];
        }
    }

    /// Appends `count` zeros; whole chunks of them are all one.
    pub(super) fn append_zeros(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        let end = self.len + count;
        let part = (CHUNK_BYTES - self.len as usize % CHUNK_BYTES) % CHUNK_BYTES;
        self.append(&vec![0; part.min(count as usize)]);
        let zeros = Arc::new(vec![0; if end - self.len < CHUNK_BYTES as u64 { 0 } else { CHUNK_BYTES }]);
        while end - self.len >= CHUNK_BYTES as u64 {
            self.chunks.push(zeros.clone());
            self.len += CHUNK_BYTES as u64;
        }
        self.append(&vec![0; (end - self.len) as usize]);
    }

    /// Puts `data` at `offset`; all of it lies within the file.
    pub(super) fn write(&mut self, offset: u64, mut data: &[u8]) {
        let mut at = offset as usize;
        while !data.is_empty() {
            let chunk = &mut Arc::make_mut(&mut self.chunks[at / CHUNK_BYTES])[at % CHUNK_BYTES..];
            let take = chunk.len().min(data.len());
            chunk[..take].copy_from_slice(&data[..take]);
            (at, data) = (at + take, &data[take..]);
        }
    }

    /// The first `len` bytes, sharing all whole chunks.
    pub(super) fn prefix(&self, len: u64) -> Self {
        let len = len.min(self.len);
        let (whole, part) = (len as usize / CHUNK_BYTES, len as usize % CHUNK_BYTES);
        let mut chunks = self.chunks[..whole].to_vec();
        if part > 0 {
            chunks.push(Arc::new(self.chunks[whole][..part].to_vec()));
        }
        Content { chunks, len }
    }

    /// Bytes from `offset` on, as many as fit into `buf` and are there; says how many.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let want = buf.len().min(self.len.saturating_sub(offset) as usize);
        let (mut at, mut done) = (offset as usize, 0);
        while done < want {
            let chunk = &self.chunks[at / CHUNK_BYTES][at % CHUNK_BYTES..];
            let take = chunk.len().min(want - done);
            buf[done..done + take].copy_from_slice(&chunk[..take]);
            done += take;
            at += take;
        }
        want
    }

    /// The bytes of `range`, which ends within the file.
    pub(super) fn range(&self, range: std::ops::Range<u64>) -> Vec<u8> {
        let mut data = vec![0; range.end.saturating_sub(range.start) as usize];
        let got = self.read(range.start, &mut data);
        data.truncate(got);
        data
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        self.range(0..self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 31 / 7) as u8).collect()
    }

    #[test]
    fn appends_read_back_over_chunk_borders() {
        let all = bytes(3 * CHUNK_BYTES + 100);
        for step in [1, 100, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 5] {
            let mut content = Content::default();
            all.chunks(step).for_each(|part| content.append(part));
            assert_eq!(content.to_vec(), all);
            for from in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 7] {
                assert_eq!(content.range(from as u64..all.len() as u64), all[from..]);
            }
        }
    }

    #[test]
    fn zeros_are_appended_as_any_bytes_are() {
        for before in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 5] {
            for count in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 9] {
                let mut content = Content::new(&bytes(before));
                content.append_zeros(count as u64);
                content.append(b"end");
                assert_eq!(content.to_vec(), [&bytes(before)[..], &vec![0; count], b"end"].concat());
            }
        }
    }

    #[test]
    fn bytes_are_written_over_chunk_borders() {
        let mut all = bytes(3 * CHUNK_BYTES + 100);
        let mut content = Content::new(&all);
        let before = content.clone();
        for (from, len) in [(0, 1), (CHUNK_BYTES - 1, 2), (100, 2 * CHUNK_BYTES), (3 * CHUNK_BYTES + 90, 10)]
        {
            all[from..from + len].fill(from as u8 | 1);
            content.write(from as u64, &vec![from as u8 | 1; len]);
            assert_eq!(content.to_vec(), all);
        }
        assert_eq!(before.to_vec(), bytes(3 * CHUNK_BYTES + 100));
    }

    #[test]
    fn copies_do_not_see_each_others_appends() {
        let all = bytes(2 * CHUNK_BYTES);
        let mut first = Content::new(&all[..CHUNK_BYTES + 10]);
        let mut second = first.clone();
        let third = first.prefix(CHUNK_BYTES as u64);
        first.append(b"first");
        second.append(b"second");
        assert_eq!(first.range(CHUNK_BYTES as u64 + 10..first.len()), b"first");
        assert_eq!(second.range(CHUNK_BYTES as u64 + 10..second.len()), b"second");
        assert_eq!(third.to_vec(), all[..CHUNK_BYTES]);
        assert!(Arc::ptr_eq(&first.chunks[0], &second.chunks[0]));
    }

    #[test]
    fn reading_past_the_end_gives_what_is_there() {
        let content = Content::new(b"abc");
        let mut buf = [0; 4];
        assert_eq!(content.read(1, &mut buf), 2);
        assert_eq!(content.read(3, &mut buf), 0);
        assert_eq!(content.read(9, &mut buf), 0);
    }
}
