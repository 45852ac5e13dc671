//! A machine that is none of ours: a kernel's own `/sys` of two sockets, real switches and soft
//! RDMA devices, as `siding topology --capture` read it in a virtual machine.
//!
//! `tests/guest/capture tests/reference/guest-two-sockets.tar` made the archive (QEMU 7.2, Debian's
//! Linux 6.1); its `--help` draws the machine. No test boots it. All in it is what that kernel says,
//! but for the ids of the four accelerators below switches: they pose as H100.

#![allow(clippy::unwrap_used)]

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;

use siding_topology::budget::Fit;
use siding_topology::distance::distance;
use siding_topology::node::{CoreSource, Node, PciPlace, Unusable};
use siding_topology::plan::{
    CapRule, CoresFrom, Devices, Plan, PlanInput, RankRule, SegmentInput, plan,
};
use siding_topology::rails::{Evidence, host_rails, rails};
use siding_topology::{Finding, ReadOptions, Root, read_node};

const ARCHIVE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/reference/guest-two-sockets.tar"
);

fn read(allow_soft_rdma: bool) -> Node {
    let options = ReadOptions {
        allow_soft_rdma,
        ..ReadOptions::default()
    };
    read_node(&Root::open(ARCHIVE).unwrap(), &options)
}

/// `PATH: REASON`, the path below the archive.
fn said(findings: &[Finding]) -> Vec<String> {
    let line = |finding: &Finding| {
        let inside = finding.path.strip_prefix(ARCHIVE);
        let path = inside.unwrap_or(&finding.path);
        format!("{}: {}", path.display(), finding.reason)
    };
    findings.iter().map(line).collect()
}

/// `ROOT/BRIDGE/…/ADDRESS numa N` without the domain.
fn place(place: &PciPlace) -> String {
    let mut text = place.root.to_string().replace("pci0000:", "");
    for address in place.bridges.iter().chain([&place.address]) {
        text += &address.to_string().replace("0000:", "/");
    }
    let numa = place.numa.map_or("?".to_owned(), |numa| numa.to_string());
    format!("{text} numa {numa}")
}

#[test]
fn two_sockets() {
    let node = read(false);
    assert_eq!(node.instance_type, None);
    let cores = node.cores.unwrap();
    assert_eq!((cores.count.get(), cores.source), (8, CoreSource::Online));
    let nodes = node.numa.as_ref().unwrap();
    let numa = nodes.iter().map(|numa| {
        let gib = numa.memory_total_bytes.unwrap().div_ceil(1 << 30);
        (numa.id, numa.cpus.as_ref().unwrap().to_string(), gib)
    });
    assert_eq!(
        numa.collect::<Vec<_>>(),
        [(0, "0-3".to_owned(), 1), (1, "4-7".to_owned(), 3)]
    );
    let in_use = nodes.iter().map(|numa| {
        let (free, available) = (numa.memory_free_bytes, numa.memory_available_bytes);
        assert!(available.unwrap() >= free.unwrap(), "{numa:?}");
        numa.memory_total_bytes.unwrap() - free.unwrap()
    });
    // The huge pages are no free memory: 64 of 2 MiB here; 32 and one of 1 GiB there.
    let huge = [128 << 20, (64 << 20) + (1 << 30)];
    for (in_use, huge) in in_use.zip(huge) {
        assert!((huge..huge + (256 << 20)).contains(&in_use), "{in_use}");
    }
}

#[test]
fn pools_of_each_node() {
    let pools = read(false).pools.unwrap();
    let pools = pools.iter().map(|pool| {
        let nodes = pool.nodes.iter();
        let nodes = nodes.map(|node| (node.node, node.total, node.free));
        let counts = (pool.total, pool.free, pool.reserved, pool.surplus);
        (pool.page_bytes, counts, nodes.collect::<Vec<_>>())
    });
    assert_eq!(
        pools.collect::<Vec<_>>(),
        [
            (2 << 20, (96, 93, 0, 0), vec![(0, 64, 64), (1, 32, 29)]),
            (1 << 30, (1, 1, 0, 0), vec![(0, 0, 0), (1, 1, 1)]),
        ]
    );
}

