//! `terrace scan`.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Bound;
use std::path::PathBuf;

use clap::Args;

use crate::args::optional_bytes;
use crate::escape;
use crate::failure::CommandResult;
use crate::keyspace::KeyspaceArg;
use crate::open::{Intent, OpenArgs};
use crate::records::Format;

/// Prints records in key order, a record a line: key, tab, value.
///
/// Keys are compared as unsigned bytes. Bytes that would break a line are escaped as in an export.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  terrace scan ./db --prefix user/ --limit 10\n  terrace scan ./db --from a --to b --reverse\n  terrace scan ./db --keys | wc -l"
)]
pub struct Scan {
    /// The database
    pub dir: PathBuf,
    /// The first key; records before it are left out
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub from: Option<OsString>,
    /// The key to end before
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    pub to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    pub prefix: Option<OsString>,
    /// The most records to print
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    pub limit: Option<u64>,
    /// From the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// Only the keys
    #[arg(long)]
    pub keys: bool,
    /// Take and print keys and values in hexadecimal
    #[arg(long)]
    pub hex: bool,
    /// The keyspace.
    #[command(flatten)]
    pub keyspace: KeyspaceArg,
    /// How to open the database.
    #[command(flatten)]
    pub open: OpenArgs,
}

impl Scan {
    /// Runs the command.
    pub fn run(&self, out: &mut dyn Write) -> CommandResult {
        let from = optional_bytes("--from", &self.from, self.hex)?;
        let to = optional_bytes("--to", &self.to, self.hex)?;
        let prefix = optional_bytes("--prefix", &self.prefix, self.hex)?;
        let Some(range) = key_range(from, to, prefix) else { return Ok(()) };
        let db = self.open.open(&self.dir, Intent::Read)?;
        let mut records = self.keyspace.of(&db, false)?.range(range)?;
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut line = Vec::new();
        while left > 0 {
            let next = if self.reverse { records.next_back() } else { records.next() };
            let Some(record) = next else { break };
            let (key, value) = record?;
            line.clear();
            self.write(&key, &value, &mut line);
            out.write_all(&line)?;
            left -= 1;
        }
        Ok(())
    }

    fn write(&self, key: &[u8], value: &[u8], line: &mut Vec<u8>) {
        match (self.hex, self.keys) {
            (false, false) => return Format::Tsv.write(key, value, line),
            (false, true) => escape::escape(key, line),
            (true, true) => line.extend_from_slice(escape::hex(key).as_bytes()),
            (true, false) => {
                line.extend_from_slice(escape::hex(key).as_bytes());
                line.push(b'\t');
                line.extend_from_slice(escape::hex(value).as_bytes());
            }
        }
        line.push(b'\n');
    }
}

/// A number of records such as 500 or 16M; 0 is allowed.
fn parse_limit(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { terrace_bench::count::parse(text) }
}

/// A range of keys.
pub type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The keys that satisfy all three; `None` if there can be none.
pub fn key_range(from: Option<Vec<u8>>, to: Option<Vec<u8>>, prefix: Option<Vec<u8>>) -> Option<KeyRange> {
    let end_of_prefix = prefix.as_deref().and_then(successor);
    let start = from.into_iter().chain(prefix).max();
    let end = to.into_iter().chain(end_of_prefix).min();
    if let (Some(start), Some(end)) = (&start, &end)
        && start >= end
    {
        return None;
    }
    Some((start.map_or(Bound::Unbounded, Bound::Included), end.map_or(Bound::Unbounded, Bound::Excluded)))
}

/// The first key after all that begin with `prefix`; `None` if those go on to the end.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(text: &str) -> Option<Vec<u8>> {
        Some(text.as_bytes().to_vec())
    }

    #[test]
    fn ranges_intersect() {
        let included = |s: &str| Bound::Included(s.as_bytes().to_vec());
        let excluded = |s: &str| Bound::Excluded(s.as_bytes().to_vec());
        assert_eq!(key_range(None, None, None), Some((Bound::Unbounded, Bound::Unbounded)));
        assert_eq!(key_range(owned("a"), owned("c"), owned("b")), Some((included("b"), excluded("c"))));
        assert_eq!(key_range(owned("b5"), None, owned("b")), Some((included("b5"), excluded("c"))));
        assert_eq!(key_range(owned("c"), None, owned("b")), None);
        assert_eq!(key_range(owned("b"), owned("a"), None), None);
        assert_eq!(key_range(owned("a"), owned("a"), None), None);
    }

    #[test]
    fn prefixes_of_all_ones_go_to_the_end() {
        assert_eq!(successor(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(successor(b"\xff\xff"), None);
        assert_eq!(successor(b""), None);
    }
}
