//! `siding bench registration`: ranks as processes behind a barrier, each registering its buffers
//! with a capped pool; the slowest rank counts.
//!
//! Only several processes at once show what a cap is for: one alone never contends.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use siding_crds::parse_bytes;
use siding_fabric::pool::{self, Concurrency};
use siding_fabric::{
    Domain, MapRequest, Mapping, MemoryRegion, Pages, Placement, Source, TouchPlan, UringDomain,
    base_page_bytes, touch,
};
use siding_topology::size::binary;

use super::minimum;

/// Spread of a sweep below which there is no contention to show.
pub const CONTENTION: f64 = 1.3;

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

/// What one rank did; a line of JSON on its standard output.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct RankAnswer {
    /// Seconds from the barrier to the last registration.
    pub seconds: f64,
    /// Buffers that were not registered.
    pub failed: usize,
}

/// A rank's whole life: job in, ready, barrier, registering, answer.
///
/// # Errors
/// What failed, in words.
pub fn rank(input: impl BufRead, mut output: impl Write) -> Result<(), String> {
    let mut lines = input.lines();
    let mut line = || {
        lines
            .next()
            .and_then(Result::ok)
            .ok_or("the bench went away")
    };
    let job: RankJob = serde_json::from_str(&line()?).map_err(|error| format!("job: {error}"))?;
    let mappings = job
        .buffers
        .iter()
        .map(|bytes| map(*bytes, &job))
        .collect::<Result<Vec<_>, _>>()?;
    let domain = UringDomain::open().map_err(|error| error.to_string())?;
    let concurrency = job.cap.map_or(Concurrency::Unbounded, Concurrency::AtMost);
    let mut say = |text: String| writeln!(output, "{text}").and_then(|()| output.flush());
    say("ready".to_owned()).map_err(|error| error.to_string())?;
    line()?;
    let started = Instant::now();
    let regions: Vec<Result<MemoryRegion, _>> = pool::run(mappings.len(), concurrency, &|at| {
        let mapping: &Arc<Mapping> = &mappings[at];
        domain.register(mapping, 0..mapping.len_bytes())
    });
    let seconds = started.elapsed().as_secs_f64();
    let failed = regions.iter().filter(|region| region.is_err()).count();
    let answer =
        serde_json::to_string(&RankAnswer { seconds, failed }).map_err(|e| e.to_string())?;
    say(answer).map_err(|error| error.to_string())
}

fn map(bytes: u64, job: &RankJob) -> Result<Arc<Mapping>, String> {
    let pages = match job.page_bytes {
        page if page == base_page_bytes() => Pages::Base,
        page => Pages::Huge(page),
    };
    let len_bytes = bytes.div_ceil(job.page_bytes) * job.page_bytes;
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

/// A file of buffers: a size and, where there are several, a count a line; `#` begins a comment.
///
/// # Errors
/// The line, what is wrong with it and what would work.
pub fn parse_buffers(text: &str) -> Result<Vec<u64>, String> {
    let mut buffers = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line
            .split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let (size, count) = match words[..] {
            [] => continue,
            [size] => (size, "1"),
            [size, count] => (size, count),
            _ => {
                return Err(format!(
                    "line {number}: write SIZE or SIZE COUNT, e.g. '391M 48'"
                ));
            }
        };
        let bytes = parse_bytes(size).map_err(|error| format!("line {number}: {error}"))?;
        let count: usize = count
            .parse()
            .ok()
            .filter(|count| (1..=100_000).contains(count))
            .ok_or_else(|| {
                format!(
                    "line {number}: '{count}' is no count; write a whole number from 1 to 100000"
                )
            })?;
        if bytes == 0 {
            return Err(format!(
                "line {number}: a buffer of 0 bytes; write at least 1"
            ));
        }
        buffers.extend(std::iter::repeat_n(bytes, count));
    }
    if buffers.is_empty() {
        return Err("no buffer: write a size a line, e.g. '64Mi 16'".to_owned());
    }
    Ok(buffers)
}

/// A cap in a sweep, and the slowest rank's seconds in each round.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SweptCap {
    /// Registrations in flight a rank; `None` is unbounded.
    pub cap: Option<NonZeroUsize>,
    /// The slowest rank, seconds, by round.
    pub seconds: Vec<f64>,
}

