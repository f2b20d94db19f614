//! The output of `terrace stat --json`: numbers are bytes unless they are counts, and every part is there with every
//! engine.

use serde_json::{Value, json};
use terrace::{Latency, Stats};

use crate::failure::{CommandResult, Failure};

/// The statistics for a program.
pub(super) fn render(stats: &Stats) -> CommandResult<String> {
    let value = json!({
        "engine": stats.engine,
        "media": stats.media,
        "durability": stats.durability,
        "log": stats.log,
        "table_reads": stats.table_reads,
        "emulated": stats.emulated,
        "opened": stats.opened,
        "failure": stats.failure,
        "dram": dram_json(stats),
        "pm": pm_json(stats),
        "ssd": ssd_json(stats),
        "scrub": scrub_json(stats),
        "buckets": buckets_json(stats),
        "values": values_json(stats),
        "hints": hints_json(stats),
        "lists": lists_json(stats),
        "slots": slots_json(stats),
        "counts": counts_json(stats),
        "keyspaces": keyspaces_json(stats),
        "latencies": {
            "gets": latency_json(&stats.latencies.gets),
            "puts": latency_json(&stats.latencies.puts),
            "syncs": latency_json(&stats.latencies.syncs),
            "stalls": latency_json(&stats.latencies.stalls),
        },
    });
    let text = serde_json::to_string_pretty(&value);
    text.map(|t| t + "\n").map_err(|e| Failure::error(format!("cannot write the statistics: {e}")))
}

fn keyspaces_json(stats: &Stats) -> Value {
    let figures = stats.keyspaces.iter().map(|(name, of)| {
        let figures = json!({
            "puts": of.puts,
            "deletes": of.deletes,
            "gets": of.gets,
            "user_bytes": of.user_bytes,
        });
        (name.clone(), figures)
    });
    Value::Object(figures.collect())
}

fn dram_json(stats: &Stats) -> Value {
    let dram = &stats.dram;
    json!({
        "budget": dram.budget,
        "total": dram.total(),
        "block_cache": dram.block_cache,
        "tables": dram.tables,
        "memtables": dram.memtables,
        "index": dram.index,
        "allocator": dram.allocator,
        "jobs": dram.jobs,
        "resident": dram.resident,
        "cache_hits": dram.cache_hits,
        "cache_misses": dram.cache_misses,
    })
}

fn pm_json(stats: &Stats) -> Value {
    let (pm, traffic) = (&stats.pm, &stats.pm.traffic);
    json!({
        "is_memory": pm.is_memory,
        "size": pm.size,
        "max_size": pm.max_size,
        "used": pm.used,
        "memtables": pm.memtables,
        "index": pm.index,
        "chains": pm.chains,
        "bytes_written": traffic.xpline_bytes(),
        "bytes_flushed": traffic.bytes_flushed,
        "flushes": traffic.flushes,
        "drains": traffic.drains,
        "publishes": traffic.publishes,
        "write_amplification": stats.pm_write_amplification(),
    })
}

fn ssd_json(stats: &Stats) -> Value {
    let ssd = &stats.ssd;
    json!({
        "tables": ssd.tables,
        "bytes": ssd.table_bytes,
        "entries": ssd.table_entries,
        "live_entries": ssd.live_entries,
        "bytes_written": ssd.bytes_written,
        "open_tables": ssd.open_tables,
        "mapped_tables": ssd.mapped_tables,
        "mapped_bytes": ssd.mapped_bytes,
        "mapped_resident": ssd.mapped_resident,
        "failed_maps": ssd.failed_maps,
        "obsolete_files": ssd.obsolete_files,
        "bytes_read": ssd.bytes_read,
        "reads": ssd.reads,
        "syncs": ssd.syncs,
        "write_amplification": stats.ssd_write_amplification(),
        "space_amplification": stats.ssd_space_amplification(),
    })
}

fn scrub_json(stats: &Stats) -> Value {
    let scrub = &stats.scrub;
    json!({
        "passes": scrub.passes,
        "tables": scrub.tables,
        "bytes": scrub.bytes,
        "damaged": scrub.damaged,
        "unread": scrub.unread,
        "last_pass_unix_seconds": scrub.last_pass.map(|at| at.as_secs()),
    })
}

fn buckets_json(stats: &Stats) -> Value {
    let buckets = &stats.buckets;
    json!({
        "buckets": buckets.buckets,
        "most_sublevels": buckets.most_sublevels,
        "splits": buckets.splits,
        "joins": buckets.joins,
        "log_bytes": buckets.log_bytes,
        "log_held_by": buckets.log_held_by,
    })
}

fn values_json(stats: &Stats) -> Value {
    let values = &stats.values;
    json!({
        "keys": values.keys,
        "bytes": values.bytes,
        "bound": values.bound,
        "admitted": values.admitted,
        "updated": values.updated,
        "evicted": values.evicted,
    })
}

fn hints_json(stats: &Stats) -> Value {
    let hints = &stats.hints;
    json!({
        "keys": hints.keys,
        "bytes": hints.bytes,
        "bound": hints.bound,
        "stale_bytes": hints.stale_bytes,
        "outdated": hints.outdated,
        "passed_blocks": hints.passed_blocks,
    })
}

fn lists_json(stats: &Stats) -> Value {
    let lists = &stats.lists;
    json!({
        "lists": lists.lists,
        "entries": lists.entries,
        "bytes": lists.bytes,
        "live_bytes": lists.live_bytes,
        "bound": lists.bound,
        "evicted": lists.evicted,
        "emptied": lists.emptied,
        "resumed": lists.resumed,
        "copied_bytes": lists.copied_bytes,
    })
}

fn slots_json(stats: &Stats) -> Value {
    let split = &stats.split;
    json!({
        "items": split.items,
        "item_bytes": split.item_bytes,
        "retired_bytes": split.retired_bytes,
        "held_bytes": split.held_bytes,
        "free_bytes": split.free_bytes,
        "file_bytes": split.file_bytes,
        "submissions": split.submissions,
        "submitted": split.submitted,
        "device_syncs": split.device_syncs,
        "migrated": split.migrated,
        "migrated_bytes": split.migrated_bytes,
        "dead_bytes": split.dead_bytes,
    })
}

/// Times in nanoseconds.
fn latency_json(latency: &Latency) -> Value {
    let nanos = |duration: std::time::Duration| duration.as_nanos() as u64;
    json!({
        "timed": latency.timed,
        "mean": nanos(latency.mean),
        "median": nanos(latency.median),
        "p90": nanos(latency.p90),
        "p99": nanos(latency.p99),
        "p999": nanos(latency.p999),
        "longest": nanos(latency.longest),
    })
}

fn counts_json(stats: &Stats) -> Value {
    let counts = &stats.counts;
    json!({
        "index_keys": counts.index_keys,
        "puts": counts.puts,
        "deletes": counts.deletes,
        "range_deletes": counts.range_deletes,
        "gets": counts.gets,
        "iterators": counts.iterators,
        "user_bytes": counts.user_bytes,
        "commit_groups": counts.commit_groups,
        "committed_batches": counts.committed_batches,
        "conflicts": counts.conflicts,
        "flushes": counts.flushes,
        "compactions": counts.compactions,
        "tables_written": counts.tables_written,
        "level_bytes": counts.level_bytes,
        "flush_bytes": counts.flush_bytes,
        "compaction_bytes": counts.compaction_bytes,
        "stalls": counts.stalls,
        "stall_nanos": counts.stall_nanos,
        "background_errors": counts.background_errors,
        "snapshots": counts.snapshots,
    })
}
