//! Every file that is read, filled with junk: what comes back may be a finding, never a panic.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};
use std::{fs, io};

use proptest::prelude::*;
use siding_topology::{
    ReadOptions, Root, cgroup, cores, hugepages, limits, memory, numa, read_node,
};

const GPU: &str = "sys/devices/pci0000:00/0000:00:1e.0";
const NIC: &str = "sys/devices/pci0000:00/0000:00:1f.0";

const FILES: [&str; 37] = [
    "proc/meminfo",
    "proc/self/status",
    "proc/self/limits",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node0/meminfo",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
    "cg/cpu.max",
    "cg/cpuset.cpus.effective",
    "cg/memory.max",
    "cg/memory.current",
    "cg/hugetlb.2MB.max",
    "cg/hugetlb.2MB.current",
    "cg/kubepods/cpuset.cpus.effective",
    "sys/class/dmi/id/sys_vendor",
    "sys/class/dmi/id/product_name",
    "sys/devices/pci0000:00/0000:00:1e.0/class",
    "sys/devices/pci0000:00/0000:00:1e.0/vendor",
    "sys/devices/pci0000:00/0000:00:1e.0/device",
    "sys/devices/pci0000:00/0000:00:1e.0/numa_node",
    "sys/devices/pci0000:00/0000:00:1f.0/class",
    "sys/devices/pci0000:00/0000:00:1f.0/vendor",
    "sys/devices/pci0000:00/0000:00:1f.0/device",
    "sys/devices/pci0000:00/0000:00:1f.0/numa_node",
    "sys/class/infiniband/a0/ports/1/state",
    "sys/class/infiniband/a0/ports/1/link_layer",
    "sys/class/infiniband/a0/ports/1/rate",
    "sys/class/infiniband/b0/parent",
    "sys/class/infiniband_verbs/uverbs0/ibdev",
    "proc/driver/nvidia/gpus/0000:00:1e.0/information",
];

/// Bytes of any kind, and the words that get past the first check of a parser.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let words = "(0::/[./a]{0,3}\n|9 1 0:1 / /cg rw - cgroup2 c rw\n|[0-9]{1,22}|max|-1|kB\
                 |[ :,\\-\n]|a0|0x(10de|1d0f|efa0|030200)|4: ACTIVE|GPU UUID: GPU-\
                 |Device Minor:|Amazon EC2|MemAvailable:|Cpus_allowed_list:|CapEff:|Max locked memory ){0,6}";
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..60),
        words.prop_map(String::into_bytes),
        Just(b"0::/a\n".to_vec()),
        Just(b"0x10de\n".to_vec()),
        Just(b"0x030200\n".to_vec()),
        Just(b"9 1 0:1 / /cg rw - cgroup2 c rw\n".to_vec()),
    ]
}

/// The links that lead to the files of devices.
fn link_devices(root: &Root) -> io::Result<()> {
    let devices = root.path("sys/bus/pci/devices");
    fs::create_dir_all(&devices)?;
    for device in [GPU, NIC] {
        let (_, address) = device.rsplit_once('/').unwrap_or_default();
        symlink(format!("/{device}"), devices.join(address))?;
    }
    symlink(
        format!("/{NIC}"),
        root.path("sys/class/infiniband/a0/device"),
    )
}

fn read_everything(root: &Root) {
    let node = read_node(root, &ReadOptions::default());
    assert!(node.known_gpus().len() <= 2 && node.known_nics().len() == 2);
    assert!(node.known_nics().iter().all(|nic| nic.rate_gbps != Some(0)));
    let cores = cores::own_cores(root);
    assert!(cores.cpus.is_empty() || cores.count.get() <= cores.cpus.len());
    let _ = cgroup::memory_limit_with_findings(root);
    let _ = cgroup::hugetlb_limit_with_findings(root, 2 << 20);
    let _ = numa::nodes(root);
    let _ = hugepages::pools(root);
    let _ = hugepages::mounts_with_findings(root);
    let _ = memory::available_bytes(root);
    let _ = memory::transparent(root);
    let _ = memory::shmem_transparent(root);
    let _ = memory::pmd_bytes(root);
    let _ = limits::memlock(root);
    let _ = limits::usage(root);
}

