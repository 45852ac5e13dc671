//! What can't be told of a node's devices is unknown, never 0 and never unusable.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use siding_fixtures::{Machine, instances};
use siding_topology::node::{Nic, Node, Unusable};
use siding_topology::{ReadOptions, Root, read_node};
use tempfile::TempDir;

const UNCOUNTED: &str = ": how many GPUs there are is unknown";

fn read(planted: &Path) -> Node {
    read_node(&Root::at(planted), &ReadOptions::default())
}

fn counts(planted: &Path) -> (Option<usize>, Option<usize>) {
    let node = read(planted);
    (
        node.gpus.map(|gpus| gpus.len()),
        node.nics.map(|nics| nics.len()),
    )
}

fn says(node: &Node, words: &str) -> bool {
    let mut findings = node.findings.iter();
    findings.any(|finding| finding.reason.contains(words))
}

fn p4d() -> TempDir {
    instances::of("p4d.24xlarge").unwrap().planted()
}

/// In the place of a folder: a file, a link that leads nowhere, and one that leads to itself.
fn spoil(path: &Path, how: &str) {
    fs::remove_dir_all(path).unwrap();
    match how {
        "file" => fs::write(path, "x").unwrap(),
        "dangling" => symlink("nowhere", path).unwrap(),
        "circle" => symlink(path.file_name().unwrap(), path).unwrap(),
        _ => {}
    }
}

#[test]
fn a_listing_that_is_there_and_unreadable() {
    for how in ["file", "dangling", "circle"] {
        let planted = p4d();
        spoil(&planted.path().join("sys/bus/pci/devices"), how);
        assert_eq!(counts(planted.path()), (None, Some(4)), "{how}");
        let node = read(planted.path());
        assert!(says(&node, UNCOUNTED), "{:?}", node.findings);

        let planted = p4d();
        spoil(&planted.path().join("sys/class/infiniband"), how);
        assert_eq!(counts(planted.path()), (Some(8), None), "{how}");
        let node = read(planted.path());
        assert!(says(&node, ": which NICs there are is unknown"));
    }
}

#[test]
fn none_only_where_the_kernel_lacks_the_folder() {
    for (gone, want) in [
        ("sys/class/infiniband", (Some(8), Some(0))),
        ("sys/class", (Some(8), None)),
        ("sys/bus", (None, Some(4))),
        ("sys/bus/pci/devices", (None, Some(4))),
        ("sys", (None, None)),
    ] {
        let planted = p4d();
        fs::remove_dir_all(planted.path().join(gone)).unwrap();
        assert_eq!(counts(planted.path()), want, "without {gone}");
    }
    let planted = Machine::bare("QEMU", "microvm", 4, 1).planted();
    fs::remove_dir_all(planted.path().join("sys/bus/pci")).unwrap();
    assert_eq!(counts(planted.path()), (Some(0), Some(0)));
}

/// Each file of a GPU that decides whether it is one, gone with and without the driver's list.
#[test]
fn a_gpu_is_counted_or_the_count_is_unknown() {
    let gpu = "sys/devices/pci0000:10/0000:10:1c.0";
    for (gone, with_driver, without) in [
        ("class", Some(8), None),
        ("vendor", Some(8), None),
        ("device", Some(8), Some(8)),
        ("", None, None),
    ] {
        for (has_driver, want) in [(true, with_driver), (false, without)] {
            let planted = p4d();
            if !has_driver {
                fs::remove_dir_all(planted.path().join("proc/driver")).unwrap();
            }
            let path = planted.path().join(gpu).join(gone);
            let removed = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
            removed.unwrap();
            let node = read(planted.path());
            let got = node.gpus.as_ref().map(Vec::len);
            assert_eq!(got, want, "{gone:?}, driver {has_driver}");
            assert_eq!(says(&node, UNCOUNTED), want.is_none());
            assert!(says(&node, "does not exist"), "{:?}", node.findings);
        }
    }
}

