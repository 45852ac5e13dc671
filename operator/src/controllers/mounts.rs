//! One pod's StoreMount: made with the pod, told what the agent can't see, completed where the
//! binding webhook was missed. Pure: what was observed comes in, what to do comes out.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use siding_crds::api::{MountPhase, StoreMount, StoreMountStatus};
use siding_crds::names;
use siding_crds::plan::{NodePlan, PlanSource};
use siding_crds::reasons::Reason;

use super::conditions::Said;
use super::tell::News;
use crate::caches::facts::{PodFacts, SidecarState};
use crate::caches::slim::Key;

/// What is done to the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Apply this StoreMount (without status).
    ApplyMount(Value),
    /// Delete the StoreMount of this uid.
    DeleteMount {
        /// The uid that it must still have.
        uid: String,
    },
    /// Write this plan on the pod.
    CompletePlan {
        /// The uid that the pod must still have.
        pod_uid: String,
        /// The plan.
        plan: NodePlan,
    },
    /// Apply this status.
    ApplyStatus(Value),
    /// Tell it.
    Tell(News),
}

/// What was observed of a pod and its mount.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The key of both.
    pub key: &'a Key,
    /// The pod.
    pub pod: Option<&'a PodFacts>,
    /// The mount.
    pub mount: Option<&'a StoreMount>,
    /// The plan that the pod should carry, where one can be made now.
    pub plan: Option<&'a NodePlan>,
}

/// What is to be done.
#[must_use]
pub fn actions(observed: &Observed<'_>, now: Timestamp) -> Vec<Action> {
    let mount = observed.mount;
    let delete = |mount: &StoreMount| Action::DeleteMount {
        uid: mount.metadata.uid.clone().unwrap_or_default(),
    };
    let Some(pod) = observed.pod else {
        return mount.map(delete).into_iter().collect();
    };
    let Some(node) = &pod.node else {
        return Vec::new();
    };
    match mount {
        // Of an earlier pod of the same name.
        Some(mount) if mount.spec.pod_uid != pod.uid => return vec![delete(mount)],
        None if !pod.has_ended => {
            return vec![Action::ApplyMount(mount_of(observed.key, pod, node))];
        }
        None => return Vec::new(),
        Some(_) => {}
    }
    let complete = completion(pod, observed.plan);
    let news = mount.and_then(|mount| news(observed.key, pod, mount));
    let told = mount.and_then(|mount| status(pod, mount, complete.is_some(), now));
    complete.into_iter().chain(news).chain(told).collect()
}

/// What the pod's user is to hear: why its sidecar does not run, or what the agent heard of it.
fn news(key: &Key, pod: &PodFacts, mount: &StoreMount) -> Option<Action> {
    let heard = mount.status.as_ref().filter(|status| {
        matches!(status.phase, MountPhase::Failed | MountPhase::Degraded) && !pod.has_ended
    });
    let (reason, note) = failure(&pod.sidecar).or_else(|| {
        let status = heard?;
        let word = status.reason.as_deref()?;
        let reason = Reason::ALL.iter().find(|reason| reason.as_str() == word)?;
        Some((*reason, status.summary.clone().unwrap_or_default()))
    })?;
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(key.name.clone()),
        namespace: Some(key.namespace.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    };
    Some(Action::Tell(News {
        regarding,
        reason: reason.as_str(),
        note,
        action: "Mount",
    }))
}

fn mount_of(key: &Key, pod: &PodFacts, node: &str) -> Value {
    json!({
        "apiVersion": "siding.dev/v1alpha1",
        "kind": "StoreMount",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": {names::POOL: pod.injection.pool},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod", "name": key.name, "uid": pod.uid,
                "controller": true, "blockOwnerDeletion": false,
            }],
        },
        "spec": {
            "pool": pod.injection.pool,
            "poolGeneration": pod.injection.pool_generation,
            "podUid": pod.uid,
            "node": node,
        },
    })
}

/// The plan is written where the pod's own says less: never back from a node's to a seed.
fn completion(pod: &PodFacts, plan: Option<&NodePlan>) -> Option<Action> {
    let plan = plan?;
    let has_less = pod
        .plan
        .as_ref()
        .is_none_or(|has| plan.source < has.source || has.node != plan.node);
    (has_less && !pod.has_ended).then(|| Action::CompletePlan {
        pod_uid: pod.uid.clone(),
        plan: plan.clone(),
    })
}

