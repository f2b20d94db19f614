//! Recorded operations, as text: see `docs/formats/trace.md`.
//!
//! ```
//! let text = "terrace-trace 1\nput user%20ada 120\nget user%20ada\nscan user 10\ndelete user%20ada\n";
//! let trace = terrace_bench::trace::Trace::parse(text.as_bytes())?;
//! assert_eq!(trace.len(), 4);
//! # Ok::<(), terrace_bench::StoreError>(())
//! ```

use std::io::BufRead;
use std::path::Path;

use terrace_base::checksum::hash64;

use crate::store::{StoreError, StoreResult};

/// The first line.
pub const HEADER: &str = "terrace-trace 1";
/// Longest value of a trace.
pub const MAX_VALUE_BYTES: u32 = 64 << 20;

/// The operation of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceOp {
    /// Write a value of so many bytes.
    Put(u32),
    /// Read the key.
    Get,
    /// Remove the key.
    Delete,
    /// Read so many records from the key on.
    Scan(u32),
}

#[derive(Debug)]
struct Entry {
    key_end: u32,
    /// Operations on one key go to one thread.
    shard: u32,
    op: TraceOp,
}

/// Operations in order, keys one after the other.
#[derive(Debug, Default)]
pub struct Trace {
    keys: Vec<u8>,
    entries: Vec<Entry>,
}

impl Trace {
    /// The trace in a file.
    pub fn load(path: &Path) -> StoreResult<Trace> {
        let file = std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Trace::parse(std::io::BufReader::new(file)).map_err(|e| format!("{}: {e}", path.display()).into())
    }

    /// The trace in a text.
    pub fn parse(text: impl BufRead) -> StoreResult<Trace> {
        let mut trace = Trace::default();
        let mut began = false;
        for (index, line) in text.lines().enumerate() {
            let line = line?;
            let line = line.trim();
            let at = |message: String| StoreError::from(format!("line {}: {message}", index + 1));
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !began {
                began = line == HEADER;
                if !began {
                    return Err(at(format!("a trace begins with \"{HEADER}\"")));
                }
                continue;
            }
            trace.push_line(line).map_err(at)?;
        }
        if !began {
            return Err(format!("a trace begins with \"{HEADER}\"").into());
        }
        Ok(trace)
    }

    fn push_line(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let key = unescape(words.next().ok_or_else(|| format!("{name} needs a key"))?)?;
        let mut number = |what: &str, most: u32| {
            let word = words.next().ok_or_else(|| format!("{name} needs a number of {what}"))?;
            let number = word.parse().map_err(|_| format!("{word:?} is no number of {what}"))?;
            if number > most { Err(format!("{number} {what} are more than {most}")) } else { Ok(number) }
        };
        let op = match name {
            "put" => TraceOp::Put(number("bytes", MAX_VALUE_BYTES)?),
            "get" => TraceOp::Get,
            "delete" => TraceOp::Delete,
            "scan" => TraceOp::Scan(number("records", u32::MAX)?.max(1)),
            other => return Err(format!("{other:?} is none of put, get, delete and scan")),
        };
        if let Some(word) = words.next() {
            return Err(format!("{word:?} is one word too many"));
        }
        self.push(&key, op)
    }

    /// Adds an operation.
    pub fn push(&mut self, key: &[u8], op: TraceOp) -> Result<(), String> {
        self.keys.extend_from_slice(key);
        let key_end =
            u32::try_from(self.keys.len()).map_err(|_| "the keys have more than 4 GiB".to_string())?;
        self.entries.push(Entry { key_end, shard: hash64(key) as u32, op });
        Ok(())
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of the longest value.
    pub fn longest_value(&self) -> usize {
        let bytes = |e: &Entry| if let TraceOp::Put(bytes) = e.op { bytes as usize } else { 0 };
        self.entries.iter().map(bytes).max().unwrap_or(0)
    }

    /// The operations in order: keys, and what is done with them.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], TraceOp)> {
        self.share(0, 1)
    }

    /// The operations of thread `index` of `threads`: all those on a key are one thread's, in their order.
    pub fn share(&self, index: usize, threads: usize) -> impl Iterator<Item = (&[u8], TraceOp)> {
        let mut start = 0;
        self.entries.iter().filter_map(move |entry| {
            let key = &self.keys[start..entry.key_end as usize];
            start = entry.key_end as usize;
            (entry.shard as usize % threads == index).then_some((key, entry.op))
        })
    }
}

