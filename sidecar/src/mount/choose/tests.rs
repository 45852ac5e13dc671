//! What each wish gets on a machine of two nodes.

use std::num::NonZeroUsize;

use siding_topology::cgroup::Version;
use siding_topology::cores::{CoreRule, OwnCores};
use siding_topology::hugepages::{NodePool, Pool};
use siding_topology::numa::NumaNode;

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn pool(page_bytes: u64, free: u64, per_node: [u64; 2]) -> Pool {
    let nodes = (0..).zip(per_node).map(|(node, free)| NodePool {
        node,
        total: free,
        free,
    });
    Pool {
        page_bytes,
        total: free,
        free,
        reserved: 0,
        surplus: 0,
        overcommit: 0,
        nodes: nodes.collect(),
    }
}

/// Two nodes of four cores; 512 free pages of 2 MiB, two of 1 GiB; 64 GiB of memory.
pub(crate) fn machine() -> Machine {
    let node = |id, cpus: &str| NumaNode {
        id,
        cpus: Some(cpus.parse().unwrap()),
        memory_total_bytes: Some(32 * GIB),
        memory_free_bytes: Some(30 * GIB),
        memory_available_bytes: Some(30 * GIB),
    };
    Machine {
        available_bytes: Some(64 * GIB),
        memory_limit: None,
        pools: vec![pool(2 * MIB, 512, [128, 384]), pool(GIB, 2, [2, 0])],
        hugetlb_limits: BTreeMap::new(),
        mounts: Vec::new(),
        files: None,
        transparent: Some(TransparentMode::Madvise),
        shmem_transparent: Some(ShmemMode::Never),
        nodes: vec![node(0, "0-3"), node(1, "4-7")],
        cores: OwnCores {
            count: NonZeroUsize::new(6).unwrap(),
            cpus: "2-7".parse().unwrap(),
            rule: CoreRule::AllowedCpus,
            findings: Vec::new(),
        },
        memlock: None,
    }
}

fn wish(size_bytes: u64, page: Page, numa: Numa) -> Wish<'static> {
    Wish {
        name: "kv",
        size_bytes,
        page,
        numa,
        form: Form::Process,
        refused: &[],
    }
}

fn directory(path: &str, filesystem: Filesystem) -> Directory {
    Directory {
        path: path.into(),
        filesystem,
        free_bytes: None,
    }
}

fn in_files(filesystem: Filesystem) -> Form {
    Form::File {
        explicit: None,
        storage: directory("/run/siding", filesystem),
        huge: vec![directory(
            "/dev/hugepages",
            Filesystem::Hugetlbfs {
                page_bytes: 2 * MIB,
            },
        )],
        hint: Some("/dev/shm".into()),
    }
}

#[test]
fn auto_takes_the_largest_that_fits() {
    let cases = [
        (
            2 * GIB,
            Pages::Huge(GIB),
            "the largest pages that this kernel has",
        ),
        (3 * GIB, Pages::Transparent, "2 are there"),
        (
            GIB + 2 * MIB,
            Pages::Transparent,
            "1Gi: 1026Mi is not a multiple of 1Gi",
        ),
        (
            512 * MIB,
            Pages::Huge(2 * MIB),
            "1Gi: 512Mi is not a multiple of 1Gi",
        ),
        (
            12 << 10,
            Pages::Base,
            "transparent: 12Ki hold no joined page",
        ),
    ];
    for (size, pages, why) in cases {
        let chosen = choose(
            &wish(size, Page::Auto, Numa::Local),
            &machine(),
            &mut Ledger::default(),
        )
        .unwrap();
        assert_eq!(chosen.pages, pages, "{size}");
        assert!(chosen.reason.contains(why), "{size}: {}", chosen.reason);
    }
}