/// A sweep's result.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sweep {
    /// Ranks that ran at once.
    pub ranks: usize,
    /// Hardware threads that they shared.
    pub cores: usize,
    /// The planner's cap.
    pub planned: NonZeroUsize,
    /// Every cap that was tried, the planner's among them.
    pub caps: Vec<SweptCap>,
}

impl SweptCap {
    fn best(&self) -> Option<f64> {
        minimum(self.seconds.iter().copied())
    }
}

impl Sweep {
    fn extremes(&self) -> Option<(f64, f64)> {
        let all = || self.caps.iter().filter_map(SweptCap::best);
        Some((all().min_by(f64::total_cmp)?, all().max_by(f64::total_cmp)?))
    }

    /// The best cap's seconds over the planner's: 1 is the best.
    #[must_use]
    pub fn planner_vs_best(&self) -> Option<f64> {
        let planned = self
            .caps
            .iter()
            .find(|swept| swept.cap == Some(self.planned))?;
        Some(self.extremes()?.0 / planned.best()?)
    }

    /// The worst cap's seconds over the best's.
    #[must_use]
    pub fn spread(&self) -> Option<f64> {
        self.extremes().map(|(best, worst)| worst / best)
    }

    /// The last line: the ratios.
    #[must_use]
    pub fn last_line(&self) -> String {
        let show = |ratio: Option<f64>| {
            ratio.map_or_else(|| "unavailable".to_owned(), |r| format!("{r:.3}"))
        };
        let contention = if self.spread().is_some_and(|spread| spread >= CONTENTION) {
            "shown"
        } else {
            "none"
        };
        format!(
            "siding-bench: planner_vs_best={} spread={} contention={contention}",
            show(self.planner_vs_best()),
            show(self.spread())
        )
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} rank(s) on {} core(s): slowest rank, seconds (minimum of the rounds)\n",
            self.ranks, self.cores
        );
        for swept in &self.caps {
            let cap = swept
                .cap
                .map_or_else(|| "unbounded".to_owned(), |cap| cap.to_string());
            let planned = if swept.cap == Some(self.planned) {
                "  <- the planner's"
            } else {
                ""
            };
            if let Some(best) = swept.best() {
                let _ = writeln!(text, "  cap {cap:>9} {best:9.4}{planned}");
            }
        }
        if self.spread().is_some_and(|spread| spread < CONTENTION) {
            let _ = writeln!(
                text,
                "best and worst differ by less than {CONTENTION} x: there is no contention to show here, \
                 which says nothing about the plan; try more ranks, or untouched 4Ki pages"
            );
        }
        text
    }
}

/// What is swept.
#[derive(Debug)]
pub struct Question<'a> {
    /// The binary whose hidden command is a rank.
    pub binary: &'a Path,
    /// Ranks at once.
    pub ranks: NonZeroUsize,
    /// Hardware threads that they share.
    pub cores: NonZeroUsize,
    /// The planner's cap.
    pub planned: NonZeroUsize,
    /// The caps to try; `None` is unbounded.
    pub caps: &'a [Option<NonZeroUsize>],
    /// Rounds, the caps interleaved in each.
    pub rounds: NonZeroUsize,
    /// What every rank does, but for the cap.
    pub job: RankJob,
}

/// Runs the sweep.
///
/// # Errors
/// What failed, in words.
pub fn sweep(
    question: &Question<'_>,
    cancel: &AtomicBool,
    progress: impl Fn(),
) -> Result<Sweep, String> {
    let mut caps: Vec<SweptCap> = question
        .caps
        .iter()
        .map(|cap| SweptCap {
            cap: *cap,
            seconds: Vec::new(),
        })
        .collect();
    for _ in 0..question.rounds.get() {
        for swept in &mut caps {
            if cancel.load(Ordering::Relaxed) {
                return Err("cancelled".to_owned());
            }
            let job = RankJob {
                cap: swept.cap,
                ..question.job.clone()
            };
            swept
                .seconds
                .push(at_once(question.binary, question.ranks, &job)?);
            progress();
        }
    }
    Ok(Sweep {
        ranks: question.ranks.get(),
        cores: question.cores.get(),
        planned: question.planned,
        caps,
    })
}