/// What is wrong with a sidecar that the agent can't hear.
fn failure(state: &SidecarState) -> Option<(Reason, String)> {
    match state {
        SidecarState::Unknown | SidecarState::Running => None,
        SidecarState::Waiting { reason, message } => match reason.as_str() {
            "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
                let note = format!("the sidecar's image can't be had: {message}");
                Some((Reason::ImageUnavailable, note))
            }
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => Some((
                Reason::SidecarFailed,
                format!("the sidecar can't be started: {message}"),
            )),
            _ => None,
        },
        SidecarState::Ended { reason, .. } if reason == "OOMKilled" => Some((
            Reason::OutOfMemoryKilled,
            "the kernel killed the sidecar: its memory limit is smaller than what it needs; \
             a segment on 4Ki or Transparent pages counts against it"
                .to_owned(),
        )),
        SidecarState::Ended { exit_code: 0, .. } => None,
        SidecarState::Ended {
            exit_code,
            message,
            reason,
        } => {
            let last = if message.is_empty() { reason } else { message };
            let cause = match exit_code {
                2 => Reason::InvalidConfiguration,
                _ => Reason::SidecarFailed,
            };
            let note = format!(
                "the sidecar ended with exit code {exit_code}: {}",
                last.trim()
            );
            Some((cause, note))
        }
    }
}

fn status(
    pod: &PodFacts,
    mount: &StoreMount,
    is_completed_now: bool,
    now: Timestamp,
) -> Option<Action> {
    let default = StoreMountStatus::default();
    let old = mount.status.as_ref().unwrap_or(&default);
    let failure = failure(&pod.sidecar);
    let conditions: Vec<_> = [
        planned(pod, old, is_completed_now),
        running(&pod.sidecar, failure.as_ref()),
    ]
    .into_iter()
    .map(|said| said.after(&old.conditions, mount.metadata.generation, now))
    .collect();
    let is_new_failure = failure.as_ref().is_some_and(|(reason, _)| {
        old.phase != MountPhase::Failed || old.reason.as_deref() != Some(reason.as_str())
    });
    let is_same = conditions.iter().all(|one| old.conditions.contains(one));
    if is_same && !is_new_failure {
        return None;
    }
    let mut status = json!({"conditions": conditions});
    if let Some((reason, note)) = failure {
        status["phase"] = json!(MountPhase::Failed);
        status["reason"] = json!(reason.as_str());
        status["summary"] = json!(note);
    }
    Some(Action::ApplyStatus(status))
}

fn planned(pod: &PodFacts, old: &StoreMountStatus, is_completed_now: bool) -> Said {
    let (status, reason, message) = match &pod.plan {
        Some(plan) if plan.node == pod.node && plan.source == PlanSource::Node => {
            // A plan that came late reached the sidecar, and not an engine that had started.
            let late = old.conditions.iter().any(|one| {
                one.type_ == names::PLAN_WRITTEN && one.reason == Reason::PlanAfterStart.as_str()
            });
            let reason = if late { Reason::PlanAfterStart } else { Reason::AsDeclared };
            (Some(true), reason, format!("cap {}: {}", plan.cap, plan.cap_reason))
        }
        Some(plan) if plan.node == pod.node && plan.node.is_some() => (
            Some(true),
            Reason::PlanFromCatalogue,
            format!("cap {}: {}; the node's agent has not told its NICs", plan.cap, plan.cap_reason),
        ),
        _ if is_completed_now && pod.has_started => (
            Some(false),
            Reason::PlanAfterStart,
            "the pod was bound without the operator: the sidecar gets the plan now, and the engine keeps the safe cap that it started with".to_owned(),
        ),
        _ => (
            Some(false),
            Reason::Pending,
            "the pod carries the safe cap of its creation".to_owned(),
        ),
    };
    Said {
        type_: names::PLAN_WRITTEN,
        status,
        reason,
        message,
    }
}