#[test]
fn what_one_segment_takes_the_next_one_lacks() {
    let mut ledger = Ledger::default();
    let two_mib = Page::Size(2 * MIB);
    choose(
        &wish(600 * MIB, two_mib, Numa::Local),
        &machine(),
        &mut ledger,
    )
    .unwrap();
    assert_eq!(ledger.pages(2 * MIB), 300);
    let lack = choose(
        &wish(426 * MIB, two_mib, Numa::Local),
        &machine(),
        &mut ledger,
    )
    .unwrap_err();
    assert_eq!(
        lack.to_string(),
        "segments[kv].page: 213 free pages of 2Mi are needed, 212 are there; to mend it: \
         echo 513 | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages (or \
         --reserve), or page auto"
    );
    choose(
        &wish(424 * MIB, two_mib, Numa::Local),
        &machine(),
        &mut ledger,
    )
    .unwrap();
    let base = Page::Size(4096);
    choose(&wish(40 * GIB, base, Numa::Local), &machine(), &mut ledger).unwrap();
    let lack = choose(&wish(40 * GIB, base, Numa::Local), &machine(), &mut ledger).unwrap_err();
    let each = with_overhead(40 * GIB);
    assert_eq!(each, 40 * GIB + 10 * MIB * 24 + 24 * MIB);
    assert_eq!(
        lack.what,
        format!(
            "40Gi are needed ({each} bytes with page tables and notes of pins), {} bytes of memory are available",
            64 * GIB - each
        )
    );
}

#[test]
fn nodes() {
    let place = |numa| {
        choose(
            &wish(2 * MIB, Page::Size(2 * MIB), numa),
            &machine(),
            &mut Ledger::default(),
        )
    };
    // Cores 2 to 7: most of them are on node 1.
    let local = place(Numa::Local).unwrap();
    assert_eq!(local.placement, Placement::Preferred(1));
    assert_eq!(local.cpus, Some(vec![4, 5, 6, 7]));
    let bound = place(Numa::Node(0)).unwrap();
    assert_eq!(
        (bound.placement, bound.cpus),
        (Placement::Bind(0), Some(vec![2, 3]))
    );
    let spread = place(Numa::Interleave).unwrap();
    assert_eq!(
        (spread.placement, spread.cpus),
        (Placement::Interleave(vec![0, 1]), None)
    );
    assert_eq!(
        place(Numa::Node(7)).unwrap_err().to_string(),
        "segments[kv].numa: this machine has no NUMA node 7; to mend it: use one of: 0, 1, local, interleave"
    );
    let lack = choose(
        &wish(300 * MIB, Page::Size(2 * MIB), Numa::Node(0)),
        &machine(),
        &mut Ledger::default(),
    );
    let lack = lack.unwrap_err();
    assert_eq!(
        lack.what,
        "150 free pages of 2Mi are needed on node 0, 128 are there"
    );
    assert!(
        lack.remedy
            .starts_with("echo 150 | sudo tee /sys/devices/system/node/node0/hugepages/")
    );
    let lack = choose(
        &wish(31 * GIB, Page::Size(4096), Numa::Node(0)),
        &machine(),
        &mut Ledger::default(),
    );
    assert_eq!(lack.unwrap_err().field, "segments[kv].numa");
    // One node: where memory lies is no question.
    let mut one = machine();
    one.nodes.truncate(1);
    for numa in [Numa::Local, Numa::Interleave, Numa::Node(0)] {
        let chosen = choose(
            &wish(2 * MIB, Page::Auto, numa),
            &one,
            &mut Ledger::default(),
        )
        .unwrap();
        assert_eq!(
            (chosen.placement, chosen.cpus),
            (Placement::Any, None),
            "{numa:?}"
        );
    }
}

#[test]
fn limits_of_cgroups_are_told_with_what_to_raise() {
    let limit = |limit_bytes, usage_bytes| Limit {
        limit_bytes,
        usage_bytes,
        file: "/cg/limit".into(),
        version: Version::V2,
    };
    let mut machine = machine();
    machine
        .hugetlb_limits
        .insert(2 * MIB, limit(64 * MIB, 16 * MIB));
    machine.memory_limit = Some(limit(8 * GIB, GIB));
    let ask = |size, page| {
        choose(
            &wish(size, page, Numa::Local),
            &machine,
            &mut Ledger::default(),
        )
    };
    assert_eq!(
        ask(64 * MIB, Page::Size(2 * MIB)).unwrap_err().to_string(),
        "segments[kv].size: 67108864 bytes are needed, the cgroup limit leaves 50331648 bytes of hugepages-2Mi; to \
         mend it: raise the container's resources.limits.hugepages-2Mi to 80Mi (or /cg/limit)"
    );
    assert!(ask(48 * MIB, Page::Size(2 * MIB)).is_ok());
    assert_eq!(
        ask(8 * GIB, Page::Size(4096)).unwrap_err().remedy,
        format!(
            "raise the container's resources.limits.memory to {} (or /cg/limit)",
            format_bytes(GIB + with_overhead(8 * GIB))
        )
    );
}

