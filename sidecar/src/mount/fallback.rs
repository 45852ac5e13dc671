//! Smaller pages for a segment that takes any, where the kernel refuses the huge ones that were chosen: a
//! container does not see every limit (its hugetlb cgroup's, say) before it meets it.

use std::error::Error as _;

use siding_fabric::{MapError, Pages, TouchError};

use super::choose::{Ledger, Refusal, Wish, choose};
use super::machine::Machine;
use super::pipeline::MountError;
use super::plan::{Backing, SegmentPlan};
use crate::config::Page;

/// The refusal of a segment's huge pages, where smaller ones may be taken instead.
pub(super) fn refusal(plan: &SegmentPlan, error: &MountError) -> Option<Refusal> {
    let (Some(_), Pages::Huge(page_bytes)) = (&plan.auto, plan.pages) else {
        return None;
    };
    let is_refusal = match error {
        MountError::Map { source, .. } => matches!(
            source,
            MapError::NotEnoughPages { .. } | MapError::NoSuchPage { .. }
        ),
        MountError::Touch { source, .. } => matches!(source, TouchError::OutOfPages { .. }),
        _ => false,
    };
    let why = error.source().map(ToString::to_string).unwrap_or_default();
    is_refusal.then_some(Refusal { page_bytes, why })
}

/// Chooses anew for the segment at `index`, on what the machine has besides what the segments after it
/// claim. False where nothing is left to take.
pub(super) fn to_smaller(
    index: usize,
    segments: &mut [SegmentPlan],
    refused: &[Refusal],
    machine: &Machine,
) -> bool {
    let mut ledger = claimed(segments.get(index + 1..).unwrap_or_default());
    let Some(plan) = segments.get_mut(index) else {
        return false;
    };
    let Some(auto) = &plan.auto else {
        return false;
    };
    let wish = Wish {
        name: &plan.name,
        size_bytes: plan.size_bytes,
        page: Page::Auto,
        numa: auto.numa,
        form: auto.form.clone(),
        refused,
    };
    let Ok(chosen) = choose(&wish, machine, &mut ledger) else {
        return false;
    };
    plan.pages = chosen.pages;
    plan.page_reason = chosen.reason;
    plan.placement = chosen.placement;
    plan.cpus = chosen.cpus;
    if let (Backing::NewFile { directory, .. }, Some(chosen)) =
        (&mut plan.backing, chosen.directory)
    {
        *directory = chosen;
    }
    true
}

fn claimed(segments: &[SegmentPlan]) -> Ledger {
    let mut ledger = Ledger::default();
    for segment in segments {
        let directory = match &segment.backing {
            Backing::Kept(_) => continue,
            Backing::NewFile { directory, .. } => Some(directory.as_path()),
            Backing::Process => None,
        };
        ledger.claim(
            segment.size_bytes,
            segment.pages,
            &segment.placement,
            directory,
        );
    }
    ledger
}

#[cfg(test)]
mod tests {
    use std::io;

    use siding_fabric::Placement;

    use super::super::choose::Form;
    use super::super::choose::tests::machine;
    use super::super::plan::Auto;
    use super::super::strategy::{DomainOrder, Strategy, Touching};
    use super::*;
    use crate::config::Numa;

    const MIB: u64 = 1 << 20;

    fn planned(size_bytes: u64, page_bytes: u64, is_auto: bool) -> SegmentPlan {
        SegmentPlan {
            name: "kv".to_owned(),
            size_bytes,
            pages: Pages::Huge(page_bytes),
            page_reason: String::new(),
            placement: Placement::Any,
            cpus: None,
            backing: Backing::Process,
            strategy: Strategy {
                touching: Touching::Parallel { threads: 1 },
                domains: DomainOrder::AllAtOnce,
                reason: "",
            },
            auto: is_auto.then_some(Auto {
                numa: Numa::Local,
                form: Form::Process,
            }),
        }
    }

    fn touch_error(source: TouchError) -> MountError {
        MountError::Touch {
            segment: "kv".to_owned(),
            huge: true,
            source,
        }
    }

    fn no_page() -> MountError {
        touch_error(TouchError::OutOfPages {
            offset_bytes: 0,
            source: io::Error::from_raw_os_error(rustix::io::Errno::FAULT.raw_os_error()),
        })
    }

    #[test]
    fn only_a_refused_page_of_a_segment_that_takes_any_is_one() {
        let auto = planned(2 << 30, 1 << 30, true);
        let refused = refusal(&auto, &no_page()).unwrap();
        assert_eq!(refused.page_bytes, 1 << 30);
        assert!(refused.why.contains("no page could be had"), "{refused:?}");
        let set_aside = MountError::Map {
            segment: "kv".to_owned(),
            page_bytes: Some(1 << 30),
            source: MapError::NotEnoughPages {
                len_bytes: 2 << 30,
                page_bytes: 1 << 30,
            },
        };
        assert!(refusal(&auto, &set_aside).is_some());

        assert_eq!(refusal(&planned(2 << 30, 1 << 30, false), &no_page()), None);
        let base = SegmentPlan {
            pages: Pages::Base,
            ..planned(4096, 4096, true)
        };
        assert_eq!(refusal(&base, &no_page()), None);
        assert_eq!(refusal(&auto, &MountError::Cancelled), None);
        assert_eq!(refusal(&auto, &touch_error(TouchError::Cancelled)), None);
    }

    #[test]
    fn the_next_smaller_pages_are_taken_and_the_refusal_told() {
        let mut segments = [planned(1 << 30, 1 << 30, true)];
        let mut refused = vec![Refusal {
            page_bytes: 1 << 30,
            why: "no 1Gi".to_owned(),
        }];
        assert!(to_smaller(0, &mut segments, &refused, &machine()));
        assert_eq!(segments[0].pages, Pages::Huge(2 * MIB));
        assert!(segments[0].page_reason.contains("no 1Gi"));

        refused.push(Refusal {
            page_bytes: 2 * MIB,
            why: "no 2Mi".to_owned(),
        });
        assert!(to_smaller(0, &mut segments, &refused, &machine()));
        assert_eq!(segments[0].pages, Pages::Transparent);
        let reason = &segments[0].page_reason;
        assert!(
            reason.contains("1Gi: the kernel refused them") && reason.contains("no 2Mi"),
            "{reason}"
        );

        let mut full = machine();
        full.available_bytes = Some(MIB);
        assert!(!to_smaller(0, &mut segments, &refused, &full));
        assert_eq!(segments[0].pages, Pages::Transparent, "left as it was");
    }

    /// What later segments are to have is not taken away from them.
    #[test]
    fn later_segments_keep_what_they_were_promised() {
        let refused = [Refusal {
            page_bytes: 1 << 30,
            why: String::new(),
        }];
        let later = planned(2 * MIB, 2 * MIB, false);
        let mut segments = [planned(1 << 30, 1 << 30, true), later];
        assert!(to_smaller(0, &mut segments, &refused, &machine()));
        assert_eq!(segments[0].pages, Pages::Transparent, "511 of 512 are left");
    }
}
