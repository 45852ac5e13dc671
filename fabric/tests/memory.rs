//! Mapping, touching and registering against the real kernel, with pages that every machine has.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use siding_fabric::{
    Domain, MAX_REGION_BYTES, MapError, MapRequest, Mapping, Pages, Placement, Shortage, Source,
    TouchError, TouchMethod, TouchPlan, UringDomain, touch,
};

const MIB: u64 = 1 << 20;

fn request(len_bytes: u64, pages: Pages) -> MapRequest {
    MapRequest {
        len_bytes,
        pages,
        placement: Placement::Any,
        source: Source::Process,
    }
}

fn plan(method: Option<TouchMethod>) -> TouchPlan {
    TouchPlan {
        threads: 2,
        cpus: None,
        chunk_bytes: 4 * MIB,
        method,
    }
}

/// Bytes of a field of /proc/self/status.
fn status_bytes(field: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

fn may_pin(bytes: u64) -> bool {
    let limits = siding_topology::limits::memlock(&siding_topology::Root::host()).unwrap();
    limits.can_lock_any || limits.soft_bytes.is_none_or(|soft| soft >= bytes)
}

#[test]
fn sizes_that_are_not_whole_pages_are_refused() {
    for len_bytes in [0, 1, 4095, 4097] {
        let error = Mapping::new(request(len_bytes, Pages::Base)).unwrap_err();
        assert!(
            matches!(error, MapError::NotWholePages { len_bytes: l, page_bytes: 4096 } if l == len_bytes)
        );
    }
    let error = Mapping::new(request(3 * MIB, Pages::Huge(2 * MIB))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "3145728 bytes are not a whole number of 2097152-byte pages"
    );
}

#[test]
fn a_page_size_that_the_kernel_lacks_is_named() {
    let odd = 8 << 30;
    let error = Mapping::new(request(odd, Pages::Huge(odd))).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the kernel has no huge pages of {odd} bytes")
    );
}

#[test]
fn more_huge_pages_than_there_are_is_an_error() {
    let error = Mapping::new(request(1 << 46, Pages::Huge(2 * MIB))).unwrap_err();
    assert!(
        matches!(error, MapError::NotEnoughPages { .. }),
        "{error:?}"
    );
}

#[test]
fn a_file_of_another_length_is_refused() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(MIB).unwrap();
    let source = Source::File(file);
    let error = Mapping::new(MapRequest {
        source,
        ..request(2 * MIB, Pages::Base)
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the file is 1048576 bytes long, not the 2097152 that are to be mapped"
    );
}

#[test]
fn base_pages_are_aligned_and_untouched_until_touched() {
    let mapping = Mapping::new(request(16 * MIB, Pages::Base)).unwrap();
    assert_eq!(mapping.address() % (2 * MIB), 0);
    assert_eq!(mapping.len_bytes(), 16 * MIB);
    assert!(mapping.sample_nodes(16).unwrap().is_empty());
    let seen = AtomicU64::new(0);
    let done = touch(&mapping, &plan(None), &AtomicBool::new(false), &|bytes| {
        seen.fetch_add(bytes, Ordering::Relaxed);
    })
    .unwrap();
    assert_eq!(done.threads, 2);
    assert_eq!(seen.into_inner(), 16 * MIB);
    assert_eq!(
        mapping.sample_nodes(16).unwrap().values().sum::<usize>(),
        16
    );
}

#[test]
fn every_method_makes_pages_present_and_keeps_content() {
    for method in [
        TouchMethod::Populate,
        TouchMethod::Allocate,
        TouchMethod::Write,
    ] {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(8 * MIB).unwrap();
        let blocks = file.try_clone().unwrap();
        let source = Source::File(file);
        let mapping = Mapping::new(MapRequest {
            source,
            ..request(8 * MIB, Pages::Base)
        })
        .unwrap();
        assert!(mapping.write(5 * MIB + 3, b"kept"));
        touch(
            &mapping,
            &plan(Some(method)),
            &AtomicBool::new(false),
            &|_| {},
        )
        .unwrap();
        let allocated = std::os::unix::fs::MetadataExt::blocks(&blocks.metadata().unwrap()) * 512;
        assert_eq!(allocated, 8 * MIB, "{method:?}");
        let mut content = [0; 4];
        assert!(mapping.read(5 * MIB + 3, &mut content));
        assert_eq!(&content, b"kept", "{method:?}");
    }
}

#[test]
fn a_method_that_cannot_work_says_so() {
    let mapping = Mapping::new(request(MIB, Pages::Base)).unwrap();
    let error = touch(
        &mapping,
        &plan(Some(TouchMethod::Allocate)),
        &AtomicBool::new(false),
        &|_| {},
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "touching the bytes at offset 0 failed: allocating needs a file"
    );
}

