//! Numbers of operations as people write them.

/// A number above 0 with an optional decimal `k`, `M` or `G`.
///
/// ```
/// use terrace_bench::count::parse;
/// assert_eq!((parse("16M"), parse("250")), (Ok(16_000_000), Ok(250)));
/// assert!(parse("16 M").is_err() && parse("0").is_err() && parse("99999999999G").is_err());
/// ```
pub fn parse(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|n| *n > 0);
    number.ok_or_else(|| format!("{text} is no number such as 16M"))
}
