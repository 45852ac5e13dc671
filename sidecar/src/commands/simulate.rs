//! `siding simulate`.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use siding_simulator::{
    Model, Node, Order, Report, Workload, best_cap, compare, factor_scores, p5_settings, sweep,
};
use siding_topology::factor::{DEFAULT_FACTOR, Factor};
use siding_topology::plan;

use super::Output;
use crate::failure::Failure;
use crate::output;

/// Arguments of `siding simulate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --sweep it models every published measurement and shows both; the last line has the median
error, how many best caps were hit, and the effect of order and of the number of NICs, modelled over
measured (1 is exact). With --sweep it models one node at every cap.

  siding simulate --svg picture.svg
  siding simulate --sweep --cores 192 --ranks 8 --nics 4 --memory device")]
pub struct SimulateArgs {
    /// Model one node at every cap, and compare the planner's with the best
    #[arg(long)]
    sweep: bool,
    /// Hardware threads of the node
    #[arg(long, value_name = "N", default_value = "192", requires = "sweep")]
    cores: NonZeroUsize,
    /// Ranks on it
    #[arg(long, value_name = "N", default_value = "8", requires = "sweep")]
    ranks: NonZeroUsize,
    /// NICs that each rank registers on
    #[arg(long, value_name = "N", default_value = "32", requires = "sweep")]
    nics: NonZeroUsize,
    /// What is registered: the published buffers in device memory, or those in host memory
    #[arg(long, value_enum, default_value_t = MemoryKind::Device, requires = "sweep")]
    memory: MemoryKind,
    /// In which order
    #[arg(long, value_enum, default_value_t = BufferOrder::Ascending, requires = "sweep")]
    order: BufferOrder,
    /// The planner's factor, above 0 and at most 1
    #[arg(long, value_name = "F", default_value_t = DEFAULT_FACTOR)]
    factor: Factor,
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
                factors(),
                report.last_line()
            )),
            Output::Json => json(&report, &report),
        }
    }

    fn sweep(&self) -> Result<(), Failure> {
        let order = match self.order {
            BufferOrder::Ascending => Order::Ascending,
            BufferOrder::Descending => Order::Descending,
        };
        let workload = match self.memory {
            MemoryKind::Device => Workload::p5_gpu(&Model::FITTED.parameters.sizes, order),
            MemoryKind::Host => Workload::p5_host(),
        };
        let small = |field: &str, n: NonZeroUsize| {
            u32::try_from(n.get())
                .ok()
                .filter(|n| *n <= 4096)
                .ok_or_else(|| {
                    Failure::input(format!(
                        "--{field}: {n} is more than is modelled; write at most 4096"
                    ))
                })
        };
        let node = Node {
            hardware_threads: small("cores", self.cores)?,
            nics_per_rank: small("nics", self.nics)?,
        };
        let caps = sweep(&node, small("ranks", self.ranks)?, &workload);
        let (planned, rule) = plan::cap(self.cores, self.ranks, self.factor);
        let swept = Swept::new(caps, planned, format!("{rule:?}"))?;
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

/// What every factor would cost on the published nodes.
fn factors() -> String {
    let tried: Vec<f64> = (10..=22).map(|step| f64::from(step) / 20.0).collect();
    let mut text = "planner's factor: mean and worst time over the best cap's\n".to_owned();
    for score in factor_scores(&p5_settings(), &tried) {
        let default = if (score.factor - DEFAULT_FACTOR.get()).abs() < 1e-9 {
            "  <- default"
        } else {
            ""
        };
        let (mean, worst) = (score.mean_over_best(), score.worst_over_best());
        let _ = writeln!(
            text,
            "  {:.2}  {mean:.3}  {worst:.3}{default}",
            score.factor
        );
    }
    text
}

fn json(document: &impl Serialize, report: &Report) -> Result<(), Failure> {
    let text = serde_json::to_string(document).map_err(Failure::failed)?;
    output::print(text + "\n")?;
    output::note(report.last_line());
    Ok(())
}

/// A node at every cap.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Swept {
    caps: Vec<(u32, f64)>,
    best_cap: u32,
    best_seconds: f64,
    planned_cap: u32,
    planned_seconds: f64,
    rule: String,
}

impl Swept {
    fn new(caps: Vec<(u32, f64)>, planned: NonZeroUsize, rule: String) -> Result<Self, Failure> {
        let nothing = || Failure::failed("nothing was modelled");
        let best_cap = best_cap(&caps).ok_or_else(nothing)?;
        let seconds = |cap: u32| caps.iter().find(|(c, _)| *c == cap).map(|(_, s)| *s);
        // A cap beyond the buffers is as good as one for each.
        let most = caps.iter().map(|(cap, _)| *cap).max().ok_or_else(nothing)?;
        let planned_cap = u32::try_from(planned.get()).unwrap_or(u32::MAX).min(most);
        let nearest = caps
            .iter()
            .min_by_key(|(cap, _)| cap.abs_diff(planned_cap))
            .map(|(_, s)| *s);
        Ok(Self {
            best_seconds: seconds(best_cap).ok_or_else(nothing)?,
            planned_seconds: seconds(planned_cap).or(nearest).ok_or_else(nothing)?,
            best_cap,
            planned_cap,
            rule,
            caps,
        })
    }

    fn table(&self) -> String {
        let mut text = "cap: modelled seconds of the slowest rank\n".to_owned();
        for (cap, seconds) in &self.caps {
            let best = if *cap == self.best_cap {
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
        text + &self.last_line() + "\n"
    }

    fn last_line(&self) -> String {
        format!(
            "siding-simulate: best_cap={} planner_cap={} planner_vs_best={:.3}",
            self.best_cap,
            self.planned_cap,
            self.best_seconds / self.planned_seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_planner_is_compared_with_the_best() {
        let caps = vec![(1, 9.0), (2, 5.0), (4, 4.0), (8, 6.0)];
        let swept = Swept::new(caps, NonZeroUsize::new(2).unwrap(), String::new()).unwrap();
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
}
