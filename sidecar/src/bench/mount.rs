//! `siding bench mount`: our pipeline, the kernel's own limit and Mooncake's mount, interleaved.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use serde::Serialize;
use siding_fabric::{Pages, bare};
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
    /// The most threads that the bare limit is tried with.
    pub cores: NonZeroUsize,
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
    /// The bare kernel, with one thread, two, … up to the cores.
    pub kernel: Vec<Rounds>,
    /// Mooncake's mount over TCP; absent where it could not run.
    pub mooncake: Option<Rounds>,
    /// Mooncake's touching for the protocol rdma, registration left out.
    pub mooncake_rdma_touch: Option<Rounds>,
    /// Why Mooncake is absent or can't be compared.
    pub mooncake_absent: Option<String>,
    /// Bytes resident beside segments while mounted; unknown where the kernel does not say.
    pub resident_bytes: Option<u64>,
}

/// Measures. `plan` makes a fresh plan of the one segment, and `resident` reads this process's
/// resident bytes beside segments.
///
/// # Errors
/// What failed, in words.
pub fn measure(
    question: &Question,
    plan: impl Fn() -> Result<MountPlan, String>,
    resident: impl Fn() -> Option<u64>,
    progress: impl Fn(usize),
) -> Result<Answer, String> {
    let Question {
        size_bytes,
        pages,
        rounds,
        cores,
        ..
    } = *question;
    let mut answer = Answer {
        size_bytes,
        page: crate::mount::choose::pages_name(pages),
        siding: Rounds::default(),
        kernel: vec![Rounds::default(); cores.get()],
        mooncake: None,
        mooncake_rdma_touch: None,
        mooncake_absent: None,
        resident_bytes: None,
    };
    let mut mooncake = match &question.mooncake_python {
        Some(python) => Mooncake::start(python, size_bytes, pages.page_bytes(), rounds.get() + 1)
            .map_err(|why| answer.mooncake_absent = Some(why))
            .ok(),
        None => {
            answer.mooncake_absent = Some("no --mooncake-python was given".to_owned());
            None
        }
    };
    for round in 0..=rounds.get() {
        progress(round);
        let counts = round > 0;
        let ours = ours(plan()?, size_bytes, &resident)?;
        let mut bare = Vec::new();
        for threads in 1..=cores.get() {
            bare.push(
                bare::mount(size_bytes, pages, threads)
                    .map_err(|error| format!("bare mount: {error}"))?,
            );
        }
        let theirs = mooncake.as_mut().map(Mooncake::round).transpose();
        if counts {
            answer.siding.total_seconds.push(ours.total);
            answer.siding.register_seconds.push(ours.register);
            answer.resident_bytes = answer.resident_bytes.max(ours.resident);
            for (rounds, seconds) in answer.kernel.iter_mut().zip(&bare) {
                rounds.total_seconds.push(seconds.total());
                rounds.register_seconds.push(seconds.register);
            }
        }
        match theirs {
            Ok(Some(theirs)) if counts => keep(&mut answer, theirs),
            Ok(_) => {}
            Err(why) => {
                answer.mooncake_absent = Some(why);
                mooncake = None;
            }
        }
    }
    Ok(answer)
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

fn ours(
    plan: MountPlan,
    size_bytes: u64,
    resident: &impl Fn() -> Option<u64>,
) -> Result<Ours, String> {
    let board = Board::new([("bench", size_bytes)], Metrics::new());
    let started = Instant::now();
    let mounted = pipeline::mount(plan, None, &board, &AtomicBool::new(false))
        .map_err(|error| error.to_string())?;
    let total = started.elapsed().as_secs_f64();
    let resident = resident();
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
    fn siding_seconds(&self) -> Option<f64> {
        minimum(self.siding.total_seconds.iter().copied())
    }

    fn kernel_seconds(&self) -> Option<(usize, f64)> {
        let minima = self
            .kernel
            .iter()
            .map(|rounds| minimum(rounds.total_seconds.iter().copied()));
        let threads = minima
            .enumerate()
            .filter_map(|(index, best)| Some((index + 1, best?)));
        threads.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The kernel's best over ours: 1 is the limit.
    #[must_use]
    pub fn vs_kernel(&self) -> Option<f64> {
        Some(self.kernel_seconds()?.1 / self.siding_seconds()?)
    }

    /// Mooncake's best over ours: how many times faster we are.
    #[must_use]
    pub fn vs_mooncake(&self) -> Option<f64> {
        let theirs = minimum(self.mooncake.as_ref()?.total_seconds.iter().copied())?;
        Some(theirs / self.siding_seconds()?)
    }

    /// The share of registering in our best round.
    #[must_use]
    pub fn register_share(&self) -> Option<f64> {
        let rounds = self
            .siding
            .total_seconds
            .iter()
            .zip(&self.siding.register_seconds);
        let best = rounds.min_by(|a, b| a.0.total_cmp(b.0))?;
        Some(best.1 / best.0)
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
        for (index, rounds) in self.kernel.iter().enumerate() {
            self.line(
                &mut text,
                &format!("bare kernel, {} thread(s)", index + 1),
                rounds,
            );
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
            kernel: vec![rounds(&[0.4, 0.36], &[]), rounds(&[0.19, 0.5], &[])],
            mooncake: Some(rounds(&[0.4, 0.38], &[])),
            mooncake_rdma_touch: None,
            mooncake_absent: None,
            resident_bytes: Some(8 << 20),
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
