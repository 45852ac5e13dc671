//! `siding bench mount`: our pipeline, the kernel's own limit and Mooncake's mount, interleaved.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use siding_fabric::Pages;
use siding_fabric::bare::{self, Populating};
use siding_topology::size::binary;

use super::mooncake::Mooncake;
use super::{median, minimum};
use crate::board::{Board, Phase};
use crate::metrics::Metrics;
use crate::mount::pipeline;
use crate::mount::plan::MountPlan;

/// What to measure.
#[derive(Debug)]
pub struct Question {
    /// Bytes of the segment.
    pub size_bytes: u64,
    /// Its pages.
    pub pages: Pages,
    /// Rounds that count; one more is run before, to warm the memory.
    pub rounds: NonZeroUsize,
    /// The CPUs that the bare limit is tried with: one of them, two, … all.
    pub cpus: Vec<u32>,
    /// A Python with Mooncake's wheel.
    pub mooncake_python: Option<PathBuf>,
}

/// Seconds of each round of one contestant.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rounds {
    /// The whole mount.
    pub total_seconds: Vec<f64>,
    /// Of it: registering.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub register_seconds: Vec<f64>,
}

/// One way to do it without us.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BareRounds {
    /// Threads, each on a CPU of its own.
    pub threads: usize,
    /// Populating page by page, upwards through each page, or by one call a thread.
    pub page_by_page: bool,
    /// What it took.
    #[serde(flatten)]
    pub rounds: Rounds,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Bytes of the segment.
    pub size_bytes: u64,
    /// Its pages.
    pub page: String,
    /// Our pipeline.
    pub siding: Rounds,
    /// The bare kernel, each way that it was tried.
    pub kernel: Vec<BareRounds>,
    /// Mooncake's mount over TCP; absent where it could not run.
    pub mooncake: Option<Rounds>,
    /// Mooncake's touching for the protocol rdma, registration left out.
    pub mooncake_rdma_touch: Option<Rounds>,
    /// Why Mooncake is absent or can't be compared.
    pub mooncake_absent: Option<String>,
    /// Bytes resident beside segments while mounted; unknown where the kernel does not say.
    pub resident_bytes: Option<u64>,
    /// Seconds from exec to the end of a process that mounts and undoes one base page: more than
    /// it takes to the first touched page.
    pub exec_seconds: Option<f64>,
}

/// Ratios of the minima.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Ratios {
    /// See [`Answer::vs_kernel`].
    pub vs_kernel: Option<f64>,
    /// See [`Answer::vs_mooncake`].
    pub vs_mooncake: Option<f64>,
    /// See [`Answer::register_share`].
    pub register_share: Option<f64>,
}

/// What the measuring needs of its surroundings.
pub trait Surroundings: Sync {
    /// A fresh plan of the one segment.
    ///
    /// # Errors
    /// Why there is none, in words.
    fn plan(&self) -> Result<MountPlan, String>;
    /// This process's resident bytes beside segments.
    fn resident_bytes(&self) -> Option<u64>;
    /// Seconds from exec to the end of a process that mounts and undoes one base page.
    fn exec_seconds(&self) -> Option<f64>;
    /// Told before each round.
    fn progress(&self, round: usize);
}

/// Measures; a first round warms memory up and does not count.
///
/// # Errors
/// What failed, in words.
pub fn measure(
    question: &Question,
    around: &impl Surroundings,
    cancel: &AtomicBool,
) -> Result<Answer, String> {
    let mut answer = Answer::empty(question);
    let mut mooncake = start_mooncake(question)?;
    if mooncake.is_none() {
        answer.mooncake_absent = Some("no --mooncake-python was given".to_owned());
    }
    for round in 0..=question.rounds.get() {
        around.progress(round);
        let counts = round > 0;
        let ours = ours(around, question.size_bytes, cancel)?;
        let exec_seconds = around.exec_seconds();
        if counts {
            answer.siding.total_seconds.push(ours.total);
            answer.siding.register_seconds.push(ours.register);
            answer.resident_bytes = answer.resident_bytes.max(ours.resident);
            answer.exec_seconds = minimum(answer.exec_seconds.into_iter().chain(exec_seconds));
        }
        bare_round(question, &mut answer, counts, cancel)?;
        if let Some(theirs) = mooncake.as_mut().map(Mooncake::round).transpose()?
            && counts
        {
            keep(&mut answer, theirs);
        }
    }
    Ok(answer)
}

/// A peer that was asked for must run: its absence is an error, and only not asking is none.
fn start_mooncake(question: &Question) -> Result<Option<Mooncake>, String> {
    let Some(python) = &question.mooncake_python else {
        return Ok(None);
    };
    let rounds = question.rounds.get() + 1;
    Mooncake::start(
        python,
        question.size_bytes,
        question.pages.page_bytes(),
        rounds,
    )
    .map(Some)
}

