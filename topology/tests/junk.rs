//! Every file that is read, filled with junk: what comes back may be a finding, never a panic.

use std::fs;

use proptest::prelude::*;
use siding_topology::{Root, cgroup, cores, hugepages, limits, memory, numa};

const FILES: [&str; 20] = [
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
];

/// Bytes of any kind, and the words that get past the first check of a parser.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let words = "(0::/[./a]{0,3}\n|9 1 0:1 / /cg rw - cgroup2 c rw\n|[0-9]{1,22}|max|-1|kB\
                 |[ :,\\-\n]|MemAvailable:|Cpus_allowed_list:|CapEff:|Max locked memory ){0,6}";
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..60),
        words.prop_map(String::into_bytes),
        Just(b"0::/a\n".to_vec()),
        Just(b"9 1 0:1 / /cg rw - cgroup2 c rw\n".to_vec()),
    ]
}

fn read_everything(root: &Root) {
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
        read_everything(&root);
    }
}
