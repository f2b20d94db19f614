//! A limit on how fast background work writes: a token bucket.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use terrace_base::clock::Clock;

/// Grants bytes at a steady rate, with bursts up to a limit.
///
/// The bucket may go into debt: whoever takes more than is there has it at once but waits until the
/// debt is paid, outside the lock. So a request larger than the burst is served, and those that come
/// later wait longer. Thread-safe.
#[derive(Debug)]
pub struct RateLimiter {
    clock: Arc<dyn Clock>,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// Bytes a second; 0 is no limit.
    rate: u64,
    burst: f64,
    /// Bytes to give away; negative is debt.
    tokens: f64,
    filled_at: Duration,
}

impl RateLimiter {
    /// A limit of `bytes_per_sec` (0 for none) with bursts of `burst_bytes`; the bucket starts full.
    pub fn new(clock: Arc<dyn Clock>, bytes_per_sec: u64, burst_bytes: u64) -> Self {
        let bucket = Bucket {
            rate: bytes_per_sec,
            burst: burst_bytes as f64,
            tokens: burst_bytes as f64,
            filled_at: clock.now(),
        };
        RateLimiter { clock, bucket: Mutex::new(bucket) }
    }

    /// Changes the rate from now on; 0 is no limit, and forgives what is owed.
    pub fn set_rate(&self, bytes_per_sec: u64) {
        let now = self.clock.now();
        let mut bucket = self.bucket.lock();
        bucket.fill(now);
        bucket.rate = bytes_per_sec;
        if bytes_per_sec == 0 {
            bucket.tokens = bucket.burst;
        }
    }

    /// Takes `bytes` and says how long the taker must wait before it uses them.
    pub fn request(&self, bytes: u64) -> Duration {
        let now = self.clock.now();
        let mut bucket = self.bucket.lock();
        bucket.fill(now);
        bucket.take(bytes)
    }

    /// Takes `bytes`, waiting as long as it must; returns how long that was.
    pub fn acquire(&self, bytes: u64) -> Duration {
        let wait = self.request(bytes);
        if !wait.is_zero() {
            self.clock.sleep(wait);
        }
        wait
    }
}

impl Bucket {
    fn fill(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.filled_at);
        self.filled_at = self.filled_at.max(now);
        self.tokens = (self.tokens + elapsed.as_secs_f64() * self.rate as f64).min(self.burst);
    }

    fn take(&mut self, bytes: u64) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        self.tokens -= bytes as f64;
        let wait = (-self.tokens).max(0.0) / self.rate as f64;
        // At a rate of a byte a second a large request may owe more than a `Duration` holds.
        Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_base::clock::ManualClock;

    fn limiter(rate: u64, burst: u64) -> (Arc<ManualClock>, RateLimiter) {
        let clock = Arc::new(ManualClock::default());
        (clock.clone(), RateLimiter::new(clock, rate, burst))
    }

    #[test]
    fn a_burst_is_free_and_then_the_rate_holds() {
        let (clock, limiter) = limiter(1000, 500);
        assert_eq!(limiter.acquire(500), Duration::ZERO);
        assert_eq!(limiter.acquire(250), Duration::from_millis(250));
        assert_eq!(limiter.acquire(1000), Duration::from_secs(1));
        assert_eq!(clock.now(), Duration::from_millis(1250));
    }

    #[test]
    fn later_requests_wait_for_the_debt_of_earlier_ones() {
        let (_, limiter) = limiter(1000, 0);
        assert_eq!(limiter.request(1000), Duration::from_secs(1));
        assert_eq!(limiter.request(1000), Duration::from_secs(2));
    }

    #[test]
    fn an_idle_bucket_fills_to_the_burst_and_no_further() {
        let (clock, limiter) = limiter(1000, 100);
        limiter.request(100);
        clock.advance(Duration::from_secs(60));
        assert_eq!(limiter.request(100), Duration::ZERO);
        assert_eq!(limiter.request(100), Duration::from_millis(100));
    }

    #[test]
    fn no_limit_never_waits_and_a_new_rate_starts_clean() {
        let (_, limiter) = limiter(0, 0);
        assert_eq!(limiter.acquire(u64::MAX), Duration::ZERO);
        limiter.set_rate(1000);
        assert_eq!(limiter.acquire(10), Duration::from_millis(10));
        limiter.set_rate(1);
        assert_eq!(limiter.request(u64::MAX).as_secs(), u64::MAX);
        limiter.set_rate(0);
        limiter.set_rate(1000);
        assert_eq!(limiter.acquire(10), Duration::from_millis(10));
    }

    #[test]
    fn over_any_stretch_no_more_than_rate_and_burst_is_granted() {
        let (clock, limiter) = limiter(10_000, 2_000);
        let granted: u64 = (0..200u64)
            .map(|i| {
                let bytes = i * 37 % 900;
                limiter.acquire(bytes);
                bytes
            })
            .sum();
        assert!(granted as f64 <= 2_000.0 + 10_000.0 * clock.now().as_secs_f64() + 1.0);
    }
}
