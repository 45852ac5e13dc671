//! How much memory the sidecar's container may use: its request and its limit.
//!
//! ```text
//! 64 MiB                                  the process, its threads, its metrics
//! + bytes on 4 KiB and transparent pages  files on tmpfs count as memory of who touches them
//! + 8 bytes for each page                 page tables; transparent pages as if all were split
//! and, where segments are registered:
//! + 16 bytes for each 4 KiB               the kernel's note of what is pinned. Kernels before 6.12 pin
//!                                         huge pages 4 KiB by 4 KiB
//! + 8 bytes for each 4 KiB of 64 GiB      the pages of regions while these are being registered
//! + 32 KiB for each 256 MiB               a ring for each region
//! rounded up to MiB
//! ```
//!
//! Not all of it counts on every kernel; too much costs a node little, too little costs the segments.
//! Huge pages themselves have limits of their own. The limit is the request too: what is locked can't be
//! reclaimed, so there is nothing to overcommit.

/// What the process takes beside its segments.
const PROCESS_BYTES: u64 = 64 << 20;
const BASE_PAGE_BYTES: u64 = 4 << 10;
const PAGE_TABLE_ENTRY_BYTES: u64 = 8;
/// `struct bio_vec`.
const PIN_BYTES: u64 = 16;
/// `struct page *`.
const PAGE_POINTER_BYTES: u64 = 8;
/// Most that is being registered at one time: 256 threads with a region each.
const IN_FLIGHT_BYTES: u64 = 64 << 30;
/// The largest region; smaller ones are of small segments, whose rings the 64 MiB have room for.
const REGION_BYTES: u64 = 256 << 20;
const RING_BYTES: u64 = 32 << 10;
const MEBIBYTE: u64 = 1 << 20;

/// What a sidecar holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of segments on 4 KiB and transparent pages.
    pub base_bytes: u64,
    /// Bytes of segments on huge pages, each with the page's bytes before it.
    pub huge: Vec<(u64, u64)>,
    /// Whether it is registered.
    pub is_pinned: bool,
}

/// Bytes of memory that a sidecar may use; whole MiB.
#[must_use]
pub fn memory_bytes(footprint: &Footprint) -> u64 {
    let base_pages = footprint.base_bytes / BASE_PAGE_BYTES;
    let huge_pages: u64 = footprint
        .huge
        .iter()
        .map(|(page, bytes)| bytes / page.max(&1))
        .sum();
    let huge_bytes: u64 = footprint.huge.iter().map(|(_, bytes)| bytes).sum();
    let pins = if footprint.is_pinned {
        pin_bytes(footprint.base_bytes.saturating_add(huge_bytes))
    } else {
        0
    };
    let parts = [
        PROCESS_BYTES,
        footprint.base_bytes,
        (base_pages + huge_pages).saturating_mul(PAGE_TABLE_ENTRY_BYTES),
        pins,
    ];
    let sum = parts.into_iter().fold(0, u64::saturating_add);
    sum.div_ceil(MEBIBYTE).saturating_mul(MEBIBYTE)
}

fn pin_bytes(bytes: u64) -> u64 {
    let kept = bytes / BASE_PAGE_BYTES * PIN_BYTES;
    let passing = bytes.min(IN_FLIGHT_BYTES) / BASE_PAGE_BYTES * PAGE_POINTER_BYTES;
    let rings = bytes.div_ceil(REGION_BYTES) * RING_BYTES;
    kept + passing + rings
}

#[cfg(test)]
mod tests {
    use super::*;

    const GI: u64 = 1 << 30;

    fn mebibytes(base_bytes: u64, huge: &[(u64, u64)], is_pinned: bool) -> u64 {
        let huge = huge.to_vec();
        memory_bytes(&Footprint {
            base_bytes,
            huge,
            is_pinned,
        }) >> 20
    }

    #[test]
    fn by_the_formula() {
        assert_eq!(mebibytes(0, &[], true), 64);
        // 262144 pages: 2 MiB of page tables, 4 and 2 of pins, an eighth of rings.
        assert_eq!(mebibytes(GI, &[], true), 64 + 1024 + 2 + 6 + 1);
        assert_eq!(mebibytes(GI, &[], false), 64 + 1024 + 2);
        assert_eq!(mebibytes(0, &[(2 << 20, GI)], true), 64 + 6 + 1);
        assert_eq!(mebibytes(0, &[(2 << 20, GI)], false), 64 + 1);
        // What is in flight is bounded: 4 GiB of pins, 128 MiB, 128 MiB of rings, 4 MiB of page tables.
        assert_eq!(
            mebibytes(0, &[(2 << 20, 1024 * GI)], true),
            64 + 4096 + 128 + 128 + 4
        );
    }

    #[test]
    fn never_less_than_the_segments_and_never_wraps() {
        assert!(
            memory_bytes(&Footprint {
                base_bytes: u64::MAX,
                huge: Vec::new(),
                is_pinned: true
            }) > u64::MAX / 2
        );
    }
}
