//! The page entries of NICs, and how segments fit into them, all at once: each whole on every NIC
//! of its own, in parts each on one of them, or not at all. Never in part only.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use serde::Serialize;

use crate::size::{binary, count, page_name};

/// Page entries of an EFA device to plan with: 88 GiB of 4 KiB pages, 44 TiB of 2 MiB pages.
pub const EFA_PAGE_ENTRIES: u64 = 22 << 20;

/// Page sizes that are proposed where smaller ones don't fit: those that the nodes of clouds have.
const LARGER_PAGES: [u64; 2] = [2 << 20, 1 << 30];

/// What one NIC can take; `None` where no limit is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NicLimits {
    /// Pages that can be registered at once.
    pub page_entries: Option<u64>,
    /// The largest region.
    pub largest_region_bytes: Option<u64>,
}

/// A stretch of a segment, cut into chunks that are registered one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stretch {
    /// Where it begins in the segment.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// The length of each chunk but the last, which may be shorter.
    pub chunk_bytes: u64,
    /// How many chunks; 0 where it is empty.
    pub chunks: u64,
}

/// How a segment fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Fit {
    /// Every NIC registers all of it.
    EveryNic(Stretch),
    /// Each NIC registers a stretch of its own, in the order of the NICs; an empty one where it has
    /// no entry left.
    Partitioned(Vec<Stretch>),
}

/// Why a segment does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Refusal {
    /// It has more pages than its NICs together have entries for beside the segments that fit.
    #[error("{}", self.words())]
    PageEntries {
        /// The segment's length.
        bytes: u64,
        /// The length of a page.
        page_bytes: u64,
        /// Its pages.
        pages: u64,
        /// How many NICs.
        nics: usize,
        /// Entries that they have together beside the segments that fit, were these all in parts.
        entries_free: u64,
        /// The smallest usual page size with which it would fit; `None` where none would.
        fits_with_page_bytes: Option<u64>,
    },
    /// The largest region is smaller than a page.
    #[error("{}", self.words())]
    RegionBelowPage {
        /// The length of a page.
        page_bytes: u64,
        /// The largest region.
        largest_region_bytes: u64,
    },
}

/// A segment that is to be registered on some of a node's NICs.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its length.
    pub bytes: u64,
    /// The length of a page.
    pub page_bytes: NonZeroU64,
    /// Its NICs by their index, ascending. Those of two segments are the same or have none in
    /// common, or the ones are among the others: NICs of a NUMA node, or of the whole node.
    pub nics: &'a [usize],
}

impl Demand<'_> {
    fn pages(&self) -> u64 {
        self.bytes.div_ceil(self.page_bytes.get())
    }
}

impl NicLimits {
    /// What is known of a driver's NICs.
    #[must_use]
    pub fn of_driver(driver: Option<&str>) -> Self {
        Self {
            page_entries: (driver == Some("efa")).then_some(EFA_PAGE_ENTRIES),
            largest_region_bytes: None,
        }
    }

    /// What NICs of both kinds can take.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            page_entries: least(self.page_entries, other.page_entries),
            largest_region_bytes: least(self.largest_region_bytes, other.largest_region_bytes),
        }
    }
}

impl Fit {
    /// The pages that each NIC registers, at most.
    #[must_use]
    pub fn pages_per_nic(&self, page_bytes: NonZeroU64) -> u64 {
        let stretches = match self {
            Self::EveryNic(stretch) => std::slice::from_ref(stretch),
            Self::Partitioned(stretches) => stretches.as_slice(),
        };
        let pages = stretches
            .iter()
            .map(|part| part.bytes.div_ceil(page_bytes.get()));
        pages.max().unwrap_or_default()
    }
}

