//! What travels on a pod's annotations: desired state on its way down, versioned.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// The version of the annotations that this release writes.
pub const ANNOTATION_VERSION: u32 = 1;

/// What was injected into a pod ([`crate::names::INJECTION`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Injection {
    /// [`ANNOTATION_VERSION`] of the writer.
    pub version: u32,
    /// The pool.
    pub pool: String,
    /// The pool's `metadata.generation`.
    pub pool_generation: i64,
    /// Ranks in the pod.
    pub ranks: NonZeroU32,
    /// GPUs of a rank.
    pub gpus_per_rank: NonZeroU32,
    /// The cap that the pool fixes, where it does: no planner overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<NonZeroU32>,
    /// The sidecar's image.
    pub image: String,
    /// How it gets at NICs.
    #[serde(default)]
    pub devices: Devices,
}

/// How a sidecar gets at NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Devices {
    /// It does not: TCP only.
    #[default]
    None,
    /// By the pod's own ResourceClaims, which it shares.
    Claims,
    /// By devices of its own.
    DevicePlugin,
    /// By all of the node.
    HostPath,
}

/// Where a plan's numbers come from, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PlanSource {
    /// The node as its agent read it.
    Node,
    /// The node's capacity and what is published of its instance type: no agent told.
    Catalogue,
    /// A safe value for any node, of the pod's creation.
    Seed,
}

/// A node's plan for a pod ([`crate::names::PLAN`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePlan {
    /// [`ANNOTATION_VERSION`] of the writer.
    pub version: u32,
    /// Where its numbers come from.
    pub source: PlanSource,
    /// The node; none before binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Registrations in flight of one rank.
    pub cap: NonZeroU32,
    /// How the cap came about, with the numbers.
    pub cap_reason: String,
    /// Ranks that the node is planned for; unknown in a seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<NonZeroU32>,
    /// The node's hardware threads; unknown in a seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<NonZeroU32>,
    /// Each GPU of the node and its NICs; unknown where no agent told. The sidecar narrows it to
    /// the GPUs that the pod got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rails: Option<Vec<GpuRail>>,
}

/// The NICs of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuRail {
    /// The GPU's PCI address, canonical.
    pub gpu: String,
    /// Its UUID, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Its NICs.
    pub nics: Vec<String>,
    /// What says that they are near: `SameSwitch`, `SameRoot`, `Catalogue`, `SameNuma`, `AllNics`.
    pub evidence: String,
}

/// Why an annotation can't be read.
#[derive(Debug, thiserror::Error)]
pub enum AnnotationError {
    /// A later release wrote it.
    #[error(
        "version {found} is newer than {ANNOTATION_VERSION}, the newest that this release reads: upgrade it"
    )]
    Newer {
        /// What it says.
        found: u32,
    },
    /// It is not what it should be.
    #[error("not readable: {0}")]
    Malformed(#[from] serde_json::Error),
}

impl NodePlan {
    /// Reads one.
    ///
    /// # Errors
    /// A newer version, or what is malformed.
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        check_version(text)?;
        Ok(serde_json::from_str(text)?)
    }

    /// Whether it is of more use than another: never goes back from a node's plan to a seed.
    #[must_use]
    pub fn improves_on(&self, other: &Self) -> bool {
        self.source < other.source || (self.source == other.source && self != other)
    }
}

impl Injection {
    /// Reads one.
    ///
    /// # Errors
    /// A newer version, or what is malformed.
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        check_version(text)?;
        Ok(serde_json::from_str(text)?)
    }
}

/// Looks at the version first: what a later release changed would only read as malformed.
fn check_version(text: &str) -> Result<(), AnnotationError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } = serde_json::from_str(text)?;
    if version > ANNOTATION_VERSION {
        return Err(AnnotationError::Newer { found: version });
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn seed() -> NodePlan {
        NodePlan {
            version: ANNOTATION_VERSION,
            source: PlanSource::Seed,
            node: None,
            cap: NonZeroU32::MIN,
            cap_reason: "the smallest node".to_owned(),
            ranks: None,
            cores: None,
            rails: None,
        }
    }

    #[test]
    fn what_is_unknown_is_left_out_and_stays_unknown() {
        let text = serde_json::to_string(&seed()).unwrap();
        assert_eq!(
            text,
            r#"{"version":1,"source":"Seed","cap":1,"capReason":"the smallest node"}"#
        );
        assert_eq!(NodePlan::parse(&text).unwrap(), seed());
    }

    #[test]
    fn a_cap_of_zero_is_no_plan() {
        let zero = r#"{"version":1,"source":"Seed","cap":0,"capReason":""}"#;
        assert!(matches!(
            NodePlan::parse(zero),
            Err(AnnotationError::Malformed(_))
        ));
    }

    #[test]
    fn a_later_release_is_named_whatever_else_it_changed() {
        let error = NodePlan::parse(r#"{"version":7,"cap":"many"}"#).unwrap_err();
        assert!(
            error.to_string().starts_with("version 7 is newer than 1"),
            "{error}"
        );
    }

    #[test]
    fn a_plan_only_ever_improves() {
        let node = NodePlan {
            source: PlanSource::Node,
            cap: NonZeroU32::new(22).unwrap(),
            ..seed()
        };
        let other = NodePlan {
            cap: NonZeroU32::new(11).unwrap(),
            ..node.clone()
        };
        assert!(node.improves_on(&seed()) && other.improves_on(&node));
        assert!(!seed().improves_on(&node) && !node.improves_on(&node.clone()));
    }
}
