//! The evaluation of TLSM (section V of the paper) at the size of a small machine: half a gigabyte to two where the
//! paper has eight to twelve, write buffers as there.
//!
//! The rival is `lsm-nvm`, whose tables and log are files on the same medium, which they pay for. Its levels have the
//! shape of those of `tlsm`, which is LevelDB's.

use crate::compare::script::{MIB, Script};

/// Write buffers of 4 MiB, and LevelDB's cache of 8.
const MEMORY: u64 = 16 * MIB;
/// Bytes of the pool, more than lists ever take here.
const PM_BYTES: u64 = 8192 * MIB;
/// Sizes of data, in MiB.
const SIZES: [u64; 3] = [128, 256, 512];
/// The most bytes of lists in the tiering `lru`: two thirds of the largest database, as in the paper.
const LRU: &str = "tlsm+tiering=lru+list_bytes=357913941";
/// The same where the database is twice as large.
const LRU_1G: &str = "tlsm+tiering=lru+list_bytes=715827882";
const NONE: &str = "tlsm+tiering=none";
const LEVELED: &str = "tlsm+tiering=leveled";
const RIVAL: &str = "lsm-nvm";

/// Its scripts.
pub fn scripts() -> Vec<Script> {
    let mut all = Vec::new();
    let reads = "fillrandom,readrandom";
    for mib in SIZES {
        let of_size = |figure: &str, title: &str, value_size: usize, steps: &str, stores: &[&str]| {
            let script = base(&format!("{figure}-{mib}m"), title, mib, value_size, steps);
            script.at(figure, mib as f64).of(stores)
        };
        let methods = [RIVAL, "tlsm+tiering=none+design=ps", "tlsm+tiering=none+design=bac", NONE];
        all.push(of_size("methods", "the paper's steps, 100 B values", 100, reads, &methods));
        all.push(of_size(
            "tiering",
            "which runs are lists, 100 B values",
            100,
            reads,
            &[RIVAL, LEVELED, LRU, NONE],
        ));
        let writers = ["leveldb", "leveldb-nvm", "lsm", RIVAL, LEVELED, LRU, NONE];
        all.push(of_size(
            "writes",
            "what a load writes and waits for, 1 KB values",
            1000,
            "fillrandom",
            &writers,
        ));
        let levels = [1, 2, 3].map(|levels| format!("{LEVELED}+pm_levels={levels}"));
        let levels: Vec<&str> = levels.iter().map(String::as_str).collect();
        all.push(of_size("threshold", "how many levels are lists, 100 B values", 100, reads, &levels));
    }
    for bytes in [100, 200, 400, 800, 1600] {
        let script =
            base(&format!("small-{bytes}"), "small values, write buffers of 4 MiB", 512, bytes, reads);
        all.push(script.at("small", bytes as f64).of(&[RIVAL, NONE]));
    }
    for bytes in [1000, 2000, 4000, 8000, 16_000] {
        let script =
            base(&format!("large-{bytes}"), "large values, write buffers of 64 MiB", 2048, bytes, reads);
        let script = Script { memory: 256 * MIB, write_buffer: Some(64 * MIB), ..script };
        all.push(script.at("large", bytes as f64).of(&[RIVAL, NONE]));
    }
    let ycsb = base("ycsb", "YCSB, 1 KB values", 1024, 1000, "load,a,b,c,f,d,e");
    all.push(Script { seconds: 4.0, ..ycsb }.of(&[RIVAL, LEVELED, LRU_1G, NONE]));
    all
}

fn records(mib: u64, value_size: usize) -> u64 {
    mib * MIB / (16 + value_size as u64)
}

fn base(name: &str, title: &str, mib: u64, value_size: usize, steps: &str) -> Script {
    let shape = [("lsm.table_bytes", 2 * MIB), ("lsm.base_level_bytes", 10 * MIB)];
    Script {
        memory: MEMORY,
        write_buffer: Some(4 * MIB),
        pm_bytes: PM_BYTES,
        seconds: 3.0,
        options: shape.map(|(name, bytes)| (name.to_string(), bytes.to_string())).to_vec(),
        ..Script::new(name, title, records(mib, value_size), value_size, steps)
    }
}