fn bare_round(
    question: &Question,
    answer: &mut Answer,
    counts: bool,
    cancel: &AtomicBool,
) -> Result<(), String> {
    for way in &mut answer.kernel {
        if cancel.load(Ordering::Relaxed) {
            return Err("cancelled".to_owned());
        }
        let populating = if way.page_by_page {
            Populating::PageByPage
        } else {
            Populating::Share
        };
        let cpus = question.cpus.get(..way.threads).unwrap_or(&question.cpus);
        let seconds = bare::mount(question.size_bytes, question.pages, populating, cpus)
            .map_err(|error| format!("bare mount: {error}"))?;
        if counts {
            way.rounds.total_seconds.push(seconds.total());
            way.rounds.register_seconds.push(seconds.register);
        }
    }
    Ok(())
}

fn keep(answer: &mut Answer, round: super::mooncake::Round) {
    if round.touched_bytes < answer.size_bytes {
        answer.mooncake_absent = Some(format!(
            "it touched {} of {}: its segment is not usable yet when its mount returns",
            binary(round.touched_bytes),
            binary(answer.size_bytes)
        ));
        return;
    }
    answer
        .mooncake
        .get_or_insert_default()
        .total_seconds
        .push(round.mount_seconds);
    if let Some(seconds) = round.rdma_touch_seconds {
        answer
            .mooncake_rdma_touch
            .get_or_insert_default()
            .total_seconds
            .push(seconds);
    }
}

struct Ours {
    total: f64,
    register: f64,
    resident: Option<u64>,
}

fn ours(around: &impl Surroundings, size_bytes: u64, cancel: &AtomicBool) -> Result<Ours, String> {
    let plan = around.plan()?;
    let board = Board::new([("bench", size_bytes)], Metrics::new());
    let started = Instant::now();
    let mounted = pipeline::mount(plan, None, &board, cancel).map_err(|error| error.to_string())?;
    let total = started.elapsed().as_secs_f64();
    let resident = around.resident_bytes();
    let status = board.snapshot();
    let segment = status.segments.first().ok_or("no segment was mounted")?;
    let register = segment
        .seconds
        .get(&Phase::Register)
        .copied()
        .unwrap_or(0.0);
    if let Some(left_out) = &segment.left_out {
        return Err(left_out.clone());
    }
    mounted
        .unmount()
        .map_err(|error| format!("unregistering: {error}"))?;
    Ok(Ours {
        total,
        register,
        resident,
    })
}

impl Answer {
    fn empty(question: &Question) -> Self {
        let all = question.cpus.len();
        let powers = (0..)
            .map(|power| 1 << power)
            .take_while(|threads| *threads < all);
        // A base page has but one way to be populated.
        let huge = matches!(question.pages, Pages::Huge(_));
        let ways: &[bool] = if huge { &[false, true] } else { &[false] };
        let kernel = powers.chain([all]).flat_map(|threads| {
            ways.iter().map(move |&page_by_page| BareRounds {
                threads,
                page_by_page,
                rounds: Rounds::default(),
            })
        });
        Self {
            size_bytes: question.size_bytes,
            page: crate::mount::choose::pages_name(question.pages),
            siding: Rounds::default(),
            kernel: kernel.collect(),
            mooncake: None,
            mooncake_rdma_touch: None,
            mooncake_absent: None,
            resident_bytes: None,
            exec_seconds: None,
        }
    }

    fn siding_seconds(&self) -> Option<f64> {
        minimum(self.siding.total_seconds.iter().copied())
    }

    fn kernel_seconds(&self) -> Option<f64> {
        minimum(
            self.kernel
                .iter()
                .flat_map(|way| way.rounds.total_seconds.iter().copied()),
        )
    }

    /// The kernel's best over ours: 1 is the limit.
    #[must_use]
    pub fn vs_kernel(&self) -> Option<f64> {
        Some(self.kernel_seconds()? / self.siding_seconds()?)
    }

    /// Mooncake's best over ours: how many times faster we are.
    #[must_use]
    pub fn vs_mooncake(&self) -> Option<f64> {
        let theirs = minimum(self.mooncake.as_ref()?.total_seconds.iter().copied())?;
        Some(theirs / self.siding_seconds()?)
    }

    /// Our best registering over our best whole, each the minimum of its rounds as in the other
    /// ratios: one round's share swings by half with whatever interrupted it.
    #[must_use]
    pub fn register_share(&self) -> Option<f64> {
        let best = minimum(self.siding.register_seconds.iter().copied())?;
        Some(best / self.siding_seconds()?)
    }

