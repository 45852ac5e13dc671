//! Latencies in fixed buckets: cheap to note from many threads, bounded for ever.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, seconds, ascending; one more bucket holds what is beyond.
pub const BOUNDS_SECONDS: [f64; 16] = [
    0.000_02, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.5, 1.0, 5.0, 30.0,
];

const BUCKETS: usize = BOUNDS_SECONDS.len() + 1;

/// Where latencies are noted.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_nanoseconds: AtomicU64,
}

impl Histogram {
    /// Notes one.
    pub fn note(&self, latency: Duration) {
        let seconds = latency.as_secs_f64();
        let bucket = BOUNDS_SECONDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.sum_nanoseconds
            .fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// What was noted so far.
    #[must_use]
    pub fn snapshot(&self) -> Latencies {
        Latencies {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Acquire)),
            sum_nanoseconds: self.sum_nanoseconds.load(Ordering::Acquire),
        }
    }
}

/// Latencies that were noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latencies {
    buckets: [u64; BUCKETS],
    sum_nanoseconds: u64,
}

impl Latencies {
    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Their sum, seconds.
    #[must_use]
    pub fn sum_seconds(&self) -> f64 {
        Duration::from_nanos(self.sum_nanoseconds).as_secs_f64()
    }

    /// How many were at most each of [`BOUNDS_SECONDS`]: cumulative, as Prometheus has it.
    #[must_use]
    pub fn cumulative(&self) -> [(f64, u64); BOUNDS_SECONDS.len()] {
        let mut sum = 0;
        std::array::from_fn(|at| {
            sum += self.buckets[at];
            (BOUNDS_SECONDS[at], sum)
        })
    }
}

impl std::ops::AddAssign for Latencies {
    fn add_assign(&mut self, other: Self) {
        for (bucket, other) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += other;
        }
        self.sum_nanoseconds += other.sum_nanoseconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_latency_lies_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        for microseconds in [0, 20, 21, 1_000, 1_001, 40_000_000] {
            histogram.note(Duration::from_micros(microseconds));
        }
        let mut found = histogram.snapshot();
        let at = |found: &Latencies, bound: f64| {
            let all = found.cumulative();
            all.into_iter().find(|(at, _)| *at == bound).map(|at| at.1)
        };
        for (bound, count) in [
            (0.000_02, 2),
            (0.000_05, 3),
            (0.000_5, 3),
            (0.001, 4),
            (0.002_5, 5),
            (30.0, 5),
        ] {
            assert_eq!(at(&found, bound), Some(count), "{bound}");
        }
        assert_eq!(found.count(), 6);
        assert!((found.sum_seconds() - 40.002_042).abs() < 1e-9);
        found += histogram.snapshot();
        assert_eq!((found.count(), at(&found, 0.001)), (12, Some(8)));
    }
}
