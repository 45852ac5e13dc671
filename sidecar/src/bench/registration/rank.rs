//! One rank: a process that registers its buffers when it is let go.

use std::io::{BufRead, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use siding_fabric::pool::{self, Concurrency};
use siding_fabric::{
    Domain, MapRequest, Mapping, MemoryRegion, Pages, Placement, RegisterError, Shortage, Source,
    TouchPlan, UringDomain, base_page_bytes, touch,
};

use super::buffers::{MOST_BUFFER_BYTES, MOST_BUFFERS};
use crate::registration::backend::PIN_REMEDY;

/// A job of the most buffers is far shorter.
const MOST_JOB_BYTES: u64 = 1 << 20;

/// What one rank is to do; a line of JSON on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RankJob {
    /// Sizes of its buffers in bytes, in the order to register them.
    pub buffers: Vec<u64>,
    /// Registrations in flight; `None` is unbounded: a thread for each buffer.
    pub cap: Option<NonZeroUsize>,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Pages are made present before the barrier.
    pub touched: bool,
}

impl RankJob {
    /// Bytes that one rank maps: its buffers in whole pages; `None` where that is beyond all memory.
    #[must_use]
    pub fn mapped_bytes(&self) -> Option<u64> {
        self.buffers.iter().try_fold(0_u64, |sum, bytes| {
            sum.checked_add(bytes.checked_next_multiple_of(self.page_bytes)?)
        })
    }

    /// Threads that are to register at once.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.concurrency().workers(self.buffers.len())
    }

    fn concurrency(&self) -> Concurrency {
        self.cap.map_or(Concurrency::Unbounded, Concurrency::AtMost)
    }

    /// Whether it can be done at all: nobody but the bench is asked to write one.
    fn check(&self) -> Result<(), String> {
        let page = self.page_bytes;
        if !page.is_power_of_two() || page < base_page_bytes() {
            return Err(format!("pageBytes: {page} is no page of this kernel"));
        }
        if self.buffers.is_empty() || self.buffers.len() > MOST_BUFFERS {
            let count = self.buffers.len();
            return Err(format!(
                "buffers: {count}; from 1 to {MOST_BUFFERS} are taken"
            ));
        }
        let is_taken = |bytes: &u64| (1..=MOST_BUFFER_BYTES).contains(bytes);
        if let Some(bytes) = self.buffers.iter().find(|bytes| !is_taken(bytes)) {
            return Err(format!(
                "buffers: {bytes} bytes; from 1 to {MOST_BUFFER_BYTES} are taken"
            ));
        }
        Ok(())
    }
}

/// What one rank did; a line of JSON on its standard output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankAnswer {
    /// Seconds from the barrier to the last registration.
    pub seconds: f64,
    /// Buffers that were not registered.
    pub failed: usize,
    /// Why the first of those was not.
    pub why: Option<String>,
    /// Threads that registered: fewer than the cap allows where the machine refused one.
    pub threads: usize,
}

/// A rank's whole life: job in, ready, barrier, registering, answer.
///
/// # Errors
/// What failed, in words.
pub fn rank(input: impl BufRead, mut output: impl Write) -> Result<(), String> {
    let mut lines = input.take(MOST_JOB_BYTES).lines();
    let mut line = || {
        lines
            .next()
            .and_then(Result::ok)
            .ok_or("the bench went away")
    };
    let job: RankJob = serde_json::from_str(&line()?).map_err(|error| format!("job: {error}"))?;
    job.check().map_err(|what| format!("job: {what}"))?;
    let mappings = job
        .buffers
        .iter()
        .map(|bytes| map(*bytes, &job))
        .collect::<Result<Vec<_>, _>>()?;
    let domain = UringDomain::open().map_err(|error| error.to_string())?;
    let mut say = |text: String| writeln!(output, "{text}").and_then(|()| output.flush());
    say("ready".to_owned()).map_err(|error| error.to_string())?;
    line()?;
    let started = Instant::now();
    let (regions, threads) = pool::run_counted(mappings.len(), job.concurrency(), &|at| {
        let mapping: &Arc<Mapping> = &mappings[at];
        domain.register(mapping, 0..mapping.len_bytes())
    });
    let answer = answer(&regions, started.elapsed().as_secs_f64(), threads);
    let answer = serde_json::to_string(&answer).map_err(|error| error.to_string())?;
    say(answer).map_err(|error| error.to_string())
}

