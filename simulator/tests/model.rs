//! What the model promises, with numbers: the goals of the comparison, and what holds for any input.

use std::sync::LazyLock;

use proptest::prelude::*;
use siding_simulator::{
    Basis, Buffer, Cap, Memory, Model, Node, Order, Parameters, Report, Spread, Workload,
    best_factor, compare, factor_scores, p5_settings, simulate, sweep_with,
};

static REPORT: LazyLock<Report> = LazyLock::new(compare);

const P5: Node = Node {
    hardware_threads: 192,
    nics_per_rank: 32,
};

fn gpu(order: Order) -> Workload {
    Workload::p5_gpu(&Parameters::P5.sizes, order)
}

fn p5_seconds(cap: Cap, order: Order) -> f64 {
    simulate(&P5, 8, cap, &gpu(order), &Parameters::P5).slowest_rank_seconds
}

#[test]
fn every_published_cell_is_compared() {
    let count = |basis| {
        REPORT
            .cells
            .iter()
            .filter(|cell| cell.basis == basis)
            .count()
    };
    assert_eq!(count(Basis::Fitted), 7 + 12 + 8 + 6);
    assert_eq!(count(Basis::OwnParameter), 5);
    assert_eq!(count(Basis::HeldOut), 3 + 4);
    for cell in &REPORT.cells {
        assert!(cell.measured > 0.0 && cell.modelled > 0.0, "{cell:?}");
    }
}

/// The two sums and the host buffer of the accumulation table stand in its comment, not in a row.
#[test]
fn the_controls_are_the_published_ones() {
    let about = siding_simulator::tables()[0].about.join("\n");
    for published in ["ascending 35.5 s, descending 93.3 s", "391 MB ~600 ms"] {
        assert!(about.contains(published), "{about}");
    }
}

#[test]
fn median_error_is_under_15_percent() {
    let every = [Basis::Fitted, Basis::OwnParameter, Basis::HeldOut];
    for (bases, most) in [
        (&every[..], 0.15),
        (&[Basis::Fitted], 0.06),
        (&[Basis::HeldOut], 0.15),
    ] {
        let error = REPORT.median_error(bases);
        assert!(error < most, "{bases:?}: {error}");
    }
}

#[test]
fn the_best_cap_of_every_row_is_the_measured_one_or_its_neighbour() {
    let best = REPORT.best_caps();
    assert_eq!(best.len(), 8);
    for row in best {
        assert!(row.hit, "{row:?}");
    }
}

#[test]
fn effects_are_within_20_percent() {
    let order = REPORT.order_effects();
    let caps: Vec<&str> = order.keys().map(String::as_str).collect();
    assert_eq!(caps, ["cap 16", "cap 64", "cap 8", "cap unbounded"]);
    assert_eq!(REPORT.nic_effects().len(), 2);
    for effect in order.into_values().chain(REPORT.nic_effects()) {
        assert!((0.8..=1.2).contains(&effect), "{effect}");
    }
}

#[test]
fn what_is_missed_by_more_than_40_percent_is_known() {
    let missed: Vec<(&str, &str)> = REPORT
        .missed()
        .map(|cell| (cell.row.as_str(), cell.column.as_str()))
        .collect();
    assert_eq!(missed, [("p5_host", "cap 4")]);
    for cell in REPORT.missed() {
        assert!(cell.note.is_some(), "{cell:?}");
    }
}

#[test]
fn the_last_line() {
    let line = REPORT.last_line();
    let fields: Vec<&str> = line.split(' ').collect();
    assert_eq!(fields[0], "siding-simulate:");
    for (field, name) in
        fields[1..]
            .iter()
            .zip(["median_error=0.0", "best_cap_hits=8/8", "order=", "nics="])
    {
        assert!(field.starts_with(name), "{line}");
    }
}

#[test]
fn the_report_in_every_form() {
    let table = REPORT.table();
    let svg = REPORT.svg();
    for cell in &REPORT.cells {
        assert!(table.contains(&cell.row) && table.contains(&cell.column));
        assert!(svg.contains(&cell.row) && svg.contains(&cell.column));
    }
    assert_eq!(
        svg.matches("class=\"measured\"").count(),
        REPORT.cells.len() + 1
    );
    assert!(!svg.contains("NaN") && !svg.contains("http://www.w3.org/1999"));
    let json = serde_json::to_value(&*REPORT).unwrap();
    assert_eq!(json["cells"].as_array().unwrap().len(), REPORT.cells.len());
    assert_eq!(json["cells"][0]["basis"], "Fitted");
}

