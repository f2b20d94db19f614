//! Key, tab, value. See [`crate::escape`] for how bytes are written.

use super::Record;
use crate::escape::{escape, unescape};

pub(super) fn read(line: &[u8], record: &mut Record) -> Result<(), String> {
    let Some(tab) = line.iter().position(|&b| b == b'\t') else {
        return Err("there is no tab between a key and a value".to_string());
    };
    let (key, value) = (&line[..tab], &line[tab + 1..]);
    if value.contains(&b'\t') {
        return Err("there is more than one tab; write a tab inside a key or value as \\t".to_string());
    }
    unescape(key, &mut record.key).map_err(|e| format!("in the key, {e}"))?;
    unescape(value, &mut record.value).map_err(|e| format!("in the value, {e}"))
}

pub(super) fn write(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    escape(key, out);
    out.push(b'\t');
    escape(value, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_lines() {
        for (key, value, line) in [
            (&b""[..], &b""[..], "\t"),
            (b"k", b"", "k\t"),
            (b"", b"v", "\tv"),
            (b"a\tb", b"c\nd\xff", "a\\tb\tc\\nd\\xff"),
        ] {
            let mut out = Vec::new();
            write(key, value, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), line);
            let mut record = Record::default();
            read(&out, &mut record).unwrap();
            assert_eq!((&record.key[..], &record.value[..]), (key, value));
        }
    }

    #[test]
    fn bad_lines_say_why() {
        let problem = |line: &[u8]| read(line, &mut Record::default()).unwrap_err();
        assert!(problem(b"").contains("no tab"));
        assert!(problem(b"key value").contains("no tab"));
        assert!(problem(b"a\tb\tc").contains("more than one tab"));
        assert!(problem(b"\\q\tb").starts_with("in the key, \\q"));
        assert!(problem(b"a\t\\x4").starts_with("in the value, \\x"));
    }
}
