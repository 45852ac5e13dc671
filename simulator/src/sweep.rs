//! The best cap for a node and a workload.

use crate::engine::{Cap, Node, simulate};
use crate::parameters::Parameters;
use crate::workload::{Memory, Workload};

/// Fewest NICs a rank on which a sweep of device memory was measured.
const FEWEST_NICS: u32 = 16;
/// Most NICs a rank on which any sweep was measured.
const MOST_NICS: u32 = 32;
/// Hardware threads between which sweeps were measured.
const THREADS: std::ops::RangeInclusive<u32> = 64..=192;
/// Ranks between which sweeps were measured.
const RANKS: std::ops::RangeInclusive<u32> = 4..=8;

/// Why a sweep of this node has no winner to be believed: it is where nothing was measured.
#[must_use]
pub fn unmeasured(node: &Node, ranks: u32, workload: &Workload) -> Option<String> {
    let Node {
        hardware_threads,
        nics_per_rank,
    } = *node;
    if workload.memory == Memory::Device && nics_per_rank < FEWEST_NICS {
        return Some(format!(
            "no sweep of device memory was measured on fewer than {FEWEST_NICS} NICs a rank (here \
             {nics_per_rank}): there the model lets workers that run side by side pay nothing for \
             each other's bytes, which flatters large caps"
        ));
    }
    let outside = [
        (hardware_threads, THREADS, "cores"),
        (ranks, RANKS, "ranks"),
        (nics_per_rank, 1..=MOST_NICS, "NICs a rank"),
    ];
    outside
        .into_iter()
        .find(|(count, measured, _)| !measured.contains(count))
        .map(|(count, measured, what)| {
            let (least, most) = measured.into_inner();
            format!(
                "sweeps were measured on {least} to {most} {what} (here {count}), and none beyond"
            )
        })
}

/// How many registrations [`sweep`] models: of every rank on every NIC, at all caps.
#[must_use]
pub fn modelled_registrations(node: &Node, ranks: u32, workload: &Workload) -> u64 {
    let buffers = workload.buffers.len();
    let points = buffers as u64 * caps(buffers).len() as u64;
    points
        .saturating_mul(u64::from(ranks))
        .saturating_mul(u64::from(node.nics_per_rank))
}

/// Seconds of one core that [`sweep`] takes, about.
///
/// As measured: a registration takes 0.13 to 0.2 µs with few ranks, 0.4 µs with 512, whose workers no
/// longer fit into a cache, and 1.3 to 1.9 µs with 4096. Ranks differ in how their costs scatter and
/// slow each other down, so the work for one can't stand for that of others.
#[must_use]
pub fn sweep_cost_seconds(node: &Node, ranks: u32, workload: &Workload) -> f64 {
    let beyond_caches = 1.0 + f64::from(ranks) / 400.0;
    modelled_registrations(node, ranks, workload) as f64 * 0.2e-6 * beyond_caches
}

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
    fn where_nothing_was_measured_is_told() {
        let of = |hardware_threads, ranks, nics_per_rank, workload: &Workload| {
            let node = Node {
                hardware_threads,
                nics_per_rank,
            };
            unmeasured(&node, ranks, workload)
        };
        let device = Workload::nic_table();
        let host = Workload::p5_host();
        assert_eq!(of(192, 8, 32, &device), None);
        assert_eq!(of(64, 4, 16, &device), None);
        assert_eq!(of(192, 8, 1, &host), None);
        let few = of(192, 8, 15, &device).unwrap();
        assert!(few.contains("fewer than 16 NICs a rank (here 15)"), "{few}");
        for (told, cores, ranks, nics) in [
            ("64 to 192 cores (here 2)", 2, 8, 32),
            ("64 to 192 cores (here 4096)", 4096, 8, 32),
            ("4 to 8 ranks (here 64)", 192, 64, 32),
            ("4 to 8 ranks (here 1)", 192, 1, 32),
            ("1 to 32 NICs a rank (here 33)", 192, 8, 33),
        ] {
            let why = of(cores, ranks, nics, &host).unwrap();
            assert!(why.contains(told), "{why}");
        }
    }

    #[test]
    fn how_much_is_modelled() {
        let node = Node {
            hardware_threads: 192,
            nics_per_rank: 32,
        };
        let p5 = Workload::p5_gpu(&Parameters::P5.sizes, crate::workload::Order::Ascending);
        assert_eq!(modelled_registrations(&node, 8, &p5), 8 * 32 * 182 * 64);
        for (ranks, nics_per_rank, measured_seconds) in [
            (4096, 1, 91.0),
            (2000, 2, 47.0),
            (1000, 4, 34.0),
            (512, 4, 8.4),
            (512, 1, 2.5),
            (64, 64, 9.8),
            (1, 4096, 6.1),
            (8, 32, 0.5),
        ] {
            let node = Node {
                hardware_threads: 192,
                nics_per_rank,
            };
            let ratio = sweep_cost_seconds(&node, ranks, &p5) / measured_seconds;
            assert!(
                (0.9..1.7).contains(&ratio),
                "{ranks} x {nics_per_rank}: {ratio}"
            );
        }
    }

    #[test]
    fn best() {
        assert_eq!(best_cap(&[]), None);
        assert_eq!(best_cap(&[(1, 9.0), (2, 4.0), (3, 4.0)]), Some(2));
    }
}