#[test]
fn the_same_input_gives_the_same_answer() {
    let run = || {
        simulate(
            &P5,
            3,
            Cap::Workers(16),
            &gpu(Order::Descending),
            &Parameters::P5,
        )
    };
    assert_eq!(run(), run());
}

/// Published: 4 ranks and 8 take the same time at the same cap while threads are free.
#[test]
fn ranks_share_nothing_but_hardware_threads() {
    let of = |ranks| {
        simulate(
            &P5,
            ranks,
            Cap::Workers(8),
            &gpu(Order::Descending),
            &Parameters::P5,
        )
        .slowest_rank_seconds
    };
    let ratio = of(8) / of(4);
    assert!((0.98..=1.02).contains(&ratio), "{ratio}");
}

#[test]
fn ascending_is_never_worse_on_device_memory() {
    for cap in [1, 2, 4, 8, 16, 24, 64] {
        let cap = Cap::Workers(cap);
        let (up, down) = (
            p5_seconds(cap, Order::Ascending),
            p5_seconds(cap, Order::Descending),
        );
        assert!(up < down, "{cap}: {up} {down}");
    }
}

/// With a thread a buffer every thread starts before anything is registered.
#[test]
fn order_does_not_matter_unbounded() {
    let of = |order| p5_seconds(Cap::Unbounded, order);
    let ratio = of(Order::Descending) / of(Order::Ascending);
    assert!((0.9..=1.1).contains(&ratio), "{ratio}");
}

#[test]
fn host_memory_does_not_accumulate() {
    let seconds = |order| {
        let workload = Workload {
            memory: Memory::Host { page_bytes: 4096 },
            ..gpu(order)
        };
        simulate(&P5, 1, Cap::Workers(1), &workload, &without_spread()).slowest_rank_seconds
    };
    let ratio = seconds(Order::Descending) / seconds(Order::Ascending);
    assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
}

/// The planner's range is 0.7 to 1.0; the best of it costs at most 2 % anywhere.
#[test]
fn the_best_factor_lies_in_the_planners_range() {
    let scores = factor_scores(&p5_settings(), &[0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.15, 1.3]);
    let best = best_factor(&scores).unwrap();
    assert!((0.7..=1.0).contains(&best.factor), "{best:?}");
    assert!(best.worst_over_best() < 1.02, "{best:?}");
}

#[test]
fn nothing_to_do_takes_no_time() {
    let empty = Workload {
        buffers: Vec::new(),
        memory: Memory::Device,
        order: Order::Ascending,
    };
    let no_nics = Node {
        nics_per_rank: 0,
        ..P5
    };
    for (node, ranks, workload) in [
        (P5, 8, &empty),
        (P5, 0, &gpu(Order::Ascending)),
        (no_nics, 8, &gpu(Order::Ascending)),
    ] {
        let outcome = simulate(&node, ranks, Cap::Unbounded, workload, &Parameters::P5);
        assert_eq!(outcome.slowest_rank_seconds, 0.0);
        assert_eq!(outcome.peak_threads_in_flight, 0);
        assert_eq!(outcome.registrations, 0);
    }
}

#[test]
fn the_fitted_model_is_the_default() {
    assert_eq!(Model::FITTED.parameters, Parameters::P5);
}

fn without_spread() -> Parameters {
    Parameters {
        spread: Spread::None,
        ..Parameters::P5
    }
}

/// The cost of one rank's registrations one after another, by the formula.
fn serial_seconds(workload: &Workload, nics: u32, rank: usize, p: &Parameters) -> f64 {
    const GIB: f64 = (1_u64 << 30) as f64;
    let mut held = 0;
    let mut seconds = 0.0;
    for (buffer, bytes) in workload.ordered_bytes().into_iter().enumerate() {
        let own = match workload.memory {
            Memory::Host { page_bytes } => {
                bytes.div_ceil(page_bytes) as f64 * p.host_nanoseconds_per_page / 1e9
            }
            Memory::Device => {
                (p.device_seconds_per_gib * bytes as f64
                    + p.accumulation_seconds_per_gib * held as f64)
                    / GIB
            }
        };
        for nic in 0..nics as usize {
            let index = buffer * nics as usize + nic;
            seconds += (p.fixed_seconds + own) * p.spread.factor(rank, index);
        }
        held += bytes;
    }
    seconds
}