fn running(state: &SidecarState, failure: Option<&(Reason, String)>) -> Said {
    let (status, reason, message) = match (state, failure) {
        (_, Some((reason, note))) => (Some(false), *reason, note.clone()),
        (SidecarState::Running, None) => (
            Some(true),
            Reason::AsDeclared,
            "the sidecar runs".to_owned(),
        ),
        (SidecarState::Ended { .. }, None) => (
            Some(false),
            Reason::AsDeclared,
            "the sidecar has ended".to_owned(),
        ),
        (SidecarState::Waiting { message, .. }, None) => (
            Some(false),
            Reason::Pending,
            format!("the sidecar is being started {message}")
                .trim()
                .to_owned(),
        ),
        (SidecarState::Unknown, None) => (None, Reason::Pending, "not known yet".to_owned()),
    };
    Said {
        type_: names::SIDECAR_RUNNING,
        status,
        reason,
        message,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn key() -> Key {
        Key::new("team-a", "engine-0")
    }

    fn seed() -> NodePlan {
        serde_json::from_value(json!({"version": 1, "source": "Seed", "cap": 1, "capReason": "s"}))
            .unwrap()
    }

    fn planned_on_node() -> NodePlan {
        serde_json::from_value(json!({
            "version": 1, "source": "Node", "node": "n1", "cap": 23, "capReason": "0.95 x 192", "rails": [],
        }))
        .unwrap()
    }

    fn pod() -> PodFacts {
        PodFacts {
            uid: "u1".to_owned(),
            node: Some("n1".to_owned()),
            injection: Arc::new(serde_json::from_value(json!({
                "version": 1, "pool": "kv", "poolGeneration": 3, "ranks": 1, "gpusPerRank": 1, "image": "i",
            }))
            .unwrap()),
            plan: Some(planned_on_node().into()),
            sidecar: SidecarState::Running,
            has_started: false,
            has_ended: false,
        }
    }

    fn mount(pod_uid: &str) -> StoreMount {
        serde_json::from_value(json!({
            "apiVersion": "siding.dev/v1alpha1", "kind": "StoreMount",
            "metadata": {"name": "engine-0", "namespace": "team-a", "uid": "m1", "generation": 1},
            "spec": {"pool": "kv", "poolGeneration": 3, "podUid": pod_uid, "node": "n1"},
        }))
        .unwrap()
    }

    fn act(
        pod: Option<&PodFacts>,
        mount: Option<&StoreMount>,
        plan: Option<&NodePlan>,
    ) -> Vec<Action> {
        let key = key();
        let observed = Observed {
            key: &key,
            pod,
            mount,
            plan,
        };
        actions(&observed, Timestamp::UNIX_EPOCH)
    }

    /// The status after an action was applied, as server-side apply merges it.
    fn applied(actions: &[Action], to: &StoreMount) -> StoreMount {
        let mut mount = to.clone();
        let Some(Action::ApplyStatus(status)) = actions.last() else {
            panic!("{actions:?}");
        };
        let mut merged = serde_json::to_value(mount.status.unwrap_or_default()).unwrap();
        for (name, value) in status.as_object().unwrap() {
            merged[name] = value.clone();
        }
        mount.status = Some(serde_json::from_value(merged).unwrap());
        mount
    }

    #[test]
    fn a_bound_pod_gets_a_mount_that_goes_with_it() {
        let actions = act(Some(&pod()), None, None);
        let [Action::ApplyMount(mount)] = &actions[..] else {
            panic!("{actions:?}");
        };
        assert_eq!(mount["metadata"]["ownerReferences"][0]["uid"], "u1");
        assert_eq!(mount["spec"]["node"], "n1");
        let unbound = PodFacts {
            node: None,
            ..pod()
        };
        assert_eq!(act(Some(&unbound), None, None), []);
        let ended = PodFacts {
            has_ended: true,
            ..pod()
        };
        assert_eq!(act(Some(&ended), None, None), []);
    }

    #[test]
    fn a_mount_without_its_pod_or_of_an_earlier_one_goes() {
        let delete = Action::DeleteMount {
            uid: "m1".to_owned(),
        };
        assert_eq!(
            act(None, Some(&mount("u1")), None),
            std::slice::from_ref(&delete)
        );
        assert_eq!(act(Some(&pod()), Some(&mount("u0")), None), [delete]);
    }

    #[test]
    fn a_pod_that_missed_its_binding_gets_its_plan_once_and_the_engines_start_is_told() {
        let late = PodFacts {
            plan: Some(seed().into()),
            has_started: true,
            ..pod()
        };
        let plan = planned_on_node();
        let first = act(Some(&late), Some(&mount("u1")), Some(&plan));
        assert_eq!(
            first[0],
            Action::CompletePlan {
                pod_uid: "u1".to_owned(),
                plan: plan.clone()
            }
        );
        let told = applied(&first, &mount("u1"));
        let condition = told.status.as_ref().unwrap().conditions[0].clone();
        assert_eq!(
            (condition.type_.as_str(), condition.reason.as_str()),
            ("PlanWritten", "PlanAfterStart")
        );
        // The pod carries it now: nothing more to complete, and that it came late stays told.
        let planned = PodFacts {
            plan: Some(plan.clone().into()),
            ..late
        };
        let second = act(Some(&planned), Some(&told), Some(&plan));
        assert_eq!(second.len(), 1);
        let told = applied(&second, &told);
        let condition = &told.status.as_ref().unwrap().conditions[0];
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("True", "PlanAfterStart")
        );
        assert_eq!(act(Some(&planned), Some(&told), Some(&plan)), []);
    }

    #[test]
    fn a_plan_never_goes_back_to_a_worse_source() {
        let catalogue = NodePlan {
            source: PlanSource::Catalogue,
            ..planned_on_node()
        };
        let mount = mount("u1");
        let actions = act(Some(&pod()), Some(&mount), Some(&catalogue));
        assert!(
            !actions
                .iter()
                .any(|action| matches!(action, Action::CompletePlan { .. }))
        );
    }

    #[test]
    fn a_sidecar_that_was_killed_is_told_once_with_what_mends_it() {
        let killed = PodFacts {
            sidecar: SidecarState::Ended {
                reason: "OOMKilled".to_owned(),
                exit_code: 137,
                message: String::new(),
            },
            ..pod()
        };
        let first = act(Some(&killed), Some(&mount("u1")), None);
        let Action::Tell(news) = &first[0] else {
            panic!("{first:?}");
        };
        assert_eq!(news.reason, "OutOfMemoryKilled");
        let told = applied(&first, &mount("u1"));
        let status = told.status.as_ref().unwrap();
        assert_eq!(
            (status.phase, status.reason.as_deref()),
            (MountPhase::Failed, Some("OutOfMemoryKilled"))
        );
        // The news is the same, and told once by its name.
        assert_eq!(
            act(Some(&killed), Some(&told), None),
            [Action::Tell(news.clone())]
        );
    }

    #[test]
    fn what_the_agent_heard_is_told_of_the_pod() {
        let mut mount = applied(&act(Some(&pod()), Some(&mount("u1")), None), &mount("u1"));
        assert_eq!(act(Some(&pod()), Some(&mount), None), []);
        let status = mount.status.as_mut().unwrap();
        status.phase = MountPhase::Degraded;
        status.reason = Some("PartlyRegistered".to_owned());
        status.summary = Some("4Mi not registered".to_owned());
        let actions = act(Some(&pod()), Some(&mount), None);
        let [Action::Tell(news)] = &actions[..] else {
            panic!("{actions:?}");
        };
        assert_eq!(
            (news.reason, news.note.as_str()),
            ("PartlyRegistered", "4Mi not registered")
        );
        let uid = news.regarding.uid.as_deref();
        assert_eq!((uid, news.action), (Some("u1"), "Mount"));
        // What it never said of itself, such as being silent, is no failure.
        let status = mount.status.as_mut().unwrap();
        status.phase = MountPhase::Pending;
        assert_eq!(act(Some(&pod()), Some(&mount), None), []);
    }

    #[test]
    fn what_keeps_a_sidecar_from_starting_is_named() {
        for (state, wanted) in [
            (
                SidecarState::Waiting {
                    reason: "ErrImagePull".to_owned(),
                    message: "no such host".to_owned(),
                },
                Some(Reason::ImageUnavailable),
            ),
            (
                SidecarState::Waiting {
                    reason: "PodInitializing".to_owned(),
                    message: String::new(),
                },
                None,
            ),
            (
                SidecarState::Ended {
                    reason: "Error".to_owned(),
                    exit_code: 2,
                    message: "segments[0].size".to_owned(),
                },
                Some(Reason::InvalidConfiguration),
            ),
            (
                SidecarState::Ended {
                    reason: "Error".to_owned(),
                    exit_code: 3,
                    message: "x".to_owned(),
                },
                Some(Reason::SidecarFailed),
            ),
            (
                SidecarState::Ended {
                    reason: "Completed".to_owned(),
                    exit_code: 0,
                    message: String::new(),
                },
                None,
            ),
            (SidecarState::Running, None),
            (SidecarState::Unknown, None),
        ] {
            assert_eq!(
                failure(&state).map(|(reason, _)| reason),
                wanted,
                "{state:?}"
            );
        }
    }
}
