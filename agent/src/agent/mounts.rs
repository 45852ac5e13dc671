//! Relaying what the node's sidecars did.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use siding_crds::api::{MountPhase, StoreMount, StoreMountStatus};
use tokio::time::{MissedTickBehavior, interval};

use super::{Context, now};
use crate::conditions::Moment;
use crate::metrics::{Round, STORE_MOUNT};
use crate::mount::{Heard, mount_status, says_so};
use crate::pod_resources::{self, GpusOfPods};
use crate::publish::{self, Patience};
use crate::report::SidecarReport;
use crate::{sidecar, sockets};

/// Sidecars that are asked at once: a hung one delays none of the others.
const AT_ONCE: usize = 64;
/// How long a sidecar may be silent before that is told.
const SILENCE: Duration = Duration::from_secs(30);

/// Relays for ever.
pub(super) async fn relay(context: &Context) {
    let (store, writer) = reflector::store();
    let mounts: Api<StoreMount> = Api::all(context.client.clone());
    let of_node = watcher::Config::default().fields(&format!("spec.node={}", context.node));
    let watch = reflector::reflector(writer, watcher(mounts, of_node))
        .default_backoff()
        .for_each(|event| {
            if let Err(error) = event {
                tracing::warn!("the StoreMounts of the node can't be watched: {error}");
            }
            std::future::ready(())
        });
    tokio::select! {
        () = watch => {}
        () = rounds(context, &store) => {}
    }
}

async fn rounds(context: &Context, store: &Store<StoreMount>) {
    if store.wait_until_ready().await.is_err() {
        return;
    }
    context.metrics.mounts_listed();
    let mut relay = Relay {
        context,
        seen: HashMap::new(),
        gpus: Gpus::default(),
    };
    let mut ticks = interval(context.options.sidecar_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        relay.round(store.state()).await;
    }
}

/// What is remembered of one StoreMount.
#[derive(Debug)]
struct Seen {
    /// When it was last heard of, or first looked at.
    since: Timestamp,
    /// Whether anything was there to hear it.
    was_there: bool,
    published: Option<StoreMountStatus>,
    patience: Patience,
}

impl Seen {
    fn new(mount: &StoreMount) -> Self {
        let told = mount.status.as_ref().map(|status| status.phase);
        Self {
            since: now(),
            // By the agent before this one.
            was_there: told.is_some_and(|phase| phase != MountPhase::Pending),
            published: None,
            patience: Patience::default(),
        }
    }
}

/// What one look at a sidecar gave.
enum Look {
    Report(Box<SidecarReport>),
    /// Its pod has no folder: it is not started yet, or it has ended.
    Without,
    /// No socket is there.
    Absent(String),
    Silent(String),
}

struct Relay<'a> {
    context: &'a Context,
    /// By the object's uid.
    seen: HashMap<String, Seen>,
    gpus: Gpus,
}

