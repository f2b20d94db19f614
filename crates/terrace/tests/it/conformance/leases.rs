//! Transactions over entries that come to be due meanwhile.

use terrace::{Error, ErrorKind, Expiry, Isolation, TransactionKeyspace, TransactionOptions};

use super::expiry::{SECOND, begin, expiring};
use crate::harness::{Engine, assert_clean};

/// Must catch a transaction that goes on with a lease that has come to an end: of what it writes, also if only that is
/// compared.
pub fn a_lease_that_is_over_is_a_conflict(engine: &Engine) {
    let (_machine, clock, db) = begin(engine);
    let space = expiring(&db, "space", Expiry::ByEntry);
    type Look = fn(&TransactionKeyspace<'_>) -> bool;
    let gets: Look = |seen| seen.get("lease").unwrap().is_some();
    let gets_many: Look = |seen| seen.multi_get(["lease"]).unwrap()[0].is_some();
    let looks_for: Look = |seen| seen.contains_key("lease").unwrap();
    let looks = [gets, gets_many, looks_for].into_iter().enumerate();
    for (way, look) in looks {
        let cases = [(5, false), (10, false), (5, true)].into_iter();
        let isolations = [Isolation::Serializable, Isolation::Snapshot];
        for (isolation, (waits, renews)) in
            isolations.into_iter().flat_map(|i| cases.clone().map(move |c| (i, c)))
        {
            space.put_with_ttl("lease", "mine", 10 * SECOND).unwrap();
            let options = TransactionOptions { isolation, ..TransactionOptions::default() };
            let tx = db.transaction_with(options);
            let seen = tx.keyspace(&space).unwrap();
            assert!(look(&seen));
            seen.put_with_ttl("lease", "renewed", 10 * SECOND).unwrap();
            clock.advance(waits * SECOND);
            if renews {
                space.put_with_ttl("lease", "another's", 10 * SECOND).unwrap();
            }
            // Whoever has seen only that it exists is content with another's, unless what is written counts.
            let is_content = way == 2 && isolation == Isolation::Serializable;
            let is_kept = waits < 10 && (!renews || is_content);
            let outcome = tx.commit();
            assert_eq!(
                outcome.is_ok(),
                is_kept,
                "way {way}, {isolation:?}, {waits} s, {renews}: {outcome:?}"
            );
        }
    }
    assert_clean(&db);
}

/// Must catch a lease that two have at once, or that is not to be had again.
pub fn a_lease_is_had_by_one_at_a_time(engine: &Engine) {
    let (_machine, clock, db) = begin(engine);
    let space = expiring(&db, "space", Expiry::ByEntry);
    let take =
        |who: u8, seconds: u32| space.put_if_absent_with_ttl("lease", [who], seconds * SECOND).unwrap();
    for round in 0..20 {
        let had: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|who| scope.spawn(move || take(who, 10))).collect();
            threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
        });
        assert_eq!(had, 1, "round {round}");
        clock.advance(9 * SECOND);
        assert!(!take(4, 10), "who is refused makes it no longer");
        clock.advance(SECOND);
    }
    assert!(take(5, 0) && take(6, 1), "one for no time is over at once");
    assert_eq!(space.get("lease").unwrap().as_deref(), Some(&[6][..]));
    let refused = db.keyspace("plain").unwrap().put_if_absent_with_ttl("k", "v", SECOND).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert_clean(&db);
}

/// What a transaction has seen go is not there again for it.
pub fn what_a_transaction_saw_go_stays_gone(engine: &Engine) {
    let (_machine, clock, db) = begin(engine);
    let space = expiring(&db, "space", Expiry::ByEntry);
    space.put_with_ttl("k", "1", 10 * SECOND).unwrap();
    let tx = db.transaction();
    let seen = tx.keyspace(&space).unwrap();
    assert!(seen.contains_key("k").unwrap());
    clock.advance(10 * SECOND);
    for _ in 0..2 {
        assert_eq!(seen.get("k").unwrap(), None);
        assert_eq!(seen.multi_get(["k"]).unwrap(), [None]);
        assert!(!seen.contains_key("k").unwrap());
    }
    seen.put("other", "2").unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
}
