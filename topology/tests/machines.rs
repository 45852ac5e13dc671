//! Every machine whose layout is known, read value by value.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::symlink;

use siding_fixtures::{Machine, Port, Role, SoftNic, instances};
use siding_topology::distance::distance;
use siding_topology::node::{CoreSource, Node, PciPlace, Unusable};
use siding_topology::{ReadOptions, Root, read_node};

fn read(machine: &Machine) -> Node {
    read_with(machine, &ReadOptions::default())
}

fn read_with(machine: &Machine, options: &ReadOptions) -> Node {
    let planted = machine.planted();
    read_node(&Root::at(planted.path()), options)
}

fn node(instance_type: &str) -> Node {
    read(&instances::of(instance_type).unwrap())
}

fn reasons(node: &Node) -> Vec<String> {
    let findings = node.findings.iter();
    findings.map(|finding| finding.reason.clone()).collect()
}

/// `ROOT/BRIDGE/…/ADDRESS numa N` without the domain 0000.
fn place(place: &PciPlace) -> String {
    let mut text = place.root.to_string().replace("pci0000:", "");
    for address in place.bridges.iter().chain([&place.address]) {
        let address = address.to_string();
        text += &format!("/{}", address.strip_prefix("0000:").unwrap_or(&address));
    }
    let numa = place.numa.map_or("?".to_owned(), |numa| numa.to_string());
    format!("{text} numa {numa}")
}

fn gpus(node: &Node) -> Vec<String> {
    node.known_gpus()
        .iter()
        .map(|gpu| place(&gpu.place))
        .collect()
}

fn nics(node: &Node) -> Vec<String> {
    let nics = node.known_nics().iter().map(|nic| {
        let place = nic.place.as_ref().map_or("nowhere".to_owned(), place);
        format!("{} {place}", nic.name)
    });
    nics.collect()
}

fn unusable(node: &Node) -> Vec<(&str, Unusable)> {
    let nics = node.known_nics().iter();
    nics.filter_map(|nic| Some((nic.name.as_str(), nic.unusable?)))
        .collect()
}