impl Refusal {
    fn words(&self) -> String {
        match self {
            Self::PageEntries {
                bytes,
                page_bytes,
                pages,
                nics,
                entries_free,
                fits_with_page_bytes,
            } => {
                let (needed, page) = (entries(*pages), page_name(*page_bytes));
                let held = binary(entries_free.saturating_mul(*page_bytes));
                let has = if *nics == 1 { "has" } else { "have" };
                let free = match entries_free {
                    0 => "none left".to_owned(),
                    free => format!("{free} left, enough for {held}"),
                };
                let remedy = match (fits_with_page_bytes, entries_free) {
                    (Some(larger), _) => format!("pages of {} would fit", page_name(*larger)),
                    (None, 0) => "make another segment smaller".to_owned(),
                    (None, _) => "make it smaller".to_owned(),
                };
                format!(
                    "{} in pages of {page} needs {needed}; its {} {has} {free}; {remedy}",
                    binary(*bytes),
                    count(*nics, "NIC")
                )
            }
            Self::RegionBelowPage {
                page_bytes,
                largest_region_bytes,
            } => format!(
                "a NIC registers {} at once at most, which is less than a page of {}",
                binary(*largest_region_bytes),
                page_name(*page_bytes)
            ),
        }
    }
}

/// `1 page entry`, `2 page entries`.
pub(crate) fn entries(n: u64) -> String {
    let noun = if n == 1 { "entry" } else { "entries" };
    format!("{n} page {noun}")
}

/// Fits segments into the limits of a node's NICs, all of them at once: what is answered of each
/// does not depend on the order in which they are given.
///
/// Parts take the fewest entries, so that segments are first let in as if all were in parts, the
/// smallest first: as many as can be. Then each that is in is made whole on every NIC of its own
/// where the others still fit, again the smallest first.
///
/// # Errors
/// Of each, [`Refusal`] with the numbers where it does not fit even in parts.
#[must_use]
pub fn fit(nics: &[NicLimits], demands: &[Demand<'_>]) -> Vec<Result<Fit, Refusal>> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|index| demands.get(*index).map(rank));
    let mut books = Books::new(nics, demands);
    let mut ways = vec![Way::Refused; demands.len()];
    for (index, demand) in ordered(&order, demands) {
        if chunk_bytes(nics, demand).is_ok() && books.let_in(demand) {
            set(&mut ways, index, Way::Parts);
        }
    }
    let refusals: Vec<Refusal> = demands
        .iter()
        .map(|demand| books.refusal(nics, demand))
        .collect();
    for (index, demand) in ordered(&order, demands) {
        if ways.get(index) == Some(&Way::Parts) && books.widen(demand) {
            set(&mut ways, index, Way::Whole);
        }
    }
    // NICs of fewer are filled before those of more, which have others to go to.
    order.sort_by_key(|index| demands.get(*index).map(|demand| demand.nics.len()));
    let mut fits: Vec<Result<Fit, Refusal>> = refusals.into_iter().map(Err).collect();
    for (index, demand) in ordered(&order, demands) {
        let Ok(chunk) = chunk_bytes(nics, demand) else {
            continue;
        };
        let fit = match ways.get(index) {
            Some(Way::Whole) => Some(Fit::EveryNic(stretch(0, demand.bytes, chunk))),
            Some(Way::Parts) => books.fill(demand).map(|pages| parts(demand, &pages, chunk)),
            _ => None,
        };
        if let Some(fit) = fit {
            set(&mut fits, index, Ok(fit));
        }
    }
    fits
}

/// How a segment is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Whole,
    Parts,
    Refused,
}

/// What the order of segments goes by: nothing but what they are.
fn rank<'a>(demand: &Demand<'a>) -> (u64, usize, u64, &'a str) {
    (demand.pages(), demand.nics.len(), demand.bytes, demand.name)
}

fn ordered<'a, 'b>(
    order: &'a [usize],
    demands: &'a [Demand<'b>],
) -> impl Iterator<Item = (usize, &'a Demand<'b>)> {
    order
        .iter()
        .filter_map(|index| Some((*index, demands.get(*index)?)))
}

fn set<T>(all: &mut [T], index: usize, value: T) {
    if let Some(place) = all.get_mut(index) {
        *place = value;
    }
}

