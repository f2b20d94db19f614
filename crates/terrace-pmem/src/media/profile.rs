//! The latency and bandwidth figures that emulated media charge.

use std::fmt;

use terrace_base::{Error, Result};

/// The costs of emulated media. Reads and drains stall the thread that makes them; bandwidth is shared by all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// The profile's name; `custom` for figures of one's own.
    pub name: &'static str,
    /// Nanoseconds to follow a pointer to a 256-byte block. Further blocks of the same read stream in behind it
    /// at an eighth of that each.
    pub read_ns: u64,
    /// Nanoseconds a drain takes at least.
    pub write_ns: u64,
    /// Bytes of flushed lines a second that the medium takes.
    pub write_bytes_per_sec: Option<u64>,
}

impl Profile {
    /// Battery-backed DRAM: costs nothing.
    pub const DRAM: Profile = Profile::new("dram", 0, 0, None);
    /// One Optane DIMM.
    pub const OPTANE: Profile = Profile::new("optane", 300, 100, Some(2_000_000_000));
    /// CXL memory with power-loss protection.
    pub const CXL: Profile = Profile::new("cxl", 200, 200, Some(30_000_000_000));
    /// SLM-DB's evaluation.
    pub const SLM: Profile = Profile::new("slm", 0, 500, None);
    /// TLSM's evaluation.
    pub const TLSM: Profile = Profile::new("tlsm", 100, 450, None);

    /// The named profiles.
    pub const ALL: [Profile; 5] = [Self::DRAM, Self::OPTANE, Self::CXL, Self::SLM, Self::TLSM];

    const fn new(name: &'static str, read_ns: u64, write_ns: u64, bandwidth: Option<u64>) -> Self {
        Profile { name, read_ns, write_ns, write_bytes_per_sec: bandwidth }
    }

    /// Whether it charges for anything.
    pub fn is_free(&self) -> bool {
        self.read_ns == 0 && self.write_ns == 0 && self.write_bytes_per_sec.is_none()
    }

    /// A profile by name, or figures such as `read=300,drain=100,bw=2G` (nanoseconds; bytes a second with an optional
    /// decimal `K`, `M` or `G`; omitted figures cost nothing).
    pub fn parse(text: &str) -> Result<Profile> {
        if let Some(named) = Self::ALL.iter().find(|p| p.name.eq_ignore_ascii_case(text.trim())) {
            return Ok(*named);
        }
        let mut profile = Profile::new("custom", 0, 0, None);
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(|| bad(text))?;
            let figure = figure(value.trim()).ok_or_else(|| bad(text))?;
            match key.trim() {
                "read" => profile.read_ns = figure,
                "drain" => profile.write_ns = figure,
                "bw" if figure > 0 => profile.write_bytes_per_sec = Some(figure),
                _ => return Err(bad(text)),
            }
        }
        Ok(profile)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (read {} ns, drain {} ns", self.name, self.read_ns, self.write_ns)?;
        match self.write_bytes_per_sec {
            Some(rate) => write!(f, ", {:.1} GB/s written)", rate as f64 / 1e9),
            None => write!(f, ")"),
        }
    }
}

fn figure(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().next_back()? {
        (at, 'k' | 'K') => (&text[..at], 1_000),
        (at, 'm' | 'M') => (&text[..at], 1_000_000),
        (at, 'g' | 'G') => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn bad(text: &str) -> Error {
    let names = Profile::ALL.map(|p| p.name).join(", ");
    Error::invalid(format!(
        "media profile {text:?}: expected one of {names}, or figures such as read=300,drain=100,bw=2G"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_figures_parse() {
        assert_eq!(Profile::parse("Optane").unwrap(), Profile::OPTANE);
        let custom = Profile::parse("read=300, drain=100,bw=2G").unwrap();
        assert_eq!(custom, Profile { name: "custom", ..Profile::OPTANE });
        assert_eq!(Profile::parse("drain=5").unwrap(), Profile::new("custom", 0, 5, None));
        assert!(Profile::DRAM.is_free() && !Profile::SLM.is_free());
    }

    #[test]
    fn nonsense_is_refused_with_the_names() {
        for text in
            ["", "fast", "read", "read=x", "bw=0", "speed=1", "read=99999999999999999999", "bw=G", "read=1é"]
        {
            let message = Profile::parse(text).unwrap_err().to_string();
            assert!(message.contains("optane"), "{message}");
        }
    }
}
