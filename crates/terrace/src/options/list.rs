//! All options with their values, for people and as a file.

use std::fmt::Write as _;

use super::Options;
use super::settings::Setting;

/// One option: see [`Options::list`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionInfo {
    /// Its name, as [`Options::set`] takes it: one of an engine begins with the engine's name and a dot.
    pub name: &'static str,
    /// Its value, as [`Options::set`] takes it.
    pub value: String,
    /// Its value in `Options::default()`.
    pub default: String,
    /// The values that it may have, in words that follow "must be".
    pub allowed: String,
    /// Whether its values are numbers, true or false, which files hold without quotes.
    is_bare: bool,
}

impl Options {
    /// Every option: those of the store, then those of each engine.
    ///
    /// ```
    /// let options = terrace::Options::default().list();
    /// let blocks = options.iter().find(|option| option.name == "slm.block_bytes").unwrap();
    /// assert_eq!((&*blocks.value, &*blocks.allowed), ("1024", "1 to 67108864 (64 MiB)"));
    /// ```
    pub fn list(&self) -> Vec<OptionInfo> {
        let (mut now, mut usual) = (self.clone(), Options::default());
        let both = now.settings().into_iter().zip(usual.settings());
        both.map(|(now, usual): (Setting<'_>, Setting<'_>)| OptionInfo {
            name: now.name,
            value: now.slot.shown(),
            default: usual.slot.shown(),
            allowed: now.slot.range(),
            is_bare: now.slot.is_bare(),
        })
        .collect()
    }
}

impl OptionInfo {
    /// The engine that has the option; `None` for one of the store.
    pub fn engine(&self) -> Option<&'static str> {
        self.name.split_once('.').map(|(engine, _)| engine)
    }

    /// The options as a TOML file, from which [`Options::set_toml`] reads them again: each under a comment that says
    /// what it may be.
    ///
    /// ```
    /// use terrace::{OptionInfo, Options};
    ///
    /// let mut options = Options::default();
    /// options.set("lsm.memtables", "4")?;
    /// let file = OptionInfo::to_toml(&options.list());
    /// let mut read = Options::default();
    /// read.set_toml(&file)?;
    /// assert_eq!(read.list(), options.list());
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn to_toml(options: &[OptionInfo]) -> String {
        let (mut text, mut table) = (String::new(), None);
        for option in options {
            if option.engine() != table {
                table = option.engine();
                let _ = writeln!(text, "\n[{}]", table.unwrap_or_default());
            }
            let field = option.name.rsplit('.').next().unwrap_or(option.name);
            let value = if option.is_bare { option.value.clone() } else { quoted(&option.value) };
            let _ = writeln!(text, "# {}\n{field} = {value}", option.allowed);
        }
        text
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
