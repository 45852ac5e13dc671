//! The one place that reads environment variables.

use std::env;

/// What is read, and nothing else.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `NODE_NAME`: the node that this runs on, by the downward API.
    pub node_name: Option<String>,
}

impl Environment {
    /// Reads the process's environment.
    #[must_use]
    pub fn read() -> Self {
        Self {
            node_name: env::var("NODE_NAME").ok().filter(|name| !name.is_empty()),
        }
    }
}
