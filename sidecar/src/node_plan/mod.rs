//! The node's plan for this pod: read from a file that the kubelet keeps, narrowed to the GPUs that
//! the agent says the pod got, told on the board, and in force where the configuration leaves it
//! the cap.

mod file;
mod narrow;
mod status;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use siding_crds::plan::NodePlan;
use siding_fabric::pool::Concurrency;

use crate::board::Board;
use crate::registration::cap::LiveCap;

pub use file::PlanFile;
pub use status::{PlanStatus, RailStatus};

/// How often the file is looked at: the kubelet itself takes up to a minute to bring a change.
const EVERY: Duration = Duration::from_secs(2);

/// What is known of the plan, told on a board. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Planning {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    known: Mutex<Known>,
    board: Board,
    /// The cap that the plan decides, where it does.
    cap: Option<LiveCap>,
}

/// What is known of the plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// The plan; none where no file holds one that can be read.
    pub plan: Option<NodePlan>,
    /// Why the last look at its file gave nothing.
    pub trouble: Option<String>,
    /// The GPUs that the pod got, as the agent told.
    pub gpus: Option<Vec<String>>,
}

impl Known {
    /// Takes the result of a look at the file; whether that is another plan to follow.
    fn take(&mut self, looked: Result<NodePlan, String>) -> bool {
        let found = match looked {
            Ok(found) => found,
            Err(trouble) => {
                self.trouble = Some(trouble);
                return false;
            }
        };
        self.trouble = None;
        // Never back from a node's plan to a seed.
        let better = self.plan.as_ref().is_none_or(|old| found.improves_on(old));
        if better {
            self.plan = Some(found);
        }
        better
    }
}

impl Planning {
    /// What is known at the start; `cap` is that which the plan decides, where it does.
    #[must_use]
    pub fn new(known: Known, board: Board, cap: Option<LiveCap>) -> Self {
        let inner = Inner {
            known: Mutex::new(known),
            board,
            cap,
        };
        let planning = Self {
            inner: Arc::new(inner),
        };
        planning.change(|_| ());
        planning
    }

    /// Takes the GPUs that the pod got.
    pub fn set_gpus(&self, gpus: Vec<String>) {
        self.change(|known| known.gpus = Some(gpus));
    }

    /// Takes what a look at the file gave.
    pub fn look(&self, looked: Result<NodePlan, String>) {
        if let Err(trouble) = &looked {
            tracing::warn!("{trouble}; what was planned before stays");
        }
        let mut follow = None;
        self.change(|known| {
            if known.take(looked) {
                follow.clone_from(&known.plan);
            }
        });
        if let Some(plan) = follow {
            self.follow(&plan);
        }
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self
            .inner
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        change(&mut known);
        let told = PlanStatus::of(&known);
        self.inner.board.update(|status| status.plan = Some(told));
    }

    /// The cap of the plan, for whatever is registered from now on.
    fn follow(&self, plan: &NodePlan) {
        tracing::info!(cap = plan.cap.get(), "a new plan: {}", plan.cap_reason);
        let Some(cap) = &self.inner.cap else { return };
        let count = cap_of(plan);
        let reason = format!("by {}", source_of(plan));
        cap.set(Concurrency::AtMost(count), reason.clone());
        self.inner.board.update(|status| {
            if let Some(registration) = &mut status.registration {
                registration.cap = Some(count.get());
                registration.cap_reason = reason;
            }
        });
    }
}

/// The cap of this plan.
#[must_use]
pub fn cap_of(plan: &NodePlan) -> NonZeroUsize {
    NonZeroUsize::try_from(plan.cap).unwrap_or(NonZeroUsize::MAX)
}

/// Where a cap of this plan comes from, in words.
#[must_use]
pub fn source_of(plan: &NodePlan) -> String {
    let node = plan.node.as_deref().map(|node| format!(" of node {node}"));
    format!("the plan{}: {}", node.unwrap_or_default(), plan.cap_reason)
}

/// Looks at the file for ever.
pub async fn watch(planning: Planning, mut file: PlanFile) {
    loop {
        tokio::time::sleep(EVERY).await;
        if let Some(looked) = file.look() {
            planning.look(looked);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use siding_crds::plan::{ANNOTATION_VERSION, PlanSource};

    use super::*;
    use crate::board::RegistrationStatus;
    use crate::metrics::Metrics;

    fn plan(source: PlanSource, cap: u32) -> NodePlan {
        NodePlan {
            version: ANNOTATION_VERSION,
            source,
            node: (source == PlanSource::Node).then(|| "n1".to_owned()),
            cap: NonZeroU32::new(cap).unwrap(),
            cap_reason: format!("{cap} it is"),
            ranks: None,
            cores: None,
            rails: None,
        }
    }

    fn board() -> Board {
        let board = Board::new([("kv", 4096)], Metrics::new());
        board.update(|status| {
            status.registration = Some(RegistrationStatus {
                backend: "none".to_owned(),
                reason: String::new(),
                cap: Some(1),
                cap_reason: "at first".to_owned(),
                rings: None,
            });
        });
        board
    }

    fn in_force(board: &Board) -> (Option<usize>, String, Option<u32>) {
        let status = board.snapshot();
        let registration = status.registration.unwrap();
        (
            registration.cap,
            registration.cap_reason,
            status.plan.unwrap().cap,
        )
    }

    #[test]
    fn a_later_plan_is_followed_and_never_back_to_a_seed() {
        let board = board();
        let live = LiveCap::new(
            Concurrency::AtMost(NonZeroUsize::MIN),
            "at first".to_owned(),
        );
        let known = Known {
            plan: Some(plan(PlanSource::Seed, 1)),
            ..Known::default()
        };
        let planning = Planning::new(known, board.clone(), Some(live.clone()));
        assert_eq!(in_force(&board), (Some(1), "at first".to_owned(), Some(1)));
        planning.look(Ok(plan(PlanSource::Node, 22)));
        let followed = "by the plan of node n1: 22 it is".to_owned();
        assert_eq!(in_force(&board), (Some(22), followed.clone(), Some(22)));
        assert_eq!(live.now().1, followed);
        planning.look(Ok(plan(PlanSource::Seed, 3)));
        planning.look(Err("gone".to_owned()));
        assert_eq!(in_force(&board), (Some(22), followed, Some(22)));
        assert_eq!(board.snapshot().plan.unwrap().findings, ["gone"]);
    }

    #[test]
    fn where_the_configuration_has_a_cap_the_plan_is_told_only() {
        let board = board();
        let planning = Planning::new(Known::default(), board.clone(), None);
        assert_eq!(in_force(&board), (Some(1), "at first".to_owned(), None));
        planning.look(Ok(plan(PlanSource::Catalogue, 7)));
        assert_eq!(in_force(&board), (Some(1), "at first".to_owned(), Some(7)));
    }
}