#[test]
fn sizes_are_never_padded_and_pages_never_guessed() {
    let ask = |size, page| {
        choose(
            &wish(size, page, Numa::Local),
            &machine(),
            &mut Ledger::default(),
        )
    };
    assert_eq!(
        ask(5 * MIB, Page::Size(2 * MIB)).unwrap_err().to_string(),
        "segments[kv].size: 5Mi is not a multiple of 2Mi; to mend it: use 4Mi or 6Mi"
    );
    assert_eq!(ask(1, Page::Size(4096)).unwrap_err().remedy, "use 4Ki");
    assert_eq!(
        ask(GIB, Page::Size(64 << 10)).unwrap_err().to_string(),
        "segments[kv].page: this kernel has no pages of 64Ki; to mend it: use one of: auto, transparent, \
         4Ki, 2Mi, 1Gi"
    );
    let mut off = machine();
    off.transparent = Some(TransparentMode::Never);
    let lack = choose(
        &wish(GIB, Page::Transparent, Numa::Local),
        &off,
        &mut Ledger::default(),
    )
    .unwrap_err();
    assert!(
        lack.remedy
            .starts_with("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled")
    );
    off.transparent = None;
    let lack = choose(
        &wish(GIB, Page::Transparent, Numa::Local),
        &off,
        &mut Ledger::default(),
    )
    .unwrap_err();
    assert_eq!(lack.what, "this kernel has no transparent huge pages");
}

#[test]
fn a_file_system_with_a_limit_of_its_own_is_asked() {
    let mut form = in_files(Filesystem::Tmpfs);
    if let Form::File { storage, huge, .. } = &mut form {
        storage.free_bytes = Some(16 * MIB);
        huge[0].free_bytes = Some(16 * MIB);
    }
    for (page, place) in [(4096, "/run/siding"), (2 * MIB, "/dev/hugepages")] {
        let ask = |size| {
            let wish = Wish {
                form: form.clone(),
                ..wish(size, Page::Size(page), Numa::Local)
            };
            choose(&wish, &machine(), &mut Ledger::default())
        };
        assert!(ask(16 * MIB).is_ok());
        let lack = ask(18 * MIB).unwrap_err();
        assert_eq!(
            lack.what,
            format!("18Mi are needed, the file system of {place} has 16777216 bytes left")
        );
    }
}

#[test]
fn files_lie_where_their_pages_are() {
    let ask = |size, page, form| {
        let wish = Wish {
            form,
            ..wish(size, page, Numa::Local)
        };
        choose(&wish, &machine(), &mut Ledger::default())
    };
    let chosen = ask(512 * MIB, Page::Auto, in_files(Filesystem::Tmpfs)).unwrap();
    assert_eq!(
        (chosen.pages, chosen.directory),
        (Pages::Huge(2 * MIB), Some("/dev/hugepages".into()))
    );
    let chosen = ask(12 << 10, Page::Auto, in_files(Filesystem::Tmpfs)).unwrap();
    assert_eq!(
        (chosen.pages, chosen.directory),
        (Pages::Base, Some("/run/siding".into()))
    );
    let lack = ask(GIB, Page::Size(GIB), in_files(Filesystem::Tmpfs)).unwrap_err();
    assert_eq!(
        lack.what,
        "no hugetlbfs with pages of 1Gi is mounted that this user may write"
    );
    assert!(
        lack.remedy
            .contains("-o pagesize=1073741824,uid=$(id -u) none /dev/hugepages-1Gi")
    );
    let lack = ask(12 << 10, Page::Size(4096), in_files(Filesystem::Other)).unwrap_err();
    assert_eq!(lack.field, "storage.directory");
    assert_eq!(lack.remedy, "use a directory in /dev/shm, or mount a tmpfs");
    assert_eq!(
        lack.what,
        "segments of 4Ki pages need tmpfs, and /run/siding is not on one"
    );
    let Form::File {
        storage,
        huge,
        hint,
        ..
    } = in_files(Filesystem::Tmpfs)
    else {
        return;
    };
    let explicit = Some(directory("/data", Filesystem::Other));
    let explicit = Form::File {
        explicit,
        storage,
        huge,
        hint,
    };
    let lack = ask(2 * MIB, Page::Size(2 * MIB), explicit).unwrap_err();
    assert_eq!(lack.field, "segments[kv].directory");
    assert_eq!(
        lack.what,
        "segments of 2Mi pages need hugetlbfs with pages of 2Mi, and /data is not on one"
    );
}
