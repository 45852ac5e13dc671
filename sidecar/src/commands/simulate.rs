//! `siding simulate`.

use std::fmt::Write as _;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use siding_simulator::{
    Basis, BestCap, Model, Node, Order, Report, Workload, best_cap, compare, factor_scores,
    p5_settings, sweep, sweep_cost_seconds, unmeasured,
};
use siding_topology::factor::{DEFAULT_FACTOR, Factor};
use siding_topology::plan;

use super::Output;
use super::numbers::whole;
use crate::failure::Failure;
use crate::output;

/// Beyond this no node is.
const MOST: u64 = 4096;
/// A sweep that takes longer is refused.
const MOST_SECONDS: f64 = 3.0;

/// Arguments of `siding simulate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --sweep it models every published measurement and shows both; the last line has the median
error, how many best caps were hit, and the effect of order and of the number of NICs, modelled over
measured (1 is exact). With --sweep it models one node at every cap; where nothing like it was ever
measured it says so and names no best cap.

  siding simulate --svg picture.svg
  siding simulate --sweep --cores 96 --ranks 4 --nics 16 --memory device")]
pub struct SimulateArgs {
    /// Model one node at every cap, and compare the planner's with the best
    #[arg(long)]
    sweep: bool,
    /// Hardware threads of the node [default: 192]
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroU16>(1..=MOST))]
    cores: Option<NonZeroU16>,
    /// Ranks on it: processes that register at once [default: 8]
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroU16>(1..=MOST))]
    ranks: Option<NonZeroU16>,
    /// NICs that each rank registers on [default: 32]
    #[arg(long, value_name = "N", value_parser = whole::<NonZeroU16>(1..=MOST))]
    nics: Option<NonZeroU16>,
    /// What is registered: the published buffers in device memory, or those in host memory [default:
    /// device]
    #[arg(long, value_enum)]
    memory: Option<MemoryKind>,
    /// In which order [default: ascending]
    #[arg(long, value_enum)]
    order: Option<BufferOrder>,
    /// The planner's factor, above 0 and at most 1 [default: the planner's own]
    #[arg(long, value_name = "F")]
    factor: Option<Factor>,
    /// Draw measured against modelled into this file
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    svg: Option<PathBuf>,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// The kind of memory that is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MemoryKind {
    /// 182 buffers of a GPU.
    Device,
    /// 128 buffers of 2 GiB on pages of 4 KiB.
    Host,
}

/// The order in which buffers are registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BufferOrder {
    /// Small ones first.
    Ascending,
    /// Large ones first.
    Descending,
}

impl SimulateArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        if self.sweep {
            self.sweep()
        } else {
            self.refuse_without_sweep()?;
            self.compare()
        }
    }

    fn compare(&self) -> Result<(), Failure> {
        let report = compare();
        if let Some(path) = &self.svg {
            output::write_file(path, report.svg().as_bytes()).map_err(|error| {
                Failure::failed(format!(
                    "--svg: {}: {error}; name a file that can be written",
                    path.display()
                ))
            })?;
        }
        match self.output {
            Output::Table => output::print(format!(
                "{}{}{}\n",
                report.table(),
                factor_table(),
                report.last_line()
            )),
            Output::Json => json(&report),
        }
    }

    /// What is only asked of a node that is swept.
    fn refuse_without_sweep(&self) -> Result<(), Failure> {
        let given = [
            ("--cores", self.cores.is_some()),
            ("--ranks", self.ranks.is_some()),
            ("--nics", self.nics.is_some()),
            ("--memory", self.memory.is_some()),
            ("--order", self.order.is_some()),
            ("--factor", self.factor.is_some()),
        ];
        let given = given.iter().filter(|(_, is_given)| *is_given);
        let names: Vec<&str> = given.map(|(name, _)| *name).collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(Failure::input(format!(
            "{}: only with --sweep, which models one node; write --sweep too, or leave it out to compare \
             the model with what was measured",
            names.join(", ")
        )))
    }

    fn sweep(&self) -> Result<(), Failure> {
        let order = match self.order {
            None | Some(BufferOrder::Ascending) => Order::Ascending,
            Some(BufferOrder::Descending) => Order::Descending,
        };
        let workload = match self.memory {
            None | Some(MemoryKind::Device) => {
                Workload::p5_gpu(&Model::FITTED.parameters.sizes, order)
            }
            Some(MemoryKind::Host) => Workload::p5_host(),
        };
        let count = |given: Option<NonZeroU16>, default: u32| {
            given.map_or(default, |given| u32::from(given.get()))
        };
        let (cores, ranks) = (count(self.cores, 192), count(self.ranks, 8));
        let node = Node {
            hardware_threads: cores,
            nics_per_rank: count(self.nics, 32),
        };
        bounded(&node, ranks, &workload)?;
        let whole = |n: u32| NonZeroUsize::new(n as usize).unwrap_or(NonZeroUsize::MIN);
        let factor = self.factor.unwrap_or(DEFAULT_FACTOR);
        let (planned, rule) = plan::cap(whole(cores), whole(ranks), factor);
        let caps = sweep(&node, ranks, &workload);
        let unmeasured = unmeasured(&node, ranks, &workload);
        let swept = Swept::new(caps, planned, format!("{rule:?}"), unmeasured)?;
        match self.output {
            Output::Table => output::print(swept.table()),
            Output::Json => {
                let text = serde_json::to_string(&swept).map_err(Failure::failed)?;
                output::print(text + "\n")?;
                output::note(swept.last_line());
                Ok(())
            }
        }
    }
}

