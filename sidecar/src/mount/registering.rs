//! The pipeline's last step: every region attempted, through the pool.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use siding_fabric::pool::{self, Concurrency};
use siding_fabric::{Domain, MemoryRegion, Pages, RegisterError, Shortage, base_page_bytes};
use siding_topology::size::binary;

use super::pipeline::{MountError, MountedSegment};
use super::plan::{MountPlan, SegmentPlan};
use super::strategy::DomainOrder;
use crate::board::{Board, Phase, SegmentState};
use crate::registration::backend::PIN_REMEDY;
use crate::registration::items::{self, Cut, Extent, Job};

/// The kernel joins base pages to pages of this size, and charges them as a whole: bytes.
const JOINED_BYTES: u64 = 2 << 20;

/// Pauses, and how many, until what a try held is given back.
const SETTLING: Duration = Duration::from_millis(5);
const SETTLING_TRIES: usize = 40;

/// Registers all segments on all domains. A shortage of pinnable memory leaves a part out and says
/// so; anything else is an error, the first in item order, after everything was attempted.
pub(super) fn register_all(
    plan: &MountPlan,
    mounted: &mut [MountedSegment],
    board: &Board,
    cancel: &AtomicBool,
) -> Result<(), MountError> {
    let domains = plan.backend.in_use.domains();
    if domains.is_empty() {
        return Ok(());
    }
    let cut = cut(plan, &domains);
    for index in 0..plan.segments.len() {
        board.segment(index, |status| status.state = SegmentState::Register);
    }
    let at_once: Vec<bool> = plan
        .segments
        .iter()
        .map(|s| s.strategy.domains == DomainOrder::AllAtOnce)
        .collect();
    let mut tally = Tally::new(plan, &cut);
    for round in items::rounds(&cut.items, &at_once, domains.len()) {
        let desk = Desk {
            plan,
            domains: &domains,
            mounted,
            board,
            cancel,
            queued: Instant::now(),
        };
        let cap = plan.cap.concurrency();
        let (attempts, threads) =
            pool::run_counted(round.len(), cap, &|at| desk.attempt(&round[at]));
        tell_threads(threads, cap.workers(round.len()));
        for (job, attempt) in round.iter().zip(attempts) {
            tally.add(job, attempt, mounted);
        }
    }
    tally.tell(board);
    if cancel.load(Ordering::Relaxed) {
        return Err(MountError::Cancelled);
    }
    tally.first_failure.map_or(Ok(()), Err)
}

/// Says where the cap in force is not the one that is told.
fn tell_threads(started: usize, wanted: usize) {
    if started < wanted {
        tracing::warn!(
            "{started} threads register instead of {wanted}: the machine refused the others; to mend it: raise \
             RLIMIT_NPROC (ulimit -u) or the cgroup's pids.max"
        );
    }
}

fn granule_bytes(segment: &SegmentPlan) -> u64 {
    match segment.pages {
        Pages::Huge(bytes) => bytes,
        Pages::Transparent if segment.size_bytes.is_multiple_of(JOINED_BYTES) => JOINED_BYTES,
        Pages::Transparent | Pages::Base => base_page_bytes(),
    }
}

fn cut(plan: &MountPlan, domains: &[Arc<dyn Domain>]) -> Cut {
    let extents: Vec<Extent> = plan
        .segments
        .iter()
        .map(|segment| Extent {
            size_bytes: segment.size_bytes,
            granule_bytes: granule_bytes(segment),
        })
        .collect();
    let largest = domains
        .iter()
        .map(|domain| domain.max_region_bytes())
        .min()
        .unwrap_or(u64::MAX);
    let budget = plan
        .pin_limit_bytes
        .map(|limit| limit / domains.len() as u64);
    let workers = match plan.cap.concurrency() {
        Concurrency::AtMost(cap) => cap.get(),
        // No more regions than the device needs: each would be a thread.
        Concurrency::Unbounded => 1,
    };
    items::cut(&extents, largest, workers, budget, plan.order)
}

/// What became of one job; `None` where it was cancelled before it began.
struct Attempt {
    began: Instant,
    ended: Instant,
    answer: Option<Result<MemoryRegion, RegisterError>>,
}

/// What a worker needs.
struct Desk<'a> {
    plan: &'a MountPlan,
    domains: &'a [Arc<dyn Domain>],
    mounted: &'a [MountedSegment],
    board: &'a Board,
    cancel: &'a AtomicBool,
    queued: Instant,
}

impl Desk<'_> {
    fn attempt(&self, job: &Job) -> Attempt {
        let began = Instant::now();
        if self.cancel.load(Ordering::Relaxed) {
            return Attempt {
                began,
                ended: began,
                answer: None,
            };
        }
        let metrics = self.board.metrics();
        metrics.registration_queue((began - self.queued).as_secs_f64());
        let in_flight = metrics.registration_started();
        let domain = &self.domains[job.domain];
        let segment = job.item.segment;
        let mapping = &self.mounted[segment].mapping;
        let mut answer = domain.register(mapping, job.item.range.clone());
        if self.plan.pin_limit_bytes.is_some() && is_short(&answer) {
            let granule = granule_bytes(&self.plan.segments[segment]);
            let register = |part| domain.register(mapping, part);
            let pause = || thread::sleep(SETTLING);
            answer = largest_part(&job.item.range, granule, register, pause).unwrap_or(answer);
        }
        drop(in_flight);
        let ended = Instant::now();
        let outcome = answer.as_ref().err().map_or("ok", RegisterError::reason);
        let seconds = (ended - began).as_secs_f64();
        let backend = self.plan.backend.in_use.name();
        metrics.registration(backend, domain.nic(), "host", outcome, seconds);
        if let (Ok(region), 0) = (&answer, job.domain) {
            self.board.segment(segment, |status| {
                status.registered_bytes += length(&region.range());
                status.regions += 1;
            });
        }
        Attempt {
            began,
            ended,
            answer: Some(answer),
        }
    }
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