/// How often each distance occurs between GPUs and NICs.
fn distances(node: &Node) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for gpu in node.known_gpus() {
        for nic in node
            .known_nics()
            .iter()
            .filter_map(|nic| nic.place.as_ref())
        {
            let found = distance(&gpu.place, nic);
            let name = found.map_or("?".to_owned(), |found| found.to_string());
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

fn counts<const N: usize>(counts: [(&str, usize); N]) -> BTreeMap<String, usize> {
    counts.map(|(name, count)| (name.to_owned(), count)).into()
}

#[test]
fn p5() {
    for (instance_type, device) in [("p5.48xlarge", 0x2330), ("p5e.48xlarge", 0x2335)] {
        let node = node(instance_type);
        assert_eq!(reasons(&node), [""; 0]);
        assert_eq!(node.instance_type.as_deref(), Some(instance_type));
        let cores = node.cores.unwrap();
        assert_eq!((cores.count.get(), cores.source), (192, CoreSource::Online));
        let numa = node.numa.iter().flatten();
        let cpus: Vec<String> = numa
            .map(|numa| numa.cpus.as_ref().unwrap().to_string())
            .collect();
        assert_eq!(cpus, ["0-95", "96-191"]);
        let pages: Vec<u64> = node
            .pools
            .iter()
            .flatten()
            .map(|pool| pool.page_bytes)
            .collect();
        assert_eq!(pages, [2 << 20, 1 << 30]);
        assert_eq!(
            gpus(&node),
            [
                "44/44:00.0/45:00.0/46:04.0/53:00.0 numa 0",
                "55/55:00.0/56:00.0/57:04.0/64:00.0 numa 0",
                "66/66:00.0/67:00.0/68:04.0/75:00.0 numa 0",
                "77/77:00.0/78:00.0/79:04.0/86:00.0 numa 0",
                "88/88:00.0/89:00.0/8a:04.0/97:00.0 numa 1",
                "99/99:00.0/9a:00.0/9b:04.0/a8:00.0 numa 1",
                "aa/aa:00.0/ab:00.0/ac:04.0/b9:00.0 numa 1",
                "bb/bb:00.0/bc:00.0/bd:04.0/ca:00.0 numa 1",
            ]
        );
        let ids = node.known_gpus().iter().map(|gpu| (gpu.vendor, gpu.device));
        assert_eq!(ids.collect::<Vec<_>>(), [(0x10de, Some(device)); 8]);
        let last = node.known_gpus()[7].uuid.as_deref();
        assert_eq!(last, Some("GPU-00000000-0000-4000-8000-000000000007"));
        let nics = nics(&node);
        assert_eq!(nics.len(), 32);
        assert_eq!(
            nics[0],
            "rdmap79s0 44/44:00.0/45:00.0/46:00.0/4f:00.0 numa 0"
        );
        assert_eq!(
            nics[3],
            "rdmap82s0 44/44:00.0/45:00.0/46:03.0/52:00.0 numa 0"
        );
        assert_eq!(
            nics[4],
            "rdmap96s0 55/55:00.0/56:00.0/57:00.0/60:00.0 numa 0"
        );
        assert_eq!(
            nics[31],
            "rdmap201s0 bb/bb:00.0/bc:00.0/bd:03.0/c9:00.0 numa 1"
        );
        assert_eq!(unusable(&node), []);
        assert_eq!(
            distances(&node),
            counts([("PIX", 32), ("NODE", 96), ("SYS", 128)])
        );
    }
}

#[test]
fn a_nic_in_full() {
    let node = node("p5.48xlarge");
    let nic = &node.known_nics()[0];
    assert_eq!(nic.ids, Some((0x1d0f, 0xefa1)));
    assert_eq!(nic.driver.as_deref(), Some("efa"));
    assert_eq!(nic.port_state.as_deref(), Some("ACTIVE"));
    assert_eq!(nic.link_layer.as_deref(), Some("Unspecified"));
    assert_eq!(nic.rate_gbps, Some(100));
    assert_eq!(nic.netdev, None);
    assert_eq!(nic.uverbs.as_deref(), Some("uverbs0"));
    assert!(nic.is_usable());
}

#[test]
fn p4d() {
    for (instance_type, device) in [("p4d.24xlarge", 0x20b0), ("p4de.24xlarge", 0x20b2)] {
        let node = node(instance_type);
        assert_eq!(reasons(&node), [""; 0]);
        assert_eq!(node.cores.unwrap().count.get(), 96);
        assert_eq!(
            gpus(&node),
            [
                "10/10:1c.0 numa 0",
                "10/10:1d.0 numa 0",
                "20/20:1c.0 numa 0",
                "20/20:1d.0 numa 0",
                "90/90:1c.0 numa 1",
                "90/90:1d.0 numa 1",
                "a0/a0:1c.0 numa 1",
                "a0/a0:1d.0 numa 1",
            ]
        );
        assert_eq!(node.known_gpus()[0].device, Some(device));
        assert_eq!(
            nics(&node),
            [
                "rdmap16s27 10/10:1b.0 numa 0",
                "rdmap32s27 20/20:1b.0 numa 0",
                "rdmap144s27 90/90:1b.0 numa 1",
                "rdmap160s27 a0/a0:1b.0 numa 1",
            ]
        );
        assert_eq!(unusable(&node), []);
        assert_eq!(
            distances(&node),
            counts([("PHB", 8), ("NODE", 8), ("SYS", 16)])
        );
    }
}

#[test]
fn p5en() {
    let node = node("p5en.48xlarge");
    assert_eq!(reasons(&node), [""; 0]);
    assert_eq!(
        gpus(&node),
        [
            "44/44:00.0/45:00.0/46:04.0/59:00.0 numa 0",
            "44/44:00.0/45:00.0/46:05.0/5a:00.0 numa 0",
            "5d/5d:00.0/5e:00.0/5f:04.0/72:00.0 numa 0",
            "5d/5d:00.0/5e:00.0/5f:05.0/73:00.0 numa 0",
            "76/76:00.0/77:00.0/78:04.0/8b:00.0 numa 1",
            "76/76:00.0/77:00.0/78:05.0/8c:00.0 numa 1",
            "8f/8f:00.0/90:00.0/91:04.0/a4:00.0 numa 1",
            "8f/8f:00.0/90:00.0/91:05.0/a5:00.0 numa 1",
        ]
    );
    let names: Vec<&str> = node
        .known_nics()
        .iter()
        .map(|nic| nic.name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "rdmap85s0",
            "rdmap86s0",
            "rdmap87s0",
            "rdmap88s0",
            "rdmap110s0",
            "rdmap111s0",
            "rdmap112s0",
            "rdmap113s0",
            "rdmap135s0",
            "rdmap136s0",
            "rdmap137s0",
            "rdmap138s0",
            "rdmap160s0",
            "rdmap161s0",
            "rdmap162s0",
            "rdmap163s0"
        ]
    );
    assert!(
        node.known_nics()
            .iter()
            .all(|nic| nic.rate_gbps == Some(200))
    );
    assert_eq!(unusable(&node), []);
    assert_eq!(
        distances(&node),
        counts([("PIX", 32), ("NODE", 32), ("SYS", 64)])
    );
}

#[test]
fn p6_b200_without_its_nvlink_controllers() {
    let node = node("p6-b200.48xlarge");
    assert_eq!(reasons(&node), [""; 0]);
    assert_eq!(
        nics(&node),
        [
            "ibp115s0f0 66/66:00.0/67:00.0/68:06.0/73:00.0 numa 1",
            "ibp116s0f0 66/66:00.0/67:00.0/68:07.0/74:00.0 numa 1",
            "rdmap79s0 44/44:00.0/45:00.0/46:00.0/4f:00.0 numa 0",
            "rdmap80s0 44/44:00.0/45:00.0/46:01.0/50:00.0 numa 0",
            "rdmap96s0 55/55:00.0/56:00.0/57:00.0/60:00.0 numa 0",
            "rdmap97s0 55/55:00.0/56:00.0/57:01.0/61:00.0 numa 0",
            "rdmap113s0 66/66:00.0/67:00.0/68:00.0/71:00.0 numa 1",
            "rdmap114s0 66/66:00.0/67:00.0/68:01.0/72:00.0 numa 1",
            "rdmap132s0 79/79:00.0/7a:00.0/7b:00.0/84:00.0 numa 1",
            "rdmap133s0 79/79:00.0/7a:00.0/7b:01.0/85:00.0 numa 1",
        ]
    );
    assert_eq!(
        unusable(&node),
        [
            ("ibp115s0f0", Unusable::NvlinkController),
            ("ibp116s0f0", Unusable::NvlinkController)
        ]
    );
    assert_eq!(node.known_nics()[0].netdev.as_deref(), Some("ibp115s0f0"));
    assert_eq!(node.known_gpus().len(), 8);
    assert_eq!(gpus(&node)[4], "66/66:00.0/67:00.0/68:02.0/75:00.0 numa 1");
}

/// Without EFA beside it, the same device is a NIC like any other.
#[test]
fn the_same_controller_on_a_node_without_efa() {
    let mut machine = instances::of("p6-b200.48xlarge").unwrap();
    machine.devices.retain(|device| device.ids.0 != 0x1d0f);
    let node = read(&machine);
    assert_eq!(node.known_nics().len(), 2);
    assert_eq!(unusable(&node), []);
}

#[test]
fn everything_on_bus_0_of_no_numa_node() {
    for (instance_type, device, threads) in
        [("g5.48xlarge", 0x2237, 192), ("p3dn.24xlarge", 0x1db5, 96)]
    {
        let node = node(instance_type);
        assert_eq!(
            reasons(&node),
            ["8 GPUs and 1 NIC are on no NUMA node that the kernel tells"]
        );
        assert_eq!(node.cores.unwrap().count.get(), threads);
        assert_eq!(
            gpus(&node),
            ["16", "17", "18", "19", "1a", "1b", "1c", "1d"]
                .map(|device| format!("00/00:{device}.0 numa ?"))
        );
        assert_eq!(node.known_gpus()[0].device, Some(device));
        assert_eq!(nics(&node), ["rdmap0s21 00/00:15.0 numa ?"]);
        assert_eq!(distances(&node), counts([("PHB", 8)]));
    }
}

#[test]
fn c5n() {
    let node = node("c5n.18xlarge");
    assert_eq!(
        reasons(&node),
        ["0 GPUs and 1 NIC are on no NUMA node that the kernel tells"]
    );
    assert_eq!(node.cores.unwrap().count.get(), 72);
    assert_eq!(gpus(&node), [""; 0]);
    assert_eq!(nics(&node), ["rdmap0s31 00/00:1f.0 numa ?"]);
    assert_eq!(unusable(&node), []);
}

#[test]
fn azure_has_a_domain_for_each_device() {
    let node = node("Standard_ND96isr_H100_v5");
    assert_eq!(node.instance_type, None);
    assert_eq!(
        reasons(&node),
        [
            "\"Virtual Machine\": Microsoft Corporation's machines do not tell their type here; \
             --instance-type can tell it"
        ]
    );
    assert_eq!(
        gpus(&node),
        [
            "pci0001:00/0001:00:00.0 numa 0",
            "pci0002:00/0002:00:00.0 numa 0",
            "pci0003:00/0003:00:00.0 numa 0",
            "pci0008:00/0008:00:00.0 numa 0",
            "pci0009:00/0009:00:00.0 numa 1",
            "pci000a:00/000a:00:00.0 numa 1",
            "pci000b:00/000b:00:00.0 numa 1",
            "pci000c:00/000c:00:00.0 numa 1",
        ]
    );
    let nics = nics(&node);
    assert_eq!(nics.len(), 8);
    assert_eq!(nics[0], "mlx5_ib0 pci0101:00/0101:00:00.0 numa 0");
    assert_eq!(nics[7], "mlx5_ib7 pci0108:00/0108:00:00.0 numa 1");
    let nic = &node.known_nics()[3];
    assert_eq!(nic.ids, Some((0x15b3, 0x101e)));
    assert_eq!(nic.driver.as_deref(), Some("mlx5_core"));
    assert_eq!(nic.link_layer.as_deref(), Some("InfiniBand"));
    assert_eq!(nic.netdev.as_deref(), Some("ib3"));
    assert_eq!(nic.uverbs.as_deref(), Some("uverbs3"));
    assert_eq!(nic.rate_gbps, Some(400));
    assert_eq!(unusable(&node), []);
    assert_eq!(distances(&node), counts([("NODE", 32), ("SYS", 32)]));
}

#[test]
fn why_a_nic_is_unusable() {
    let mut machine = instances::of("p4d.24xlarge").unwrap();
    machine.port("rdmap16s27").state = "1: DOWN".to_owned();
    machine.port("rdmap32s27").uverbs = false;
    machine.device("0000:90:1b.0").is_virtual_function = true;
    machine.soft_nics.push(SoftNic {
        port: Port::active("rxe0", "Ethernet", 100),
        parent: "ens5".to_owned(),
    });
    machine.soft_nics.push(SoftNic {
        port: Port::active("rxe1", "Ethernet", 100),
        parent: "dummy0".to_owned(),
    });
    let mut expected = vec![
        ("rdmap16s27", Unusable::Down),
        ("rdmap32s27", Unusable::NoUverbs),
        ("rdmap144s27", Unusable::Virtual),
        ("rxe0", Unusable::SoftRdma),
        ("rxe1", Unusable::SoftRdma),
    ];
    let node = read(&machine);
    assert_eq!(unusable(&node), expected);
    assert_eq!(reasons(&node), [""; 0]);

    let allowed = ReadOptions {
        allow_soft_rdma: true,
        ..ReadOptions::default()
    };
    let node = read_with(&machine, &allowed);
    expected.truncate(3);
    assert_eq!(unusable(&node), expected);
    let rxe = &node.known_nics()[4];
    assert_eq!(rxe.driver.as_deref(), Some("rdma_rxe"));
    assert_eq!(rxe.netdev.as_deref(), Some("ens5"));
    assert_eq!(rxe.ids, Some((0x1d0f, 0xec20)), "those of its parent");
    assert_eq!(nics(&node)[4..], ["rxe0 00/00:05.0 numa 0", "rxe1 nowhere"]);
}

#[test]
fn what_is_given_is_taken() {
    let options = ReadOptions {
        allocatable_cores: NonZeroUsize::new(188),
        instance_type: Some("other.type".to_owned()),
        ..ReadOptions::default()
    };
    let node = read_with(&instances::of("p5.48xlarge").unwrap(), &options);
    let cores = node.cores.unwrap();
    assert_eq!(
        (cores.count.get(), cores.source),
        (188, CoreSource::Allocatable)
    );
    assert_eq!(node.instance_type.as_deref(), Some("other.type"));
    assert_eq!(
        reasons(&node),
        ["says p5.48xlarge, given was other.type, which is taken"]
    );
}

#[test]
fn mig_is_said() {
    let mut machine = instances::of("p4d.24xlarge").unwrap();
    let Role::Gpu { mig_instances, .. } = &mut machine.device("0000:10:1d.0").role else {
        panic!("not a GPU");
    };
    *mig_instances = 7;
    let node = read(&machine);
    assert_eq!(node.known_gpus().len(), 8);
    assert_eq!(
        reasons(&node),
        ["GPU 0000:10:1d.0 is cut into 7 MIG instances: what is planned is for the whole GPU"]
    );
    let Role::Gpu { mig_instances, .. } = &mut machine.device("0000:10:1d.0").role else {
        panic!("not a GPU");
    };
    *mig_instances = 1;
    assert_eq!(
        reasons(&read(&machine)),
        ["GPU 0000:10:1d.0 is cut into 1 MIG instance: what is planned is for the whole GPU"]
    );
}

#[test]
fn links_that_begin_with_a_slash_stay_inside() {
    for instance_type in instances::TYPES {
        let mut machine = instances::of(instance_type).unwrap();
        let relative = read(&machine);
        machine.absolute_links = true;
        let absolute = read(&machine);
        assert_eq!(absolute.gpus, relative.gpus, "{instance_type}");
        assert_eq!(absolute.nics, relative.nics, "{instance_type}");
    }
}

/// Links that lead to the machine that runs the test, and in a circle.
#[test]
fn links_never_lead_out() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "1\n").unwrap();
    let inside = tempfile::tempdir().unwrap();
    let at = |name: &str| inside.path().join(name);
    symlink(outside.path().join("secret"), at("absolute")).unwrap();
    let up = "../".repeat(30);
    symlink(
        format!("{up}{}/secret", outside.path().display()),
        at("relative"),
    )
    .unwrap();
    symlink("circle", at("circle")).unwrap();
    let root = Root::at(inside.path());
    for name in ["absolute", "relative"] {
        assert_eq!(root.read(name).unwrap_err().reason, "does not exist");
        assert_eq!(root.read_if_there(name), Ok(None));
    }
    assert_eq!(
        root.read("circle").unwrap_err().reason,
        "too many links in a row"
    );
}