#[test]
fn gpus_below_their_switches() {
    let node = read(false);
    let gpus = node.gpus.iter().flatten();
    let gpus = gpus.map(|gpu| (place(&gpu.place), gpu.vendor, gpu.device, gpu.uuid.clone()));
    assert_eq!(
        gpus.collect::<Vec<_>>(),
        [
            "20/20:00.0/21:00.0/22:01.0/24:00.0 numa 0",
            "40/40:00.0/41:00.0/42:01.0/44:00.0 numa 0",
            "60/60:00.0/61:00.0/62:01.0/64:00.0 numa 1",
            "80/80:00.0/81:00.0/82:01.0/84:00.0 numa 1",
        ]
        .map(|place| (place.to_owned(), 0x10de, Some(0x2330), None))
    );
}

/// The soft devices' places are those of the NICs that they are made on, which a kernel tells by
/// `parent` alone: below a bridge, on no NUMA node (a bus of the chipset), or nowhere.
#[test]
fn soft_nics_where_their_parents_are() {
    let node = read(true);
    let nics = node.nics.iter().flatten().map(|nic| {
        let place = nic.place.as_ref().map_or("nowhere".to_owned(), place);
        format!("{} on {} {place}", nic.name, nic.netdev.as_ref().unwrap())
    });
    assert_eq!(
        nics.collect::<Vec<_>>(),
        [
            "rxe_dummy0 on dummy0 nowhere",
            "rxe_eth0 on eth0 80/80:00.0/81:00.0/82:00.0/83:00.0 numa 1",
            "rxe_eth1 on eth1 60/60:00.0/61:00.0/62:00.0/63:00.0 numa 1",
            "rxe_eth2 on eth2 40/40:00.0/41:00.0/42:00.0/43:00.0 numa 0",
            "rxe_eth3 on eth3 40/40:01.0/45:00.0 numa 0",
            "rxe_eth4 on eth4 20/20:00.0/21:00.0/22:00.0/23:00.0 numa 0",
            "rxe_eth5 on eth5 20/20:00.0/21:00.0/22:02.0/25:00.0/26:00.0/27:00.0 numa 0",
            "rxe_eth6 on eth6 00/00:05.0 numa ?",
        ]
    );
    let ids: Vec<_> = node.nics.iter().flatten().map(|nic| nic.ids).collect();
    let (e1000e, virtio) = (Some((0x8086, 0x10d3)), Some((0x1af4, 0x1000)));
    assert_eq!(
        ids,
        [None, e1000e, e1000e, e1000e, e1000e, e1000e, e1000e, virtio]
    );
    let uverbs: Vec<_> = node
        .nics
        .iter()
        .flatten()
        .map(|nic| nic.uverbs.as_deref().unwrap())
        .collect();
    assert_eq!(
        uverbs,
        [
            "uverbs7", "uverbs0", "uverbs1", "uverbs2", "uverbs3", "uverbs4", "uverbs5", "uverbs6"
        ]
    );
    for nic in node.nics.iter().flatten() {
        assert_eq!(nic.driver.as_deref(), Some("rdma_rxe"), "{}", nic.name);
        assert_eq!(nic.link_layer.as_deref(), Some("Ethernet"), "{}", nic.name);
        assert_eq!(nic.rate_gbps, Some(2), "2.5 Gb/sec: {}", nic.name);
        let is_down = nic.name == "rxe_eth0";
        let state = if is_down { "DOWN" } else { "ACTIVE" };
        assert_eq!(nic.port_state.as_deref(), Some(state), "{}", nic.name);
        let unusable = is_down.then_some(Unusable::Down);
        assert_eq!(nic.unusable, unusable, "{}", nic.name);
    }
    let not_allowed = read(false).nics.unwrap();
    let not_allowed: Vec<_> = not_allowed.iter().map(|nic| nic.unusable).collect();
    assert_eq!(not_allowed, [Some(Unusable::SoftRdma); 8]);
}

