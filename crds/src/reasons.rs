//! Reasons, one word each: of conditions, Events, annotations, status and metric labels alike.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The one word.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

reasons! {
    /// Why a pod got no sidecar.
    Skip {
        /// It says so: label `siding.dev/inject: disabled`.
        OptedOut,
        /// No pool of its namespace selects it.
        NoPool,
        /// Several pools of its namespace select it.
        ConflictingPools,
        /// The pool that selects it can't be used as it is.
        InvalidPool,
        /// It has a sidecar of ours.
        AlreadyInjected,
        /// It has a container of the sidecar's name.
        ContainerNameTaken,
        /// It has a volume of a name that the sidecar needs.
        VolumeNameTaken,
        /// It is the mirror of a static pod.
        MirrorPod,
        /// It is for Windows.
        Windows,
        /// Its namespace's PodSecurity level would refuse it with a sidecar.
        PodSecurity,
        /// Device access needs what the namespace's PodSecurity level refuses.
        DeviceAccessRefused,
        /// A sidecar that is not root needs a group for its huge pages, which would change the
        /// permissions of the pod's own volumes.
        FsGroupNeeded,
        /// It sets resources for all its containers together: the sidecar's would be taken from
        /// them.
        PodLevelResources,
        /// It has a volume of medium `HugePages`, which is ambiguous with pages of another size.
        AmbiguousHugePages,
        /// Its annotations leave no room for those of the sidecar.
        AnnotationsFull,
        /// A LimitRange of its namespace would refuse it with a sidecar, or gives the sidecar what does not go
        /// with it.
        LimitRange,
        /// A ResourceQuota of its namespace would refuse it with a sidecar.
        ResourceQuota,
    }
}

reasons! {
    /// Why a mount is not as it was wished, or a pool's or node's condition is what it is.
    Reason {
        /// As wished.
        AsDeclared,
        /// Not known yet.
        Pending,
        /// A segment got another page size, or was not wholly registered.
        PartlyRegistered,
        /// Memory is served without being registered.
        NotRegistered,
        /// Too few free huge pages.
        HugePagesShort,
        /// Too little memory is available.
        MemoryShort,
        /// A memory limit is too small.
        MemoryLimit,
        /// The kernel killed the sidecar for its memory limit.
        OutOfMemoryKilled,
        /// Too little memory may be locked.
        MemlockLimit,
        /// The configuration is wrong.
        InvalidConfiguration,
        /// The sidecar's image can't be had.
        ImageUnavailable,
        /// The sidecar ended with an error.
        SidecarFailed,
        /// The pod has no node yet.
        Unscheduled,
        /// The node's agent does not answer.
        AgentAbsent,
        /// The sidecar does not answer the node's agent.
        SidecarSilent,
        /// The plan came after the engine's start: its environment keeps the safe value.
        PlanAfterStart,
        /// The plan was made from the node's capacity and the catalogue: the agent has not told.
        PlanFromCatalogue,
        /// The pod has no NIC of its own: TCP only.
        NoDeviceAccess,
        /// No node has such huge pages.
        NoSuchHugePages,
        /// The operator's certificate will run out soon.
        CertificateExpiring,
        /// Something else; the message tells.
        Other,
    }
}
