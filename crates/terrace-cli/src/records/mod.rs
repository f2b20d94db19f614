//! Records as lines of text, for import and export.
//!
//! A format is a pair of functions between a record and its line, without the line's end. A written record reads back
//! as itself whatever bytes it holds. Writing is canonical: one record has one line.

use terrace::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

mod json;
mod lines;
mod tsv;

pub use lines::Lines;

/// How a record is written in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Key, tab, value; bytes that would break the line are escaped
    Tsv,
    /// JSON objects: {"key":"..","value":".."}; key_b64 and value_b64 hold bytes that are not UTF-8
    Json,
}

/// A record read from a line; the buffers are reused.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Record {
    /// The key's bytes.
    pub key: Vec<u8>,
    /// The value's bytes.
    pub value: Vec<u8>,
}

/// An error for a record that no database takes.
pub fn within_limits(key: &[u8], value: &[u8]) -> Result<(), String> {
    if key.len() > MAX_KEY_BYTES {
        return Err(format!("the key has {} bytes, {MAX_KEY_BYTES} are the most", key.len()));
    }
    if value.len() > MAX_VALUE_BYTES {
        return Err(format!("the value has {} bytes, {MAX_VALUE_BYTES} are the most", value.len()));
    }
    Ok(())
}

impl Format {
    /// Reads the record in `line`; the error says what is wrong with the line.
    pub fn read(self, line: &[u8], record: &mut Record) -> Result<(), String> {
        record.key.clear();
        record.value.clear();
        match self {
            Format::Tsv => tsv::read(line, record),
            Format::Json => json::read(line, record),
        }
    }

    /// Appends the record's line, with its end.
    pub fn write(self, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
        match self {
            Format::Tsv => tsv::write(key, value, out),
            Format::Json => json::write(key, value, out),
        }
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of every kind: text, escapes, controls, broken UTF-8.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            any::<Vec<u8>>(),
            "\\PC{0,30}".prop_map(String::into_bytes),
            "[\\\\tnrx0-9\t\r\n\"]{0,30}".prop_map(String::into_bytes),
        ]
    }

    proptest! {
        #[test]
        fn records_survive_their_lines(records in prop::collection::vec((bytes(), bytes()), 0..20)) {
            for format in [Format::Tsv, Format::Json] {
                let mut text = Vec::new();
                records.iter().for_each(|(key, value)| format.write(key, value, &mut text));
                let mut lines = Lines::new(&text[..]);
                let mut read = Vec::new();
                let mut record = Record::default();
                while let Some((_, line)) = lines.next_line().unwrap() {
                    format.read(line, &mut record).unwrap();
                    read.push((record.key.clone(), record.value.clone()));
                }
                prop_assert_eq!(&read, &records);
                let mut again = Vec::new();
                read.iter().for_each(|(key, value)| format.write(key, value, &mut again));
                prop_assert_eq!(again, text);
            }
        }

        #[test]
        fn no_line_panics(line in bytes()) {
            for format in [Format::Tsv, Format::Json] {
                let _ = format.read(&line, &mut Record::default());
            }
        }
    }
}