#[test]
fn nothing_there() {
    let empty = tempfile::tempdir().unwrap();
    let root = Root::at(empty.path());
    let node = read_node(&root, &ReadOptions::default());
    assert_eq!((node.instance_type.as_deref(), node.cores), (None, None));
    assert_eq!(
        (&node.gpus, &node.nics),
        (&None, &None),
        "unknown, not none"
    );
    assert_eq!((node.numa, node.pools), (None, None));
    let said: Vec<String> = node.findings.iter().map(ToString::to_string).collect();
    let base = empty.path().display();
    assert_eq!(
        said,
        [
            format!("{base}/sys/class/dmi/id/sys_vendor: does not exist"),
            format!("{base}/proc/self/mountinfo: does not exist"),
            format!("{base}/sys/devices/system/cpu/online: does not exist"),
            format!("{base}/sys/devices/system/node: does not exist"),
            format!(
                "{base}/sys/bus/pci/devices: does not exist: how many GPUs there are is unknown"
            ),
            format!("{base}/sys/class/infiniband: does not exist: which NICs there are is unknown"),
            format!("{base}/sys/kernel/mm/hugepages: does not exist"),
        ]
    );
}

#[test]
fn a_machine_without_pci() {
    let machine = Machine::bare("QEMU", "microvm", 4, 1);
    let planted = machine.planted();
    fs::remove_dir_all(planted.path().join("sys/bus/pci")).unwrap();
    let root = Root::at(planted.path());
    let node = read_node(&root, &ReadOptions::default());
    assert_eq!(node.cores.unwrap().count.get(), 4);
    assert_eq!(
        (
            node.known_gpus().len(),
            node.known_nics().len(),
            node.numa.as_ref().unwrap().len()
        ),
        (0, 0, 1)
    );
    assert_eq!(
        reasons(&node),
        [
            "\"microvm\" of \"QEMU\" is no known instance type; --instance-type can tell it",
            "does not exist",
            "does not exist: no RDMA device, or its kernel module is not loaded"
        ]
    );
}

