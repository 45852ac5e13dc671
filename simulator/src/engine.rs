//! The events: workers pull buffers, register them NIC by NIC, queue for their process's lock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;

use serde::Serialize;

use crate::parameters::Parameters;
use crate::workload::{Memory, Workload};

/// The machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Hardware threads that the ranks may use together; 0 counts as 1.
    pub hardware_threads: u32,
    /// NICs on which every buffer of a rank is registered, each a domain of that rank's own.
    pub nics_per_rank: u32,
}

/// How many workers a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Cap {
    /// A fixed pool; 0 counts as 1.
    Workers(u32),
    /// A thread for every buffer.
    Unbounded,
}

impl Cap {
    fn workers(self, buffers: usize) -> usize {
        match self {
            Self::Unbounded => buffers,
            Self::Workers(count) => (count.max(1) as usize).min(buffers),
        }
    }
}

impl fmt::Display for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers(count) => write!(f, "{count}"),
            Self::Unbounded => f.write_str("unbounded"),
        }
    }
}

/// What a simulation gives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// When the last rank was done, seconds: the published measure.
    pub slowest_rank_seconds: f64,
    /// When each rank was done, seconds.
    pub rank_seconds: Vec<f64>,
    /// Most threads in flight on the node at once, running or waiting for a lock.
    pub peak_threads_in_flight: usize,
    /// Registrations done, all ranks and NICs.
    pub registrations: u64,
}

/// Registers `workload` in each of `ranks` processes that start together.
///
/// All threads in flight run at one speed, which depends only on how many there are: events are kept
/// in *work time*, which passes at that speed, so their order does not depend on the machine.
#[must_use]
pub fn simulate(
    node: &Node,
    ranks: u32,
    cap: Cap,
    workload: &Workload,
    parameters: &Parameters,
) -> Outcome {
    let mut engine = Engine::new(node, ranks, cap, workload, parameters);
    engine.run();
    let rank_seconds: Vec<f64> = engine
        .ranks
        .iter()
        .map(|rank| rank.finished_seconds)
        .collect();
    Outcome {
        slowest_rank_seconds: rank_seconds.iter().copied().fold(0.0, f64::max),
        rank_seconds,
        peak_threads_in_flight: engine.peak_in_flight,
        registrations: engine.registrations,
    }
}

const NANOSECONDS: f64 = 1e9;
const GIB: f64 = (1_u64 << 30) as f64;

/// What a worker's next event means.
#[derive(Clone, Copy)]
enum Phase {
    /// Its share outside the lock ends.
    Pinning,
    /// Its share under the lock ends, and with it the registration.
    Committing,
}

struct Worker {
    rank: usize,
    buffer: usize,
    nic: usize,
    cost_seconds: f64,
    phase: Phase,
}

struct Rank {
    next_buffer: usize,
    locked: bool,
    waiting: VecDeque<usize>,
    registered_bytes: Vec<u64>,
    finished_seconds: f64,
}

struct Engine<'a> {
    parameters: &'a Parameters,
    memory: Memory,
    bytes: Vec<u64>,
    hardware_threads: f64,
    nics: usize,
    workers: Vec<Worker>,
    ranks: Vec<Rank>,
    /// (work time in nanoseconds, worker).
    events: BinaryHeap<Reverse<(u64, usize)>>,
    work_nanoseconds: u64,
    seconds: f64,
    in_flight: usize,
    peak_in_flight: usize,
    registrations: u64,
}

impl<'a> Engine<'a> {
    fn new(
        node: &Node,
        ranks: u32,
        cap: Cap,
        workload: &Workload,
        parameters: &'a Parameters,
    ) -> Self {
        let nics = node.nics_per_rank as usize;
        let bytes = if nics == 0 {
            Vec::new()
        } else {
            workload.ordered_bytes()
        };
        let per_rank = cap.workers(bytes.len());
        Self {
            parameters,
            memory: workload.memory,
            hardware_threads: f64::from(node.hardware_threads.max(1)),
            nics,
            workers: (0..ranks as usize * per_rank)
                .map(|index| Worker::idle(index / per_rank))
                .collect(),
            ranks: (0..ranks).map(|_| Rank::new(nics)).collect(),
            bytes,
            events: BinaryHeap::new(),
            work_nanoseconds: 0,
            seconds: 0.0,
            in_flight: 0,
            peak_in_flight: 0,
            registrations: 0,
        }
    }

