//! Conditions that move only when something did.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use siding_crds::reasons::Reason;

/// What a condition is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Its type.
    pub type_: &'static str,
    /// `True`, `False`, or unknown.
    pub status: Option<bool>,
    /// Its reason.
    pub reason: Reason,
    /// Its message.
    pub message: String,
}

impl Said {
    /// As a condition; the time of its last transition is that of `old` where its status is too.
    #[must_use]
    pub fn after(self, old: &[Condition], generation: Option<i64>, now: Timestamp) -> Condition {
        let status = match self.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let before = old.iter().find(|one| one.type_ == self.type_);
        let since = before
            .filter(|one| one.status == status)
            .map_or(Time(now), |one| one.last_transition_time.clone());
        Condition {
            type_: self.type_.to_owned(),
            status: status.to_owned(),
            reason: self.reason.as_str().to_owned(),
            message: self.message,
            observed_generation: generation,
            last_transition_time: since,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_last_change_of_status() {
        let said = |status, message: &str| Said {
            type_: "Ready",
            status,
            reason: Reason::Pending,
            message: message.to_owned(),
        };
        let (early, late) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let first = said(Some(false), "a").after(&[], Some(1), early);
        let same = said(Some(false), "b").after(std::slice::from_ref(&first), Some(2), late);
        assert_eq!(same.last_transition_time, Time(early));
        assert_eq!(
            (same.message.as_str(), same.observed_generation),
            ("b", Some(2))
        );
        let other = said(None, "c").after(&[same], Some(2), late);
        assert_eq!(
            (other.status.as_str(), other.last_transition_time),
            ("Unknown", Time(late))
        );
    }
}