/// Refuses what would take minutes.
fn bounded(node: &Node, ranks: u32, workload: &Workload) -> Result<(), Failure> {
    let nics = node.nics_per_rank;
    let seconds = |ranks: u32, nics_per_rank: u32| {
        let node = Node {
            nics_per_rank,
            ..*node
        };
        sweep_cost_seconds(&node, ranks, workload)
    };
    if seconds(ranks, nics) <= MOST_SECONDS {
        return Ok(());
    }
    let most_ranks = (1..ranks).rev().find(|n| seconds(*n, nics) <= MOST_SECONDS);
    let most_nics = (1..nics).rev().find(|n| seconds(ranks, *n) <= MOST_SECONDS);
    let works = match (most_ranks, most_nics) {
        (Some(ranks), Some(nics)) => {
            format!("write --ranks of at most {ranks}, or --nics of at most {nics}")
        }
        (Some(ranks), None) => format!("write --ranks of at most {ranks}"),
        (None, Some(nics)) => format!("write --nics of at most {nics}"),
        (None, None) => "write less of both, such as --ranks 8 --nics 32".to_owned(),
    };
    Err(Failure::input(format!(
        "--ranks, --nics: modelling ranks {ranks} x NICs {nics} at all caps takes about {:.0} s, at most \
         {MOST_SECONDS} s are; {works}",
        seconds(ranks, nics)
    )))
}

/// What every factor would cost on the published nodes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FactorTimes {
    factor: f64,
    mean_over_best: f64,
    worst_over_best: f64,
}

fn factors() -> Vec<FactorTimes> {
    let tried: Vec<f64> = (10..=20).map(|step| f64::from(step) / 20.0).collect();
    let scores = factor_scores(&p5_settings(), &tried);
    let times = scores.iter().map(|score| FactorTimes {
        factor: score.factor,
        mean_over_best: score.mean_over_best(),
        worst_over_best: score.worst_over_best(),
    });
    times.collect()
}

fn factor_table() -> String {
    let mut text = "planner's factor: mean and worst time over the best cap's\n".to_owned();
    for times in factors() {
        let default = if (times.factor - DEFAULT_FACTOR.get()).abs() < 1e-9 {
            "  <- default"
        } else {
            ""
        };
        let (mean, worst) = (times.mean_over_best, times.worst_over_best);
        let _ = writeln!(
            text,
            "  {:.2}  {mean:.3}  {worst:.3}{default}",
            times.factor
        );
    }
    text
}

/// All that the table says, for machines.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Comparison<'a> {
    #[serde(flatten)]
    report: &'a Report,
    best_caps: Vec<BestCap>,
    factors: Vec<FactorTimes>,
    ratios: Ratios,
}

/// What the last line says.
#[derive(Serialize)]
struct Ratios {
    median_error: f64,
    best_cap_hits: usize,
    order: f64,
    nics: f64,
}

fn json(report: &Report) -> Result<(), Failure> {
    let best_caps = report.best_caps();
    let document = Comparison {
        report,
        ratios: Ratios {
            median_error: report.median_error(&Basis::ALL),
            best_cap_hits: best_caps.iter().filter(|row| row.hit).count(),
            order: report.order_effect(),
            nics: report.nic_effect(),
        },
        best_caps,
        factors: factors(),
    };
    let text = serde_json::to_string(&document).map_err(Failure::failed)?;
    output::print(text + "\n")?;
    output::note(report.last_line());
    Ok(())
}

/// A node at every cap.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Swept {
    caps: Vec<(u32, f64)>,
    /// Null where nothing like this node was measured.
    best_cap: Option<u32>,
    best_seconds: Option<f64>,
    planned_cap: u32,
    planned_seconds: f64,
    rule: String,
    /// Why there is no best cap.
    finding: Option<String>,
}

