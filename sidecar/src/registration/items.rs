//! Cutting segments into the regions to register: pure.

use std::ops::Range;

/// Order in which items are handed to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemOrder {
    /// Small ones first: the optimum wherever a domain's cost grows with what it holds already.
    Ascending,
    /// As declared.
    Declared,
}

/// A segment, as far as cutting needs to know it.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Regions begin and end at multiples of this.
    pub granule_bytes: u64,
}

/// One region to register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Index of its segment.
    pub segment: usize,
    /// The part of the segment, bytes.
    pub range: Range<u64>,
}

impl Item {
    /// Its length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// What to register, and what was left out for want of pinnable memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The regions, in the order to attempt them.
    pub items: Vec<Item>,
    /// Bytes left out, per segment.
    pub left_out_bytes: Vec<u64>,
}

/// Bytes below which a region is not split further for the sake of parallelism.
const SMALLEST_SHARE_BYTES: u64 = 16 << 20;

/// Cuts every segment into regions of at most `max_region_bytes`, enough of them to keep
/// `workers` busy, and no more in all than `budget_bytes` (`None`: no limit), in declared order.
#[must_use]
pub fn cut(
    segments: &[Extent],
    max_region_bytes: u64,
    workers: usize,
    budget_bytes: Option<u64>,
    order: ItemOrder,
) -> Cut {
    let mut budget = budget_bytes.unwrap_or(u64::MAX);
    let mut cut = Cut {
        items: Vec::new(),
        left_out_bytes: Vec::new(),
    };
    for (segment, extent) in segments.iter().enumerate() {
        let granule = extent.granule_bytes.max(1);
        let pinned = extent.size_bytes.min(budget / granule * granule);
        budget -= pinned;
        cut.left_out_bytes.push(extent.size_bytes - pinned);
        let region = region_bytes(extent.size_bytes, granule, max_region_bytes, workers);
        let mut start = 0;
        while start < pinned {
            let end = pinned.min(start.saturating_add(region));
            cut.items.push(Item {
                segment,
                range: start..end,
            });
            start = end;
        }
    }
    if order == ItemOrder::Ascending {
        // Stable: equal sizes stay as declared.
        cut.items.sort_by_key(Item::len_bytes);
    }
    cut
}

/// One item on one domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Index of the domain.
    pub domain: usize,
    /// What to register there.
    pub item: Item,
}

/// Parts the items into rounds, one after another, each of which the pool does at once. What is
/// touched meets all domains in one round; what is not meets one domain a round (segments told by
/// `at_once`), since untouched memory on several domains at once is the slowest way there is.
#[must_use]
pub fn rounds(items: &[Item], at_once: &[bool], domains: usize) -> Vec<Vec<Job>> {
    let touched = |item: &&Item| at_once.get(item.segment).copied().unwrap_or(false);
    let on = |domain: usize| {
        move |item: &Item| Job {
            domain,
            item: item.clone(),
        }
    };
    let mut rounds: Vec<Vec<Job>> = (0..domains)
        .map(|domain| {
            items
                .iter()
                .filter(|item| !touched(item))
                .map(on(domain))
                .collect()
        })
        .collect();
    let joint = items.iter().filter(touched);
    rounds.push(
        joint
            .flat_map(|item| (0..domains).map(move |domain| on(domain)(item)))
            .collect(),
    );
    rounds.retain(|round| !round.is_empty());
    rounds
}

