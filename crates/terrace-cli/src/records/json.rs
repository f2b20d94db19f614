//! One JSON object a line. Text is in `key` and `value`; bytes that are not UTF-8 are in `key_b64`
//! and `value_b64`, in padded standard base64. Each of the two is chosen by itself.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::Record;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    key_b64: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    value_b64: Option<Cow<'a, str>>,
}

pub(super) fn read(line: &[u8], record: &mut Record) -> Result<(), String> {
    // The library would take an array's elements for the fields, in their order.
    if line.trim_ascii_start().first() == Some(&b'[') {
        return Err("not a record: an array, and no object such as {\"key\":\"k\",\"value\":\"v\"}".into());
    }
    let line: Line<'_> = serde_json::from_slice(line).map_err(|e| problem(&e))?;
    fill("key", line.key, line.key_b64, &mut record.key)?;
    fill("value", line.value, line.value_b64, &mut record.value)
}

/// The error about a line. The library's line number, always 1, is left out: the caller knows the real one.
fn problem(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match said.strip_suffix(&place) {
        Some(what) if error.column() > 0 => format!("not a record: {what} at column {}", error.column()),
        Some(what) => format!("not a record: {what}"),
        None => format!("not a record: {said}"),
    }
}

fn fill(
    name: &str,
    text: Option<Cow<'_, str>>,
    encoded: Option<Cow<'_, str>>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    match (text, encoded) {
        (Some(text), None) => out.extend_from_slice(text.as_bytes()),
        (None, Some(encoded)) => {
            STANDARD.decode_vec(&*encoded, out).map_err(|e| format!("{name}_b64 is not base64: {e}"))?;
        }
        (None, None) => return Err(format!("there is neither \"{name}\" nor \"{name}_b64\"")),
        (Some(_), Some(_)) => return Err(format!("\"{name}\" and \"{name}_b64\" are both there")),
    }
    Ok(())
}

pub(super) fn write(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let (key, key_b64) = split(key);
    let (value, value_b64) = split(value);
    // Cannot fail: a struct of strings, written to memory.
    let _ = serde_json::to_writer(out, &Line { key, key_b64, value, value_b64 });
}

/// Text as it is, or else the bytes' encoding.
fn split(bytes: &[u8]) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.into()), None),
        Err(_) => (None, Some(STANDARD.encode(bytes).into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_lines() {
        for (key, value, line) in [
            (&b""[..], &b""[..], r#"{"key":"","value":""}"#),
            (b"k\t\"", "é".as_bytes(), r#"{"key":"k\t\"","value":"é"}"#),
            (b"\xff\x00", b"v", r#"{"key_b64":"/wA=","value":"v"}"#),
            (b"k", b"\xfe", r#"{"key":"k","value_b64":"/g=="}"#),
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
        let problem = |line: &str| read(line.as_bytes(), &mut Record::default()).unwrap_err();
        assert!(problem(r#"{"key":"a"}"#).contains("neither \"value\" nor \"value_b64\""));
        assert!(problem(r#"{"key":"a","key_b64":"YQ==","value":""}"#).contains("both there"));
        assert!(problem(r#"{"key_b64":"?","value":""}"#).contains("not base64"));
        assert!(problem(r#"{"key":"a","value":1}"#).contains("not a record"));
        assert!(problem(r#"{"key":"a","value":"b","ttl":"c"}"#).contains("unknown field"));
        assert!(problem("").contains("not a record"));
        // The caller adds the line's number.
        for line in ["", "{", "x", r#"{"key":1}"#, r#"{"key":"a","value":"b"} c"#, r#"{"key":"a","a":1}"#] {
            assert!(!problem(line).contains("line"), "{}", problem(line));
        }
        assert!(problem("  x").ends_with("at column 3"), "{}", problem("  x"));
    }
}
