//! The rank processes, and what becomes of them.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use siding_topology::size::binary;

use super::Question;
use super::rank::{RankAnswer, RankJob};
use super::tasks::TASK_REMEDY;
use crate::failure::Failure;

/// How often it is looked whether a rank whose pipes are closed has ended, and the pause between.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// The rank processes that there are now. They go with it, and at once when told to.
#[derive(Debug, Default)]
pub struct Ranks {
    is_stopped: AtomicBool,
    children: Mutex<Vec<Child>>,
}

impl Ranks {
    /// Kills all of them, from any thread; none is started any more.
    pub fn stop(&self) {
        let mut children = self.lock();
        self.is_stopped.store(true, Ordering::Relaxed);
        for child in children.iter_mut() {
            let _ = child.kill();
        }
    }

    /// Starts all ranks, lets them go at once and gives the slowest one's seconds.
    pub(super) fn slowest(&self, question: &Question<'_>, job: &RankJob) -> Result<f64, Failure> {
        let mut all = Vec::new();
        let slowest = self.at_once(question, job, &mut all);
        // Before their pipes go: they have nothing to say of a bench that went away.
        self.clear();
        slowest
    }

    fn at_once(
        &self,
        question: &Question<'_>,
        job: &RankJob,
        all: &mut Vec<Rank>,
    ) -> Result<f64, Failure> {
        let told = serde_json::to_string(job).map_err(Failure::failed)?;
        for _ in 0..question.ranks.get() {
            let mut rank = self.start(question.binary)?;
            let heard = rank.tell(&told);
            all.push(rank);
            heard.map_err(|_| self.fate(all.len() - 1))?;
        }
        for (nth, rank) in all.iter_mut().enumerate() {
            let line = rank.line().map_err(|_| self.fate(nth))?;
            if line.trim() != "ready" {
                return Err(Failure::failed(format!("a rank said {line:?}")));
            }
        }
        for (nth, rank) in all.iter_mut().enumerate() {
            rank.tell("go").map_err(|_| self.fate(nth))?;
        }
        let mut slowest = 0.0_f64;
        for (nth, rank) in all.iter_mut().enumerate() {
            let line = rank.line().map_err(|_| self.fate(nth))?;
            let answer: RankAnswer = serde_json::from_str(&line).map_err(Failure::failed)?;
            check(&answer, job)?;
            slowest = slowest.max(answer.seconds);
        }
        Ok(slowest)
    }

    fn start(&self, binary: &Path) -> Result<Rank, Failure> {
        let mut children = self.lock();
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Failure::failed("cancelled"));
        }
        let mut child = Command::new(binary)
            .args(["bench", "rank"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is the bench's to answer.
            .process_group(0)
            .spawn()
            .map_err(|error| not_started(&error))?;
        let pipes = (child.stdin.take(), child.stdout.take());
        children.push(child);
        let (Some(input), Some(output)) = pipes else {
            return Err(Failure::failed("a rank has no pipes"));
        };
        Ok(Rank {
            input,
            output: BufReader::new(output),
        })
    }

    /// Kills and buries those that there are.
    fn clear(&self) {
        for mut child in self.lock().drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Why the rank that was started as the `nth` went away.
    fn fate(&self, nth: usize) -> Failure {
        for _ in 0..LOOKS {
            let ended = match self.lock().get_mut(nth) {
                Some(child) => child.try_wait(),
                None => break,
            };
            match ended {
                Ok(Some(status)) => return Failure::failed(told(status)),
                // Its pipes are closed a moment before it has ended.
                Ok(None) => thread::sleep(PAUSE),
                Err(_) => break,
            }
        }
        Failure::failed("a rank closed its pipes and says nothing more")
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.clear();
    }
}

fn told(status: ExitStatus) -> String {
    match status.signal() {
        None => format!("a rank ended with {status}; its message is above"),
        Some(signal) if signal == Signal::KILL.as_raw() => format!(
            "a rank was killed ({status}): somebody did that, or the kernel for want of memory (dmesg tells); \
             to mend it: fewer --ranks, or fewer or smaller --buffers"
        ),
        Some(_) => format!("a rank was ended by a signal ({status})"),
    }
}

fn not_started(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::WouldBlock => Failure::lacking(format!(
            "--ranks: a rank can't be started: {error}; to mend it: {TASK_REMEDY}, or fewer --ranks"
        )),
        _ => Failure::failed(format!("a rank can't be started: {error}")),
    }
}

