//! What a database tells of itself, and the options that it is given by name.

use terrace::{OptionInfo, Options};

use crate::harness::{Engine, Machine, setups};

/// Options written to a file and read back open the same database.
pub fn options_from_a_file_open_it(engine: &Engine) {
    for setup in setups(engine) {
        let machine = Machine::new(&setup);
        let written = OptionInfo::to_toml(&machine.options().list());
        let mut read = Options::default();
        read.set_toml(&written).unwrap();
        assert_eq!(read.list(), machine.options().list(), "under {}", setup.name);
        let db = machine.open_with(read.clone()).unwrap();
        assert_eq!(db.stats().engine, engine.kind.name());
        db.put("key", "value").unwrap();
        db.close().unwrap();
        drop(db);
        assert_eq!(machine.open().unwrap().get("key").unwrap().as_deref(), Some(&b"value"[..]));
    }
}