#[test]
fn a_device_that_is_no_gpu_makes_nothing_unknown() {
    let planted = p4d();
    let nic = planted.path().join("sys/devices/pci0000:10/0000:10:1b.0");
    fs::remove_file(nic.join("class")).unwrap();
    assert_eq!(counts(planted.path()), (Some(8), Some(4)));
}

#[test]
fn a_gpu_that_only_the_driver_has() {
    let planted = p4d();
    let told = planted.path().join("proc/driver/nvidia/gpus/0000:77:00.0");
    fs::create_dir_all(&told).unwrap();
    let node = read(planted.path());
    assert_eq!(node.gpus, None);
    let want = "has GPU 0000:77:00.0, which is not in /sys/bus/pci/devices: how many GPUs there";
    assert!(says(&node, want), "{:?}", node.findings);
}

#[test]
fn a_gpu_that_is_listed_twice_counts_once() {
    let planted = p4d();
    let devices = planted.path().join("sys/bus/pci/devices");
    let same = fs::read_link(devices.join("0000:10:1c.0")).unwrap();
    symlink(same, devices.join("00000000:10:1c.0")).unwrap();
    let node = read(planted.path());
    assert_eq!(node.known_gpus().len(), 8);
    assert!(says(&node, "leads to GPU 0000:10:1c.0 as another does"));
}

fn unusable(planted: &Path) -> Vec<Option<Unusable>> {
    let node = read(planted);
    node.known_nics().iter().map(|nic| nic.unusable).collect()
}

/// Which uverbs devices there are, unknown or none.
#[test]
fn a_nic_is_not_unusable_for_what_is_unknown() {
    let class = "sys/class/infiniband_verbs";
    for how in ["file", "dangling", "circle"] {
        let planted = p4d();
        spoil(&planted.path().join(class), how);
        assert_eq!(unusable(planted.path()), [None; 4], "{how}");
    }
    let planted = p4d();
    let first = "sys/devices/pci0000:10/0000:10:1b.0/infiniband_verbs/uverbs0/ibdev";
    fs::remove_file(planted.path().join(first)).unwrap();
    assert_eq!(unusable(planted.path()), [None; 4]);

    let planted = p4d();
    fs::remove_dir_all(planted.path().join(class)).unwrap();
    assert_eq!(unusable(planted.path()), [Some(Unusable::NoUverbs); 4]);

    let planted = p4d();
    let nic = "sys/devices/pci0000:10/0000:10:1b.0/infiniband/rdmap16s27/device";
    spoil_file(&planted.path().join(nic));
    assert_eq!(unusable(planted.path()), [None; 4]);
    assert!(says(&read(planted.path()), "where this NIC is is unknown"));
}

/// What a GPU is cut into is known, or said to be unknown.
#[test]
fn whether_a_gpu_is_cut_into_instances_is_said_to_be_unknown() {
    let capabilities = "proc/driver/nvidia/capabilities";
    let information = "proc/driver/nvidia/gpus/0000:10:1c.0/information";
    let unknown = "whether GPU 0000:10:1c.0 is cut into MIG instances is unknown";
    let said = |change: &dyn Fn(&Path)| -> Vec<String> {
        let planted = p4d();
        change(planted.path());
        let findings = read(planted.path()).findings.into_iter();
        findings.map(|finding| finding.reason).collect()
    };
    let without: &[&str] = &[];
    for present in ["", "gpu1/mig", "gpu0/fabric", "gpu0/mig"] {
        let folder = format!("{capabilities}/{present}");
        let add = |at: &Path| fs::create_dir_all(at.join(&folder)).unwrap();
        assert_eq!(said(&add), without, "{present}");
    }
    for (spoiled, how) in [
        ("gpu0/mig", "file"),
        ("gpu0/mig", "dangling"),
        ("gpu0/mig", "circle"),
        ("gpu0", "file"),
        ("gpu0", "circle"),
    ] {
        let spoil = |at: &Path| {
            fs::create_dir_all(at.join(capabilities).join("gpu0/mig/gi1")).unwrap();
            spoil(&at.join(capabilities).join(spoiled), how);
        };
        let said = said(&spoil);
        assert_eq!(said.len(), 1, "{spoiled} {how}: {said:?}");
        assert!(said[0].ends_with(&format!(": {unknown}")), "{said:?}");
    }
    for (line, what) in [
        ("", "has no Device Minor"),
        (
            "Device Minor: \t junk\n",
            "expected a Device Minor such as 0, found \"junk\"",
        ),
    ] {
        let change = |at: &Path| {
            let text = format!("GPU UUID: \t GPU-3\n{line}");
            fs::write(at.join(information), text).unwrap();
        };
        assert_eq!(said(&change), [format!("{what}: {unknown}")]);
    }
}