#[test]
fn gaps_of_a_device_are_said_and_no_gpu_is_dropped() {
    let machine = instances::of("p4d.24xlarge").unwrap();
    let planted = machine.planted();
    let root = Root::at(planted.path());
    fs::remove_dir_all(planted.path().join("proc/driver")).unwrap();
    let gpu = root.path("sys/devices/pci0000:10/0000:10:1c.0");
    fs::write(gpu.join("numa_node"), "far\n").unwrap();
    let nic = root.path("sys/devices/pci0000:20/0000:20:1b.0");
    fs::remove_file(nic.join("driver")).unwrap();
    fs::remove_file(nic.join("infiniband/rdmap32s27/ports/1/rate")).unwrap();
    fs::remove_dir_all(
        root.path("sys/devices/pci0000:90/0000:90:1b.0/infiniband/rdmap144s27/ports"),
    )
    .unwrap();
    // A folder where the kernel has a link: nothing tells where in the tree it hangs.
    let link = root.path("sys/bus/pci/devices/0000:a0:1d.0");
    fs::remove_file(&link).unwrap();
    fs::rename(root.path("sys/devices/pci0000:a0/0000:a0:1d.0"), &link).unwrap();

    let node = read_node(&root, &ReadOptions::default());
    assert_eq!(node.known_gpus().len(), 8);
    assert_eq!(gpus(&node)[0], "10/10:1c.0 numa ?");
    assert_eq!(gpus(&node)[7], "?0000:a0:1d.0/a0:1d.0 numa 1");
    assert!(!node.known_gpus()[7].place.has_known_root());
    assert!(node.known_gpus().iter().all(|gpu| gpu.uuid.is_none()));
    let nic = &node.known_nics()[1];
    assert_eq!((nic.driver.as_deref(), nic.rate_gbps), (None, None));
    let nic = &node.known_nics()[2];
    assert_eq!((nic.port_state.as_deref(), nic.is_usable()), (None, true));
    let mut said = reasons(&node);
    said.sort();
    assert_eq!(
        said,
        [
            "1 GPU and 0 NICs are on no NUMA node that the kernel tells",
            "does not exist",
            "does not exist",
            "does not exist",
            "does not exist: the GPUs' UUIDs are unknown",
            "expected a NUMA node or -1, found \"far\"",
            "is below no host bridge: shares none",
        ]
    );
}