/// Lets all ranks go at once and gives the slowest one's seconds.
fn at_once(binary: &Path, ranks: NonZeroUsize, job: &RankJob) -> Result<f64, String> {
    let mut all = (0..ranks.get())
        .map(|_| Rank::start(binary, job))
        .collect::<Result<Vec<_>, _>>()?;
    for rank in &mut all {
        rank.expect("ready")?;
    }
    for rank in &mut all {
        rank.tell("go")?;
    }
    let mut slowest = 0.0_f64;
    for rank in &mut all {
        let answer: RankAnswer = serde_json::from_str(&rank.line()?).map_err(|e| e.to_string())?;
        if answer.failed > 0 {
            return Err(format!(
                "{} of {} buffers were not registered ({}); run as root or with CAP_IPC_LOCK, or use fewer bytes",
                answer.failed,
                job.buffers.len(),
                binary_sum(&job.buffers)
            ));
        }
        slowest = slowest.max(answer.seconds);
    }
    Ok(slowest)
}

fn binary_sum(buffers: &[u64]) -> String {
    binary(
        buffers
            .iter()
            .fold(0, |sum: u64, bytes| sum.saturating_add(*bytes)),
    )
}

/// A rank's process. Killed on drop.
struct Rank {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn start(binary: &Path, job: &RankJob) -> Result<Self, String> {
        let mut child = Command::new(binary)
            .args(["bench", "rank"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a rank has no pipes".to_owned());
        };
        let mut rank = Self {
            child,
            input,
            output: BufReader::new(output),
        };
        rank.tell(&serde_json::to_string(job).map_err(|error| error.to_string())?)?;
        Ok(rank)
    }

    fn tell(&mut self, text: &str) -> Result<(), String> {
        let told = writeln!(self.input, "{text}").and_then(|()| self.input.flush());
        told.map_err(|error| format!("a rank went away: {error}"))
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(length) if length > 0 => Ok(line),
            _ => Err("a rank went away (its message is above)".to_owned()),
        }
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        let line = self.line()?;
        if line.trim() == word {
            Ok(())
        } else {
            Err(format!("a rank said {line:?}"))
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cap(cap: usize) -> Option<NonZeroUsize> {
        NonZeroUsize::new(cap)
    }

    fn sweep(caps: &[(usize, &[f64])]) -> Sweep {
        Sweep {
            ranks: 2,
            cores: 2,
            planned: cap(2).unwrap(),
            caps: caps
                .iter()
                .map(|(n, seconds)| SweptCap {
                    cap: cap(*n),
                    seconds: seconds.to_vec(),
                })
                .collect(),
        }
    }

    #[test]
    fn ratios_are_of_the_minima() {
        let swept = sweep(&[(1, &[2.0, 1.6]), (2, &[0.9, 1.0]), (4, &[0.81, 0.9])]);
        assert_eq!(
            swept.last_line(),
            "siding-bench: planner_vs_best=0.900 spread=1.975 contention=shown"
        );
        let flat = sweep(&[(1, &[1.0]), (2, &[1.1])]);
        assert!(flat.last_line().ends_with("contention=none"));
        assert!(flat.table().contains("no contention to show"));
    }

    #[test]
    fn buffers_are_sizes_with_counts() {
        assert_eq!(
            parse_buffers("4Ki 2 # small\n\n1Mi\n"),
            Ok(vec![4096, 4096, 1 << 20])
        );
        for (text, says) in [
            ("", "no buffer"),
            ("# x\n", "no buffer"),
            ("4Ki\nx\n", "line 2"),
            ("0", "0 bytes"),
            ("4Ki 0", "'0' is no count"),
            ("4Ki 1 1", "SIZE COUNT"),
            ("1.5", "line 1"),
        ] {
            let error = parse_buffers(text).unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_rank_waits_for_the_barrier_and_tells_its_seconds() {
        let job = RankJob {
            buffers: vec![4096, 10_000],
            cap: cap(2),
            page_bytes: base_page_bytes(),
            touched: true,
        };
        let input = format!("{}\ngo\n", serde_json::to_string(&job).unwrap());
        let mut output = Vec::new();
        rank(input.as_bytes(), &mut output).unwrap();
        let output = String::from_utf8(output).unwrap();
        let (ready, answer) = output.split_once('\n').unwrap();
        assert_eq!(ready, "ready");
        let answer: RankAnswer = serde_json::from_str(answer).unwrap();
        assert_eq!(answer.failed, 0);
        assert!(answer.seconds > 0.0);
        assert_eq!(
            rank("{}".as_bytes(), Vec::new())
                .unwrap_err()
                .split(':')
                .next(),
            Some("job")
        );
    }
}