fn spoil_file(link: &Path) {
    fs::remove_file(link).unwrap();
    symlink("nowhere", link).unwrap();
}

/// The first NIC of a p4d with ports in these states, numbered from 1.
fn with_ports(states: &[&str]) -> Nic {
    let planted = p4d();
    let ports = "sys/devices/pci0000:10/0000:10:1b.0/infiniband/rdmap16s27/ports";
    let ports = planted.path().join(ports);
    fs::remove_dir_all(&ports).unwrap();
    for (index, state) in states.iter().enumerate() {
        let port = ports.join((index + 1).to_string());
        fs::create_dir_all(&port).unwrap();
        fs::write(port.join("state"), state).unwrap();
        fs::write(port.join("link_layer"), "InfiniBand\n").unwrap();
        fs::write(port.join("rate"), format!("{}00 Gb/sec\n", index + 1)).unwrap();
    }
    read(planted.path()).known_nics()[0].clone()
}

#[test]
fn any_active_port_makes_a_nic_usable() {
    let (active, down) = ("4: ACTIVE\n", "1: DOWN\n");
    for (states, port, unusable) in [
        (&[active, down][..], Some(1), None),
        (&[down, active], Some(2), None),
        (&[down, down, active], Some(3), None),
        (&["junk", active], Some(2), None),
        (&[down, "junk"], Some(2), None),
        (&[down, "5: ACTIVE_DEFER\n"], Some(2), None),
        (&[down, down], Some(1), Some(Unusable::Down)),
        (&["4: ACTIVEISH\n"], Some(1), Some(Unusable::Down)),
        (&[], None, None),
    ] {
        let nic = with_ports(states);
        assert_eq!((nic.port, nic.unusable), (port, unusable), "{states:?}");
        assert_eq!(nic.rate_gbps, port.map(|port| port * 100), "{states:?}");
    }
}

/// Unknown NUMA nodes and pools are not none, and devices tell that there are nodes.
#[test]
fn unknown_nodes_and_pools_are_not_none() {
    let empty = tempfile::tempdir().unwrap();
    let node = read(empty.path());
    assert_eq!((&node.numa, &node.pools), (&None, &None));
    assert_eq!(node.numa_ids(), None);

    let planted = p4d();
    let (nodes, pools) = ("sys/devices/system/node", "sys/kernel/mm/hugepages");
    fs::remove_dir_all(planted.path().join(nodes)).unwrap();
    fs::remove_dir_all(planted.path().join(pools)).unwrap();
    let node = read(planted.path());
    assert_eq!((&node.numa, &node.pools), (&None, &Some(vec![])));
    assert!(says(
        &node,
        "devices are on NUMA node 0: which nodes there are is unknown"
    ));

    let bare = Machine::bare("Vendor", "Box", 4, 1).planted();
    fs::remove_dir_all(bare.path().join(nodes)).unwrap();
    let node = read(bare.path());
    assert_eq!(node.numa, Some(vec![]));
    assert_eq!(node.numa_ids(), Some([0].into()));
    let again: Node = serde_json::from_value(serde_json::to_value(&node).unwrap()).unwrap();
    assert_eq!(again, node);
}
