//! The rails of every machine whose layout is known, value by value.

#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;

use siding_fixtures::{Machine, instances};
use siding_topology::catalogue::{Catalogue, CatalogueEntry};
use siding_topology::node::Node;
use siding_topology::plan::{Devices, PlanInput, plan};
use siding_topology::rails::{Evidence, Rails, host_rails, rails};
use siding_topology::{ReadOptions, Root, read_node};

fn read(machine: &Machine) -> Node {
    let planted = machine.planted();
    read_node(&Root::at(planted.path()), &ReadOptions::default())
}

fn node(instance_type: &str) -> Node {
    read(&instances::of(instance_type).unwrap())
}

fn entry(instance_type: &str) -> CatalogueEntry {
    Catalogue::published().entry(instance_type).unwrap().clone()
}

/// `BUS NIC NIC …`, or the whole address where the bus does not tell it.
fn shown(rails: &Rails) -> Vec<String> {
    let gpus = rails.gpus.iter();
    gpus.map(|gpu| {
        let address = gpu.gpu.to_string();
        let short = address
            .trim_start_matches("0000:")
            .trim_end_matches(":00.0");
        let nics: Vec<&str> = gpu
            .nics
            .iter()
            .map(|nic| nic.trim_start_matches("rdmap"))
            .collect();
        format!("{short} {}", nics.join(" "))
    })
    .collect()
}

fn evidence(rails: &Rails) -> Vec<Evidence> {
    let mut all: Vec<Evidence> = rails.gpus.iter().map(|gpu| gpu.evidence).collect();
    all.dedup();
    all
}

fn reasons(rails: &Rails) -> Vec<String> {
    let mut all: Vec<String> = rails.gpus.iter().map(|gpu| gpu.reason.clone()).collect();
    all.dedup();
    all
}

const P5: [&str; 8] = [
    "53 79s0 80s0 81s0 82s0",
    "64 96s0 97s0 98s0 99s0",
    "75 113s0 114s0 115s0 116s0",
    "86 130s0 131s0 132s0 133s0",
    "97 147s0 148s0 149s0 150s0",
    "a8 164s0 165s0 166s0 167s0",
    "b9 181s0 182s0 183s0 184s0",
    "ca 198s0 199s0 200s0 201s0",
];
const P5EN: [&str; 8] = [
    "59 85s0 86s0",
    "5a 87s0 88s0",
    "72 110s0 111s0",
    "73 112s0 113s0",
    "8b 135s0 136s0",
    "8c 137s0 138s0",
    "a4 160s0 161s0",
    "a5 162s0 163s0",
];
const P6: [&str; 8] = [
    "51 79s0", "52 80s0", "62 96s0", "63 97s0", "75 113s0", "76 114s0", "86 132s0", "87 133s0",
];
const P4: [&str; 8] = [
    "10:1c.0 16s27",
    "10:1d.0 16s27",
    "20:1c.0 32s27",
    "20:1d.0 32s27",
    "90:1c.0 144s27",
    "90:1d.0 144s27",
    "a0:1c.0 160s27",
    "a0:1d.0 160s27",
];
const FLAT: [&str; 8] = [
    "00:16.0 0s21",
    "00:17.0 0s21",
    "00:18.0 0s21",
    "00:19.0 0s21",
    "00:1a.0 0s21",
    "00:1b.0 0s21",
    "00:1c.0 0s21",
    "00:1d.0 0s21",
];
const ND: [&str; 8] = [
    "0001:00 mlx5_ib0",
    "0002:00 mlx5_ib1",
    "0003:00 mlx5_ib2",
    "0008:00 mlx5_ib3",
    "0009:00 mlx5_ib4",
    "000a:00 mlx5_ib5",
    "000b:00 mlx5_ib6",
    "000c:00 mlx5_ib7",
];

/// The tree tells them, the catalogue agrees, and without it they are the same.
#[test]
fn where_the_tree_tells() {
    let mut seen = Vec::new();
    for (instance_type, want, by) in [
        ("p4d.24xlarge", &P4[..], Evidence::SameRoot),
        ("p4de.24xlarge", &P4, Evidence::SameRoot),
        ("p5.48xlarge", &P5, Evidence::SameSwitch),
        ("p5e.48xlarge", &P5, Evidence::SameSwitch),
        ("p5en.48xlarge", &P5EN, Evidence::SameSwitch),
        ("p6-b200.48xlarge", &P6, Evidence::SameSwitch),
        ("g5.48xlarge", &FLAT, Evidence::AllNics),
        ("p3dn.24xlarge", &FLAT, Evidence::AllNics),
        ("c5n.18xlarge", &[], Evidence::AllNics),
        ("Standard_ND96isr_H100_v5", &ND, Evidence::SameNuma),
    ] {
        seen.push(instance_type);
        let node = node(instance_type);
        let entry = entry(instance_type);
        let with = rails(&node, Some(&entry));
        assert_eq!(shown(&with), want, "{instance_type}");
        assert!(
            evidence(&with).iter().all(|found| *found == by),
            "{instance_type}"
        );
        assert_eq!(with.findings, [], "{instance_type}");
        assert_eq!(shown(&rails(&node, None)), want, "{instance_type}");
    }
    assert_eq!(seen, instances::TYPES);
}