/// The second virtio NIC, an accelerator that poses as nothing, and an emulated VGA controller are in
/// the archive.
#[test]
fn what_is_no_nic_and_no_gpu() {
    let root = Root::open(ARCHIVE).unwrap();
    let class = |address: &str| {
        let file = Path::new("sys/bus/pci/devices").join(address);
        root.read(file.join("class")).unwrap()
    };
    let node = read(true);
    let gpus = node.gpus.iter().flatten().map(|gpu| gpu.place.address);
    let nics = node
        .nics
        .iter()
        .flatten()
        .filter_map(|nic| nic.place.as_ref());
    let devices = gpus.chain(nics.map(|place| place.address));
    let devices: Vec<String> = devices.map(|address| address.to_string()).collect();
    for (address, want, is_ours) in [
        ("0000:00:05.0", "0x020000\n", true),
        ("0000:00:06.0", "0x020000\n", false),
        ("0000:00:07.0", "0x00ff00\n", false),
        ("0000:00:08.0", "0x030000\n", false),
        ("0000:24:00.0", "0x030200\n", true),
    ] {
        assert_eq!(class(address), want, "{address}");
        let found = devices.iter().any(|device| device == address);
        assert_eq!(found, is_ours, "{address}");
    }
}

#[test]
fn every_distance_there_is() {
    let node = read(true);
    let row = |from: &PciPlace| {
        let to = node.nics.iter().flatten().map(|nic| {
            let found = distance(from, nic.place.as_ref()?)?;
            Some(found.as_str())
        });
        let to: Vec<&str> = to.map(|found| found.unwrap_or("?")).collect();
        to.join(" ")
    };
    let rows: Vec<String> = node
        .gpus
        .iter()
        .flatten()
        .map(|gpu| row(&gpu.place))
        .collect();
    assert_eq!(
        rows,
        [
            "? SYS SYS NODE NODE PIX PXB ?",
            "? SYS SYS PIX PHB NODE NODE ?",
            "? NODE PIX SYS SYS SYS SYS ?",
            "? PIX NODE SYS SYS SYS SYS ?",
        ]
    );
    let gpus = node.gpus.as_ref().unwrap();
    let between = |a: usize, b: usize| distance(&gpus[a].place, &gpus[b].place);
    let between = [between(0, 0), between(0, 1), between(0, 2), between(2, 3)];
    let between = between.map(|found| found.unwrap().as_str());
    assert_eq!(between, ["X", "NODE", "SYS", "NODE"]);
}

#[test]
fn what_is_missing_is_said() {
    let want = [
        "sys/class/dmi/id/product_name: \"Standard PC (Q35 + ICH9, 2009)\" of \"QEMU\" is no known \
         instance type; --instance-type can tell it",
        "proc/driver/nvidia/gpus: does not exist: the GPUs' UUIDs are unknown",
        "sys/bus/pci/devices: 0 GPUs and 1 NIC are on no NUMA node that the kernel tells",
    ];
    assert_eq!(said(&read(false).findings), want);
    assert_eq!(said(&read(true).findings), want);
}

#[test]
fn rails_with_soft_nics() {
    let rails = rails(&read(true), None);
    let gpus = rails.gpus.iter().map(|gpu| {
        let gpu_and_nics = format!("{} {}", gpu.gpu, gpu.nics.join(" "));
        (gpu_and_nics, gpu.evidence, gpu.reason.as_str())
    });
    let want = [
        (
            "0000:24:00.0 rxe_eth4 rxe_eth5",
            Evidence::SameSwitch,
            "below the bridge 0000:21:00.0: 2 usable NICs",
        ),
        (
            "0000:44:00.0 rxe_eth2",
            Evidence::SameSwitch,
            "below the bridge 0000:41:00.0: 1 usable NIC",
        ),
        (
            "0000:64:00.0 rxe_eth1",
            Evidence::SameSwitch,
            "below the bridge 0000:61:00.0: 1 usable NIC",
        ),
        (
            "0000:84:00.0 rxe_eth1",
            Evidence::SameNuma,
            "no usable NIC on its host bridge; no catalogue entry; on NUMA node 1: 1 usable NIC, \
             used by nearer GPUs too",
        ),
    ];
    let want = want.map(|(gpu, evidence, reason)| (gpu.to_owned(), evidence, reason));
    assert_eq!(gpus.collect::<Vec<_>>(), want);
    assert_eq!(
        said(&rails.findings),
        [
            "/sys/class/infiniband/rxe_eth0: is nearer to 0000:84:00.0 than any usable NIC, and \
             left out (Down)"
        ]
    );
}

