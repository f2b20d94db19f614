//! Sizes in bytes, as people write them.

/// Reads `64MiB`, `64M`, `1.5GB` or `4096`: K M G T and KiB MiB GiB TiB are powers of 1024, kB MB GB
/// TB powers of 1000, and no unit is bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let explain = || format!("\"{text}\" is no size; write it like 64MiB, 1.5GiB or 4096");
    let number: f64 = number.parse().map_err(|_| explain())?;
    let bytes = number * multiplier(unit.trim()).ok_or_else(explain)?;
    if bytes > (1u64 << 62) as f64 {
        return Err(format!("{text} is more than any machine has"));
    }
    Ok(bytes as u64)
}

fn multiplier(unit: &str) -> Option<f64> {
    let unit = unit.to_ascii_lowercase();
    let (letter, rest) = match unit.chars().next() {
        None | Some('b') => return (unit.is_empty() || unit == "b").then_some(1.0),
        Some(letter) => (letter, &unit[letter.len_utf8()..]),
    };
    let power = "kmgt".find(letter)? as i32 + 1;
    match rest {
        "" | "ib" => Some(1024f64.powi(power)),
        "b" => Some(1000f64.powi(power)),
        _ => None,
    }
}

/// Writes a size so that it reads well: `0 B`, `999 B`, `12.5 KiB`, `3.0 GiB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1024.0 of a unit is printed as 1.0 of the next one.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_spelling() {
        let sizes = [("0", 0), ("4096", 4096), ("64MiB", 64 << 20), ("64M", 64 << 20), ("64 mib", 64 << 20)];
        let more = [("1.5GiB", 3 << 29), ("1MB", 1_000_000), ("2k", 2048), ("2kb", 2000), ("12b", 12)];
        for (text, bytes) in sizes.into_iter().chain(more) {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "12 parsecs", "1..2", "-5", "1e3", "64MiBs", "99999999999TiB"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_to_be_read() {
        let written: Vec<String> = [0, 1023, 1024, 12_800, (1 << 20) - 1, 3 << 30].map(human).into();
        assert_eq!(written, ["0 B", "1023 B", "1.0 KiB", "12.5 KiB", "1.0 MiB", "3.0 GiB"]);
    }
}