#[test]
fn the_reasons() {
    let said = |instance_type: &str| {
        let entry = entry(instance_type);
        reasons(&rails(&node(instance_type), Some(&entry)))
    };
    assert_eq!(
        said("p5.48xlarge")[..2],
        [
            "below the bridge 0000:45:00.0: 4 usable NICs",
            "below the bridge 0000:56:00.0: 4 usable NICs",
        ]
    );
    assert_eq!(
        said("p5en.48xlarge")[0],
        "below the bridge 0000:45:00.0: 4 usable NICs, divided among 2 GPUs"
    );
    assert_eq!(
        said("p4d.24xlarge")[0],
        "no bridge in common with a NIC; on the host bridge pci0000:10: 1 usable NIC, shared by 2 \
         GPUs"
    );
    assert_eq!(
        said("g5.48xlarge"),
        [
            "every GPU and usable NIC is on one bus (pci0000:00), which tells nothing; no such NIC \
             published of g5.48xlarge; its NUMA node is unknown"
        ]
    );
    // Azure publishes how many NICs a GPU has, not which: the NUMA node decides, and dividing by
    // the order of the addresses gives each GPU the one NIC that is published.
    assert_eq!(
        said("Standard_ND96isr_H100_v5"),
        [0, 1].map(|numa| format!(
            "no usable NIC on its host bridge; no such NIC published of Standard_ND96isr_H100_v5; \
             on NUMA node {numa}: 4 usable NICs, divided among 4 GPUs"
        ))
    );
}

/// P5 in a machine that hides its bridges: the catalogue knows them.
#[test]
fn the_catalogue_fills_a_hidden_tree() {
    let mut machine = instances::of("p5.48xlarge").unwrap();
    for device in &mut machine.devices {
        device.bridges.clear();
        device.root = "pci0000:00".to_owned();
        device.numa = -1;
    }
    let node = read(&machine);
    let entry = entry("p5.48xlarge");
    let with = rails(&node, Some(&entry));
    assert_eq!(shown(&with), P5);
    assert_eq!(evidence(&with), [Evidence::Catalogue]);
    assert_eq!(with.findings, []);
    let without = rails(&node, None);
    assert_eq!(evidence(&without), [Evidence::AllNics]);
    assert!(without.gpus.iter().all(|gpu| gpu.nics.len() == 32));
}

#[test]
fn host_segments() {
    for (instance_type, numa, want) in [
        ("p5.48xlarge", 0, (16, Some(1600), Evidence::SameNuma)),
        ("p5en.48xlarge", 1, (8, Some(1600), Evidence::SameNuma)),
        ("p6-b200.48xlarge", 1, (4, Some(1600), Evidence::SameNuma)),
        ("p4d.24xlarge", 1, (2, Some(200), Evidence::SameNuma)),
        ("c5n.18xlarge", 0, (1, Some(100), Evidence::AllNics)),
        (
            "Standard_ND96isr_H100_v5",
            0,
            (4, Some(1600), Evidence::SameNuma),
        ),
    ] {
        let host = host_rails(&node(instance_type), Some(numa));
        let got = (host.nics.len(), host.gbps, host.evidence);
        assert_eq!(got, want, "{instance_type}");
    }
    let host = host_rails(&node("c5n.18xlarge"), Some(0));
    assert_eq!(
        host.reason,
        "no usable NIC is known to be on NUMA node 0: all 1 usable NIC"
    );
}

#[test]
fn the_plan_of_each() {
    for (instance_type, each, ranks, cap, nics) in [
        ("p4d.24xlarge", 1, 8, 11, 1),
        ("p5.48xlarge", 1, 8, 23, 4),
        ("p5.48xlarge", 2, 4, 46, 8),
        ("p5.48xlarge", 8, 1, 182, 32),
        ("p5en.48xlarge", 1, 8, 23, 2),
        ("p6-b200.48xlarge", 1, 8, 23, 1),
        ("g5.48xlarge", 4, 2, 91, 1),
        ("c5n.18xlarge", 1, 1, 68, 1),
        ("Standard_ND96isr_H100_v5", 1, 8, 11, 1),
    ] {
        let node = node(instance_type);
        let entry = entry(instance_type);
        let plan = plan(&PlanInput {
            devices: Devices::Node(&node),
            entry: Some(&entry),
            cores: None,
            gpus_per_rank: NonZeroUsize::new(each).unwrap(),
            ranks_bound: 0,
            factor: None,
            segments: Vec::new(),
        });
        assert_eq!(plan.ranks.len(), ranks, "{instance_type}");
        assert_eq!(plan.cap, NonZeroUsize::new(cap), "{instance_type}");
        for rank in &plan.ranks {
            assert_eq!(rank.nic_count, Some(nics), "{instance_type}");
        }
    }
}

/// What `siding topology -o json` prints is what `siding plan --topology` reads.
#[test]
fn a_node_survives_json() {
    for instance_type in instances::TYPES {
        let node = node(instance_type);
        let text = serde_json::to_string(&node).unwrap();
        assert_eq!(serde_json::from_str::<Node>(&text).unwrap(), node);
    }
}
