//! Options by name: which exist, their values, and why a value is refused. Opening uses the same table, so
//! that an option means and admits the same wherever it is set.

use std::ops::RangeInclusive;

use terrace_base::{Error, Result, size};
use terrace_table::TableOptions;

use super::pool::{POOLS, PoolChoice};

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;
pub(super) const TIB: u64 = 1 << 40;

/// A table may end with the largest possible value, and its blocks must still have positions.
pub(super) const TABLE_BYTES: RangeInclusive<u64> = KIB..=2 * GIB;
pub(super) const BLOCK_BYTES: RangeInclusive<u64> = 1..=TableOptions::MAX_BLOCK_BYTES as u64;
pub(super) const MEMTABLE_BYTES: RangeInclusive<u64> = 4 * KIB..=64 * GIB;
pub(super) const FILTER_BITS: RangeInclusive<u64> = 0..=64;
/// Numbers of tables, or of keys that are examined together.
pub(super) const MANY: RangeInclusive<u64> = 1..=1_000_000;

/// The options of one engine.
pub(super) trait EngineOptions: std::fmt::Debug {
    /// Each of them by its name.
    fn settings(&mut self) -> Vec<Setting<'_>>;

    /// What does not go together, in words.
    fn contradiction(&self) -> Option<&'static str> {
        None
    }
}

/// One option of an [`Options`](super::Options).
pub(super) struct Setting<'a> {
    /// Its name: its engine, a dot, and its field.
    pub name: &'static str,
    pub slot: Slot<'a>,
}

/// Where an option is kept, and its allowed values.
pub(super) enum Slot<'a> {
    Whole(&'a mut dyn Whole, RangeInclusive<u64>),
    OneOf(&'a mut dyn Whole, &'static [u64]),
    /// A number from the first to the second.
    Real(&'a mut f64, RangeInclusive<f64>),
    /// A number from 0 to just below 1.
    Share(&'a mut f64),
    Flag(&'a mut bool),
    OneNamed(&'a mut dyn AnyChoice),
    Pool(&'a mut PoolChoice),
}

/// A choice among a few, each of which has a name.
pub(crate) trait Choice {
    /// The names, in the order of their numbers.
    const NAMES: &'static [&'static str];

    /// The number of the current choice.
    fn number(&self) -> usize;

    /// Chooses by number, which must be that of a name.
    fn take(&mut self, number: usize);
}

/// A [`Choice`] of any kind.
pub(super) trait AnyChoice {
    fn names(&self) -> &'static [&'static str];
    fn name(&self) -> &'static str;
    /// Chooses by name; false if there is no such name.
    fn choose(&mut self, name: &str) -> bool;
}

impl<C: Choice> AnyChoice for C {
    fn names(&self) -> &'static [&'static str] {
        C::NAMES
    }

    fn name(&self) -> &'static str {
        C::NAMES[self.number()]
    }

    fn choose(&mut self, name: &str) -> bool {
        let found = C::NAMES.iter().position(|known| *known == name);
        found.map(|number| self.take(number)).is_some()
    }
}

/// Whole numbers of every width.
pub(super) trait Whole {
    fn get(&self) -> u64;
    /// Takes `value`, which is in the option's range; false if it does not fit.
    fn set(&mut self, value: u64) -> bool;
}

macro_rules! whole {
    ($($kind:ty),*) => {
        $(impl Whole for $kind {
            fn get(&self) -> u64 {
                *self as u64
            }

            fn set(&mut self, value: u64) -> bool {
                value.try_into().map(|value| *self = value).is_ok()
            }
        })*
    };
}

whole!(u32, u64, usize);

impl Slot<'_> {
    /// Whether the current value is allowed.
    fn is_admitted(&self) -> bool {
        match self {
            Slot::Whole(kept, range) => range.contains(&kept.get()),
            Slot::OneOf(kept, values) => values.contains(&kept.get()),
            Slot::Real(kept, range) => range.contains(kept),
            Slot::Share(kept) => (0.0..1.0).contains(&**kept),
            Slot::Flag(_) | Slot::OneNamed(_) | Slot::Pool(_) => true,
        }
    }

    /// Reads and keeps a value; false if it is not of the option's kind.
    fn read(&mut self, text: &str) -> bool {
        match self {
            Slot::Whole(kept, _) | Slot::OneOf(kept, _) => text.parse().is_ok_and(|value| kept.set(value)),
            Slot::Real(kept, _) | Slot::Share(kept) => text.parse().map(|value| **kept = value).is_ok(),
            Slot::Flag(kept) => text.parse().map(|value| **kept = value).is_ok(),
            Slot::OneNamed(kept) => kept.choose(text),
            Slot::Pool(kept) => PoolChoice::parse(text).map(|pool| **kept = pool).is_ok(),
        }
    }

    /// Whether values are numbers, true or false: others are quoted in files.
    pub fn is_bare(&self) -> bool {
        !matches!(self, Slot::OneNamed(_) | Slot::Pool(_))
    }

    /// Its allowed values, in words that follow "must be".
    pub fn range(&self) -> String {
        match self {
            Slot::Whole(_, range) => format!("{} to {}", told(*range.start()), told(*range.end())),
            Slot::OneOf(_, values) => {
                let values: Vec<String> = values.iter().map(u64::to_string).collect();
                format!("one of {}", values.join(", "))
            }
            Slot::Real(_, range) => format!("{} to {}", range.start(), range.end()),
            Slot::Share(_) => "at least 0 and less than 1".into(),
            Slot::Flag(_) => "true or false".into(),
            Slot::OneNamed(kept) => match kept.names() {
                [others @ .., last] => format!("{} or {last}", others.join(", ")),
                [] => String::new(),
            },
            Slot::Pool(_) => POOLS.into(),
        }
    }

    /// The current value, in the form in which it is given.
    pub fn shown(&self) -> String {
        match self {
            Slot::Whole(kept, _) | Slot::OneOf(kept, _) => kept.get().to_string(),
            Slot::Real(kept, _) | Slot::Share(kept) => kept.to_string(),
            Slot::Flag(kept) => kept.to_string(),
            Slot::OneNamed(kept) => kept.name().into(),
            Slot::Pool(kept) => kept.to_string(),
        }
    }
}

/// A number, with its size in words if it is a large power of two.
fn told(value: u64) -> String {
    let units = [("TiB", TIB), ("GiB", GIB), ("MiB", MIB)];
    match units.iter().find(|(_, unit)| value >= *unit && value.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{value} ({} {name})", value / unit),
        None => value.to_string(),
    }
}

impl Setting<'_> {
    /// Refuses the current value if it is out of range.
    pub fn check(&self) -> Result<()> {
        match self.slot.is_admitted() {
            true => Ok(()),
            false => {
                let (name, found, range) = (self.name, self.slot.shown(), self.slot.range());
                Err(Error::invalid(format!("{name} is {found}, and must be {range}")))
            }
        }
    }

    /// Sets a value given as text; a size may have a unit.
    pub fn set(&mut self, text: &str) -> Result<()> {
        let is_size = self.name.ends_with("_bytes") || self.name == "memory_budget";
        let has_unit = is_size && text.ends_with(|last: char| last.is_ascii_alphabetic());
        let bytes = if has_unit { size::parse(text).ok() } else { None };
        let is_read = self.slot.read(text) || bytes.is_some_and(|bytes| self.slot.read(&bytes.to_string()));
        if is_read && self.slot.is_admitted() {
            return Ok(());
        }
        Err(Error::invalid(format!("{} cannot be {text}: it must be {}", self.name, self.slot.range())))
    }
}
