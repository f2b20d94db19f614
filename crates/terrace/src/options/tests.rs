use super::*;

fn names() -> Vec<&'static str> {
    Options::default().settings().iter().map(|setting| setting.name).collect()
}

/// Sets one option of the defaults; returns whether it is accepted, and whether opening would accept it
/// alone.
fn tried(name: &str, value: &str) -> (Result<()>, Options) {
    let mut options = Options::default();
    let outcome = options.set(name, value);
    (outcome, options)
}

#[test]
fn every_option_is_in_the_table_and_the_defaults_are_admitted() {
    Options::default().validate().unwrap();
    // Every field of an engine's options by the name that `Debug` gives it.
    let shown = |text: String| -> Vec<String> {
        let fields = text.split_once('{').unwrap().1.replace("levels: LsmOptions {", "").replace(" }", "");
        fields.split(", ").map(|field| field.split(':').next().unwrap().trim().to_string()).collect()
    };
    let mut options = Options::default();
    for engine in options.of_engines() {
        let prefix = engine.settings()[0].name.split_once('.').unwrap().0.to_string();
        let mut fields = shown(format!("{engine:?}"));
        // Their logs lie on persistent memory, and that is no option.
        fields.retain(|field| field != "log" || prefix == "lsm");
        for field in fields {
            let name = format!("{prefix}.{field}");
            assert!(names().contains(&&*name), "{name} cannot be set");
        }
    }
    for engine in EngineKind::ALL {
        let prefix = format!("{}.", engine.name());
        assert!(names().iter().any(|name| name.starts_with(&prefix)), "no option of {engine:?} can be set");
    }
}

#[test]
fn values_out_of_range_are_refused_by_name_and_others_taken() {
    for name in names() {
        for value in ["0", "1", "4096", "18446744073709551615", "99999999999999999999", "-1", "many", ""] {
            let (outcome, options) = tried(name, value);
            match outcome {
                // An accepted value is in range: only a conflict with other options may refuse it.
                Ok(()) => {
                    let own = options.clone().settings().iter().try_for_each(Setting::check);
                    assert!(own.is_ok(), "{name}={value}: {own:?}");
                }
                Err(e) => {
                    let said = e.to_string();
                    assert!(said.contains(&format!("{name} cannot be {value}: it must be ")), "{said}");
                }
            }
        }
        if name == "pool" {
            // A path may have any name.
            continue;
        }
        let absurd = ["18446744073709551615", "99999999999999999999", "-1", "many", "NaN", "inf"];
        assert!(absurd.iter().all(|value| tried(name, value).0.is_err()), "{name}");
    }
}

#[test]
fn both_ends_of_every_range_are_taken_and_what_lies_outside_is_not() {
    for name in names() {
        let mut defaults = Options::default();
        let all = defaults.settings();
        let setting = all.iter().find(|setting| setting.name == name).unwrap();
        let Slot::Whole(_, range) = &setting.slot else { continue };
        for end in [range.start(), range.end()] {
            tried(name, &end.to_string()).0.unwrap();
        }
        assert!(tried(name, &(range.end() + 1).to_string()).0.is_err(), "{name}");
        assert!(*range.start() == 0 || tried(name, &(range.start() - 1).to_string()).0.is_err(), "{name}");
    }
}

