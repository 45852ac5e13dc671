//! Which factor the planner should multiply cores / ranks with.
//!
//! The model loses nothing before there is a thread for each hardware thread, so its best factor is
//! near 1 by construction. Measured at exactly 1 (8 ranks of 8 on 64) is 14 % over the same threads on
//! 192: the true optimum lies a little lower.

use serde::Serialize;

use crate::engine::{Cap, Node, simulate};
use crate::parameters::Parameters;
use crate::sweep::{best_cap, sweep_with};
use crate::workload::{Order, Workload};

/// A node, its ranks and what they register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The node.
    pub node: Node,
    /// Ranks on it.
    pub ranks: u32,
    /// What each registers.
    pub workload: Workload,
}

impl Setting {
    /// The cap that the planner gives with this factor.
    #[must_use]
    pub fn planned_cap(&self, factor: f64) -> u32 {
        let each = f64::from(self.node.hardware_threads) / f64::from(self.ranks.max(1));
        ((factor * each).round() as u32).max(1)
    }
}

/// How a factor does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FactorScore {
    /// The factor.
    pub factor: f64,
    /// For each setting the cap it gives.
    pub caps: Vec<u32>,
    /// For each setting its seconds over those of the best cap from 1 to twice cores / ranks.
    pub over_best: Vec<f64>,
}

impl FactorScore {
    /// Geometric mean of `over_best`.
    #[must_use]
    pub fn mean_over_best(&self) -> f64 {
        let logarithms: f64 = self.over_best.iter().map(|ratio| ratio.ln()).sum();
        (logarithms / self.over_best.len() as f64).exp()
    }

    /// The worst of `over_best`.
    #[must_use]
    pub fn worst_over_best(&self) -> f64 {
        self.over_best.iter().copied().fold(1.0, f64::max)
    }
}

/// The published p5 configurations: 8 and 4 ranks on 192 hardware threads and 8 on 64, each with the
/// order that was measured and the one that we use, and the host replay.
#[must_use]
pub fn p5_settings() -> Vec<Setting> {
    let setting = |ranks, hardware_threads, workload| Setting {
        node: Node {
            hardware_threads,
            nics_per_rank: 32,
        },
        ranks,
        workload,
    };
    let gpu = |order| Workload::p5_gpu(&Parameters::P5.sizes, order);
    let mut settings = vec![setting(8, 192, Workload::p5_host())];
    for (ranks, threads) in [(8, 192), (4, 192), (8, 64)] {
        for order in [Order::Descending, Order::Ascending] {
            settings.push(setting(ranks, threads, gpu(order)));
        }
    }
    settings
}

/// Scores each factor over all settings.
#[must_use]
pub fn factor_scores(settings: &[Setting], factors: &[f64]) -> Vec<FactorScore> {
    let best: Vec<f64> = settings.iter().map(best_seconds).collect();
    let score = |&factor: &f64| {
        let caps: Vec<u32> = settings
            .iter()
            .map(|setting| setting.planned_cap(factor))
            .collect();
        let over = |((setting, &cap), best): ((&Setting, &u32), &f64)| seconds(setting, cap) / best;
        FactorScore {
            factor,
            over_best: settings.iter().zip(&caps).zip(&best).map(over).collect(),
            caps,
        }
    };
    factors.iter().map(score).collect()
}

/// The score with the least mean.
#[must_use]
pub fn best_factor(scores: &[FactorScore]) -> Option<&FactorScore> {
    let mean = FactorScore::mean_over_best;
    scores
        .iter()
        .min_by(|left, right| mean(left).total_cmp(&mean(right)))
}

fn best_seconds(setting: &Setting) -> f64 {
    let most = setting.planned_cap(2.0);
    let caps: Vec<u32> = (1..=most).collect();
    let swept = sweep_with(
        &setting.node,
        setting.ranks,
        &setting.workload,
        &Parameters::P5,
        &caps,
    );
    let best = best_cap(&swept);
    swept
        .into_iter()
        .find(|(cap, _)| Some(*cap) == best)
        .map_or(f64::NAN, |(_, seconds)| seconds)
}

fn seconds(setting: &Setting, cap: u32) -> f64 {
    let cap = Cap::Workers(cap);
    let Setting {
        node,
        ranks,
        workload,
    } = setting;
    simulate(node, *ranks, cap, workload, &Parameters::P5).slowest_rank_seconds
}
