//! The figures that a page of documentation shows, as Markdown tables.

use std::fmt::Write as _;

use super::{number, short, times};
use crate::compare::results::Results;
use crate::compare::script::Script;
use crate::compare::summary::{METRICS, Metric, Stat, THROUGHPUT, metric};
use crate::compare::view::View;

/// The machine, and the tables of each view.
pub fn tables(results: &Results, views: &[View]) -> String {
    let views = views.iter().map(|view| format!("\n## {}\n{}", view.title, of_view(&view.results)));
    machine(results) + &views.collect::<String>()
}

/// Throughput of every step, then tails, records found by reads, amplification, memory and reopening.
fn of_view(results: &Results) -> String {
    let mut text = fastest(results);
    let base = results.baseline();
    let _ = write!(text, "\nOperations a second, and as a multiple of {base}'s:\n\n");
    text.push_str(&by_step(
        results,
        |_, _| true,
        THROUGHPUT,
        |name, script, step, stat| {
            let ratio =
                results.ratio(script, name, step, base).map_or(String::new(), |r| format!(" ({})", times(r)));
            format!("{}{ratio}", short(stat.median))
        },
    ));
    for (name, title) in
        [("p99.9 µs", "p99.9 in microseconds"), ("max µs", "The longest operation, in microseconds")]
    {
        let Some(metric) = metric(name) else { continue };
        let _ = write!(text, "\n{title}:\n\n");
        text.push_str(&by_step(
            results,
            |_, step| is_told(step),
            metric,
            |_, _, _, stat| number(stat.median),
        ));
    }
    text.push_str(
        "\nPoint reads that found a record, in percent. Of each key it is known whether it had to be there: a\n\
         benchmark in which one was missing has no figures.\n\n",
    );
    if let Some(found) = metric("found %") {
        let reads = |script: &Script, step: &str| {
            results.entrants.iter().any(|name| results.stat(&script.name, name, step, found).is_some())
        };
        text.push_str(&by_step(results, reads, found, |_, _, _, stat| number(stat.median)));
    }
    for name in ["WA", "WA tables", "SA", "CPU µs/op", "DRAM MiB", "PM MiB"] {
        let Some(metric) = METRICS.iter().find(|m| m.name == name) else { continue };
        let _ = write!(text, "\n{name} ({}) of the first step:\n\n", metric.about);
        let first =
            |script: &Script, step: &str| results.step_names(&script.name).first().is_some_and(|s| s == step);
        text.push_str(&by_step(results, first, metric, |_, _, _, stat| number(stat.median)));
    }
    text + &reopenings(results)
}

/// The fastest engine of Terrace beside the fastest peer at each step, operations a second.
fn fastest(results: &Results) -> String {
    let names = ["the fastest of Terrace", "the fastest peer", "ratio"].map(str::to_string);
    let mut text = String::new();
    for script in results.scripts.iter().filter(|s| !s.kill) {
        for step in results.step_names(&script.name) {
            let best = |ours| results.fastest(&script.name, &step, ours);
            let (Some(ours), Some(theirs)) = (best(true), best(false)) else { continue };
            let ratio = ours.0 / theirs.0;
            // Steps that the peer wins are marked.
            let ratio = if ratio < 1.0 { format!("**{}**", times(ratio)) } else { times(ratio) };
            let cell = |best: (f64, &str)| format!("{} {}", best.1, short(best.0));
            let _ =
                writeln!(text, "| {} {step} | {} | {} | {ratio} |", script.name, cell(ours), cell(theirs));
        }
    }
    if text.is_empty() { text } else { format!("\n{}{text}", head("operations a second", &names)) }
}

/// Steps whose tails are shown: those that write, and one that only reads.
fn is_told(step: &str) -> bool {
    ["load", "fillrandom", "overwrite", "a", "c"].contains(&step)
}

fn machine(results: &Results) -> String {
    let m = &results.machine;
    format!(
        "Suite {}, {}; {} with {} cores and {} GiB, Linux {};\n\
         files on {}; persistent memory emulated as `{}` on {}.\n\
         Load averages {} before, {} after.\n",
        results.suite,
        results.began,
        m.cpu,
        m.cores,
        m.memory_bytes >> 30,
        m.kernel,
        m.ssd,
        results.pm_profile,
        m.pm,
        m.load_before,
        m.load_after
    )
}

fn by_step(
    results: &Results,
    shown: impl Fn(&Script, &str) -> bool,
    metric: &Metric,
    text: impl Fn(&str, &str, &str, Stat) -> String,
) -> String {
    let mut table = head("", &results.entrants);
    for script in results.scripts.iter().filter(|s| !s.kill) {
        for step in results.step_names(&script.name).iter().filter(|step| shown(script, step)) {
            let _ = write!(table, "| {} {step} |", script.name);
            for name in &results.entrants {
                let stat = results.stat(&script.name, name, step, metric);
                let cell = stat.map_or("–".to_string(), |stat| text(name, &script.name, step, stat));
                let _ = write!(table, " {cell} |");
            }
            table.push('\n');
        }
    }
    table
}

fn head(corner: &str, names: &[String]) -> String {
    format!("| {corner} | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()))
}

fn reopenings(results: &Results) -> String {
    let mut text = String::new();
    for script in results.scripts.iter().filter(|s| s.kill) {
        let of = |name: &str, what: fn(&crate::compare::results::Reopening) -> f64| {
            Stat::of(results.sessions_of(&script.name, name).filter_map(|s| s.reopening.as_ref()).map(what))
        };
        let _ = write!(text, "\nAfter SIGKILL while writing:\n\n{}", head("", &results.entrants));
        let mut row = |title: &str, what: fn(&crate::compare::results::Reopening) -> f64| {
            let cells =
                results.entrants.iter().map(|name| of(name, what).map_or("–".into(), |s| number(s.median)));
            let _ = writeln!(text, "| {title} | {} |", cells.collect::<Vec<String>>().join(" | "));
        };
        row("open again, ms", |r| r.open_seconds * 1e3);
        row("keys with acknowledged overwrites, all looked for", |r| r.kept.updated as f64);
        row("loaded keys looked for beside", |r| r.kept.filled as f64);
        row("of both, without their last acknowledged value", |r| r.kept.lost() as f64);
    }
    text
}
