//! Lines of a stream, numbered.

use std::io::{self, BufRead, Read as _};

/// Longest line: the longest key and value with every byte escaped, and the tab.
const MAX_LINE_BYTES: u64 = 4 * ((1 << 30) + 65_535) + 16;

/// Reads lines one by one. A line ends in a line feed, with or without a carriage return before it;
/// the last may end with the stream.
#[derive(Debug)]
pub struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
}

impl<R: BufRead> Lines<R> {
    /// The lines of `input`.
    pub fn new(input: R) -> Self {
        Lines { input, line: Vec::new(), number: 0, bytes: 0 }
    }

    /// The next line, without its end, and its number from 1; `None` after the last.
    pub fn next_line(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        self.line.clear();
        let read = self.input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        self.bytes += read as u64;
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
        } else if read as u64 == MAX_LINE_BYTES {
            let message = format!("line {} is longer than any record", self.number);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(Some((self.number, &self.line)))
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut lines = Lines::new(text);
        let mut all = Vec::new();
        while let Some((number, line)) = lines.next_line().unwrap() {
            all.push((number, line.to_vec()));
        }
        assert_eq!(lines.bytes(), text.len() as u64);
        all
    }

    #[test]
    fn every_line_end_is_understood() {
        assert_eq!(lines(b""), []);
        assert_eq!(
            lines(b"a\nb\r\n\nc"),
            [(1, b"a".to_vec()), (2, b"b".to_vec()), (3, vec![]), (4, b"c".to_vec())]
        );
        assert_eq!(lines(b"a\rb\n"), [(1, b"a\rb".to_vec())]);
    }
}
