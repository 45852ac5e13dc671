//! The best cap for a node and a workload.

use crate::engine::{Cap, Node, simulate};
use crate::parameters::Parameters;
use crate::workload::Workload;

/// Seconds of the slowest rank for each of a set of caps: every one up to 32, then about twelve a
/// doubling, up to a thread a buffer.
#[must_use]
pub fn sweep(node: &Node, ranks: u32, workload: &Workload) -> Vec<(u32, f64)> {
    let caps = caps(workload.buffers.len());
    sweep_with(node, ranks, workload, &Parameters::P5, &caps)
}

/// [`sweep`] with parameters and caps of the caller's.
#[must_use]
pub fn sweep_with(
    node: &Node,
    ranks: u32,
    workload: &Workload,
    parameters: &Parameters,
    caps: &[u32],
) -> Vec<(u32, f64)> {
    let seconds =
        |cap| simulate(node, ranks, Cap::Workers(cap), workload, parameters).slowest_rank_seconds;
    caps.iter().map(|&cap| (cap, seconds(cap))).collect()
}

/// The cap with the least seconds; the smallest of several. None where nothing was swept.
#[must_use]
pub fn best_cap(swept: &[(u32, f64)]) -> Option<u32> {
    let least = |left: &&(u32, f64), right: &&(u32, f64)| {
        left.1.total_cmp(&right.1).then(left.0.cmp(&right.0))
    };
    swept.iter().min_by(least).map(|(cap, _)| *cap)
}

fn caps(buffers: usize) -> Vec<u32> {
    let most = u32::try_from(buffers).unwrap_or(u32::MAX);
    let next = |cap: &u32| Some(cap + (cap / 16).max(1));
    let mut caps: Vec<u32> = std::iter::successors(Some(1), next)
        .take_while(|cap| *cap < most)
        .collect();
    caps.push(most.max(1));
    caps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_cover_the_range() {
        assert_eq!(caps(0), [1]);
        assert_eq!(caps(5), [1, 2, 3, 4, 5]);
        let most = caps(182);
        assert_eq!(most.first(), Some(&1));
        assert_eq!(most.last(), Some(&182));
        assert_eq!(most.len(), 64);
        assert_eq!(most[31..35], [32, 34, 36, 38]);
    }

    #[test]
    fn best() {
        assert_eq!(best_cap(&[]), None);
        assert_eq!(best_cap(&[(1, 9.0), (2, 4.0), (3, 4.0)]), Some(2));
    }
}