proptest! {
    // Each case writes all files.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn junk_in_any_file_is_survived(
        contents in proptest::collection::vec(content(), FILES.len()),
    ) {
        let dir = tempfile::tempdir()?;
        let root = Root::at(dir.path());
        for (file, content) in FILES.iter().zip(contents) {
            let path = root.path(file);
            path.parent().map(fs::create_dir_all).transpose()?;
            fs::write(path, content)?;
        }
        link_devices(&root)?;
        read_everything(&root);
    }
}

/// A tree with a gap in each of very many devices, as a broken capture may be.
#[test]
fn findings_are_bounded_and_cost_no_more_than_reading() {
    let scratch = tempfile::tempdir().unwrap();
    let devices = scratch.path().join("sys/bus/pci/devices");
    for device in 0..10_000 {
        fs::create_dir_all(devices.join(device.to_string())).unwrap();
    }
    let start = Instant::now();
    let node = read_node(&Root::at(scratch.path()), &ReadOptions::default());
    let took = start.elapsed();
    let (last, others) = node.findings.split_last().unwrap();
    assert_eq!(others.len(), 500);
    assert_eq!(last.reason, "9506 more findings left out");
    assert!(took < Duration::from_secs(15), "{took:?}");
}

/// However long a file is, no more of it is told than of one that holds what it should.
#[test]
fn no_long_text_is_told_in_full() {
    let long = |start: &str| format!("{start}{}\n", "x".repeat(1 << 20));
    let gpu = "proc/driver/nvidia/gpus/0000:10:1c.0/information";
    let nic = "sys/devices/pci0000:10/0000:10:1b.0/infiniband/rdmap16s27";
    let port = |file: &str| format!("{nic}/ports/1/{file}");
    let mount = long("9 1 0:1 / /").replace('\n', " rw - cgroup2 c rw\n");
    let pages = long("9 1 0:1 / /m rw - hugetlbfs h rw,pagesize=");
    let few = (0..65_536).step_by(2).map(|cpu| cpu.to_string());
    let few = few.collect::<Vec<_>>().join(",");
    let size = |file: &str, text: &str| {
        let planted = siding_fixtures::instances::of("p4d.24xlarge")
            .unwrap()
            .planted();
        let path = planted.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        let root = Root::at(planted.path());
        let node = read_node(&root, &ReadOptions::default());
        let (_, mounts) = hugepages::mounts_with_findings(&root);
        serde_json::to_string(&(node, mounts)).unwrap().len()
    };
    let usual = size("unrelated", "");
    for (file, text) in [
        ("sys/class/dmi/id/product_name", long("")),
        ("sys/class/dmi/id/sys_vendor", long("")),
        (gpu, long("GPU UUID: GPU-")),
        (gpu, long("GPU UUID: GPU-1\nDevice Minor: ")),
        (&port("link_layer"), long("")),
        (&port("state"), long("4: ")),
        (&port("rate"), long("")),
        (&format!("{nic}/parent"), long("")),
        ("sys/class/infiniband_verbs/uverbs0/ibdev", long("")),
        ("sys/devices/system/cpu/online", long("0-")),
        ("sys/devices/system/node/node0/meminfo", long("")),
        (
            "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            long(""),
        ),
        ("sys/fs/cgroup/kubepods/cpuset.cpus.effective", few),
        ("proc/self/mountinfo", mount),
        ("proc/self/mountinfo", pages),
    ] {
        let told = size(file, &text);
        assert!(
            told < usual + 1000,
            "{file}: {told} bytes instead of {usual}"
        );
    }
}
