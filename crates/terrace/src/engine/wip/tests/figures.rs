//! What an operator is told: sublevels, who holds the log back, and what an opening read back.

use super::*;
use crate::stats::Stats;

fn figures(wip: &Wip) -> Stats {
    let mut stats = Stats::default();
    wip.fill_stats(&mut stats);
    stats
}

#[test]
fn sublevels_are_counted_where_most_lie() {
    let world = world();
    let wip = open(&world);
    split(&wip, b"m");
    for round in 0..3u8 {
        put(&wip, b"a", &[round]);
        put(&wip, b"c", &[round]);
        flush(&wip);
    }
    put(&wip, b"n", b"1");
    flush(&wip);
    assert_eq!(figures(&wip).buckets.most_sublevels, 3);
    wip.compact(Bound::Unbounded, Bound::Unbounded).unwrap();
    assert_eq!(figures(&wip).buckets.most_sublevels, 1);
}

#[test]
fn who_holds_the_log_back_is_named() {
    let world = world();
    let wip = open(&world);
    split(&wip, b"m");
    put(&wip, b"n", b"1");
    assert_eq!(figures(&wip).buckets.log_held_by, r#"1 bucket from "m""#);
    put(&wip, b"a", b"1");
    assert_eq!(figures(&wip).buckets.log_held_by, r#"2 buckets, the first from """#);
    wip.rotate_log().unwrap();
    put(&wip, b"b", b"1");
    wip.freeze(&[bucket(&wip, b"a")]);
    wip.wait_until_flushed().unwrap();
    assert_eq!(figures(&wip).buckets.log_held_by, r#"1 bucket from "m""#);
    flush(&wip);
    assert_eq!(figures(&wip).buckets.log_held_by, "", "all is in tables");
}

#[test]
fn an_opening_says_what_it_read_back() {
    let world = world();
    let wip = open(&world);
    (0..100u8).for_each(|i| put(&wip, &[i], b"v"));
    let world = world.kill();
    let wip = open(&world);
    let said = figures(&wip).opened;
    assert!(said.contains("replayed 100 groups"), "{said}");
    flush(&wip);
    drop(wip);
    let said = figures(&open(&world.kill())).opened;
    assert!(said.contains("replayed 0 groups"), "{said}");
}
