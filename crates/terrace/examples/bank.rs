//! A bank: accounts, and transfers between them that are whole or do not happen.
//!
//! `cargo run --release --example bank [DIR]`: threads transfer money between random accounts, while another one audits
//! the bank again and again. The sum of all accounts never changes, no account is overdrawn, and each transfer is in
//! the journal. Run it again on the same DIR, or kill it in between: it begins with what it finds.

use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Db, Keyspace, Options, Result};

const ACCOUNTS: u64 = 100;
const DEPOSIT: u64 = 1_000;
const THREADS: u64 = 4;
const TRANSFERS: u32 = 2_000;

/// Accounts with their balances, and the journal of transfers.
struct Bank {
    db: Db,
    accounts: Keyspace,
    journal: Keyspace,
}

/// Why a transfer did not take place.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    NotEnough { has: u64 },
    NoAccount(u64),
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("numbers have eight bytes"))
}

impl Bank {
    fn open(dir: &std::path::Path) -> Result<Bank> {
        let db = Db::open(dir, Options::default())?;
        let bank =
            Bank { accounts: db.keyspace("accounts")?, journal: db.keyspace("journal")?, db: db.clone() };
        for account in 0..ACCOUNTS {
            bank.accounts.put_if_absent(account.to_be_bytes(), DEPOSIT.to_be_bytes())?;
        }
        Ok(bank)
    }

    /// Moves `amount`. A refusal is an answer, and no error: nothing is tried again for it.
    fn transfer(&self, from: u64, to: u64, amount: u64) -> Result<std::result::Result<(), Refusal>> {
        self.db.transact(|tx| {
            let (accounts, journal) = (tx.keyspace(&self.accounts)?, tx.keyspace(&self.journal)?);
            let Some(source) = accounts.get(from.to_be_bytes())? else {
                return Ok(Err(Refusal::NoAccount(from)));
            };
            let Some(target) = accounts.get(to.to_be_bytes())? else {
                return Ok(Err(Refusal::NoAccount(to)));
            };
            let (source, target) = (number(&source), number(&target));
            let Some(rest) = source.checked_sub(amount) else {
                return Ok(Err(Refusal::NotEnough { has: source }));
            };
            if from != to {
                accounts.put(from.to_be_bytes(), rest.to_be_bytes())?;
                accounts.put(to.to_be_bytes(), (target + amount).to_be_bytes())?;
            }
            // The last entry is read, so two transfers never take the same number.
            let last = journal.iter()?.next_back().transpose()?;
            let next = last.map_or(0, |(key, _)| number(&key) + 1);
            journal.put(next.to_be_bytes(), format!("{amount} from {from} to {to}"))?;
            Ok(Ok(()))
        })
    }

    /// The sum of all accounts at one moment, and how many transfers there were by then.
    fn audit(&self) -> Result<(u64, u64)> {
        let snapshot = self.db.snapshot();
        let mut sum = 0;
        for entry in snapshot.keyspace(&self.accounts)?.iter()? {
            sum += number(&entry?.1);
        }
        let last = snapshot.keyspace(&self.journal)?.iter()?.next_back().transpose()?;
        Ok((sum, last.map_or(0, |(key, _)| number(&key) + 1)))
    }
}

fn run(dir: &std::path::Path, transfers: u32) -> Result<()> {
    let bank = Bank::open(dir)?;
    let (_, before) = bank.audit()?;
    let stop = AtomicBool::new(false);
    let outcomes: Vec<Result<(u64, u64)>> = std::thread::scope(|scope| {
        let audits = scope.spawn(|| -> Result<u64> {
            let mut audits = 0;
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(bank.audit()?.0, ACCOUNTS * DEPOSIT, "money came or went");
                audits += 1;
            }
            Ok(audits)
        });
        let clerk = |thread: u64| -> Result<(u64, u64)> {
            let (mut rng, mut done, mut refused) =
                (fastrand::Rng::with_seed(before * THREADS + thread), 0, 0);
            for _ in 0..transfers {
                match bank.transfer(rng.u64(..ACCOUNTS), rng.u64(..ACCOUNTS), rng.u64(1..900))? {
                    Ok(()) => done += 1,
                    Err(_) => refused += 1,
                }
            }
            Ok((done, refused))
        };
        let clerks: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || clerk(thread))).collect();
        let outcomes = clerks.into_iter().map(|clerk| clerk.join().expect("no clerk panics")).collect();
        stop.store(true, Ordering::Relaxed);
        let audits = audits.join().expect("no audit panics");
        println!("audited {} times meanwhile", audits.unwrap_or(0));
        outcomes
    });
    let (mut done, mut refused) = (0, 0);
    for outcome in outcomes {
        let of_one = outcome?;
        (done, refused) = (done + of_one.0, refused + of_one.1);
    }
    let (sum, transfers) = bank.audit()?;
    println!("{done} transfers, {refused} refused, {transfers} in the journal, {sum} in all accounts");
    assert_eq!((sum, transfers), (ACCOUNTS * DEPOSIT, before + done));
    bank.db.close()
}

fn main() -> Result<()> {
    let made = std::env::temp_dir().join("terrace-bank");
    let dir = std::env::args_os().nth(1).map_or(made, Into::into);
    println!("the bank is in {}", dir.display());
    run(&dir, TRANSFERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Must catch transfers that come too late each time, and give up.
    #[test]
    fn no_money_comes_or_goes_over_two_lives() {
        let dir = tempfile::tempdir().unwrap();
        (0..2).for_each(|_| run(dir.path(), TRANSFERS).unwrap());
    }

    #[test]
    fn what_cannot_be_paid_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let bank = Bank::open(dir.path()).unwrap();
        assert_eq!(bank.transfer(1, 2, 1_001).unwrap(), Err(Refusal::NotEnough { has: 1_000 }));
        assert_eq!(bank.transfer(1, 999, 1).unwrap(), Err(Refusal::NoAccount(999)));
        bank.transfer(1, 2, 1_000).unwrap().unwrap();
        assert_eq!(bank.transfer(1, 2, 1).unwrap(), Err(Refusal::NotEnough { has: 0 }));
        assert_eq!(bank.audit().unwrap(), (ACCOUNTS * DEPOSIT, 1));
    }
}