fn answer(
    regions: &[Result<MemoryRegion, RegisterError>],
    seconds: f64,
    threads: usize,
) -> RankAnswer {
    let errors = || regions.iter().filter_map(|region| region.as_ref().err());
    RankAnswer {
        seconds,
        failed: errors().count(),
        why: errors().next().map(why),
        threads,
    }
}

fn why(error: &RegisterError) -> String {
    let source = &error.source;
    match error.shortage() {
        Some(Shortage::PinnedMemory) => format!(
            "{source}; RLIMIT_MEMLOCK counts all that a user's processes have pinned together, with their \
             rings; to mend it: {PIN_REMEDY}, or fewer bytes"
        ),
        _ => source.to_string(),
    }
}

fn map(bytes: u64, job: &RankJob) -> Result<Arc<Mapping>, String> {
    let pages = match job.page_bytes {
        page if page == base_page_bytes() => Pages::Base,
        page => Pages::Huge(page),
    };
    let len_bytes = bytes.next_multiple_of(job.page_bytes);
    let request = MapRequest {
        len_bytes,
        pages,
        placement: Placement::Any,
        source: Source::Process,
    };
    let mapping = Mapping::new(request).map_err(|error| error.to_string())?;
    if job.touched {
        let plan = TouchPlan {
            threads: 1,
            cpus: None,
            chunk_bytes: 64 << 20,
            method: None,
        };
        touch(&mapping, &plan, &false.into(), &|_| {}).map_err(|error| error.to_string())?;
    }
    Ok(Arc::new(mapping))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> RankJob {
        RankJob {
            buffers: vec![4096, 10_000],
            cap: NonZeroUsize::new(2),
            page_bytes: base_page_bytes(),
            touched: true,
        }
    }

    #[test]
    fn a_rank_waits_for_the_barrier_and_tells_its_seconds() {
        let input = format!("{}\ngo\n", serde_json::to_string(&job()).unwrap());
        let mut output = Vec::new();
        rank(input.as_bytes(), &mut output).unwrap();
        let output = String::from_utf8(output).unwrap();
        let (ready, answer) = output.split_once('\n').unwrap();
        assert_eq!(ready, "ready");
        let answer: RankAnswer = serde_json::from_str(answer).unwrap();
        assert_eq!((answer.failed, answer.why, answer.threads), (0, None, 2));
        assert!(answer.seconds > 0.0);
    }

    #[test]
    fn a_job_that_can_not_be_done_is_refused_before_anything_is_mapped() {
        let page = base_page_bytes();
        let of = |buffers: Vec<u64>, page_bytes| RankJob {
            buffers,
            page_bytes,
            ..job()
        };
        for (job, says) in [
            (of(vec![1], 0), "job: pageBytes: 0 is"),
            (of(vec![1], 3 * page), "is no page"),
            (of(vec![1], 512), "job: pageBytes: 512"),
            (of(vec![], page), "job: buffers: 0; from 1 to 16384"),
            (of(vec![1; 16_385], page), "job: buffers: 16385"),
            (of(vec![1, 0], page), "job: buffers: 0 bytes"),
            (of(vec![u64::MAX], page), "18446744073709551615 bytes"),
        ] {
            let input = format!("{}\n", serde_json::to_string(&job).unwrap());
            let mut output = Vec::new();
            let error = rank(input.as_bytes(), &mut output).unwrap_err();
            assert!(error.contains(says), "{error}");
            assert_eq!(output, b"");
        }
        let error = rank("{}".as_bytes(), Vec::new()).unwrap_err();
        assert!(error.starts_with("job: "), "{error}");
        assert_eq!(
            rank("".as_bytes(), Vec::new()),
            Err("the bench went away".to_owned())
        );
    }

    #[test]
    fn whole_pages_are_mapped() {
        assert_eq!(job().mapped_bytes(), Some(4 * 4096));
        let huge = RankJob {
            buffers: vec![u64::MAX, 1],
            ..job()
        };
        assert_eq!(huge.mapped_bytes(), None);
    }
}
