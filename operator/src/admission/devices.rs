//! How the sidecar gets at NICs.

use siding_crds::api::DeviceAccessMode;
use siding_crds::plan::Devices;

use super::pod::{Pod, name_of};
use super::wish::Wish;

/// The way to NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access<'a> {
    /// None: TCP only.
    None,
    /// The pod's own claims, all of them: which are of NICs is known only to their drivers. Sharing takes
    /// nothing from the engine, even where it has every NIC of a node.
    Claims(Vec<&'a str>),
    /// Devices of its own.
    DevicePlugin {
        /// The resource.
        resource: &'a str,
        /// How many.
        count: u32,
    },
    /// All of the node.
    HostPath,
}

impl<'a> Access<'a> {
    pub(super) fn of(pod: &Pod<'a>, wish: &Wish<'a>) -> Self {
        let access = &wish.spec.device_access;
        match access.mode {
            DeviceAccessMode::None => Self::None,
            DeviceAccessMode::Auto => {
                let names = pod.list("resourceClaims").iter().map(name_of);
                let claims: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
                if claims.is_empty() {
                    Self::None
                } else {
                    Self::Claims(claims)
                }
            }
            DeviceAccessMode::DevicePlugin => Self::DevicePlugin {
                resource: access.resource.as_deref().unwrap_or_default(),
                count: access.count,
            },
            DeviceAccessMode::HostPath => Self::HostPath,
        }
    }

    pub(super) fn kind(&self) -> Devices {
        match self {
            Self::None => Devices::None,
            Self::Claims(_) => Devices::Claims,
            Self::DevicePlugin { .. } => Devices::DevicePlugin,
            Self::HostPath => Devices::HostPath,
        }
    }
}