impl Swept {
    fn new(
        caps: Vec<(u32, f64)>,
        planned: NonZeroUsize,
        rule: String,
        unmeasured: Option<String>,
    ) -> Result<Self, Failure> {
        let nothing = || Failure::failed("nothing was modelled");
        let seconds = |cap: u32| caps.iter().find(|(c, _)| *c == cap).map(|(_, s)| *s);
        // A cap beyond the buffers is as good as one for each.
        let most = caps.iter().map(|(cap, _)| *cap).max().ok_or_else(nothing)?;
        let planned_cap = u32::try_from(planned.get()).unwrap_or(u32::MAX).min(most);
        let nearest = caps
            .iter()
            .min_by_key(|(cap, _)| cap.abs_diff(planned_cap))
            .map(|(_, s)| *s);
        let best_cap = best_cap(&caps).filter(|_| unmeasured.is_none());
        Ok(Self {
            best_seconds: best_cap.and_then(seconds),
            planned_seconds: seconds(planned_cap).or(nearest).ok_or_else(nothing)?,
            best_cap,
            planned_cap,
            rule,
            finding: unmeasured,
            caps,
        })
    }

    fn table(&self) -> String {
        let mut text = format!(
            "modelled seconds until the slowest rank is done\n  {:>4}  {:>8}\n",
            "CAP", "SECONDS"
        );
        for (cap, seconds) in &self.caps {
            let best = if Some(*cap) == self.best_cap {
                "  <- best"
            } else {
                ""
            };
            let planned = if *cap == self.planned_cap {
                "  <- the planner's"
            } else {
                ""
            };
            let _ = writeln!(text, "  {cap:>4}  {seconds:>8.1}{best}{planned}");
        }
        if let Some(finding) = &self.finding {
            let _ = writeln!(text, "finding: no best cap is named: {finding}");
        }
        text + &self.last_line() + "\n"
    }

    fn last_line(&self) -> String {
        let unavailable = || "unavailable".to_owned();
        let best = self
            .best_cap
            .map_or_else(unavailable, |cap| cap.to_string());
        let ratio = self.best_seconds.map_or_else(unavailable, |seconds| {
            format!("{:.3}", seconds / self.planned_seconds)
        });
        format!(
            "siding-simulate: best_cap={best} planner_cap={} planner_vs_best={ratio}",
            self.planned_cap
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_planner_is_compared_with_the_best() {
        let caps = vec![(1, 9.0), (2, 5.0), (4, 4.0), (8, 6.0)];
        let swept = Swept::new(caps, NonZeroUsize::new(2).unwrap(), String::new(), None).unwrap();
        assert_eq!(
            swept.last_line(),
            "siding-simulate: best_cap=4 planner_cap=2 planner_vs_best=0.800"
        );
        let table = swept.table();
        assert!(
            table.contains("   4       4.0  <- best\n")
                && table.contains("   2       5.0  <- the planner's\n"),
            "{table}"
        );
    }

    #[test]
    fn what_would_take_long_is_refused_with_what_works() {
        let device = Workload::p5_gpu(&Model::FITTED.parameters.sizes, Order::Ascending);
        let said = |ranks, nics_per_rank| {
            let node = Node {
                hardware_threads: 192,
                nics_per_rank,
            };
            let refused = bounded(&node, ranks, &device).err();
            refused.map(|failure| failure.message).unwrap_or_default()
        };
        for (ranks, nics, works) in [
            (
                4096,
                1,
                "1 at all caps takes about 107 s, at most 3 s are; write --ranks of at most 545",
            ),
            (1000, 4, "write --ranks of at most 210"),
            (
                64,
                64,
                "write --ranks of at most 19, or --nics of at most 17",
            ),
            (1, 4096, "write --nics of at most 1284"),
            (
                4096,
                4096,
                "write less of both, such as --ranks 8 --nics 32",
            ),
        ] {
            let told = said(ranks, nics);
            assert!(told.ends_with(works), "{told}");
        }
        for (ranks, nics) in [(545, 1), (210, 4), (19, 64), (64, 17), (1, 1284), (8, 32)] {
            assert_eq!(said(ranks, nics), "");
        }
    }

    #[test]
    fn no_winner_is_called_where_nothing_was_measured() {
        let caps = vec![(1, 9.0), (2, 5.0)];
        let why = Some("nobody knows".to_owned());
        let swept = Swept::new(caps, NonZeroUsize::MIN, String::new(), why).unwrap();
        assert_eq!(
            swept.last_line(),
            "siding-simulate: best_cap=unavailable planner_cap=1 planner_vs_best=unavailable"
        );
        let table = swept.table();
        assert!(
            table.contains("\nfinding: no best cap is named: nobody knows\n"),
            "{table}"
        );
        assert!(!table.contains("<- best"), "{table}");
    }
}
