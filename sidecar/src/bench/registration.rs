//! `siding bench registration`: ranks as processes behind a barrier, each registering its buffers
//! with a capped pool; the slowest rank counts.
//!
//! Only several processes at once show what a cap is for: one alone never contends.

pub mod buffers;
pub mod rank;
mod ranks;
pub mod room;
pub mod tasks;

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;

use serde::Serialize;
use siding_topology::size::count;

use self::rank::RankJob;
pub use self::ranks::Ranks;
use super::minimum;
use crate::failure::Failure;

/// Spread of a sweep below which there is no contention to show.
pub const CONTENTION: f64 = 1.3;
/// Seconds below which starting threads and being scheduled is most of what is measured.
pub const SHORTEST_SECONDS: f64 = 0.005;

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

    /// How well the least time is reproduced: the second least over it. None after one round.
    fn noise(&self) -> Option<f64> {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        match seconds.as_slice() {
            [least, second, ..] => Some(second / least),
            _ => None,
        }
    }
}

/// What a sweep shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Nothing was compared.
    Unavailable,
    /// Starting threads is most of what was measured.
    TooShort,
    /// A cap's own times differ as much as those of different caps.
    Noisy,
    /// Larger caps are slower.
    Contention,
    /// Only smaller caps are slower: the cores are not all used.
    TooFewThreads,
    /// All are alike.
    Nothing,
}

impl Sweep {
    fn extremes(&self) -> Option<(f64, f64)> {
        let all = || self.caps.iter().filter_map(SweptCap::best);
        Some((all().min_by(f64::total_cmp)?, all().max_by(f64::total_cmp)?))
    }

    /// Of the caps from the best on, the slowest one's seconds over the best's.
    fn contended(&self) -> Option<f64> {
        let best = self.extremes()?.0;
        let from_best = self.caps.iter().filter_map(SweptCap::best);
        let from_best = from_best.skip_while(|seconds| *seconds > best);
        from_best.max_by(f64::total_cmp).map(|worst| worst / best)
    }

    /// How far the least time of a cap is from being reproduced, at worst.
    fn noise(&self) -> Option<f64> {
        let all: Option<Vec<f64>> = self.caps.iter().map(SweptCap::noise).collect();
        all?.into_iter().max_by(f64::total_cmp)
    }

    /// Chance may be half of the spread, as a ratio, that is its root.
    fn shown(&self) -> Shown {
        let (Some(spread), Some((best, _))) = (self.spread(), self.extremes()) else {
            return Shown::Unavailable;
        };
        if best < SHORTEST_SECONDS {
            Shown::TooShort
        } else if spread < CONTENTION {
            Shown::Nothing
        } else if self.noise().is_none_or(|noise| noise >= spread.sqrt()) {
            Shown::Noisy
        } else if self.contended().is_some_and(|ratio| ratio >= CONTENTION) {
            Shown::Contention
        } else {
            Shown::TooFewThreads
        }
    }

    /// Why the ratios say nothing or little, where they do.
    #[must_use]
    pub fn caveat(&self) -> Option<String> {
        let caveat = match self.shown() {
            Shown::Contention => return None,
            Shown::Unavailable => "only the planner's cap was tried: there is nothing to compare it \
                 with; --cap sweep tries others"
                .to_owned(),
            Shown::TooShort => format!(
                "the best took {:.1} ms, and under {:.0} ms such times are noise: use more or larger \
                 --buffers",
                self.extremes()?.0 * 1e3,
                SHORTEST_SECONDS * 1e3
            ),
            Shown::Noisy => match self.noise() {
                None => "one round does not tell a cap from chance: write --rounds 3 or more".to_owned(),
                Some(noise) => format!(
                    "one cap's two best rounds differ by {noise:.2} x, too much for the spread between \
                     caps to mean anything: more --rounds, larger --buffers, or a quieter machine"
                ),
            },
            Shown::TooFewThreads => "only caps below the best are slower: more threads help and nothing \
                 contends, so the ratio tells only whether the plan uses the cores; try more ranks, or --untouched"
                .to_owned(),
            Shown::Nothing => format!(
                "best and worst differ by less than {CONTENTION} x: there is no contention to show \
                 here, which says nothing about the plan; try more ranks, or --untouched"
            ),
        };
        Some(caveat)
    }

    /// The best cap's seconds over the planner's: 1 is the best.
    #[must_use]
    pub fn planner_vs_best(&self) -> Option<f64> {
        if self.caps.len() < 2 {
            return None;
        }
        let planned = self
            .caps
            .iter()
            .find(|swept| swept.cap == Some(self.planned))?;
        Some(self.extremes()?.0 / planned.best()?)
    }

    /// The worst cap's seconds over the best's.
    #[must_use]
    pub fn spread(&self) -> Option<f64> {
        if self.caps.len() < 2 {
            return None;
        }
        self.extremes().map(|(best, worst)| worst / best)
    }

