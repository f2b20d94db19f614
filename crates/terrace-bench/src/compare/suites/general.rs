//! The scripts of all stores: the suites quick and full.

use crate::compare::script::{MIB, Script};

const YCSB: &str = "load,readrandom,a,b,c,f,d,e";

pub fn quick() -> Vec<Script> {
    let mut scripts = vec![
        Script { rounds: 2, ..Script::new("1k", "1 KB values, one thread", 250_000, 1000, YCSB) },
        Script {
            threads: 2,
            rounds: 2,
            ..Script::new(
                "100b-2t",
                "100 B values, two threads",
                300_000,
                100,
                "fillrandom,readrandom,readmissing,a,c,e",
            )
        },
        Script::new("bounded", "memory a quarter of the data", 250_000, 1000, "load,readrandom,a,c")
            .bounded(4),
        cached(Script::new("cached", "", 250_000, 1000, "load,readrandom,c,e")),
        Script {
            kill: true,
            ..Script::new("reopen", "killed while it writes, opened again", 100_000, 1000, "load,overwrite")
        },
    ];
    scripts.extend(SYNCING.map(|threads| synced(2_000, threads)));
    scripts
}

pub fn full() -> Vec<Script> {
    let base = |name: &str, title: &str, records, value_size, steps: &str| Script {
        seconds: 2.0,
        memory: 128 * MIB,
        pm_bytes: 8192 * MIB,
        ..Script::new(name, title, records, value_size, steps)
    };
    let fills = "fillrandom,readrandom,readmissing,load,a,b,c,f,d,e";
    let two_threads = |script: Script| Script {
        name: format!("{}-2t", script.name),
        title: script.title.replace("one thread", "two threads"),
        threads: 2,
        ..script
    };
    let twice = |script: Script| Script { rounds: 2, ..script };
    let large = base("1k", "1 KB values, one thread", 600_000, 1000, fills);
    let small = base("100b", "100 B values, one thread", 1_500_000, 100, fills);
    let mut scripts = vec![
        twice(large.clone()),
        twice(small.clone()),
        two_threads(large),
        two_threads(small),
        base("16k", "16 KB values, one thread", 40_000, 16_000, "load,readrandom,a"),
        base("bounded", "memory a quarter of the data", 600_000, 1000, "load,readrandom,a,c,e").bounded(4),
        cached(base("cached", "", 600_000, 1000, "load,readrandom,a,b,c,d,e")),
        Script {
            pm_bytes: 512 * MIB,
            ..base("sustained", "random load of four times the PM", 2_000_000, 1000, "fillrandom,readrandom")
        },
        base("mixed", "values of 256 B and 4 KB", 300_000, 1000, "fillmixed,readrandom,updatemixed"),
        base("mixed-bytes", "as many bytes in 256 B as in 4 KB", 600_000, 1000, "fillmixedbytes,readrandom"),
        base("zipfian", "zipfian updates, then reads", 600_000, 1000, "load,updatezipfian,c"),
        base("burst", "a burst of writes, then reads", 600_000, 1000, "load,overwrite,readrandom"),
        base("series", "a series in time, the oldest deleted", 1_000_000, 200, "timeseries"),
        base("queue", "a queue: append, take the first", 20_000, 200, "queue"),
        twice(Script {
            kill: true,
            ..base("reopen", "killed while it writes, opened again", 500_000, 1000, "load,overwrite")
        }),
    ];
    scripts.extend(SYNCING.map(|threads| twice(synced(5_000, threads))));
    scripts
}

/// Threads that wait for the medium: alone, and so many that they share a wait.
const SYNCING: [usize; 3] = [1, 2, 8];

fn synced(records: u64, threads: usize) -> Script {
    let (name, beside) = match threads {
        1 => ("sync".into(), String::new()),
        _ => (format!("sync-{threads}t"), format!(", {threads} threads")),
    };
    let title = format!("1 KB values, every write safe from a power cut{beside}");
    Script { sync: true, threads, ..Script::new(&name, &title, records, 1000, "load,overwrite") }
}

/// `script` with so much memory that the cache, which gets half of it, has room for all of the data.
fn cached(script: Script) -> Script {
    Script { title: "a cache larger than the data".into(), memory: 3 * script.data_bytes(), ..script }
}
