//! A time series: measurements by series and time, sums by the hour, and an end to what is old.
//!
//! `cargo run --release --example time_series [DIR]`: some sensors write a measurement a second for a week of their
//! own time. Each batch has the measurements and the sums by the hour that they change, so neither is ever without the
//! other. Measurements are kept for a day, the sums for good: once an hour what is older is deleted as a range.

use std::path::Path;

use terrace::{Db, Keyspace, Options, Result, WriteBatch};

const SENSORS: [&str; 3] = ["kitchen", "cellar", "roof"];
const HOUR: u64 = 3600;
const KEPT: u64 = 24 * HOUR;

/// Measurements of an hour, summed up.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Hour {
    count: u64,
    sum: f64,
    least: f64,
    most: f64,
}

struct Series {
    db: Db,
    measured: Keyspace,
    hours: Keyspace,
}

/// A series and a time, in the order of the times.
fn key(series: &str, time: u64) -> Vec<u8> {
    [series.as_bytes(), &[0], &time.to_be_bytes()].concat()
}

fn time_of(key: &[u8]) -> u64 {
    let bytes = key.last_chunk().expect("a key ends with a time");
    u64::from_be_bytes(*bytes)
}

impl Hour {
    fn of(value: f64) -> Hour {
        Hour { count: 1, sum: value, least: value, most: value }
    }

    fn and(self, other: Hour) -> Hour {
        Hour {
            count: self.count + other.count,
            sum: self.sum + other.sum,
            least: self.least.min(other.least),
            most: self.most.max(other.most),
        }
    }

    fn encode(self) -> Vec<u8> {
        let numbers = [self.sum, self.least, self.most].map(f64::to_le_bytes).concat();
        [&self.count.to_le_bytes()[..], &numbers].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Hour> {
        let ([count, sum, least, most], []) = bytes.as_chunks::<8>() else { return None };
        let number = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes);
        let count = u64::from_le_bytes(*count);
        Some(Hour { count, sum: number(sum), least: number(least), most: number(most) })
    }
}

impl Series {
    fn open(dir: &Path) -> Result<Series> {
        let db = Db::open(dir, Options::default())?;
        Ok(Series { measured: db.keyspace("measured")?, hours: db.keyspace("hours")?, db })
    }

    /// Adds measurements of one series that lie in one hour.
    fn add(&self, series: &str, measured: &[(u64, f64)]) -> Result<()> {
        let Some(&(first, _)) = measured.first() else { return Ok(()) };
        let mut batch = WriteBatch::new();
        for (time, value) in measured {
            batch.put_in(&self.measured, key(series, *time), value.to_le_bytes());
        }
        let hour = key(series, first - first % HOUR);
        let known = self.hours.get(&hour)?.as_deref().and_then(Hour::decode);
        let new = measured.iter().map(|(_, value)| Hour::of(*value));
        if let Some(sum) = known.into_iter().chain(new).reduce(Hour::and) {
            batch.put_in(&self.hours, hour, sum.encode());
        }
        self.db.write(batch)
    }

    /// Deletes measurements that are older than `time`: one deletion of a range for each series, all at once.
    fn forget_before(&self, time: u64) -> Result<()> {
        let mut batch = WriteBatch::new();
        for series in SENSORS {
            batch.delete_range_in(&self.measured, key(series, 0)..key(series, time));
        }
        self.db.write(batch)
    }

    /// The measurements of a series from `from` on and before `to`.
    fn between(&self, series: &str, from: u64, to: u64) -> Result<Vec<(u64, f64)>> {
        let found = self.measured.range(key(series, from)..key(series, to))?.map(|entry| {
            let (key, value) = entry?;
            let value = (&value[..]).try_into().map_or(f64::NAN, f64::from_le_bytes);
            Ok((time_of(&key), value))
        });
        found.collect()
    }

    /// The sums of the hours of a series, the last first.
    fn hours(&self, series: &str) -> Result<Vec<(u64, Hour)>> {
        let all = self.hours.prefix([series.as_bytes(), &[0]].concat())?.rev().filter_map(|entry| {
            let decoded = entry.map(|(key, value)| Some((time_of(&key), Hour::decode(&value)?)));
            decoded.transpose()
        });
        all.collect()
    }
}

fn run(dir: &Path, hours: u64) -> Result<()> {
    let series = Series::open(dir)?;
    // After what an earlier run has left.
    let began = series.hours(SENSORS[0])?.first().map_or(0, |(time, _)| time + HOUR);
    let mut rng = fastrand::Rng::with_seed(began);
    for hour in (began / HOUR)..(began / HOUR + hours) {
        for sensor in SENSORS {
            let measured: Vec<(u64, f64)> = (hour * HOUR..(hour + 1) * HOUR)
                .map(|time| (time, 15.0 + (hour % 24) as f64 / 4.0 + 2.0 * rng.f64()))
                .collect();
            measured.chunks(600).try_for_each(|some| series.add(sensor, some))?;
        }
        series.forget_before(((hour + 1) * HOUR).saturating_sub(KEPT))?;
    }
    let end = began + hours * HOUR;
    for sensor in SENSORS {
        let (last_hour, all) = (series.between(sensor, end - HOUR, end)?, series.between(sensor, 0, end)?);
        let sums = series.hours(sensor)?;
        let most = sums.iter().map(|(_, hour)| hour.most).fold(f64::MIN, f64::max);
        println!(
            "{sensor}: {} measurements in the last hour, {} kept, {} hours summed up, {most:.1} at most",
            last_hour.len(),
            all.len(),
            sums.len()
        );
        assert_eq!((last_hour.len() as u64, all.len() as u64), (HOUR, KEPT.min(end)));
        assert!(sums.iter().all(|(_, hour)| hour.count == HOUR));
    }
    series.db.close()
}

fn main() -> Result<()> {
    let made = std::env::temp_dir().join("terrace-time-series");
    let dir = std::env::args_os().nth(1).map_or(made, Into::into);
    println!("the series are in {}", dir.display());
    run(&dir, 7 * 24)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_measurements_go_and_sums_stay() {
        let dir = tempfile::tempdir().unwrap();
        (0..2).for_each(|_| run(dir.path(), 14).unwrap());
    }

    #[test]
    fn an_hour_is_summed_up() {
        let both = Hour::of(1.5).and(Hour::of(-2.0));
        assert_eq!(both, Hour { count: 2, sum: -0.5, least: -2.0, most: 1.5 });
        assert_eq!(Hour::decode(&both.encode()), Some(both));
        assert_eq!(Hour::decode(b"short"), None);
    }
}