#[test]
fn rails_without_soft_nics() {
    let node = read(false);
    let rails = rails(&node, None);
    assert_eq!(rails.gpus.len(), 4);
    for gpu in &rails.gpus {
        assert_eq!(gpu.nics, [""; 0]);
        assert_eq!(gpu.reason, "the node has no usable NIC");
    }
    assert_eq!(said(&rails.findings), [""; 0]);
    let host = host_rails(&node, Some(0));
    assert_eq!((host.nics.len(), host.gbps), (0, None));
}

fn planned(node: &Node, gpus_per_rank: usize) -> Plan {
    let segment = |name: &str, numa| SegmentInput {
        name: name.to_owned(),
        bytes: 64 << 20,
        page_bytes: NonZeroU64::new(2 << 20).unwrap(),
        is_page_assumed: false,
        numa,
    };
    plan(&PlanInput {
        devices: Devices::Node(node),
        entry: None,
        cores: None,
        gpus_per_rank: NonZeroUsize::new(gpus_per_rank).unwrap(),
        ranks_bound: 0,
        factor: None,
        segments: vec![
            segment("near", Some(0)),
            segment("far", Some(1)),
            segment("both", None),
        ],
    })
}

#[test]
fn ranks_of_the_plan() {
    let node = read(true);
    for (gpus_per_rank, cap, share, want) in [
        (
            1,
            2,
            2,
            &[
                "rxe_eth4 rxe_eth5 SameSwitch",
                "rxe_eth2 SameSwitch",
                "rxe_eth1 SameSwitch",
                "rxe_eth1 SameNuma",
            ][..],
        ),
        (
            2,
            4,
            4,
            &["rxe_eth4 rxe_eth5 rxe_eth2 SameSwitch", "rxe_eth1 SameNuma"],
        ),
        (4, 8, 8, &["rxe_eth4 rxe_eth5 rxe_eth2 rxe_eth1 SameNuma"]),
    ] {
        let plan = planned(&node, gpus_per_rank);
        let cores = plan.inputs.cores.unwrap();
        assert_eq!((cores.count.get(), cores.source), (8, CoresFrom::Online));
        assert_eq!((plan.inputs.gpus, plan.inputs.nics), (Some(4), Some(7)));
        assert_eq!(plan.cap, NonZeroUsize::new(cap), "{}", plan.cap_reason);
        assert_eq!(plan.cap_rule, CapRule::Factor);
        assert_eq!(plan.ranks_planned.unwrap().rule, RankRule::Gpus);
        let ranks = plan.ranks.iter().map(|rank| {
            assert_eq!(rank.core_share, NonZeroUsize::new(share));
            let nics = rank.nics.as_ref().unwrap().join(" ");
            format!("{nics} {}", rank.evidence.unwrap())
        });
        assert_eq!(ranks.collect::<Vec<_>>(), want);
    }
}

#[test]
fn segments_of_the_plan() {
    let plan = planned(&read(true), 1);
    let segments = plan.segments.iter().map(|segment| {
        assert!(
            matches!(segment.fit, Some(Fit::EveryNic(_))),
            "{}",
            segment.reason
        );
        let rails = segment.rails.as_ref().unwrap();
        (rails.nics.join(" "), rails.gbps, rails.evidence)
    });
    let want = [
        (
            "rxe_eth4 rxe_eth5 rxe_eth2 rxe_eth3",
            Some(8),
            Evidence::SameNuma,
        ),
        ("rxe_eth1", Some(2), Evidence::SameNuma),
        (
            "rxe_eth6 rxe_eth4 rxe_eth5 rxe_eth2 rxe_eth3 rxe_eth1 rxe_dummy0",
            Some(14),
            Evidence::AllNics,
        ),
    ];
    let want = want.map(|(nics, gbps, evidence)| (nics.to_owned(), gbps, evidence));
    assert_eq!(segments.collect::<Vec<_>>(), want);
}
