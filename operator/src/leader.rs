//! Leader election by a Lease: one replica runs the controllers, all of them answer webhooks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tracing::{info, warn};

/// How long a lease holds without being renewed.
const LIFE: Duration = Duration::from_secs(15);
/// How often it is renewed, or looked at.
const EACH: Duration = Duration::from_secs(3);
/// A leader that could not renew for so long stops leading, well before another may begin.
const GIVE_UP: Duration = Duration::from_secs(10);

/// A candidate.
#[derive(Clone)]
pub struct Candidate {
    /// The API.
    pub client: Client,
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub lease: String,
    /// Our own name, of no other replica.
    pub identity: String,
}

/// What to do with a Lease that was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Someone else holds it.
    Wait,
    /// Write this one.
    Take(LeaseSpec),
}

/// What others were seen to do, by our own clock: theirs may differ.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    renewal: Option<(Option<String>, Option<MicroTime>)>,
    at: Option<Instant>,
}

impl Seen {
    /// What to do now; `spec` is the Lease's.
    pub fn step(
        &mut self,
        spec: Option<&LeaseSpec>,
        identity: &str,
        now: Instant,
        wall: Timestamp,
    ) -> Step {
        let holder = spec
            .and_then(|spec| spec.holder_identity.as_deref())
            .filter(|holder| !holder.is_empty());
        let renewal = (
            holder.map(str::to_owned),
            spec.and_then(|spec| spec.renew_time.clone()),
        );
        if self.renewal.as_ref() != Some(&renewal) {
            self.renewal = Some(renewal);
            self.at = Some(now);
        }
        let is_stale = self.at.is_some_and(|at| now.duration_since(at) > LIFE);
        match holder {
            Some(holder) if holder != identity && !is_stale => Step::Wait,
            holder => {
                let is_change = holder != Some(identity);
                let old = spec.cloned().unwrap_or_default();
                Step::Take(LeaseSpec {
                    holder_identity: Some(identity.to_owned()),
                    lease_duration_seconds: i32::try_from(LIFE.as_secs()).ok(),
                    acquire_time: if is_change {
                        Some(MicroTime(wall))
                    } else {
                        old.acquire_time
                    },
                    renew_time: Some(MicroTime(wall)),
                    lease_transitions: Some(
                        old.lease_transitions.unwrap_or(0) + i32::from(is_change),
                    ),
                    ..LeaseSpec::default()
                })
            }
        }
    }
}

impl Candidate {
    /// Stands for election until `stop`; `leads` tells. At the end the Lease is given up, so that
    /// another need not wait.
    pub async fn stand(self, leads: watch::Sender<bool>, stop: Arc<AtomicBool>) {
        let mut seen = Seen::default();
        let mut renewed = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            match self.round(&mut seen).await {
                Ok(true) => {
                    renewed = Instant::now();
                    self.tell(&leads, true);
                }
                Ok(false) => self.tell(&leads, false),
                Err(error) => {
                    warn!(lease = self.lease, %error, "the lease can't be looked after");
                    if renewed.elapsed() > GIVE_UP {
                        self.tell(&leads, false);
                    }
                }
            }
            tokio::time::sleep(EACH).await;
        }
        if leads.send_replace(false)
            && let Err(error) = self.give_up().await
        {
            warn!(lease = self.lease, %error, "the lease could not be given up");
        }
    }

    fn tell(&self, leads: &watch::Sender<bool>, now: bool) {
        leads.send_if_modified(|before| {
            let is_change = *before != now;
            if is_change {
                info!(lease = self.lease, leads = now, "leadership changed");
            }
            *before = now;
            is_change
        });
    }

    async fn round(&self, seen: &mut Seen) -> Result<bool, kube::Error> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api.get_opt(&self.lease).await?;
        let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
        let step = seen.step(spec, &self.identity, Instant::now(), Timestamp::now());
        let Step::Take(spec) = step else {
            return Ok(false);
        };
        let mut lease = found.clone().unwrap_or_default();
        lease.spec = Some(spec);
        lease.metadata.name = Some(self.lease.clone());
        let written = match found {
            None => api.create(&PostParams::default(), &lease).await,
            // With the resourceVersion that was read: of two, one wins.
            Some(_) => {
                api.replace(&self.lease, &PostParams::default(), &lease)
                    .await
            }
        };
        match written {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn give_up(&self) -> Result<(), kube::Error> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut lease = api.get(&self.lease).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&self.identity) {
            spec.holder_identity = None;
            api.replace(&self.lease, &PostParams::default(), &lease)
                .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn taken(step: Step) -> LeaseSpec {
        match step {
            Step::Take(spec) => spec,
            Step::Wait => panic!("waits"),
        }
    }

    #[test]
    fn a_free_lease_is_taken_and_renewed_without_a_transition() {
        let (mut seen, now, wall) = (Seen::default(), Instant::now(), Timestamp::UNIX_EPOCH);
        let first = taken(seen.step(None, "a", now, wall));
        assert_eq!(first.holder_identity.as_deref(), Some("a"));
        assert_eq!(first.lease_transitions, Some(1));
        let second = taken(seen.step(Some(&first), "a", now + EACH, wall));
        assert_eq!(second.lease_transitions, Some(1));
        assert_eq!(second.acquire_time, first.acquire_time);
    }

    #[test]
    fn anothers_is_left_alone_until_it_has_not_moved_for_its_whole_life() {
        let (mut other, mut ours) = (Seen::default(), Seen::default());
        let (now, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let held = taken(other.step(None, "a", now, wall));
        assert_eq!(ours.step(Some(&held), "b", now, wall), Step::Wait);
        assert_eq!(ours.step(Some(&held), "b", now + LIFE, wall), Step::Wait);
        // Renewed meanwhile, by a clock that is an hour off.
        let off = wall
            .checked_add(std::time::Duration::from_secs(3600))
            .unwrap();
        let renewed = taken(other.step(Some(&held), "a", now + LIFE, off));
        assert_eq!(
            ours.step(Some(&renewed), "b", now + LIFE * 3 / 2, wall),
            Step::Wait
        );
        let late = now + LIFE * 3;
        assert_eq!(
            taken(ours.step(Some(&renewed), "b", late, wall)).lease_transitions,
            Some(2)
        );
    }

    #[test]
    fn one_that_was_given_up_is_free_at_once() {
        let mut seen = Seen::default();
        let (now, wall) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let held = LeaseSpec {
            holder_identity: Some("a".to_owned()),
            ..LeaseSpec::default()
        };
        assert_eq!(seen.step(Some(&held), "b", now, wall), Step::Wait);
        let free = LeaseSpec {
            holder_identity: None,
            ..held
        };
        taken(seen.step(Some(&free), "b", now, wall));
    }
}
