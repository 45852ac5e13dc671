//! Conditions whose time of transition moves with their status alone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use siding_crds::reasons::Reason;

use crate::text::cut;

/// The API server takes no longer message.
const MESSAGE_CHARS: usize = 1024;

/// What a condition says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody knows.
    Unknown,
}

impl Truth {
    fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// When conditions are made, for which object, and what they were before.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// Now.
    pub now: Timestamp,
    /// `metadata.generation` of the object.
    pub generation: Option<i64>,
    /// The conditions that the object has.
    pub before: &'a [Condition],
}

impl Moment<'_> {
    /// A condition: since now, or since it last turned to what it is.
    #[must_use]
    pub fn condition(&self, kind: &str, truth: Truth, reason: Reason, message: &str) -> Condition {
        let status = truth.as_str();
        let before = self.before.iter().find(|old| old.type_ == kind);
        let since = before.filter(|old| old.status == status);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.as_str().to_owned(),
            message: cut(message, MESSAGE_CHARS),
            observed_generation: self.generation,
            last_transition_time: since
                .map_or(Time(self.now), |old| old.last_transition_time.clone()),
        }
    }
}

/// A time of whole seconds, as the API keeps it.
#[must_use]
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_moves_with_the_status_alone() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = Moment {
            now: at(10),
            generation: Some(1),
            before: &[],
        }
        .condition("Ready", Truth::True, Reason::AsDeclared, "a");
        let before = [first.clone()];
        let later = Moment {
            now: at(20),
            generation: Some(2),
            before: &before,
        };
        let same = later.condition("Ready", Truth::True, Reason::AsDeclared, "b");
        assert_eq!(same.last_transition_time, first.last_transition_time);
        assert_eq!(
            (same.message.as_str(), same.observed_generation),
            ("b", Some(2))
        );
        let turned = later.condition("Ready", Truth::False, Reason::Other, "b");
        assert_eq!(turned.last_transition_time, Time(at(20)));
        assert_eq!(
            later
                .condition("Other", Truth::Unknown, Reason::Pending, "")
                .last_transition_time,
            Time(at(20))
        );
    }
}