/// The bytes of a chunk that every NIC of a segment can register; `None` where nothing limits it.
fn chunk_bytes(nics: &[NicLimits], demand: &Demand<'_>) -> Result<Option<u64>, Refusal> {
    let page = demand.page_bytes.get();
    let of = demand.nics.iter().filter_map(|nic| nics.get(*nic));
    match of
        .copied()
        .fold(NicLimits::default(), NicLimits::and)
        .largest_region_bytes
    {
        Some(largest) if largest < page => Err(Refusal::RegionBelowPage {
            page_bytes: page,
            largest_region_bytes: largest,
        }),
        largest => Ok(largest.map(|largest| largest - largest % page)),
    }
}

/// The entries that are left while segments are let in. Parts may lie on any NICs of their
/// segment, so that they are counted by sets of NICs: there is room for all where no set has less
/// than the parts that can't go elsewhere.
struct Books<'a> {
    /// Entries of each NIC that no whole segment takes.
    left: Vec<u64>,
    /// Each set of NICs once, and the entries in it that neither a whole segment nor parts that
    /// must be in it take.
    sets: Vec<(&'a [usize], i128)>,
}

impl<'a> Books<'a> {
    fn new(nics: &[NicLimits], demands: &[Demand<'a>]) -> Self {
        let left: Vec<u64> = nics
            .iter()
            .map(|nic| nic.page_entries.unwrap_or(u64::MAX))
            .collect();
        let all = |set: &[usize]| {
            let entries = set.iter().filter_map(|nic| left.get(*nic));
            entries.map(|entries| i128::from(*entries)).sum()
        };
        let sets: BTreeSet<&[usize]> = demands.iter().map(|demand| demand.nics).collect();
        let sets = sets.into_iter().map(|set| (set, all(set))).collect();
        Self { left, sets }
    }

    /// The pages that a segment on these NICs could have in parts.
    fn room(&self, nics: &[usize]) -> i128 {
        let around = self
            .sets
            .iter()
            .filter(|(set, _)| shared(nics, set) == nics.len());
        around.map(|(_, free)| *free).min().unwrap_or_default()
    }

    /// Lets a segment in, in parts, where there is room.
    fn let_in(&mut self, demand: &Demand<'_>) -> bool {
        let pages = i128::from(demand.pages());
        if demand.nics.is_empty() || pages > self.room(demand.nics) {
            return false;
        }
        for (set, free) in &mut self.sets {
            if shared(demand.nics, set) == demand.nics.len() {
                *free -= pages;
            }
        }
        true
    }

    /// Makes a segment that was let in whole on every NIC, where the others have room then.
    fn widen(&mut self, demand: &Demand<'_>) -> bool {
        let pages = demand.pages();
        let is_on = |nic: &usize| self.left.get(*nic).is_some_and(|left| *left >= pages);
        if !demand.nics.iter().all(is_on) {
            return false;
        }
        let widened = self.sets.iter().map(|(set, free)| {
            let shared = shared(demand.nics, set);
            let in_parts = if shared == demand.nics.len() { 1 } else { 0 };
            (*set, free - i128::from(pages) * (shared as i128 - in_parts))
        });
        let widened: Vec<(&[usize], i128)> = widened.collect();
        if widened.iter().any(|(_, free)| *free < 0) {
            return false;
        }
        self.sets = widened;
        for nic in demand.nics {
            if let Some(left) = self.left.get_mut(*nic) {
                *left -= pages;
            }
        }
        true
    }

    /// Gives a segment's pages to its NICs, as evenly as what is left on each allows: the pages of
    /// each.
    fn fill(&mut self, demand: &Demand<'_>) -> Option<Vec<u64>> {
        let left: Vec<u64> = demand
            .nics
            .iter()
            .map(|nic| self.left.get(*nic).copied().unwrap_or_default())
            .collect();
        let given = evenly(demand.pages(), &left)?;
        for (nic, pages) in demand.nics.iter().zip(&given) {
            if let Some(left) = self.left.get_mut(*nic) {
                *left = left.saturating_sub(*pages);
            }
        }
        Some(given)
    }

    /// Why a segment has no room.
    fn refusal(&self, nics: &[NicLimits], demand: &Demand<'_>) -> Refusal {
        if let Err(refusal) = chunk_bytes(nics, demand) {
            return refusal;
        }
        let room = u64::try_from(self.room(demand.nics).max(0)).unwrap_or(u64::MAX);
        let page = demand.page_bytes.get();
        let fits = |larger: &u64| *larger > page && demand.bytes.div_ceil(*larger) <= room;
        Refusal::PageEntries {
            bytes: demand.bytes,
            page_bytes: page,
            pages: demand.pages(),
            nics: demand.nics.len(),
            entries_free: room,
            fits_with_page_bytes: LARGER_PAGES.into_iter().find(fits),
        }
    }
}

/// How many are in both, of two lists that ascend.
fn shared(a: &[usize], b: &[usize]) -> usize {
    a.iter().filter(|nic| b.binary_search(nic).is_ok()).count()
}

/// Divides pages among NICs that have so many entries left: the same for each, the first ones one
/// more while the remainder lasts, or all that it has left. `None` where that is not enough.
fn evenly(pages: u64, left: &[u64]) -> Option<Vec<u64>> {
    let mut by_left: Vec<(usize, u64)> = left.iter().copied().enumerate().collect();
    by_left.sort_by_key(|(_, left)| *left);
    let mut given = vec![0; left.len()];
    let mut rest = pages;
    for (before, (nic, left)) in by_left.iter().enumerate() {
        let takers = (by_left.len() - before) as u64;
        let pages = rest.div_ceil(takers).min(*left);
        set(&mut given, *nic, pages);
        rest -= pages;
    }
    (rest == 0).then_some(given)
}

/// The stretches of a segment with so many pages each.
fn parts(demand: &Demand<'_>, pages: &[u64], chunk_bytes: Option<u64>) -> Fit {
    // The last page may reach beyond the segment.
    let byte = |page: u64| {
        page.saturating_mul(demand.page_bytes.get())
            .min(demand.bytes)
    };
    let mut first_page = 0;
    let stretches = pages.iter().map(|pages| {
        let offset = byte(first_page);
        first_page += pages;
        stretch(offset, byte(first_page) - offset, chunk_bytes)
    });
    Fit::Partitioned(stretches.collect())
}

fn stretch(offset: u64, bytes: u64, chunk_bytes: Option<u64>) -> Stretch {
    let chunk_bytes = chunk_bytes.unwrap_or(bytes).min(bytes);
    Stretch {
        offset,
        bytes,
        chunk_bytes,
        chunks: if bytes == 0 {
            0
        } else {
            bytes.div_ceil(chunk_bytes)
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;
    const TIB: u64 = 1 << 40;

    fn page(bytes: u64) -> NonZeroU64 {
        NonZeroU64::new(bytes).unwrap()
    }

    /// One segment alone on NICs that are all alike.
    fn fitted(bytes: u64, page_bytes: u64, nics: usize, limits: NicLimits) -> Result<Fit, Refusal> {
        let all: Vec<usize> = (0..nics).collect();
        let demand = Demand {
            name: "kv",
            bytes,
            page_bytes: page(page_bytes),
            nics: &all,
        };
        fit(&vec![limits; nics], &[demand]).remove(0)
    }

    fn efa() -> NicLimits {
        NicLimits::of_driver(Some("efa"))
    }

    fn entries(page_entries: u64) -> NicLimits {
        NicLimits {
            page_entries: Some(page_entries),
            largest_region_bytes: None,
        }
    }

    fn whole(offset: u64, bytes: u64) -> Stretch {
        Stretch {
            offset,
            bytes,
            chunk_bytes: bytes,
            chunks: u64::from(bytes > 0),
        }
    }

    #[test]
    fn whole_up_to_the_budget() {
        for (bytes, page) in [(88 * GIB, 4096), (44 * TIB, 2 << 20), (1, 4096), (0, 4096)] {
            let got = fitted(bytes, page, 32, efa());
            assert_eq!(got, Ok(Fit::EveryNic(whole(0, bytes))), "{bytes} of {page}");
        }
    }

    #[test]
    fn then_in_parts() {
        let got = fitted(88 * GIB + 4096, 4096, 2, efa()).unwrap();
        let first = 44 * GIB + 4096;
        let want = Fit::Partitioned(vec![whole(0, first), whole(first, 44 * GIB)]);
        assert_eq!(got, want);
        assert_eq!(got.pages_per_nic(page(4096)), (11 << 20) + 1);
        assert!(matches!(
            fitted(32 * 88 * GIB, 4096, 32, efa()),
            Ok(Fit::Partitioned(parts)) if parts.len() == 32 && parts[31] == whole(31 * 88 * GIB, 88 * GIB)
        ));
    }

    #[test]
    fn refused_with_the_numbers() {
        let refusal = fitted(1025 * GIB, 4096, 8, efa()).unwrap_err();
        assert_eq!(
            refusal,
            Refusal::PageEntries {
                bytes: 1025 * GIB,
                page_bytes: 4096,
                pages: 268_697_600,
                nics: 8,
                entries_free: 184_549_376,
                fits_with_page_bytes: Some(2 << 20),
            }
        );
        assert_eq!(
            refusal.to_string(),
            "1025Gi in pages of 4Ki needs 268697600 page entries; its 8 NICs have 184549376 left, \
             enough for 704Gi; pages of 2Mi would fit"
        );
        let refusal = fitted(GIB, 1 << 30, 1, entries(0)).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "1Gi in pages of 1Gi needs 1 page entry; its 1 NIC has none left; make another segment \
             smaller"
        );
        let refusal = fitted(3 * GIB, 1 << 30, 2, entries(1)).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "3Gi in pages of 1Gi needs 3 page entries; its 2 NICs have 2 left, enough for 2Gi; make \
             it smaller"
        );
    }

    #[test]
    fn no_known_limit_is_none() {
        let unknown = NicLimits::of_driver(Some("mlx5_core"));
        assert_eq!(unknown, NicLimits::default());
        assert_eq!(NicLimits::of_driver(None), NicLimits::default());
        let got = fitted(u64::MAX, 4096, 1, unknown);
        assert_eq!(got, Ok(Fit::EveryNic(whole(0, u64::MAX))));
        assert_eq!(unknown.and(efa()), efa());
    }

    #[test]
    fn chunks_of_the_largest_region() {
        let limits = NicLimits {
            page_entries: None,
            largest_region_bytes: Some(2 * GIB + 5000),
        };
        let got = fitted(5 * GIB, 4096, 4, limits);
        let want = Stretch {
            offset: 0,
            bytes: 5 * GIB,
            chunk_bytes: 2 * GIB + 4096,
            chunks: 3,
        };
        assert_eq!(got, Ok(Fit::EveryNic(want)));
        let refusal = fitted(5 * GIB, GIB * 4, 4, limits).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "a NIC registers 2147488648 bytes at once at most, which is less than a page of 4Gi"
        );
    }

