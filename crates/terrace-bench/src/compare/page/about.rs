//! The background of the figures: the machine, whole processes, settings, and how it was measured.

use std::fmt::Write as _;

use super::sections::section;
use super::{escape, number, table};
use crate::compare::contender::Contender;
use crate::compare::entrant::Entrant;
use crate::compare::results::{Results, Session};
use crate::compare::summary::Stat;
use crate::compare::view::View;

/// The title, the machine, and where the other machine's page is.
pub fn head(view: &View, others: &[View]) -> String {
    let results = &view.results;
    let m = &results.machine;
    let mut pm = String::new();
    if has_pm(results) {
        let (profile, place) = (escape(&results.pm_profile), escape(&m.pm));
        pm = format!(" · persistent memory emulated as <b>{profile}</b> on {place}");
    }
    let mut links = String::new();
    for other in others.iter().filter(|other| other.title != view.title) {
        let _ = write!(links, "<p><a href=\"{}\">{}</a></p>", other.file(), other.title);
    }
    let gib = m.memory_bytes as f64 / f64::from(1 << 30);
    format!(
        "<header><h1>Terrace and its peers: {}</h1><p class=\"soft\">Suite {}, {} on {} · {} cores, {gib:.0} GiB, Linux {} · files on {}{pm}</p>{links}</header>",
        view.title.to_lowercase(),
        escape(&results.suite),
        escape(&results.began),
        escape(&m.cpu),
        m.cores,
        escape(&m.kernel),
        escape(&m.ssd),
    )
}

fn has_pm(results: &Results) -> bool {
    results.entrants.iter().any(|name| Contender::entrant_of(name).is_ok_and(Entrant::is_on_pm))
}

/// Figures about whole processes: memory, processor time, bytes by the kernel's and the device's count, errors.
pub fn whole_sessions(results: &Results) -> String {
    let head = [
        "store",
        "script",
        "peak DRAM, MiB",
        "CPU, s",
        "SSD written, MiB",
        "WA of all",
        "device wrote, MiB",
        "SSD read, MiB",
        "open, ms",
        "close, ms",
    ];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    let mib = |bytes: f64| number(bytes / f64::from(1 << 20));
    for script in results.scripts.iter().filter(|s| !s.kill) {
        for name in &results.entrants {
            let of = |get: fn(&Session) -> f64| {
                Stat::of(results.sessions_of(&script.name, name).map(get)).map(|s| s.median)
            };
            let Some(peak) = of(|s| s.dram_peak_bytes as f64) else { continue };
            let text = |value: Option<f64>| value.map_or("–".to_string(), number);
            rows.push(vec![
                name.clone(),
                script.name.clone(),
                mib(peak),
                text(of(|s| s.total.cpu_seconds)),
                of(|s| s.total.written_bytes as f64).map_or("–".to_string(), mib),
                text(of(|s| s.total.written_bytes as f64 / s.user_bytes.max(1) as f64)),
                of(|s| s.total.device_written_bytes.unwrap_or(0) as f64).map_or("–".to_string(), mib),
                of(|s| s.total.read_bytes as f64).map_or("–".to_string(), mib),
                text(of(|s| s.open_seconds * 1e3)),
                text(of(|s| s.close_seconds * 1e3)),
            ]);
        }
    }
    let mut html = format!(
        "<details><summary>Memory, processor and bytes of whole processes</summary>{}</details>",
        table::plain(&rows)
    );
    let failures: Vec<&Session> = results.sessions.iter().filter(|s| s.error.is_some()).collect();
    if !failures.is_empty() {
        html.push_str("<p class=\"bad\">Not everything worked:</p><ul>");
        for s in failures {
            let error = s.error.as_deref().unwrap_or_default();
            let _ = write!(
                html,
                "<li>{} {} round {}: {}</li>",
                escape(&s.script),
                escape(&s.entrant),
                s.round + 1,
                escape(error)
            );
        }
        html.push_str("</ul>");
    }
    section("Whole processes", &html)
}

/// The settings that each store was opened with.
pub fn settings(results: &Results) -> String {
    let mut html =
        "<p class=\"soft\">As each store had them in the first script; equal where a store lets them be.</p>"
            .to_string();
    for (series, name) in results.entrants.iter().enumerate() {
        let Some(session) = results.sessions.iter().find(|s| s.entrant == *name && !s.settings.is_empty())
        else {
            continue;
        };
        let _ = write!(html, "<details><summary class=\"s{series}\">{}</summary><dl>", escape(name));
        for (what, value) in &session.settings {
            let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escape(what), escape(value));
        }
        html.push_str("</dl></details>");
    }
    section("Settings", &html)
}

/// How it was measured.
pub fn method(results: &Results) -> String {
    let m = &results.machine;
    let mut notes = vec![
        "Each store runs alone in a fresh process with a database of its own; rounds go through all stores before any is measured again. Figures are medians, whiskers and “spread” go from the least to the greatest.".to_string(),
        "Writes do not wait for the medium, except in the script “sync”: a write survives a crash of the process, not a power cut. redb loses its last transactions even when the process alone dies (see Settings).".to_string(),
        "WA counts the pages that the process dirtied on block devices and did not throw away (the kernel’s count); data still in memory at the end of a benchmark is not in it. Device counters include whatever else the machine wrote.".to_string(),
        "With bounded memory, process and page cache together stay below the bound. Caches are dropped between its benchmarks. LMDB has no cache but the page cache, so that only a bound limits it.".to_string(),
        "The benchmark knows of every key whether it had been written when it was read. A benchmark in which a read did not find what was there, or a range ended too early, has no figures: it is listed under “Not everything worked”.".to_string(),
        "“stalled” is time spent inside operations of more than 10 ms, by the benchmark’s clock, for every store alike.".to_string(),
        format!("Load averages: {} before, {} after: other work on the machine makes figures worse and spreads wider.", m.load_before, m.load_after),
        format!("The comparison took {:.0} minutes.", results.seconds / 60.0),
    ];
    notes.extend(results.notes.iter().cloned());
    notes.extend(has_pm(results).then_some(ON_PM).into_iter().flatten().map(|note| note.to_string()));
    let mut html = "<ul>".to_string();
    for note in notes {
        let _ = write!(html, "<li>{}</li>", escape(&note));
    }
    section("How it was measured", &(html + "</ul>"))
}

/// Notes about persistent memory.
const ON_PM: [&str; 2] = [
    "Persistent memory is emulated on tmpfs with the latency and bandwidth of the profile named above; it is no real medium, and not counted where memory is bounded. rocksdb-pm is RocksDB with its log directory there, written through the file system as it would be.",
    "Engines on persistent memory are power-safe at each write all the same; LMDB, RocksDB, LevelDB and fjall are not.",
];