fn region_bytes(size: u64, granule: u64, max_region: u64, workers: usize) -> u64 {
    let share = size
        .div_ceil(workers.max(1) as u64)
        .max(SMALLEST_SHARE_BYTES);
    let whole = share.div_ceil(granule).saturating_mul(granule);
    whole.min(max_region / granule * granule).max(granule)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn extent(size_bytes: u64, granule_bytes: u64) -> Extent {
        Extent {
            size_bytes,
            granule_bytes,
        }
    }

    fn lengths(cut: &Cut) -> Vec<u64> {
        cut.items
            .iter()
            .map(|item| item.len_bytes() / MIB)
            .collect()
    }

    #[test]
    fn a_segment_is_split_for_the_device_and_for_the_workers() {
        let split = |size, workers| {
            lengths(&cut(
                &[extent(size, 2 * MIB)],
                GIB,
                workers,
                None,
                ItemOrder::Declared,
            ))
        };
        assert_eq!(split(4 * GIB, 2), [1024; 4]);
        assert_eq!(split(GIB, 2), [512; 2]);
        assert_eq!(split(64 * MIB, 2), [32; 2]);
        assert_eq!(split(16 * MIB, 2), [16]);
        assert_eq!(split(GIB + 2 * MIB, 2), [514, 512]);
        assert_eq!(split(GIB, 0), [1024]);
    }

    #[test]
    fn ascending_sorts_over_all_segments() {
        let segments = [
            extent(3 * GIB, GIB),
            extent(96 * MIB, 4096),
            extent(GIB / 2, 2 * MIB),
        ];
        let ascending = cut(&segments, GIB, 2, None, ItemOrder::Ascending);
        assert_eq!(lengths(&ascending), [48, 48, 256, 256, 1024, 1024, 1024]);
        let declared = cut(&segments, GIB, 2, None, ItemOrder::Declared);
        assert_eq!(lengths(&declared), [1024, 1024, 1024, 48, 48, 256, 256]);
    }

    #[test]
    fn a_budget_is_spent_in_declared_order_and_the_rest_is_said() {
        let segments = [
            extent(5 * MIB, 4096),
            extent(6 * MIB, 2 * MIB),
            extent(MIB, 4096),
        ];
        let limited = cut(&segments, GIB, 2, Some(8 * MIB + 100), ItemOrder::Declared);
        assert_eq!(limited.left_out_bytes, [0, 4 * MIB, 0]);
        assert_eq!(lengths(&limited), [5, 2, 1]);
        let none = cut(&segments, GIB, 2, Some(0), ItemOrder::Ascending);
        assert_eq!(none.items, []);
        assert_eq!(none.left_out_bytes, [5 * MIB, 6 * MIB, MIB]);
    }

    #[test]
    fn untouched_segments_meet_one_domain_a_round() {
        let item = |segment, start| Item {
            segment,
            range: start..start + 1,
        };
        let items = [item(0, 0), item(1, 0), item(0, 1)];
        let shown = |at_once: &[bool], domains| -> Vec<Vec<(usize, usize, u64)>> {
            let rounds = rounds(&items, at_once, domains);
            let show = |job: &Job| (job.domain, job.item.segment, job.item.range.start);
            rounds
                .iter()
                .map(|round| round.iter().map(show).collect())
                .collect()
        };
        assert_eq!(
            shown(&[false, true], 2),
            [
                vec![(0, 0, 0), (0, 0, 1)],
                vec![(1, 0, 0), (1, 0, 1)],
                vec![(0, 1, 0), (1, 1, 0)]
            ]
        );
        assert_eq!(
            shown(&[true, true], 1),
            [vec![(0, 0, 0), (0, 1, 0), (0, 0, 1)]]
        );
        assert_eq!(shown(&[true, true], 0), Vec::<Vec<_>>::new());
    }

    proptest! {
        #[test]
        fn regions_tile_what_is_within_the_budget(
            pages in prop::collection::vec(0_u64..5000, 1..6),
            workers in 0_usize..20,
            budget in prop::option::of(0_u64..20_000),
        ) {
            let page = 4096;
            let segments: Vec<_> = pages.iter().map(|n| extent(n * page, page)).collect();
            let made = cut(&segments, 256 * page, workers, budget.map(|n| n * page), ItemOrder::Ascending);
            for (index, segment) in segments.iter().enumerate() {
                let mut ranges: Vec<_> = made.items.iter().filter(|i| i.segment == index).map(|i| i.range.clone()).collect();
                ranges.sort_by_key(|range| range.start);
                let mut at = 0;
                for range in ranges {
                    prop_assert_eq!(range.start, at);
                    prop_assert!(range.end > range.start && range.end - range.start <= 256 * page);
                    at = range.end;
                }
                prop_assert_eq!(at, segment.size_bytes - made.left_out_bytes[index]);
            }
            let total: u64 = made.items.iter().map(Item::len_bytes).sum();
            let all: u64 = segments.iter().map(|s| s.size_bytes).sum();
            prop_assert_eq!(total, budget.map_or(all, |n| all.min(n * page)));
        }
    }
}