fn workloads() -> impl Strategy<Value = Workload> {
    let buffer = (1_u64..(1 << 30), 0_u32..3).prop_map(|(bytes, pool)| Buffer { bytes, pool });
    let memory = prop_oneof![
        Just(Memory::Device),
        Just(Memory::Host { page_bytes: 4096 }),
        Just(Memory::Host {
            page_bytes: 2 << 20
        }),
    ];
    let order = prop_oneof![
        Just(Order::Descending),
        Just(Order::GroupedByPool),
        Just(Order::Ascending),
    ];
    (prop::collection::vec(buffer, 1..24), memory, order).prop_map(|(buffers, memory, order)| {
        Workload {
            buffers,
            memory,
            order,
        }
    })
}

fn nodes() -> impl Strategy<Value = Node> {
    (1_u32..40, 1_u32..5).prop_map(|(hardware_threads, nics_per_rank)| Node {
        hardware_threads,
        nics_per_rank,
    })
}

proptest! {
    #[test]
    fn never_more_in_flight_than_cap_times_ranks(
        node in nodes(), ranks in 1_u32..5, cap in 1_u32..40, workload in workloads()
    ) {
        let outcome = simulate(&node, ranks, Cap::Workers(cap), &workload, &Parameters::P5);
        prop_assert!(outcome.peak_threads_in_flight <= (cap * ranks) as usize);
        prop_assert_eq!(
            outcome.registrations,
            u64::from(ranks * node.nics_per_rank) * workload.buffers.len() as u64
        );
        prop_assert_eq!(outcome.rank_seconds.len(), ranks as usize);
    }

    #[test]
    fn more_cores_are_never_slower(
        node in nodes(), ranks in 1_u32..5, cap in 1_u32..40, workload in workloads(), more in 1_u32..40
    ) {
        let larger = Node { hardware_threads: node.hardware_threads + more, ..node };
        let of = |node| simulate(node, ranks, Cap::Workers(cap), &workload, &Parameters::P5);
        prop_assert!(of(&larger).slowest_rank_seconds <= of(&node).slowest_rank_seconds + 1e-9);
    }

    #[test]
    fn one_worker_takes_the_serial_sum(nics in 1_u32..5, ranks in 1_u32..5, workload in workloads()) {
        let node = Node { hardware_threads: ranks, nics_per_rank: nics };
        let outcome = simulate(&node, ranks, Cap::Workers(1), &workload, &Parameters::P5);
        for (rank, seconds) in outcome.rank_seconds.iter().enumerate() {
            let serial = serial_seconds(&workload, nics, rank, &Parameters::P5);
            prop_assert!((seconds - serial).abs() < 1e-6, "{seconds} {serial}");
        }
    }

    #[test]
    fn one_worker_is_fastest_ascending(nics in 1_u32..5, mut workload in workloads()) {
        workload.memory = Memory::Device;
        let node = Node { hardware_threads: 1, nics_per_rank: nics };
        let mut of = |order| {
            workload.order = order;
            simulate(&node, 1, Cap::Workers(1), &workload, &without_spread()).slowest_rank_seconds
        };
        let ascending = of(Order::Ascending);
        prop_assert!(ascending <= of(Order::GroupedByPool) + 1e-6);
        prop_assert!(ascending <= of(Order::Descending) + 1e-6);
    }

    #[test]
    fn a_sweep_has_every_cap(node in nodes(), workload in workloads()) {
        let swept = sweep_with(&node, 2, &workload, &Parameters::P5, &[1, 2, 3]);
        prop_assert_eq!(swept.iter().map(|(cap, _)| *cap).collect::<Vec<_>>(), [1, 2, 3]);
        prop_assert!(swept.iter().all(|(_, seconds)| seconds.is_finite() && *seconds >= 0.0));
    }
}