fn is_short<T>(answer: &Result<T, RegisterError>) -> bool {
    matches!(answer, Err(error) if error.shortage() == Some(Shortage::PinnedMemory))
}

/// Registers as much from the start of `range` as the limit still allows, by halving: how much
/// other processes of the user have pinned is not told by the kernel. `None`: not even a granule.
fn largest_part<T>(
    range: &Range<u64>,
    granule: u64,
    register: impl Fn(Range<u64>) -> Result<T, RegisterError>,
    pause: impl Fn(),
) -> Option<Result<T, RegisterError>> {
    let part = |granules: u64| range.start..range.start + granules * granule;
    let (mut fits, mut fails) = (0, length(range) / granule);
    while fits + 1 < fails {
        let middle = fits.midpoint(fails);
        match register(part(middle)) {
            Ok(_) => fits = middle,
            Err(error) if error.shortage() == Some(Shortage::PinnedMemory) => fails = middle,
            Err(error) => return Some(Err(error)),
        }
    }
    // What the tries held is given back only some milliseconds after they let go of it.
    let mut last = None;
    for _ in 0..if fits > 0 { SETTLING_TRIES } else { 0 } {
        last = Some(register(part(fits)));
        if !last.as_ref().is_some_and(is_short) {
            break;
        }
        pause();
    }
    last
}

/// What all attempts came to.
struct Tally<'a> {
    plan: &'a MountPlan,
    spans: Vec<Option<(Instant, Instant)>>,
    left_out: Vec<u64>,
    first_failure: Option<MountError>,
}

impl<'a> Tally<'a> {
    fn new(plan: &'a MountPlan, cut: &Cut) -> Self {
        Self {
            plan,
            spans: vec![None; plan.segments.len()],
            left_out: cut.left_out_bytes.clone(),
            first_failure: None,
        }
    }

    fn add(&mut self, job: &Job, attempt: Attempt, mounted: &mut [MountedSegment]) {
        let segment = job.item.segment;
        let span = self.spans[segment].get_or_insert((attempt.began, attempt.ended));
        *span = (span.0.min(attempt.began), span.1.max(attempt.ended));
        match attempt.answer {
            None => {}
            Some(Ok(region)) => {
                self.left_out[segment] += job.item.len_bytes() - length(&region.range());
                mounted[segment].regions.push(region);
            }
            Some(Err(error)) => {
                self.left_out[segment] += job.item.len_bytes();
                self.fail(segment, error);
            }
        }
    }

    fn fail(&mut self, segment: usize, source: RegisterError) {
        let name = &self.plan.segments[segment].name;
        tracing::warn!(
            segment = name,
            reason = source.reason(),
            "a region was not registered: {source}"
        );
        let excusable = self.plan.pin_limit_bytes.is_some()
            && source.shortage() == Some(Shortage::PinnedMemory);
        if !excusable {
            let segment = name.clone();
            self.first_failure
                .get_or_insert(MountError::Register { segment, source });
        }
    }

    fn tell(&self, board: &Board) {
        for (index, (span, left_out)) in self.spans.iter().zip(&self.left_out).enumerate() {
            let limit = self.plan.pin_limit_bytes.filter(|_| *left_out > 0);
            board.segment(index, |status| {
                if let Some((began, ended)) = span {
                    status.seconds.insert(Phase::Register, (*ended - *began).as_secs_f64());
                }
                status.left_out = limit.map(|limit| {
                    format!(
                        "{} not registered: RLIMIT_MEMLOCK allows this user {} over all its processes; \
                         to mend it: {PIN_REMEDY}",
                        binary(*left_out),
                        binary(limit)
                    )
                });
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn refusal(range: &Range<u64>, errno: i32) -> RegisterError {
        RegisterError {
            offset_bytes: range.start,
            len_bytes: length(range),
            source: std::io::Error::from_raw_os_error(errno),
        }
    }

    /// A limit of `room` granules, of which what a try held comes back only after a pause.
    fn search(room: u64) -> (Option<Range<u64>>, usize) {
        let tries = Cell::new(0);
        let held = Cell::new(0);
        let register = |part: Range<u64>| {
            tries.set(tries.get() + 1);
            if length(&part) + held.get() > room * 4096 {
                return Err(refusal(&part, rustix::io::Errno::NOMEM.raw_os_error()));
            }
            // The search drops what it gets; one granule of that stays for a while.
            held.set(4096);
            Ok(part)
        };
        let range = 4096..4096 + 2048 * 4096;
        let found = largest_part(&range, 4096, register, || held.set(0));
        (found.map(Result::unwrap), tries.get())
    }

    #[test]
    fn the_largest_part_is_found_to_some_granules() {
        for room in [0, 1, 2, 3, 100, 1000, 2046, 2047] {
            let (found, tries) = search(room);
            let granules = found.map_or(0, |part| length(&part) / 4096);
            assert!(
                granules <= room && granules + 1 >= room,
                "{room}: {granules}"
            );
            assert!(tries <= 14, "{room}: {tries} tries");
        }
    }

    #[test]
    fn another_error_while_searching_is_kept() {
        let efault = rustix::io::Errno::FAULT.raw_os_error();
        let register = |part| Err::<(), _>(refusal(&part, efault));
        let found = largest_part(&(0..1 << 20), 4096, register, || {});
        assert_eq!(found.unwrap().unwrap_err().reason(), "bad_address");
    }
}