    /// Whether the sweep shows contention: `shown`, `none`, `noisy`, `too_short`, or `unavailable`.
    #[must_use]
    pub fn contention(&self) -> &'static str {
        match self.shown() {
            Shown::Contention => "shown",
            Shown::TooFewThreads | Shown::Nothing => "none",
            Shown::Noisy => "noisy",
            Shown::TooShort => "too_short",
            Shown::Unavailable => "unavailable",
        }
    }

    /// The last line: the ratios.
    #[must_use]
    pub fn last_line(&self) -> String {
        let show = |ratio: Option<f64>| {
            ratio.map_or_else(|| "unavailable".to_owned(), |r| format!("{r:.3}"))
        };
        format!(
            "siding-bench: planner_vs_best={} spread={} contention={}",
            show(self.planner_vs_best()),
            show(self.spread()),
            self.contention()
        )
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} on {}: seconds until the slowest rank was done, the minimum of {}\n  {:>9}  {:>9}\n",
            count(self.ranks, "rank"),
            count(self.cores, "core"),
            count(
                self.caps.first().map_or(0, |cap| cap.seconds.len()),
                "round"
            ),
            "CAP",
            "SECONDS"
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
                let _ = writeln!(text, "  {cap:>9}  {best:>9.4}{planned}");
            }
        }
        if let Some(caveat) = self.caveat() {
            let _ = writeln!(text, "{caveat}");
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
/// What failed, or what the machine turned out to lack.
pub fn sweep(
    question: &Question<'_>,
    ranks: &Ranks,
    progress: impl Fn(),
) -> Result<Sweep, Failure> {
    let mut caps: Vec<SweptCap> = question
        .caps
        .iter()
        .map(|cap| SweptCap {
            cap: *cap,
            seconds: Vec::new(),
        })
        .collect();
    let measure = |cap| {
        let job = RankJob {
            cap,
            ..question.job.clone()
        };
        let seconds = ranks.slowest(question, &job);
        progress();
        seconds
    };
    // Not counted: whoever is first finds the memory as others left it.
    measure(Some(question.planned))?;
    for round in 0..question.rounds.get() {
        for at in order(caps.len(), round) {
            if let Some(swept) = caps.get_mut(at) {
                swept.seconds.push(measure(swept.cap)?);
            }
        }
    }
    Ok(Sweep {
        ranks: question.ranks.get(),
        cores: question.cores.get(),
        planned: question.planned,
        caps,
    })
}

/// The order of a round: each begins with another cap, so that none is always first.
fn order(caps: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..caps).map(move |at| (at + round) % caps.max(1))
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
        let swept = sweep(&[
            (1, &[2.0, 1.6]),
            (2, &[0.9, 1.0]),
            (4, &[0.81, 0.9]),
            (8, &[1.2, 1.1]),
        ]);
        assert_eq!(
            swept.last_line(),
            "siding-bench: planner_vs_best=0.900 spread=1.975 contention=shown"
        );
        assert_eq!(swept.caveat(), None);
        let table = swept.table();
        assert!(table.starts_with("2 ranks on 2 cores: "), "{table}");
        assert!(table.contains("minimum of 2 rounds\n"), "{table}");
        assert!(
            table.contains("\n          2     0.9000  <- the planner's\n"),
            "{table}"
        );
    }

    /// What says nothing is not a pass.
    #[test]
    fn what_the_ratios_do_not_say_is_said() {
        let flat = sweep(&[(1, &[1.0]), (2, &[1.1])]);
        assert!(flat.last_line().ends_with(" contention=none"));
        assert!(flat.table().contains("no contention to show"));
        let short = sweep(&[(1, &[0.001]), (2, &[0.004])]);
        assert!(
            short
                .last_line()
                .ends_with("spread=4.000 contention=too_short")
        );
        assert!(short.table().contains("the best took 1.0 ms"));
        let alone = sweep(&[(2, &[1.0])]);
        assert_eq!(
            alone.last_line(),
            "siding-bench: planner_vs_best=unavailable spread=unavailable contention=unavailable"
        );
        assert!(alone.table().contains("nothing to compare it with"));
    }

    #[test]
    fn contention_is_of_larger_caps_and_beyond_chance() {
        let shown = |caps: &[(usize, &[f64])]| sweep(caps).contention();
        let slower = [(1, &[1.0, 1.05][..]), (2, &[1.5, 1.6])];
        assert_eq!(shown(&slower), "shown");
        // More threads are faster, to the last.
        let faster = [(1, &[1.5, 1.6][..]), (2, &[1.0, 1.05])];
        assert_eq!(shown(&faster), "none");
        let caveat = sweep(&faster).caveat().unwrap();
        assert!(caveat.starts_with("only caps below the best are slower"));
        let noisy = [(1, &[1.0, 1.4][..]), (2, &[1.5, 1.6])];
        assert_eq!(shown(&noisy), "noisy");
        let caveat = sweep(&noisy).caveat().unwrap();
        assert!(caveat.starts_with("one cap's two best rounds differ by 1.40 x"));
        let once = [(1, &[1.0][..]), (2, &[1.5])];
        assert_eq!(shown(&once), "noisy");
        let caveat = sweep(&once).caveat().unwrap();
        assert!(caveat.starts_with("one round does not tell"));
    }

    #[test]
    fn each_round_begins_with_another_cap() {
        let of = |round| order(3, round).collect::<Vec<_>>();
        assert_eq!(
            [of(0), of(1), of(2), of(3)],
            [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
        );
        assert_eq!(order(0, 5).count(), 0);
    }
}