#[test]
fn what_is_set_past_the_table_is_found_by_opening() {
    let refused = |change: &dyn Fn(&mut Options)| {
        let mut options = Options::default();
        change(&mut options);
        options.validate().unwrap_err().to_string()
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

/// Must catch a pool that is refused in terms of another engine's options.
#[test]
fn a_pool_that_is_too_small_is_refused_in_the_engine_s_own_terms() {
    for &engine in EngineKind::ALL {
        let mut options = Options { engine, pm_bytes: 2 * MIB, ..Options::default() };
        let said = options.validate().unwrap_err().to_string();
        assert!(said.contains("pm_bytes"), "{said}");
        let mut engines = said.split_whitespace().filter_map(|word| Some(word.split_once('.')?.0));
        assert!(engines.all(|other| other == engine.name()), "{engine:?}: {said}");
        // What it is told to make smaller helps.
        let option = said.split_whitespace().last().unwrap().to_string();
        options.set(&option, "16384").unwrap();
        options.validate().unwrap();
        assert!(Options { pm_bytes: 4 * MIB, ..options }.validate().is_ok());
    }
}

#[test]
fn sizes_have_units_and_numbers_have_none() {
    let (outcome, options) = tried("slm.block_bytes", "4KiB");
    assert!(outcome.is_ok() && options.slm.block_bytes == 4096);
    let (outcome, options) = tried("memory_budget", "1.5 GiB");
    assert!(outcome.is_ok() && options.memory_budget == 3 << 29);
    for (name, value) in [("slm.max_merge_files", "4KiB"), ("slm.block_bytes", "4 miles"), ("sync", "1KiB")] {
        assert!(tried(name, value).0.unwrap_err().to_string().contains(&format!("{name} cannot be {value}")));
    }
}

/// Every option of the store, by the name of its field.
#[test]
fn the_store_s_own_options_are_listed_and_written_as_they_are_read() {
    let list = Options::default().list();
    let own: Vec<&str> = list.iter().filter(|o| o.engine().is_none()).map(|option| option.name).collect();
    let shown = format!("{:?}", Options::default());
    // Fields of `Options` stand at the top of its text, one level deep.
    let mut depth = 0;
    let top: String = shown
        .chars()
        .filter(|c| {
            depth += i32::from(*c == '{') - i32::from(*c == '}');
            depth == 1
        })
        .collect();
    let fields = top.trim_start_matches('{').split(", ").map(|field| field.split(':').next().unwrap().trim());
    // What has no value as text is no option by name.
    let is_named = |field: &&str| {
        EngineKind::parse(field).is_err() && !["listeners", "compaction_filter"].contains(field)
    };
    let fields: Vec<&str> = fields.filter(is_named).collect();
    assert_eq!(own, fields);
    assert!(list.iter().all(|option| option.value == option.default));
    let mut changed = Options::default();
    changed.set("pool", "/tmp/a \\ \" b").unwrap();
    changed.set("engine", "wip").unwrap();
    let mut read = Options::default();
    read.set_toml(&OptionInfo::to_toml(&changed.list())).unwrap();
    assert_eq!(read.list(), changed.list());
}

#[test]
fn strangers_are_told_what_there_is() {
    let said = tried("lsm.nothing", "1").0.unwrap_err().to_string();
    assert!(said.contains("lsm.memtable_bytes") && !said.contains("slm."), "{said}");
    let said = tried("nothing", "1").0.unwrap_err().to_string();
    assert!(said.contains("sptree.log_bytes") && said.contains("background_threads"), "{said}");
    let told = |name: &str| tried(name, "1").0.unwrap_err().to_string();
    assert!(
        told("slm.memtable_byte").contains("no option slm.memtable_byte, but slm.memtable_bytes; there are")
    );
    assert!(told("memory_buget").contains("memory_buget, but memory_budget;"));
    let strangers =
        [&"x".repeat(1 << 20), "", ".", "lsm.", "slm.block_bytes.slm.block_bytes", "quite_another"];
    assert!(strangers.into_iter().all(|name| !told(name).contains(", but ")));
    let (outcome, options) = tried("lsm.log", "ssd");
    assert!(outcome.is_ok() && options.lsm.log == LogPlace::Ssd);
}

#[test]
fn an_engine_s_own_options_are_told_as_they_are_set() {
    for &engine in EngineKind::ALL {
        let options = Options { engine, ..Options::default() };
        let own = options.of_engine();
        let has = |name: &str| own.iter().any(|(own, _)| *own == format!("{}.{name}", engine.name()));
        assert_eq!(has("memtable_bytes"), engine.buffer_place() != BufferPlace::None, "{engine:?}");
        for (name, value) in &own {
            options.clone().set(name, value).unwrap();
        }
    }
}