#[test]
fn touching_stops_between_chunks_when_cancelled() {
    let mapping = Mapping::new(request(64 * MIB, Pages::Base)).unwrap();
    let cancel = AtomicBool::new(false);
    let seen = AtomicU64::new(0);
    let one = TouchPlan {
        threads: 1,
        ..plan(None)
    };
    let error = touch(&mapping, &one, &cancel, &|bytes| {
        if seen.fetch_add(bytes, Ordering::Relaxed) + bytes == 12 * MIB {
            cancel.store(true, Ordering::Relaxed);
        }
    })
    .unwrap_err();
    assert!(matches!(error, TouchError::Cancelled));
    assert_eq!(seen.into_inner(), 12 * MIB);
}

#[test]
fn reads_and_writes_stay_inside() {
    let mapping = Mapping::new(request(MIB, Pages::Base)).unwrap();
    assert!(mapping.write(MIB - 2, b"ab"));
    assert!(!mapping.write(MIB - 1, b"ab"));
    assert!(!mapping.write(u64::MAX, b"ab"));
    assert!(!mapping.read(MIB, &mut [0]));
    assert!(mapping.read(MIB, &mut []));
}

#[test]
fn transparent_pages_are_had_where_the_kernel_gives_them() {
    let mode = siding_topology::memory::transparent(&siding_topology::Root::host());
    let mapping = Mapping::new(request(32 * MIB, Pages::Transparent)).unwrap();
    assert_eq!(mapping.address() % (2 * MIB), 0);
    touch(&mapping, &plan(None), &AtomicBool::new(false), &|_| {}).unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", mapping.address());
    let huge = smaps
        .lines()
        .skip_while(|line| !line.starts_with(&start))
        .find_map(|line| line.strip_prefix("AnonHugePages:"))
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .unwrap();
    if mode == Some(siding_topology::memory::TransparentMode::Never) {
        assert_eq!(huge, 0);
    } else {
        assert!(huge * 1024 >= 16 * MIB, "{huge} kB of 32 MiB");
    }
}

/// One test for all that reads this process's pin counter: tests run in parallel threads.
#[test]
fn regions_pin_and_give_back_what_the_kernel_counts() {
    let domain = UringDomain::open().unwrap();
    assert!(
        may_pin(64 * MIB),
        "this test needs 64 MiB of RLIMIT_MEMLOCK or CAP_IPC_LOCK"
    );
    let before = status_bytes("VmPin");
    let mapping = Arc::new(Mapping::new(request(64 * MIB, Pages::Base)).unwrap());
    touch(&mapping, &plan(None), &AtomicBool::new(false), &|_| {}).unwrap();
    let regions: Vec<_> = (0..4)
        .map(|i| {
            domain
                .register(&mapping, i * 16 * MIB..(i + 1) * 16 * MIB)
                .unwrap()
        })
        .collect();
    assert_eq!(status_bytes("VmPin") - before, 64 * MIB);
    assert_eq!(domain.rings(), 4, "a ring for each region");
    assert_eq!(regions[2].range(), 32 * MIB..48 * MIB);

    // The mapping lives as long as a region of it.
    let address = mapping.address();
    drop(mapping);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(
        maps.contains(&format!("{address:x}-")),
        "unmapped under a region"
    );
    for region in regions {
        region.unregister().unwrap();
    }
    assert_eq!(status_bytes("VmPin"), before);

    assert_eq!(domain.rings(), 0);

    // Several at once, of memory that nobody touched.
    let mapping = Arc::new(Mapping::new(request(64 * MIB, Pages::Base)).unwrap());
    let results = siding_fabric::pool::run(
        16,
        siding_fabric::pool::Concurrency::AtMost(std::num::NonZeroUsize::new(3).unwrap()),
        &|i| domain.register(&mapping, i as u64 * 4 * MIB..(i as u64 + 1) * 4 * MIB),
    );
    assert!(
        results.iter().all(Result::is_ok),
        "untouched memory registers too"
    );
    drop(results);
    assert_eq!(status_bytes("VmPin"), before);

    // Too large a buffer and a range outside are errors that leave nothing behind.
    let large = Arc::new(Mapping::new(request(4 * MAX_REGION_BYTES + 4096, Pages::Base)).unwrap());
    let error = domain
        .register(&large, 0..4 * MAX_REGION_BYTES + 4096)
        .unwrap_err();
    assert_eq!(error.shortage(), Some(Shortage::Pages), "{error}");
    assert_eq!(error.len_bytes, 4 * MAX_REGION_BYTES + 4096);
    let error = domain.register(&mapping, 60 * MIB..68 * MIB).unwrap_err();
    assert_eq!(error.reason(), "other");
    assert_eq!(status_bytes("VmPin"), before);
}
