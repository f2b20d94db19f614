//! Arbitrary bytes as text and back.
//!
//! Escaped text is the bytes themselves, except: `\\` a backslash, `\t` tab, `\n` line feed, `\r`
//! carriage return, `\xNN` any other control byte and any byte that is not part of valid UTF-8. It
//! never holds a raw tab or line end, and bytes have exactly one such form; reading is more lenient
//! and takes `\xNN` for every byte.

/// Appends `bytes` in escaped form.
pub fn escape(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        escape_text(chunk.valid().as_bytes(), out);
        chunk.invalid().iter().for_each(|&byte| escape_byte(byte, out));
    }
}

fn escape_text(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&b| b == b'\\' || b.is_ascii_control()) {
        out.extend_from_slice(&rest[..at]);
        escape_byte(rest[at], out);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

fn escape_byte(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b'\\' => out.extend_from_slice(b"\\\\"),
        b'\t' => out.extend_from_slice(b"\\t"),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        _ => {
            out.extend_from_slice(b"\\x");
            push_hex(byte, out);
        }
    }
}

fn push_hex(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

/// Appends the bytes that escaped `text` stands for. The error says what is wrong with the text.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&b| b == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let (byte, used) = unescape_one(&rest[at + 1..])?;
        out.push(byte);
        rest = &rest[at + 1 + used..];
    }
    out.extend_from_slice(rest);
    Ok(())
}

/// The byte that the escape after a backslash stands for, and the escape's length.
fn unescape_one(after: &[u8]) -> Result<(u8, usize), String> {
    match after {
        [b'\\', ..] => Ok((b'\\', 1)),
        [b't', ..] => Ok((b'\t', 1)),
        [b'n', ..] => Ok((b'\n', 1)),
        [b'r', ..] => Ok((b'\r', 1)),
        [b'x', high, low, ..] => match (digit(*high), digit(*low)) {
            (Some(high), Some(low)) => Ok((high << 4 | low, 3)),
            _ => Err("\\x must be followed by two hexadecimal digits".to_string()),
        },
        [b'x', ..] => Err("\\x must be followed by two hexadecimal digits".to_string()),
        [] => Err("a lone backslash ends it; write a backslash as \\\\".to_string()),
        [other, ..] => Err(format!(
            "\\{} is no escape; known are \\\\ \\t \\n \\r \\xNN, and a backslash is written \\\\",
            other.escape_ascii()
        )),
    }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|d| d as u8)
}

/// `bytes` in escaped form, as a string.
pub fn escaped(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len());
    escape(bytes, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// As [`escaped`], cut after about `most` characters.
pub fn preview(bytes: &[u8], most: usize) -> String {
    // No escape makes text shorter, so that bytes past the cut cannot matter.
    let head = &bytes[..bytes.len().min(4 * most)];
    let text = escaped(head);
    match text.char_indices().nth(most) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None if head.len() < bytes.len() => format!("{text}..."),
        None => text,
    }
}

/// `bytes` in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|&byte| push_hex(byte, &mut out));
    String::from_utf8_lossy(&out).into_owned()
}

/// The bytes that `text` gives in hexadecimal.
pub fn unhex(text: &[u8]) -> Result<Vec<u8>, String> {
    if !text.len().is_multiple_of(2) {
        return Err(format!("{} hexadecimal digits are no whole bytes; give two for each", text.len()));
    }
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    text.chunks_exact(2)
        .map(|pair| byte(pair).ok_or_else(|| format!("\"{}\" is not hexadecimal", pair.escape_ascii())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn unescaped(text: &[u8]) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        unescape(text, &mut out).map(|()| out)
    }

    #[test]
    fn golden_forms() {
        assert_eq!(escaped(b"plain \xc3\xa9"), "plain é");
        assert_eq!(escaped(b"a\tb\nc\rd\\e"), "a\\tb\\nc\\rd\\\\e");
        assert_eq!(escaped(b"\0\x1f\x7f\xff"), "\\x00\\x1f\\x7f\\xff");
        assert_eq!(escaped(b"\xc3("), "\\xc3(");
        assert_eq!(hex(b"\x00\xffA"), "00ff41");
    }

    #[test]
    fn bad_escapes_are_named() {
        assert!(unescaped(b"a\\q").unwrap_err().contains("\\q is no escape"));
        assert!(unescaped(b"a\\").unwrap_err().contains("lone backslash"));
        for text in ["\\x", "\\x1", "\\xg0"] {
            assert!(unescaped(text.as_bytes()).unwrap_err().contains("two hexadecimal digits"), "{text}");
        }
        assert!(unhex(b"abc").is_err() && unhex(b"zz").is_err());
        assert_eq!(unhex(b"00Ff"), Ok(vec![0, 255]));
    }

    #[test]
    fn previews_are_cut_between_characters() {
        assert_eq!(preview("ééé".as_bytes(), 2), "éé...");
        assert_eq!(preview(b"abc", 3), "abc");
        assert_eq!(preview(&[b'a'; 100], 3), "aaa...");
    }

    proptest! {
        #[test]
        fn every_byte_survives(bytes: Vec<u8>) {
            let text = escaped(&bytes);
            prop_assert!(!text.contains(['\t', '\n', '\r', '\0']));
            prop_assert_eq!(unescaped(text.as_bytes()), Ok(bytes.clone()));
            prop_assert_eq!(unhex(hex(&bytes).as_bytes()), Ok(bytes));
        }

        #[test]
        fn the_form_is_the_only_one(text in "[a-zéß漢 ]{0,20}") {
            prop_assert_eq!(escaped(text.as_bytes()), text);
        }

        #[test]
        fn nothing_panics(text: Vec<u8>) {
            let _ = unescaped(&text);
            let _ = unhex(&text);
        }
    }
}