    /// Segments of so many bytes, in pages of 1, by name, on NICs with so many entries.
    fn shown(left: &[u64], segments: &[(&str, u64, &[usize])]) -> Vec<String> {
        let nics: Vec<NicLimits> = left.iter().map(|left| entries(*left)).collect();
        let demands: Vec<Demand<'_>> = segments
            .iter()
            .map(|(name, bytes, nics)| Demand {
                name,
                bytes: *bytes,
                page_bytes: NonZeroU64::MIN,
                nics,
            })
            .collect();
        let fits = fit(&nics, &demands).into_iter().zip(&demands);
        fits.map(|(fit, demand)| match fit {
            Ok(Fit::EveryNic(_)) => format!("{} whole", demand.name),
            Ok(Fit::Partitioned(parts)) => {
                let parts: Vec<String> = parts.iter().map(|part| part.bytes.to_string()).collect();
                format!("{} {}", demand.name, parts.join("+"))
            }
            Err(Refusal::PageEntries { entries_free, .. }) => {
                format!("{} refused, {entries_free} left", demand.name)
            }
            Err(other) => panic!("{other}"),
        })
        .collect()
    }

    /// Each NIC has its own entries, and what comes first has no more right to them.
    #[test]
    fn segments_share_what_each_nic_has() {
        let (one, other, all): (&[usize], &[usize], &[usize]) = (&[0, 1], &[2, 3], &[0, 1, 2, 3]);
        for (segments, want) in [
            // The NICs of another NUMA node are full: what is on all goes past them.
            (
                vec![("a", 10, one), ("b", 3, all)],
                vec!["a 5+5", "b whole"],
            ),
            (
                vec![("a", 20, one), ("b", 3, all)],
                vec!["a 10+10", "b 0+0+2+1"],
            ),
            (
                vec![("a", 10, one), ("b", 10, other)],
                vec!["a whole", "b whole"],
            ),
            // A large one goes into parts for a small one, whichever is named first.
            (
                vec![("a", 10, one), ("b", 1, one)],
                vec!["a 5+5", "b whole"],
            ),
            (vec![("a", 19, one), ("b", 1, one)], vec!["a 9+10", "b 1+0"]),
            (
                vec![("a", 20, one), ("b", 1, one)],
                vec!["a refused, 19 left", "b whole"],
            ),
            (
                vec![("a", 20, one), ("b", 20, other), ("c", 1, all)],
                vec!["a 10+10", "b refused, 19 left", "c 0+0+1+0"],
            ),
        ] {
            assert_eq!(shown(&[10; 4], &segments), want, "{segments:?}");
        }
        assert_eq!(shown(&[1, 9], &[("a", 8, &[0, 1])]), ["a 1+7"]);
    }

