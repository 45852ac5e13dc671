//! The one place that reads environment variables: those that an ecosystem demands.

use std::env;
use std::ffi::OsString;

/// What is read, and nothing else.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `MC_MAX_CONCURRENT_REG_MR`: the cap, as users of Mooncake set it.
    pub max_concurrent_reg_mr: Option<OsString>,
    /// Running in a pod (`KUBERNETES_SERVICE_HOST` is set).
    pub in_pod: bool,
}

impl Environment {
    /// Reads the process's environment.
    #[must_use]
    pub fn read() -> Self {
        Self {
            max_concurrent_reg_mr: env::var_os("MC_MAX_CONCURRENT_REG_MR"),
            in_pod: env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        }
    }
}
