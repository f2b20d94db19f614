//! Records as text, in the formats that import and export know.

use terrace_cli::escape::{escape, unescape};
use terrace_cli::records::{Format, Lines, Record};

/// A record that is read can be written and read again.
pub fn records(data: &[u8]) {
    for format in [Format::Tsv, Format::Json] {
        let mut lines = Lines::new(data);
        let mut record = Record::default();
        while let Some((_, line)) = lines.next_line().unwrap() {
            if format.read(line, &mut record).is_ok() {
                read_again(format, &record);
            }
        }
        assert_eq!(lines.bytes(), data.len() as u64);
    }
    let mut bytes = Vec::new();
    if unescape(data, &mut bytes).is_ok() {
        let (mut text, mut again) = (Vec::new(), Vec::new());
        escape(&bytes, &mut text);
        unescape(&text, &mut again).unwrap();
        assert_eq!(again, bytes);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = terrace_base::size::parse(text);
    }
}

fn read_again(format: Format, record: &Record) {
    let mut text = Vec::new();
    format.write(&record.key, &record.value, &mut text);
    let mut lines = Lines::new(&text[..]);
    let mut again = Record::default();
    let (_, line) = lines.next_line().unwrap().unwrap();
    format.read(line, &mut again).unwrap();
    assert_eq!(&again, record);
    assert!(lines.next_line().unwrap().is_none(), "a record is a line");
}
