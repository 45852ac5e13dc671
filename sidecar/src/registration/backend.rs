//! Which back end registers, and why.

use std::sync::Arc;

use siding_crds::reasons::Reason;
use siding_fabric::{Domain, Unusable, UringDomain};
use siding_topology::size::binary;

use crate::config::Backend;
use crate::mount::choose::Lack;

/// The back end in use.
#[derive(Debug, Clone)]
pub enum InUse {
    /// Pinning by `io_uring`.
    Uring(Arc<UringDomain>),
    /// None: memory is served without registration.
    None,
}

/// The choice, with its reason in the user's words.
#[derive(Debug, Clone)]
pub struct Choice {
    /// What registers.
    pub in_use: InUse,
    /// Why.
    pub reason: String,
}

impl InUse {
    /// Its name, as a metric label too.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uring(_) => "io_uring",
            Self::None => "none",
        }
    }

    /// The domains to register on.
    #[must_use]
    pub fn domains(&self) -> Vec<Arc<dyn Domain>> {
        match self {
            Self::Uring(domain) => vec![Arc::clone(domain) as Arc<dyn Domain>],
            Self::None => Vec::new(),
        }
    }

    /// Rings open, for `io_uring`.
    #[must_use]
    pub fn rings(&self) -> Option<usize> {
        match self {
            Self::Uring(domain) => Some(domain.rings()),
            Self::None => None,
        }
    }
}

/// Chooses. `auto` takes what is usable; a back end that is asked for must be, and must be allowed
/// to pin all `total_bytes` within `pin_limit_bytes` (`None`: no limit).
///
/// # Errors
/// What keeps the back end that was asked for from working.
pub fn choose(
    wanted: Backend,
    total_bytes: u64,
    pin_limit_bytes: Option<u64>,
    open: impl FnOnce() -> Result<UringDomain, Unusable>,
) -> Result<Choice, Lack> {
    let short = pin_limit_bytes.filter(|limit| *limit < total_bytes);
    match wanted {
        Backend::None => Ok(Choice {
            in_use: InUse::None,
            reason: "as asked for".to_owned(),
        }),
        Backend::IoUring => {
            let domain = open().map_err(|why| Lack {
                field: "registration.backend".to_owned(),
                what: why.to_string(),
                remedy: "use auto or none, or allow io_uring (sysctl kernel.io_uring_disabled=0; \
                         in a pod a seccomp profile that has io_uring_setup and io_uring_register)"
                    .to_owned(),
                reason: Reason::NotRegistered,
            })?;
            match short {
                None => Ok(in_use(domain, "as asked for")),
                Some(limit) => Err(pin_lack(limit, total_bytes)),
            }
        }
        Backend::Auto => Ok(match open() {
            Ok(domain) => in_use(domain, "it is usable here and needs no NIC"),
            Err(why) => Choice {
                in_use: InUse::None,
                reason: format!("{why}; TCP serves without registration"),
            },
        }),
    }
}

fn in_use(domain: UringDomain, reason: &str) -> Choice {
    Choice {
        in_use: InUse::Uring(Arc::new(domain)),
        reason: reason.to_owned(),
    }
}

fn pin_lack(limit: u64, total: u64) -> Lack {
    Lack {
        field: "registration.backend".to_owned(),
        what: format!(
            "{} are to be pinned, RLIMIT_MEMLOCK allows this user {} over all its processes",
            binary(total),
            binary(limit)
        ),
        remedy: PIN_REMEDY.to_owned(),
        reason: Reason::MemlockLimit,
    }
}

/// What lets a process pin more.
pub const PIN_REMEDY: &str = "run as root or with CAP_IPC_LOCK (in a pod: \
     securityContext.capabilities.add: [IPC_LOCK] for uid 0), or raise RLIMIT_MEMLOCK (ulimit -l)";

#[cfg(test)]
mod tests {
    use super::*;

    fn forbidden() -> Result<UringDomain, Unusable> {
        Err(Unusable::Forbidden)
    }

    #[test]
    fn auto_without_io_uring_is_none_and_says_why() {
        let choice = choose(Backend::Auto, 1 << 30, None, forbidden).unwrap();
        assert_eq!(choice.in_use.name(), "none");
        assert!(choice.in_use.domains().is_empty());
        assert_eq!(
            choice.reason,
            "io_uring is forbidden here (by the container runtime's seccomp profile or by the sysctl \
             kernel.io_uring_disabled); TCP serves without registration"
        );
    }

    #[test]
    fn asked_for_and_unusable_is_an_error() {
        let lack = choose(Backend::IoUring, 1 << 30, None, || {
            Err(Unusable::NoKernelSupport)
        })
        .unwrap_err();
        assert_eq!(lack.field, "registration.backend");
        assert_eq!(lack.what, "this kernel has no io_uring");
        assert!(lack.remedy.contains("auto or none"));
    }

    #[test]
    fn asked_for_and_too_little_memlock_is_an_error_with_numbers() {
        let lack = choose(Backend::IoUring, 1 << 30, Some(8 << 20), UringDomain::open).unwrap_err();
        assert_eq!(
            lack.what,
            "1Gi are to be pinned, RLIMIT_MEMLOCK allows this user 8Mi over all its processes"
        );
        assert!(lack.remedy.contains("CAP_IPC_LOCK"));
    }

    #[test]
    fn none_opens_nothing() {
        let choice = choose(Backend::None, 1, Some(0), || unreachable!()).unwrap();
        assert_eq!(
            (choice.in_use.name(), choice.in_use.rings()),
            ("none", None)
        );
    }

    #[test]
    fn usable_is_used() {
        let choice = choose(Backend::Auto, 1 << 30, Some(8 << 20), UringDomain::open).unwrap();
        assert_eq!(
            (choice.in_use.name(), choice.in_use.rings()),
            ("io_uring", Some(0))
        );
        assert_eq!(choice.in_use.domains().len(), 1);
    }
}