    /// The entries of the NICs of each NUMA node; the length, the page and the node of each segment.
    type Case = (Vec<Vec<u64>>, Vec<(u64, u64, usize)>);

    /// NICs of up to three NUMA nodes, and segments on one of these or on all.
    fn any_case() -> impl Strategy<Value = Case> {
        let nics = proptest::collection::vec(0_u64..12, 1..4);
        let segments = proptest::collection::vec((0_u64..40, 1_u64..4, 0_usize..4), 1..6);
        (proptest::collection::vec(nics, 1..4), segments)
    }

    proptest! {
        /// Whatever the order, the same is answered of each, no NIC has more than its entries, none
        /// is refused that could be had, and where all can be had all are.
        #[test]
        fn all_at_once((nodes, segments) in any_case(), seed: u64) {
            let left: Vec<u64> = nodes.concat();
            let nics: Vec<NicLimits> = left.iter().map(|left| entries(*left)).collect();
            let mut sets: Vec<Vec<usize>> = Vec::new();
            for node in &nodes {
                let first = sets.concat().len();
                sets.push((first..first + node.len()).collect());
            }
            let all: Vec<usize> = (0..left.len()).collect();
            let names: Vec<String> = (0..segments.len()).map(|index| format!("s{index}")).collect();
            let mut demands: Vec<Demand<'_>> = segments.iter().zip(&names).map(|(segment, name)| {
                let (bytes, page_bytes, set) = *segment;
                let nics = sets.get(set).unwrap_or(&all);
                Demand { name, bytes, page_bytes: page(page_bytes), nics }
            }).collect();
            let by_name = |demands: &[Demand<'_>]| {
                let fits = fit(&nics, demands).into_iter();
                let named = demands.iter().map(|demand| demand.name.to_owned()).zip(fits);
                named.collect::<std::collections::BTreeMap<_, _>>()
            };
            let fits = by_name(&demands);
            check(&left, &demands, &fits)?;
            for index in (1..demands.len()).rev() {
                let other = (seed.rotate_left(index as u32 * 7) % (index as u64 + 1)) as usize;
                demands.swap(index, other);
            }
            prop_assert_eq!(by_name(&demands), fits);
        }

        /// All of it or none: stretches follow each other, end with the segment, and fit.
        #[test]
        fn nothing_is_lost(
            bytes: u64, shift in 12_u32..31, nics in 1_usize..64,
            entries in proptest::option::of(0_u64..1 << 40),
            largest in proptest::option::of(1_u64..),
        ) {
            let page = page(1 << shift);
            let limits = NicLimits { page_entries: entries, largest_region_bytes: largest };
            let entries = entries.unwrap_or(u64::MAX);
            match fitted(bytes, page.get(), nics, limits) {
                Ok(found) => {
                    prop_assert!(found.pages_per_nic(page) <= entries);
                    let stretches = match &found {
                        Fit::EveryNic(stretch) => vec![*stretch],
                        Fit::Partitioned(stretches) => {
                            prop_assert_eq!(stretches.len(), nics);
                            stretches.clone()
                        }
                    };
                    let mut end = 0;
                    for part in stretches {
                        prop_assert_eq!(part.offset, end);
                        end += part.bytes;
                        prop_assert!(part.chunk_bytes <= largest.unwrap_or(u64::MAX));
                        prop_assert!(part.chunks == 0 || (part.chunks - 1) * part.chunk_bytes < part.bytes);
                        prop_assert!(u128::from(part.chunks) * u128::from(part.chunk_bytes) >= u128::from(part.bytes));
                    }
                    prop_assert_eq!(end, bytes);
                }
                Err(Refusal::PageEntries { pages, .. }) => {
                    prop_assert!(u128::from(pages) > u128::from(entries) * nics as u128);
                }
                Err(Refusal::RegionBelowPage { .. }) => prop_assert!(largest < Some(page.get())),
            }
        }
    }

    type ByName = std::collections::BTreeMap<String, Result<Fit, Refusal>>;

    fn check(left: &[u64], demands: &[Demand<'_>], fits: &ByName) -> Result<(), TestCaseError> {
        let mut taken = vec![0_u64; left.len()];
        for demand in demands {
            for (place, nic) in demand.nics.iter().enumerate() {
                let bytes = match &fits[demand.name] {
                    Ok(Fit::EveryNic(part)) => part.bytes,
                    Ok(Fit::Partitioned(parts)) => parts[place].bytes,
                    Err(_) => 0,
                };
                taken[*nic] += bytes.div_ceil(demand.page_bytes.get());
            }
        }
        prop_assert!(taken.iter().zip(left).all(|(taken, left)| taken <= left));
        let is_in = |demand: &&Demand<'_>| fits[demand.name].is_ok();
        let within: Vec<Demand<'_>> = demands.iter().filter(is_in).copied().collect();
        prop_assert!(have_room(left, &within));
        for refused in demands.iter().filter(|demand| fits[demand.name].is_err()) {
            let with = |pages: u64| {
                let bytes = pages * refused.page_bytes.get();
                let more = Demand { bytes, ..*refused };
                have_room(left, &[within.as_slice(), &[more]].concat())
            };
            prop_assert!(!with(refused.pages()));
            let Err(Refusal::PageEntries { entries_free, .. }) = &fits[refused.name] else {
                panic!("{fits:?}");
            };
            prop_assert!(with(*entries_free) && !with(entries_free + 1));
        }
        Ok(())
    }

    /// Whether segments fit in parts: no few of them need more than all their NICs have.
    fn have_room(left: &[u64], demands: &[Demand<'_>]) -> bool {
        (0_u32..1 << demands.len()).all(|few| {
            let few = demands
                .iter()
                .enumerate()
                .filter(|(index, _)| few & (1 << index) > 0);
            let few: Vec<&Demand<'_>> = few.map(|(_, demand)| demand).collect();
            let nics: BTreeSet<usize> =
                few.iter().flat_map(|demand| demand.nics).copied().collect();
            let room: u64 = nics.iter().map(|nic| left[*nic]).sum();
            few.iter().map(|demand| demand.pages()).sum::<u64>() <= room
        })
    }
}
