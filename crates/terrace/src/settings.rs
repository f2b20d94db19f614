//! Options by name: what may be set, to what, and what a value is refused for. Opening asks the same table, so that
//! an option means and admits the same wherever it is set.

use std::ops::RangeInclusive;

use terrace_base::{Error, Result};
use terrace_table::TableOptions;

use crate::options::{LogPlace, LsmOptions, Options, SlmOptions, SptreeOptions, TurboOptions};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// A table may end with the largest value there is, and its blocks must still have positions.
const TABLE_BYTES: RangeInclusive<u64> = KIB..=2 * GIB;
const BLOCK_BYTES: RangeInclusive<u64> = 1..=TableOptions::MAX_BLOCK_BYTES as u64;
const MEMTABLE_BYTES: RangeInclusive<u64> = 4 * KIB..=64 * GIB;
/// Numbers of tables, or of keys that are looked at together.
const MANY: RangeInclusive<u64> = 1..=1_000_000;

/// One option of an [`Options`].
struct Setting<'a> {
    /// What it is called: its engine, a dot, and its field.
    pub name: &'static str,
    slot: Slot<'a>,
}

/// Where an option is kept, and what it may be.
enum Slot<'a> {
    Whole(&'a mut dyn Whole, RangeInclusive<u64>),
    OneOf(&'a mut dyn Whole, &'static [u64]),
    /// A number from the first to the second.
    Real(&'a mut f64, RangeInclusive<f64>),
    /// A number from 0 to just below 1.
    Share(&'a mut f64),
    Flag(&'a mut bool),
    Place(&'a mut LogPlace),
}

/// Whole numbers of every width.
trait Whole {
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
    /// Whether what is kept may be so.
    fn is_admitted(&self) -> bool {
        match self {
            Slot::Whole(kept, range) => range.contains(&kept.get()),
            Slot::OneOf(kept, values) => values.contains(&kept.get()),
            Slot::Real(kept, range) => range.contains(kept),
            Slot::Share(kept) => (0.0..1.0).contains(&**kept),
            Slot::Flag(_) | Slot::Place(_) => true,
        }
    }

    /// Reads and keeps a value; false if it is none of the option's kind.
    fn read(&mut self, text: &str) -> bool {
        match self {
            Slot::Whole(kept, _) | Slot::OneOf(kept, _) => text.parse().is_ok_and(|value| kept.set(value)),
            Slot::Real(kept, _) | Slot::Share(kept) => text.parse().map(|value| **kept = value).is_ok(),
            Slot::Flag(kept) => text.parse().map(|value| **kept = value).is_ok(),
            Slot::Place(kept) => LogPlace::parse(text).map(|place| **kept = place).is_some(),
        }
    }

    /// What it may be, in words that follow "must be".
    fn range(&self) -> String {
        match self {
            Slot::Whole(_, range) => format!("{} to {}", size(*range.start()), size(*range.end())),
            Slot::OneOf(_, values) => {
                let values: Vec<String> = values.iter().map(u64::to_string).collect();
                format!("one of {}", values.join(", "))
            }
            Slot::Real(_, range) => format!("{} to {}", range.start(), range.end()),
            Slot::Share(_) => "at least 0 and less than 1".into(),
            Slot::Flag(_) => "true or false".into(),
            Slot::Place(_) => "auto, pm or ssd".into(),
        }
    }

    fn shown(&self) -> String {
        match self {
            Slot::Whole(kept, _) | Slot::OneOf(kept, _) => kept.get().to_string(),
            Slot::Real(kept, _) | Slot::Share(kept) => kept.to_string(),
            Slot::Flag(kept) => kept.to_string(),
            Slot::Place(kept) => format!("{kept:?}").to_lowercase(),
        }
    }
}

/// A number, with its size in words where it is a large power of two.
fn size(value: u64) -> String {
    let units = [("TiB", TIB), ("GiB", GIB), ("MiB", MIB)];
    match units.iter().find(|(_, unit)| value >= *unit && value.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{value} ({} {name})", value / unit),
        None => value.to_string(),
    }
}

impl Setting<'_> {
    /// Refuses what is kept if it is out of range.
    fn check(&self) -> Result<()> {
        match self.slot.is_admitted() {
            true => Ok(()),
            false => {
                let (name, found, range) = (self.name, self.slot.shown(), self.slot.range());
                Err(Error::invalid(format!("{name} is {found}, and must be {range}")))
            }
        }
    }

    fn set(&mut self, text: &str) -> Result<()> {
        if self.slot.read(text) && self.slot.is_admitted() {
            return Ok(());
        }
        Err(Error::invalid(format!("{} cannot be {text}: it must be {}", self.name, self.slot.range())))
    }
}

/// Every option that is a number or a choice by name.
fn settings(options: &mut Options) -> Vec<Setting<'_>> {
    let whole = |name, kept, range| Setting { name, slot: Slot::Whole(kept, range) };
    let mut all = vec![
        whole("memory_budget", &mut options.memory_budget, KIB..=16 * TIB),
        whole("pm_bytes", &mut options.pm_bytes, 64 * KIB..=16 * TIB),
        whole("background_threads", &mut options.background_threads, 1..=256),
        whole("pool_extent_bytes", &mut options.pool_extent_bytes, 4 * KIB..=64 * MIB),
    ];
    all.extend(slm(&mut options.slm));
    all.extend(lsm(&mut options.lsm));
    all.extend(turbo(&mut options.turbo));
    all.extend(sptree(&mut options.sptree));
    all
}

fn slm(options: &mut SlmOptions) -> [Setting<'_>; 10] {
    let set = |name, slot| Setting { name, slot };
    [
        set("slm.memtable_bytes", Slot::Whole(&mut options.memtable_bytes, MEMTABLE_BYTES)),
        set("slm.live_key_threshold", Slot::Share(&mut options.live_key_threshold)),
        set("slm.garbage_share", Slot::Share(&mut options.garbage_share)),
        set("slm.unasked_leaf_scans", Slot::Flag(&mut options.unasked_leaf_scans)),
        set("slm.leaf_scan_files", Slot::Whole(&mut options.leaf_scan_files, MANY)),
        set("slm.sequentiality_keys", Slot::Whole(&mut options.sequentiality_keys, MANY)),
        set("slm.sequentiality_files", Slot::Whole(&mut options.sequentiality_files, MANY)),
        set("slm.max_merge_files", Slot::Whole(&mut options.max_merge_files, 2..=10_000)),
        set("slm.table_bytes", Slot::Whole(&mut options.table_bytes, TABLE_BYTES)),
        set("slm.block_bytes", Slot::Whole(&mut options.block_bytes, BLOCK_BYTES)),
    ]
}

fn lsm(options: &mut LsmOptions) -> [Setting<'_>; 14] {
    let set = |name, slot| Setting { name, slot };
    [
        set("lsm.memtable_bytes", Slot::Whole(&mut options.memtable_bytes, MEMTABLE_BYTES)),
        // A log in the pool for each, and one more while a flush ends: there are roots for eight.
        set("lsm.memtables", Slot::Whole(&mut options.memtables, 2..=7)),
        set("lsm.log", Slot::Place(&mut options.log)),
        set("lsm.levels", Slot::Whole(&mut options.levels, 2..=16)),
        set("lsm.l0_tables", Slot::Whole(&mut options.l0_tables, MANY)),
        set("lsm.l0_slowdown_tables", Slot::Whole(&mut options.l0_slowdown_tables, MANY)),
        set("lsm.l0_stop_tables", Slot::Whole(&mut options.l0_stop_tables, MANY)),
        set("lsm.debt_slowdown_bytes", Slot::Whole(&mut options.debt_slowdown_bytes, 1..=1024 * TIB)),
        set("lsm.debt_stop_bytes", Slot::Whole(&mut options.debt_stop_bytes, 1..=1024 * TIB)),
        set("lsm.base_level_bytes", Slot::Whole(&mut options.base_level_bytes, KIB..=16 * TIB)),
        set("lsm.level_multiplier", Slot::Real(&mut options.level_multiplier, 2.0..=100.0)),
        set("lsm.table_bytes", Slot::Whole(&mut options.table_bytes, TABLE_BYTES)),
        set("lsm.block_bytes", Slot::Whole(&mut options.block_bytes, BLOCK_BYTES)),
        set("lsm.filter_bits_per_key", Slot::Whole(&mut options.filter_bits_per_key, 0..=64)),
    ]
}

fn turbo(options: &mut TurboOptions) -> [Setting<'_>; 3] {
    let set = |name, slot| Setting { name, slot };
    [
        set("turbo.shards", Slot::Whole(&mut options.shards, 2..=1 << 24)),
        set("turbo.initial_buckets", Slot::Whole(&mut options.initial_buckets, 1..=1 << 20)),
        set("turbo.probing_scope", Slot::Whole(&mut options.probing_scope, 1..=1 << 20)),
    ]
}

fn sptree(options: &mut SptreeOptions) -> [Setting<'_>; 4] {
    let set = |name, slot| Setting { name, slot };
    [
        set("sptree.buffered", Slot::Flag(&mut options.buffered)),
        set("sptree.filter_bits", Slot::OneOf(&mut options.filter_bits, &[1, 2, 4])),
        set("sptree.log_bytes", Slot::Whole(&mut options.log_bytes, 4 * KIB..=GIB)),
        set("sptree.leaf_entries", Slot::Whole(&mut options.leaf_entries, 4..=64)),
    ]
}

impl Options {
    /// Sets an option by name, such as `slm.block_bytes` to `4096`. Sizes are in bytes.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such option, with a list of those there are, or if it cannot have that value,
    /// with its range. What cannot work together is refused by opening.
    ///
    /// ```
    /// let mut options = terrace::Options::default();
    /// options.set("slm.block_bytes", "4096")?;
    /// assert_eq!(options.slm.block_bytes, 4096);
    /// assert!(options.set("slm.block_bites", "4096").is_err());
    /// # Ok::<(), terrace::Error>(())
    /// ```
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        set(self, name, value)
    }

    /// Refuses what cannot work, by name.
    pub(crate) fn validate(&self) -> Result<()> {
        validate(self)
    }
}

/// Sets the option called `name`.
fn set(options: &mut Options, name: &str, value: &str) -> Result<()> {
    let mut all = settings(options);
    if let Some(setting) = all.iter_mut().find(|setting| setting.name == name) {
        return setting.set(value);
    }
    // Of an engine that is named, its own; else everything.
    let engine = name.split_once('.').map(|(engine, _)| format!("{engine}."));
    let of_engine = |setting: &&Setting<'_>| engine.as_ref().is_some_and(|e| setting.name.starts_with(e));
    let mut names: Vec<&str> = all.iter().filter(of_engine).map(|setting| setting.name).collect();
    if names.is_empty() {
        names = all.iter().map(|setting| setting.name).collect();
    }
    Err(Error::invalid(format!("there is no option {name}; there are: {}", names.join(", "))))
}

/// Refuses values out of their ranges, and those that cannot work together.
fn validate(options: &Options) -> Result<()> {
    settings(&mut options.clone()).iter().try_for_each(Setting::check)?;
    let (slm, lsm) = (&options.slm, &options.lsm);
    let tables = [lsm.l0_tables, lsm.l0_slowdown_tables, lsm.l0_stop_tables];
    let together = [
        (options.pool_extent_bytes.is_power_of_two(), "pool_extent_bytes must be a power of two"),
        (
            options.pm_bytes >= 4 * slm.memtable_bytes.min(1 << 20),
            "pm_bytes must be at least 4 MiB, or four times a smaller slm.memtable_bytes",
        ),
        (
            tables.is_sorted() && tables[1] < tables[2],
            "lsm.l0_tables, l0_slowdown_tables and l0_stop_tables must ascend",
        ),
        (
            lsm.debt_slowdown_bytes < lsm.debt_stop_bytes,
            "lsm.debt_slowdown_bytes must be below lsm.debt_stop_bytes",
        ),
    ];
    match together.iter().find(|(ok, _)| !ok) {
        Some((_, message)) => Err(Error::invalid(*message)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<&'static str> {
        settings(&mut Options::default()).iter().map(|setting| setting.name).collect()
    }

    /// Sets one option of the defaults; whether it is taken, and whether opening would take it alone.
    fn tried(name: &str, value: &str) -> (Result<()>, Options) {
        let mut options = Options::default();
        let outcome = set(&mut options, name, value);
        (outcome, options)
    }

    #[test]
    fn every_option_is_in_the_table_and_the_defaults_are_admitted() {
        validate(&Options::default()).unwrap();
        // Every field of an engine's options by the name that `Debug` gives it.
        let shown = |text: String| -> Vec<String> {
            let fields = text.split_once('{').unwrap().1.trim_end_matches(" }").to_string();
            fields.split(", ").map(|field| field.split(':').next().unwrap().trim().to_string()).collect()
        };
        let options = Options::default();
        for (engine, fields) in [
            ("slm", shown(format!("{:?}", options.slm))),
            ("lsm", shown(format!("{:?}", options.lsm))),
            ("turbo", shown(format!("{:?}", options.turbo))),
            ("sptree", shown(format!("{:?}", options.sptree))),
        ] {
            for field in fields {
                let name = format!("{engine}.{field}");
                assert!(names().contains(&&*name), "{name} cannot be set");
            }
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_name_and_others_taken() {
        for name in names() {
            for value in ["0", "1", "4096", "18446744073709551615", "99999999999999999999", "-1", "many", ""]
            {
                let (outcome, options) = tried(name, value);
                match outcome {
                    // What was taken is in range: only what it has to go with may refuse it.
                    Ok(()) => {
                        let own = settings(&mut options.clone()).iter().try_for_each(Setting::check);
                        assert!(own.is_ok(), "{name}={value}: {own:?}");
                    }
                    Err(e) => {
                        let said = e.to_string();
                        assert!(said.contains(&format!("{name} cannot be {value}: it must be ")), "{said}");
                    }
                }
            }
            let absurd = ["18446744073709551615", "99999999999999999999", "-1", "many", "NaN", "inf"];
            assert!(absurd.iter().all(|value| tried(name, value).0.is_err()), "{name}");
        }
    }

    #[test]
    fn both_ends_of_every_range_are_taken_and_what_lies_outside_is_not() {
        for name in names() {
            let mut defaults = Options::default();
            let all = settings(&mut defaults);
            let setting = all.iter().find(|setting| setting.name == name).unwrap();
            let Slot::Whole(_, range) = &setting.slot else { continue };
            for end in [range.start(), range.end()] {
                tried(name, &end.to_string()).0.unwrap();
            }
            assert!(tried(name, &(range.end() + 1).to_string()).0.is_err(), "{name}");
            assert!(
                *range.start() == 0 || tried(name, &(range.start() - 1).to_string()).0.is_err(),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_set_past_the_table_is_found_by_opening() {
        let refused = |change: &dyn Fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            validate(&options).unwrap_err().to_string()
        };
        assert!(refused(&|o| o.memory_budget = 1).contains("memory_budget is 1, and must be 1024 to"));
        assert!(refused(&|o| o.slm.block_bytes = 99_999_999_999).contains("must be 1 to 67108864 (64 MiB)"));
        assert!(refused(&|o| o.slm.garbage_share = f64::NAN).contains("less than 1"));
        assert!(refused(&|o| o.sptree.filter_bits = 3).contains("one of 1, 2, 4"));
        assert!(refused(&|o| o.pool_extent_bytes = 5000).contains("power of two"));
        assert!(refused(&|o| o.lsm.l0_stop_tables = 20).contains("ascend"));
        assert!(refused(&|o| o.lsm.debt_stop_bytes = 1).contains("below"));
        assert!(refused(&|o| o.pm_bytes = 64 * KIB).contains("pm_bytes"));
    }

    #[test]
    fn strangers_are_told_what_there_is() {
        let said = tried("lsm.nothing", "1").0.unwrap_err().to_string();
        assert!(said.contains("lsm.memtable_bytes") && !said.contains("slm."), "{said}");
        let said = tried("nothing", "1").0.unwrap_err().to_string();
        assert!(said.contains("sptree.log_bytes") && said.contains("background_threads"), "{said}");
        let (outcome, options) = tried("lsm.log", "ssd");
        assert!(outcome.is_ok() && options.lsm.log == LogPlace::Ssd);
    }
}
