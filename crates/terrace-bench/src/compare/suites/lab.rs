//! Skewed updates with less memory than data, LAB-DB's purpose.
//!
//! Process and page cache together have a quarter of the data. Half a percent of the data, which the value tree may
//! take, is five write buffers: so they are small, and the same for all. All have their log on persistent memory.

use crate::compare::script::{MIB, Script};

const STORES: [&str; 5] = ["lab+trees=none", "lab+trees=values", "lab+trees=both", "lsm-pm", "rocksdb-pm"];

/// Its scripts.
pub fn scripts() -> Vec<Script> {
    let base = |name: &str, title: &str, records: u64, steps: &str| {
        let script = Script::new(name, title, records, 1000, steps).bounded(4);
        let write_buffer = Some(script.data_bytes() / 1000);
        Script { seconds: 8.0, rounds: 3, pm_bytes: 512 * MIB, write_buffer, ..script }
    };
    vec![
        base("ycsb", "YCSB, 1 KB values, memory a quarter of the data", 1_000_000, "load,a,f,b,c,d,e")
            .of(&STORES),
        base("uniform", "updates of any key alike, 1 KB values", 1_000_000, "load,overwrite,readrandom")
            .of(&STORES),
        base("ycsb-12g", "YCSB, 12 GB of 1 KB values", 12_000_000, "load,a,f").of(&STORES[2..]),
    ]
}