impl Relay<'_> {
    async fn round(&mut self, mounts: Vec<Arc<StoreMount>>) {
        self.gpus.renew(self.context).await;
        let gpus = &self.gpus.of_pods;
        let looks: Vec<(Arc<StoreMount>, Look)> = futures::stream::iter(mounts)
            .map(|mount| async {
                let look = look(self.context, &mount, gpus.as_ref()).await;
                (mount, look)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let uid = |mount: &StoreMount| mount.uid().unwrap_or_default();
        let alive: std::collections::HashSet<String> =
            looks.iter().map(|(mount, _)| uid(mount)).collect();
        self.seen.retain(|uid, _| alive.contains(uid));
        let mut round = Round::default();
        for (mount, look) in looks {
            match &look {
                Look::Report(report) => {
                    round.answering += 1;
                    let untold = report.plan.as_ref().is_some_and(|plan| plan.gpus.is_none());
                    self.gpus.wanted |= untold;
                }
                Look::Without | Look::Absent(_) => round.absent += 1,
                Look::Silent(_) => round.silent += 1,
            }
            let seen = self
                .seen
                .entry(uid(&mount))
                .or_insert_with(|| Seen::new(&mount));
            if let Some(heard) = heard(look, seen) {
                tell(self.context, &mount, &heard, seen).await;
            }
        }
        self.context.metrics.round(round);
    }
}

/// What is to be told of a look; nothing while a sidecar may still be starting. Of one that was
/// never there nothing is told: the pod's own state says why.
fn heard(look: Look, seen: &mut Seen) -> Option<Heard> {
    let why = match look {
        Look::Report(report) => {
            seen.since = now();
            seen.was_there = true;
            return Some(Heard::Report(report));
        }
        // What it said last stays true of a pod that has ended.
        Look::Without => return None,
        Look::Absent(why) => why,
        Look::Silent(why) => {
            seen.was_there = true;
            why
        }
    };
    let silent = now().as_second().saturating_sub(seen.since.as_second());
    let is_long = u64::try_from(silent).is_ok_and(|silent| silent >= SILENCE.as_secs());
    (is_long && seen.was_there).then(|| Heard::Silence {
        since: seen.since,
        why: first_why(seen, why),
    })
}

/// While it stays silent the words stay as they were first told: each change would be a write.
fn first_why(seen: &Seen, why: String) -> String {
    let told = seen.published.as_ref().and_then(|status| {
        let summary = status.summary.as_ref()?;
        let start = format!("the sidecar has not answered since {}: ", seen.since);
        summary.strip_prefix(&start).map(str::to_owned)
    });
    told.unwrap_or(why)
}

async fn look(context: &Context, mount: &StoreMount, gpus: Option<&GpusOfPods>) -> Look {
    let socket = match sockets::find(&context.options.kubelet_directory, &mount.spec.pod_uid) {
        Ok(socket) => socket,
        Err(error) if error.is_without_folder() => return Look::Without,
        Err(error) if error.is_absent() => return Look::Absent(error.to_string()),
        Err(error) => return Look::Silent(error.to_string()),
    };
    let report = match sidecar::status(&socket).await {
        Ok(report) => report,
        Err(error) => return Look::Silent(error.to_string()),
    };
    let key = (mount.namespace().unwrap_or_default(), mount.name_any());
    let got = gpus.and_then(|gpus| gpus.get(&key));
    let told = report.plan.as_ref().map(|plan| plan.gpus.as_ref());
    if let (Some(got), Some(told)) = (got, told)
        && told != Some(got)
        && let Err(error) = sidecar::tell_gpus(&socket, got).await
    {
        let pod = mount.name_any();
        tracing::debug!(pod, "the sidecar was not told its GPUs: {error}");
    }
    Look::Report(Box::new(report))
}

async fn tell(context: &Context, mount: &StoreMount, heard: &Heard, seen: &mut Seen) {
    let old = seen.published.as_ref().or(mount.status.as_ref());
    let moment = Moment {
        now: now(),
        generation: mount.metadata.generation,
        before: old.map(|old| old.conditions.as_slice()).unwrap_or_default(),
    };
    let status = mount_status(heard, old, mount.status.as_ref(), moment);
    let is_there = (mount.status.as_ref()).is_some_and(|now| says_so(now, &status));
    let is_known = seen.published.as_ref() == Some(&status) && is_there;
    if is_known || !seen.patience.is_due(Instant::now()) {
        return;
    }
    let (name, namespace) = (mount.name_any(), mount.namespace().unwrap_or_default());
    let api: Api<StoreMount> = Api::namespaced(context.client.clone(), &namespace);
    let written = publish::status(&api, &name, &status).await;
    context.metrics.published(STORE_MOUNT, written.is_ok());
    match written {
        Ok(_) => {
            seen.patience.good();
            seen.published = Some(status);
        }
        Err(error) => {
            seen.patience.failed(Instant::now());
            tracing::warn!(namespace, name, "its status can't be published: {error}");
        }
    }
}

/// What the kubelet told, and when.
#[derive(Default)]
struct Gpus {
    of_pods: Option<GpusOfPods>,
    asked: Option<Instant>,
    /// A sidecar waits for it.
    wanted: bool,
    trouble: Option<String>,
}

impl Gpus {
    async fn renew(&mut self, context: &Context) {
        let is_fresh = |at: &Instant| at.elapsed() < context.options.interval;
        if !self.wanted && self.asked.as_ref().is_some_and(is_fresh) {
            return;
        }
        self.wanted = false;
        self.asked = Some(Instant::now());
        match pod_resources::list(&context.options.pod_resources_socket).await {
            Ok(response) => {
                self.trouble = None;
                self.of_pods = Some(pod_resources::gpus_of_pods(&response));
            }
            Err(error) => {
                let words = error.to_string();
                // Told once in a row.
                if self.trouble.as_ref() != Some(&words) {
                    tracing::warn!("which GPUs pods got is not known: {words}");
                }
                self.trouble = Some(words);
            }
        }
        context.metrics.kubelet(self.trouble.is_none());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long after it was heard.
    fn seen() -> Seen {
        Seen {
            since: Timestamp::UNIX_EPOCH,
            was_there: true,
            published: None,
            patience: Patience::default(),
        }
    }

    #[test]
    fn a_pod_that_has_ended_keeps_what_it_said_and_one_that_lost_its_socket_is_silent() {
        assert_eq!(heard(Look::Without, &mut seen()), None);
        for look in [Look::Absent("gone".into()), Look::Silent("gone".into())] {
            let silence = Heard::Silence {
                since: Timestamp::UNIX_EPOCH,
                why: "gone".into(),
            };
            assert_eq!(heard(look, &mut seen()), Some(silence));
        }
    }
}
