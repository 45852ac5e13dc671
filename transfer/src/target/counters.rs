//! What the target has done, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siding_wire::frame::Direction;

use crate::histogram::{Histogram, Latencies};
use crate::service::{DoorCounters, DoorSnapshot};

/// Directions, in the order that snapshots have.
pub const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// All bytes were moved.
    Ok,
    /// Its range is not inside one published buffer, or empty.
    AddressRejected,
    /// The peer left, or broke the connection, before its end.
    PeerGone,
    /// No byte moved for as long as may be.
    Stalled,
    /// The kernel could not reach the memory.
    Memory,
    /// The target stopped before its end.
    Stopped,
}

impl Outcome {
    /// All of them, in the order that snapshots have.
    pub const ALL: [Self; 6] = [
        Self::Ok,
        Self::AddressRejected,
        Self::PeerGone,
        Self::Stalled,
        Self::Memory,
        Self::Stopped,
    ];

    /// Its name, fit for a metric label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::AddressRejected => "addressRejected",
            Self::PeerGone => "peerGone",
            Self::Stalled => "stalled",
            Self::Memory => "memory",
            Self::Stopped => "stopped",
        }
    }
}

const OUTCOMES: usize = Outcome::ALL.len();

/// Counters of one loop, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    tallies: [[Tally; OUTCOMES]; 2],
    latencies: [Histogram; 2],
    malformed: AtomicU64,
}

#[derive(Debug, Default)]
struct Tally {
    operations: AtomicU64,
    bytes: AtomicU64,
}

/// Where the target counts. Nothing in it is unbounded.
#[derive(Debug)]
pub struct Counters {
    shards: Box<[Shard]>,
    pub(crate) door: Arc<DoorCounters>,
}

/// Requests of one direction and outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Requests.
    pub operations: u64,
    /// Bytes of them that moved.
    pub bytes: u64,
}

/// What the target has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    counts: [[Count; OUTCOMES]; 2],
    latencies: [Latencies; 2],
    /// Connections ended since what came was no request.
    pub malformed: u64,
    /// Connections.
    pub door: DoorSnapshot,
}

impl Snapshot {
    /// Requests of this direction and outcome.
    #[must_use]
    pub fn count(&self, direction: Direction, outcome: Outcome) -> Count {
        self.counts[direction as usize][outcome as usize]
    }

    /// How long requests of this direction that ended well took: from the header to the last byte.
    #[must_use]
    pub fn latencies(&self, direction: Direction) -> &Latencies {
        &self.latencies[direction as usize]
    }
}

impl Counters {
    /// Counters for so many loops.
    #[must_use]
    pub fn new(loops: usize) -> Self {
        Self {
            shards: (0..loops.max(1)).map(|_| Shard::default()).collect(),
            door: Arc::default(),
        }
    }

    /// What was counted so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut whole = Snapshot {
            door: self.door.snapshot(),
            ..Snapshot::default()
        };
        for shard in &self.shards {
            let pairs = whole.counts.iter_mut().zip(&shard.tallies);
            for (count, tally) in pairs.flat_map(|(counts, tallies)| counts.iter_mut().zip(tallies))
            {
                count.operations += tally.operations.load(Ordering::Acquire);
                count.bytes += tally.bytes.load(Ordering::Acquire);
            }
            for (sum, latencies) in whole.latencies.iter_mut().zip(&shard.latencies) {
                *sum += latencies.snapshot();
            }
            whole.malformed += shard.malformed.load(Ordering::Acquire);
        }
        whole
    }

    /// Counts a request that ended.
    pub(super) fn ended(
        &self,
        loop_index: usize,
        direction: Direction,
        outcome: Outcome,
        bytes: u64,
        took: Duration,
    ) {
        let shard = self.shard(loop_index);
        let tally = &shard.tallies[direction as usize][outcome as usize];
        tally.bytes.fetch_add(bytes, Ordering::Relaxed);
        if outcome == Outcome::Ok {
            shard.latencies[direction as usize].note(took);
        }
        // Released last, so that whoever sees the request sees its bytes as well.
        tally.operations.fetch_add(1, Ordering::Release);
    }

    /// Counts a header that is no request.
    pub(super) fn malformed(&self, loop_index: usize) {
        let malformed = &self.shard(loop_index).malformed;
        malformed.fetch_add(1, Ordering::Relaxed);
    }

    fn shard(&self, loop_index: usize) -> &Shard {
        &self.shards[loop_index % self.shards.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_the_sum_of_all_loops() {
        let counters = Counters::new(2);
        let second = Duration::from_secs(1);
        for (loop_index, direction, outcome, bytes) in [
            (0, Direction::Read, Outcome::Ok, 10),
            (1, Direction::Read, Outcome::Ok, 5),
            (3, Direction::Write, Outcome::Ok, 7),
            (0, Direction::Write, Outcome::PeerGone, 3),
        ] {
            counters.ended(loop_index, direction, outcome, bytes, second);
        }
        counters.malformed(1);
        let found = counters.snapshot();
        for (at, direction) in DIRECTIONS.into_iter().enumerate() {
            assert_eq!(direction as usize, at);
        }
        for (at, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, at);
        }
        let count = |operations, bytes| Count { operations, bytes };
        for (direction, outcome, want) in [
            (Direction::Read, Outcome::Ok, count(2, 15)),
            (Direction::Write, Outcome::Ok, count(1, 7)),
            (Direction::Write, Outcome::PeerGone, count(1, 3)),
            (Direction::Read, Outcome::PeerGone, count(0, 0)),
        ] {
            assert_eq!(found.count(direction, outcome), want);
        }
        assert_eq!(found.latencies(Direction::Read).count(), 2);
        assert_eq!(found.latencies(Direction::Write).count(), 1);
        assert_eq!(found.malformed, 1);
    }
}