/// Whether a rank did what it was told: a time of fewer buffers, or of another cap, is none.
fn check(answer: &RankAnswer, job: &RankJob) -> Result<(), Failure> {
    if answer.failed > 0 {
        let bytes = job
            .buffers
            .iter()
            .fold(0_u64, |sum, n| sum.saturating_add(*n));
        return Err(Failure::failed(format!(
            "{} of {} buffers were not registered ({}): {}",
            answer.failed,
            job.buffers.len(),
            binary(bytes),
            answer.why.as_deref().unwrap_or("nothing is known of why")
        )));
    }
    let wanted = job.threads();
    if answer.threads < wanted {
        let cap = job
            .cap
            .map_or_else(|| "unbounded".to_owned(), |cap| cap.to_string());
        return Err(Failure::lacking(format!(
            "--cap: {cap} is {wanted} threads in each rank, and the machine let one have {}: that would be the \
             time of another cap; to mend it: {TASK_REMEDY}, or a smaller --cap, or fewer --ranks",
            answer.threads
        )));
    }
    Ok(())
}

/// The pipes of a rank's process.
struct Rank {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn tell(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.input, "{text}")?;
        self.input.flush()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;
    use std::fs;
    use std::num::NonZeroUsize;
    use std::os::unix::fs::PermissionsExt as _;

    /// What the bench makes of two ranks that are this script.
    fn bench(script: &str) -> Result<f64, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("rank");
        fs::write(&binary, format!("#!/bin/sh\nread job\n{script}\n")).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let job = RankJob {
            buffers: vec![4096; 5],
            cap: NonZeroUsize::new(3),
            page_bytes: 4096,
            touched: true,
        };
        let question = Question {
            binary: &binary,
            ranks: NonZeroUsize::new(2).unwrap(),
            cores: NonZeroUsize::MIN,
            planned: NonZeroUsize::MIN,
            caps: &[],
            rounds: NonZeroUsize::MIN,
            job: job.clone(),
        };
        Ranks::default().slowest(&question, &job)
    }

    fn answer(rest: &str) -> String {
        format!("echo ready; read go; echo '{{\"seconds\":0.5,{rest}}}'")
    }

    fn said(script: &str) -> (Kind, String) {
        let failure = bench(script).unwrap_err();
        (failure.kind, failure.message)
    }

    #[test]
    fn the_slowest_counts() {
        let script = answer(r#""failed":0,"why":null,"threads":3"#);
        assert_eq!(bench(&script), Ok(0.5));
    }

    #[test]
    fn a_time_of_another_cap_is_refused() {
        let (kind, told) = said(&answer(r#""failed":0,"why":null,"threads":2"#));
        assert_eq!(kind, Kind::Lacking);
        assert!(
            told.starts_with(
                "--cap: 3 is 3 threads in each rank, and the machine let one have 2: "
            ) && told.contains("pids.max"),
            "{told}"
        );
    }

    #[test]
    fn what_was_not_registered_is_told_with_why() {
        let (kind, told) = said(&answer(r#""failed":2,"why":"no \u001b[31m","threads":3"#));
        assert_eq!(kind, Kind::Failed);
        assert_eq!(
            told,
            "2 of 5 buffers were not registered (20Ki): no \u{1b}[31m"
        );
    }

    #[test]
    fn how_a_rank_ended_is_told() {
        for (script, says) in [
            ("kill -9 $$", "signal: 9 (SIGKILL)"),
            ("echo ready; kill -9 $$", "signal: 9 (SIGKILL)"),
            ("echo ready; read go; kill -9 $$", "for want of memory"),
            (
                "kill -11 $$",
                "a rank was ended by a signal (signal: 11 (SIGSEGV)",
            ),
            (
                "exit 7",
                "a rank ended with exit status: 7; its message is above",
            ),
        ] {
            let (kind, told) = said(script);
            assert_eq!(kind, Kind::Failed);
            assert!(told.contains(says), "{script}: {told}");
        }
    }

    #[test]
    fn after_a_stop_no_rank_is_started() {
        let ranks = Ranks::default();
        ranks.stop();
        let refused = ranks.start(Path::new("/bin/true")).err().unwrap();
        assert_eq!(refused.message, "cancelled");
    }
}
