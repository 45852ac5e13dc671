//! The page entries of NICs, and how a segment fits into them: whole on every NIC, in parts each on
//! a NIC of its own, or not at all. Never in part only.

use std::num::{NonZeroU64, NonZeroUsize};

use serde::Serialize;

use crate::size::{binary, page_name};

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
    /// How many chunks; 0 for an empty segment only.
    pub chunks: u64,
}

/// How a segment fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Fit {
    /// Every NIC registers all of it.
    EveryNic(Stretch),
    /// Each NIC registers a stretch of its own, in the order of the NICs.
    Partitioned(Vec<Stretch>),
}

/// Why a segment does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Refusal {
    /// It has more pages than all NICs together have entries for.
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
        /// Entries that each still has.
        entries_per_nic: u64,
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

    /// What is left after so many pages are registered.
    #[must_use]
    pub fn less(self, pages: u64) -> Self {
        Self {
            page_entries: self.page_entries.map(|all| all.saturating_sub(pages)),
            ..self
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
                entries_per_nic,
                fits_with_page_bytes,
            } => {
                let all = entries_per_nic.saturating_mul(*nics as u64);
                let page = page_name(*page_bytes);
                let held = binary(all.saturating_mul(*page_bytes));
                let remedy = fits_with_page_bytes.map_or_else(
                    || "make it smaller".to_owned(),
                    |larger| format!("pages of {} would fit", page_name(larger)),
                );
                format!(
                    "{} in pages of {page} needs {pages} page entries; {nics} NICs with \
                     {entries_per_nic} free ones each have {all}, enough for {held}; {remedy}",
                    binary(*bytes)
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

/// Fits a segment of so many bytes into the limits of its NICs, all alike: whole where each has
/// room for all of it, else in parts, one for each NIC.
///
/// # Errors
/// [`Refusal`] with the numbers where not even the parts fit.
pub fn fit(
    bytes: u64,
    page_bytes: NonZeroU64,
    nics: NonZeroUsize,
    limits: NicLimits,
) -> Result<Fit, Refusal> {
    let page = page_bytes.get();
    let pages = bytes.div_ceil(page);
    let chunk_bytes = match limits.largest_region_bytes {
        Some(largest) if largest < page => {
            return Err(Refusal::RegionBelowPage {
                page_bytes: page,
                largest_region_bytes: largest,
            });
        }
        largest => largest.map(|largest| largest - largest % page),
    };
    let entries = limits.page_entries.unwrap_or(u64::MAX);
    if pages <= entries {
        return Ok(Fit::EveryNic(stretch(0, bytes, chunk_bytes)));
    }
    let all = u64::try_from(nics.get())
        .unwrap_or(u64::MAX)
        .saturating_mul(entries);
    if pages <= all {
        return Ok(Fit::Partitioned(parts(
            bytes,
            page_bytes,
            nics,
            chunk_bytes,
        )));
    }
    let fits = |larger: &u64| *larger > page && bytes.div_ceil(*larger) <= all;
    Err(Refusal::PageEntries {
        bytes,
        page_bytes: page,
        pages,
        nics: nics.get(),
        entries_per_nic: entries,
        fits_with_page_bytes: LARGER_PAGES.into_iter().find(fits),
    })
}

/// As many pages for each NIC, the first ones one more while the remainder lasts.
fn parts(
    bytes: u64,
    page_bytes: NonZeroU64,
    nics: NonZeroUsize,
    chunk_bytes: Option<u64>,
) -> Vec<Stretch> {
    let nics = nics.get() as u64;
    let pages = bytes.div_ceil(page_bytes.get());
    let (each, remainder) = (pages / nics, pages % nics);
    let mut first_page = 0;
    let mut parts = Vec::new();
    for nic in 0..nics {
        let end_page = first_page + each + u64::from(nic < remainder);
        let offset = first_page * page_bytes.get();
        // The last page may reach beyond the segment.
        let end = end_page.saturating_mul(page_bytes.get()).min(bytes);
        parts.push(stretch(offset, end - offset, chunk_bytes));
        first_page = end_page;
    }
    parts
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

    fn fitted(bytes: u64, page: u64, nics: usize, limits: NicLimits) -> Result<Fit, Refusal> {
        let page = NonZeroU64::new(page).unwrap();
        fit(bytes, page, NonZeroUsize::new(nics).unwrap(), limits)
    }

    fn efa() -> NicLimits {
        NicLimits::of_driver(Some("efa"))
    }

    fn whole(offset: u64, bytes: u64) -> Stretch {
        Stretch {
            offset,
            bytes,
            chunk_bytes: bytes,
            chunks: 1,
        }
    }

    #[test]
    fn whole_up_to_the_budget() {
        for (bytes, page) in [(88 * GIB, 4096), (44 * TIB, 2 << 20), (1, 4096)] {
            let got = fitted(bytes, page, 32, efa());
            assert_eq!(got, Ok(Fit::EveryNic(whole(0, bytes))), "{bytes} of {page}");
        }
        let empty = Fit::EveryNic(Stretch {
            offset: 0,
            bytes: 0,
            chunk_bytes: 0,
            chunks: 0,
        });
        assert_eq!(fitted(0, 4096, 1, efa()), Ok(empty));
    }

    #[test]
    fn then_in_parts() {
        let got = fitted(88 * GIB + 4096, 4096, 2, efa()).unwrap();
        let first = 44 * GIB + 4096;
        let want = Fit::Partitioned(vec![whole(0, first), whole(first, 44 * GIB)]);
        assert_eq!(got, want);
        let page = NonZeroU64::new(4096).unwrap();
        assert_eq!(got.pages_per_nic(page), (11 << 20) + 1);
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
                entries_per_nic: 23_068_672,
                fits_with_page_bytes: Some(2 << 20),
            }
        );
        assert_eq!(
            refusal.to_string(),
            "1025Gi in pages of 4Ki needs 268697600 page entries; 8 NICs with 23068672 free ones \
             each have 184549376, enough for 704Gi; pages of 2Mi would fit"
        );
        let none_left = efa().less(EFA_PAGE_ENTRIES + 1);
        let refusal = fitted(GIB, 1 << 30, 1, none_left).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "1Gi in pages of 1Gi needs 1 page entries; 1 NICs with 0 free ones each have 0, enough \
             for 0 bytes; make it smaller"
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
        assert_eq!(unknown.less(5), unknown);
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

    proptest! {
        /// All of it or none: stretches follow each other, end with the segment, and fit.
        #[test]
        fn nothing_is_lost(
            bytes: u64, shift in 12_u32..31, nics in 1_usize..64,
            entries in proptest::option::of(0_u64..1 << 40),
            largest in proptest::option::of(1_u64..),
        ) {
            let page = NonZeroU64::new(1 << shift).unwrap();
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
}