    /// The ratios of the last line, for machines; null where unavailable.
    #[must_use]
    pub fn ratios(&self) -> Ratios {
        Ratios {
            vs_kernel: self.vs_kernel(),
            vs_mooncake: self.vs_mooncake(),
            register_share: self.register_share(),
        }
    }

    /// The last line: the ratios.
    #[must_use]
    pub fn last_line(&self) -> String {
        let show = |ratio: Option<f64>| {
            ratio.map_or_else(|| "unavailable".to_owned(), |r| format!("{r:.3}"))
        };
        format!(
            "siding-bench: vs_kernel={} vs_mooncake={} register_share={}",
            show(self.vs_kernel()),
            show(self.vs_mooncake()),
            show(self.register_share())
        )
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} of {} pages, {} rounds, interleaved; seconds (minimum, median) and GiB/s of the minimum\n",
            binary(self.size_bytes),
            self.page,
            self.siding.total_seconds.len()
        );
        self.line(&mut text, "siding: map, touch, register", &self.siding);
        for way in &self.kernel {
            let how = if way.page_by_page {
                ", page by page"
            } else {
                ""
            };
            let threads = if way.threads == 1 {
                "thread"
            } else {
                "threads"
            };
            let name = format!("bare kernel, {} {threads}{how}", way.threads);
            self.line(&mut text, &name, &way.rounds);
        }
        if let Some(rounds) = &self.mooncake {
            self.line(&mut text, "Mooncake's mount, tcp", rounds);
        }
        if let Some(rounds) = &self.mooncake_rdma_touch {
            self.line(
                &mut text,
                "Mooncake's touching for rdma, unregistered",
                rounds,
            );
        }
        if let Some(why) = &self.mooncake_absent {
            let _ = writeln!(text, "no comparison with Mooncake: {why}");
        }
        if let Some(bytes) = self.resident_bytes {
            let _ = writeln!(
                text,
                "resident beside segments: {:.1} MiB",
                bytes as f64 / f64::from(1 << 20)
            );
        }
        if let Some(seconds) = self.exec_seconds {
            let _ = writeln!(
                text,
                "exec, mount one base page, undo, exit: {:.1} ms",
                seconds * 1e3
            );
        }
        text
    }

    fn line(&self, text: &mut String, name: &str, rounds: &Rounds) {
        let totals = || rounds.total_seconds.iter().copied();
        if let (Some(best), Some(middle)) = (minimum(totals()), median(totals())) {
            let rate = self.size_bytes as f64 / f64::from(1 << 30) / best;
            let _ = writeln!(text, "  {name:<44} {best:8.4} {middle:8.4} {rate:8.1}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(total: &[f64], register: &[f64]) -> Rounds {
        Rounds {
            total_seconds: total.to_vec(),
            register_seconds: register.to_vec(),
        }
    }

    fn answer() -> Answer {
        Answer {
            size_bytes: 4 << 30,
            page: "2Mi".to_owned(),
            siding: rounds(&[0.3, 0.2, 0.25], &[0.1, 0.01, 0.1]),
            kernel: [rounds(&[0.4, 0.36], &[]), rounds(&[0.19, 0.5], &[])]
                .map(|rounds| BareRounds {
                    threads: 2,
                    page_by_page: true,
                    rounds,
                })
                .into(),
            mooncake: Some(rounds(&[0.4, 0.38], &[])),
            mooncake_rdma_touch: None,
            mooncake_absent: None,
            resident_bytes: Some(8 << 20),
            exec_seconds: Some(0.012),
        }
    }

    #[test]
    fn ratios_are_of_the_minima() {
        assert_eq!(
            answer().last_line(),
            "siding-bench: vs_kernel=0.950 vs_mooncake=1.900 register_share=0.050"
        );
        assert!(answer().table().contains("20.0\n"), "{}", answer().table());
    }

    #[test]
    fn a_peer_that_did_not_run_is_unavailable_and_said() {
        let mut answer = answer();
        answer.mooncake = None;
        answer.mooncake_absent = Some("no wheel".to_owned());
        assert!(answer.last_line().contains("vs_mooncake=unavailable"));
        assert!(
            answer
                .table()
                .contains("no comparison with Mooncake: no wheel")
        );
    }

    #[test]
    fn a_segment_that_mooncake_did_not_touch_is_not_compared() {
        let mut answer = answer();
        answer.mooncake = None;
        let round = super::super::mooncake::Round {
            mount_seconds: 0.001,
            touched_bytes: 0,
            rdma_touch_seconds: None,
        };
        keep(&mut answer, round);
        assert_eq!(answer.vs_mooncake(), None);
        assert!(answer.mooncake_absent.unwrap().starts_with("it touched 0"));
    }
}