/// The key that is written as `word`: printable ASCII stands for itself, `%` and two hexadecimal digits for any byte,
/// and `%` alone for the empty key.
pub fn unescape(word: &str) -> Result<Vec<u8>, String> {
    if word == "%" {
        return Ok(Vec::new());
    }
    let mut key = Vec::with_capacity(word.len());
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            key.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16));
        let (high, low) = (digit(rest.next()), digit(rest.next()));
        let (Some(high), Some(low)) = (high, low) else {
            return Err(format!("in {word:?} a % is not followed by two hexadecimal digits"));
        };
        key.push((high * 16 + low) as u8);
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key as one word.
    fn escape(key: &[u8]) -> String {
        if key.is_empty() {
            return "%".to_string();
        }
        let as_word = |byte: &u8| match byte {
            b'!'..=b'~' if *byte != b'%' => char::from(*byte).to_string(),
            _ => format!("%{byte:02x}"),
        };
        key.iter().map(as_word).collect()
    }

    /// A trace as text.
    fn text_of(trace: &Trace) -> String {
        let line = |(key, op): (&[u8], TraceOp)| match (escape(key), op) {
            (key, TraceOp::Put(bytes)) => format!("put {key} {bytes}\n"),
            (key, TraceOp::Get) => format!("get {key}\n"),
            (key, TraceOp::Delete) => format!("delete {key}\n"),
            (key, TraceOp::Scan(records)) => format!("scan {key} {records}\n"),
        };
        let lines: String = trace.share(0, 1).map(line).collect();
        format!("{HEADER}\n{lines}")
    }

    #[test]
    fn any_key_survives_as_a_word() {
        for key in [&b""[..], b"a", b"%", b"a b\n", &[0, 127, 128, 255], "Straße".as_bytes()] {
            let word = escape(key);
            assert!(!word.is_empty() && word.bytes().all(|b| b.is_ascii_graphic()), "{word:?}");
            assert_eq!(unescape(&word).unwrap(), key);
        }
        assert!(unescape("%4").is_err() && unescape("%zz").is_err());
    }

    #[test]
    fn a_trace_gives_back_its_text() {
        let text = format!("{HEADER}\nput %ff%00 10\nget %\ndelete k%20ey\nscan z 3\n");
        assert_eq!(text_of(&Trace::parse(text.as_bytes()).unwrap()), text);
    }

    #[test]
    fn comments_and_blank_lines_mean_nothing() {
        let text = format!("# before\n\n{HEADER}\r\n  # within\n  get a  \n\n");
        assert_eq!(Trace::parse(text.as_bytes()).unwrap().len(), 1);
    }

    #[test]
    fn a_bad_line_is_named() {
        for (line, said) in [
            ("put a", "line 2: put needs a number of bytes"),
            ("put a x", "no number"),
            ("put a 99999999", "more than"),
            ("get", "needs a key"),
            ("get a b", "too many"),
            ("get %4", "hexadecimal"),
            ("move a", "none of"),
        ] {
            let error = Trace::parse(format!("{HEADER}\n{line}").as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said), "{line}: {error}");
        }
        for text in ["", "get a\n", "terrace-trace 2\n"] {
            assert!(Trace::parse(text.as_bytes()).unwrap_err().to_string().contains(HEADER));
        }
    }

    #[test]
    fn each_key_belongs_to_one_thread_and_keeps_its_order() {
        let mut trace = Trace::default();
        for i in 0..1000u32 {
            trace.push(&[(i % 50) as u8], TraceOp::Put(i)).unwrap();
        }
        let shares: Vec<Vec<_>> = (0..3).map(|t| trace.share(t, 3).collect()).collect();
        assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), 1000);
        for (t, share) in shares.iter().enumerate() {
            for other in shares.iter().skip(t + 1) {
                assert!(share.iter().all(|(key, _)| other.iter().all(|(k, _)| k != key)));
            }
            let puts: Vec<u32> = share
                .iter()
                .filter_map(|(_, op)| if let TraceOp::Put(n) = op { Some(*n) } else { None })
                .collect();
            assert!(puts.is_sorted());
        }
    }
}