    fn run(&mut self) {
        self.in_flight = self.workers.len();
        for worker in 0..self.workers.len() {
            self.pull(worker);
        }
        self.peak_in_flight = self.in_flight;
        while let Some(Reverse((at, worker))) = self.events.pop() {
            self.advance_to(at);
            match self.workers[worker].phase {
                Phase::Pinning => self.lock(worker),
                Phase::Committing => self.complete(worker),
            }
        }
    }

    fn advance_to(&mut self, work_nanoseconds: u64) {
        let work = (work_nanoseconds - self.work_nanoseconds) as f64 / NANOSECONDS;
        self.seconds += work / self.speed();
        self.work_nanoseconds = work_nanoseconds;
    }

    /// The share of a hardware thread's speed that each thread in flight gets.
    fn speed(&self) -> f64 {
        let threads_each = self.hardware_threads / (self.in_flight.max(1) as f64);
        threads_each
            .min(1.0)
            .powf(self.parameters.oversubscription_exponent)
    }

    /// Takes the next buffer of the worker's rank, or ends the worker.
    fn pull(&mut self, worker: usize) {
        let rank = &mut self.ranks[self.workers[worker].rank];
        if rank.next_buffer == self.bytes.len() {
            self.in_flight -= 1;
            rank.finished_seconds = self.seconds;
            return;
        }
        self.workers[worker].buffer = rank.next_buffer;
        self.workers[worker].nic = 0;
        rank.next_buffer += 1;
        self.pin(worker);
    }

    fn pin(&mut self, worker: usize) {
        let cost_seconds = self.cost_seconds(&self.workers[worker]);
        self.workers[worker].cost_seconds = cost_seconds;
        let outside = cost_seconds * (1.0 - self.parameters.serial_share);
        self.schedule(worker, Phase::Pinning, outside);
    }

    /// What the registration that the worker begins now will cost on an idle machine.
    fn cost_seconds(&self, worker: &Worker) -> f64 {
        let p = self.parameters;
        let bytes = self.bytes[worker.buffer];
        let own = match self.memory {
            Memory::Host { page_bytes } => {
                bytes.div_ceil(page_bytes.max(1)) as f64 * p.host_nanoseconds_per_page / NANOSECONDS
            }
            Memory::Device => {
                let held = self.ranks[worker.rank].registered_bytes[worker.nic];
                p.device_seconds_per_gib * bytes as f64 / GIB
                    + p.accumulation_seconds_per_gib * held as f64 / GIB
            }
        };
        let index = worker.buffer * self.nics + worker.nic;
        (p.fixed_seconds + own) * p.spread.factor(worker.rank, index)
    }

    fn lock(&mut self, worker: usize) {
        let rank = &mut self.ranks[self.workers[worker].rank];
        if rank.locked {
            rank.waiting.push_back(worker);
        } else {
            rank.locked = true;
            self.commit(worker);
        }
    }

    fn commit(&mut self, worker: usize) {
        let under_lock = self.workers[worker].cost_seconds * self.parameters.serial_share;
        self.schedule(worker, Phase::Committing, under_lock);
    }

    fn complete(&mut self, worker: usize) {
        let Worker {
            rank, buffer, nic, ..
        } = self.workers[worker];
        self.registrations += 1;
        self.ranks[rank].registered_bytes[nic] += self.bytes[buffer];
        match self.ranks[rank].waiting.pop_front() {
            Some(next) => self.commit(next),
            None => self.ranks[rank].locked = false,
        }
        if nic + 1 == self.nics {
            self.pull(worker);
        } else {
            self.workers[worker].nic = nic + 1;
            self.pin(worker);
        }
    }

    fn schedule(&mut self, worker: usize, phase: Phase, after_seconds: f64) {
        let after = (after_seconds * NANOSECONDS).round() as u64;
        self.workers[worker].phase = phase;
        self.events
            .push(Reverse((self.work_nanoseconds + after, worker)));
    }
}

impl Worker {
    fn idle(rank: usize) -> Self {
        Self {
            rank,
            buffer: 0,
            nic: 0,
            cost_seconds: 0.0,
            phase: Phase::Pinning,
        }
    }
}

impl Rank {
    fn new(nics: usize) -> Self {
        Self {
            next_buffer: 0,
            locked: false,
            waiting: VecDeque::new(),
            registered_bytes: vec![0; nics],
            finished_seconds: 0.0,
        }
    }
}
