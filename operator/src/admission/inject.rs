//! The whole patch of a pod.

use serde::Serialize;
use serde_json::{Map, Value, json};
use siding_crds::names::{CAP, CONFIG, INJECT, INJECTION, PLAN, POOL};
use siding_crds::plan::Injection;
use siding_crds::quoted;
use siding_crds::reasons::Skip;

use super::asked::Asked;
use super::container::{self, Parts};
use super::devices::Access;
use super::patch::{Patch, PatchOperation, members};
use super::pod::Pod;
use super::seed::Seed;
use super::skip::{self, Skipped};
use super::volumes::{self, Volume};
use super::wish::Wish;
use super::{Level, World, config, engine, port, room, security, select};

/// Annotations by which Prometheus finds what to scrape.
const PROMETHEUS: &str = "prometheus.io/";

/// What is said where a namespace's labels can't be had.
const UNKNOWN_LABELS: &str = "the labels of its namespace can't be had at the moment, so that its PodSecurity \
                              level is taken for 'restricted'";

/// A pod with its sidecar, as a patch.
#[derive(Debug)]
pub(super) struct Injected {
    pub(super) operations: Vec<PatchOperation>,
    pub(super) injection: Injection,
    pub(super) warnings: Vec<String>,
}

/// Injects a sidecar, or says why none.
pub(super) fn inject(asked: &Asked<'_>, world: &World<'_>) -> Result<Injected, Skipped> {
    let pod = &asked.pod;
    skip::check(pod)?;
    let pool = select::pool_of(asked, &world.pools)?;
    let wish = Wish::of(pool, world.defaults)?;
    let access = Access::of(pod, &wish);
    let volumes = volumes::volumes(&wish, &access);
    let names: Vec<String> = volumes.iter().map(|volume| volume.name.clone()).collect();
    skip::check_names(pod, &names)?;
    skip::check_pod_level_resources(pod)?;
    volumes::check_ambiguity(pod, &wish)?;
    let labels = world.namespace_labels.as_deref();
    let level = Level::of(labels, world.defaults.pod_security);
    let identity =
        security::identity(level, pod, &wish, &access).map_err(|skipped| match labels {
            Some(_) => skipped,
            None => Skipped::new(
                skipped.reason,
                format!("{UNKNOWN_LABELS}: {}", skipped.message),
            ),
        })?;
    let seed = Seed::of(pod, &wish, &access, world);
    let port = port::http_port(asked, wish.spec.sidecar.http_port);
    let annotations = annotations(pod, &wish, &seed, port)?;
    let container = container::container(&Parts {
        asked,
        wish: &wish,
        access: &access,
        identity,
        volumes: &volumes,
        port,
    });
    room::check(pod, &container, wish.pool, &world.room)?;

    let mut patch = Patch::of(pod.value());
    patch.merge("/metadata/labels", members([(POOL, wish.pool)]));
    patch.merge("/metadata/annotations", annotations);
    patch.append(
        "/spec/volumes",
        volumes.iter().map(Volume::volume).collect(),
    );
    patch.prepend("/spec/initContainers", container);
    for told in engine::told(pod, &wish) {
        patch.append(
            &format!("/spec/containers/{}/env", told.index),
            told.variables,
        );
    }
    if let Some(group) = identity.fs_group {
        patch.merge(
            "/spec/securityContext",
            members([("fsGroup", json!(group))]),
        );
    }
    let mut warnings = engine::warnings(pod, &wish);
    warnings.extend(seed.warning);
    warnings.extend(
        labels
            .is_none()
            .then(|| format!("siding: {UNKNOWN_LABELS}")),
    );
    warnings.extend(misspelt(asked));
    Ok(Injected {
        operations: patch.into_operations(),
        injection: seed.injection,
        warnings,
    })
}

/// The annotations, which must fit beside the pod's own.
fn annotations(
    pod: &Pod<'_>,
    wish: &Wish<'_>,
    seed: &Seed,
    port: u16,
) -> Result<Map<String, Value>, Skipped> {
    let mut annotations = vec![
        (
            CONFIG.to_owned(),
            config::config(wish, &seed.injection, port)?,
        ),
        (PLAN.to_owned(), written(&seed.plan)?),
        (CAP.to_owned(), seed.plan.cap.to_string()),
        (INJECTION.to_owned(), written(&seed.injection)?),
    ];
    // All or none: a port of ours would narrow what a user's own `scrape` finds.
    if !pod
        .annotations()
        .any(|(key, _)| key.starts_with(PROMETHEUS))
    {
        let ours = [
            ("scrape", "true".to_owned()),
            ("port", port.to_string()),
            ("path", "/metrics".to_owned()),
        ];
        annotations.extend(ours.map(|(key, value)| (format!("{PROMETHEUS}{key}"), value)));
    }
    let bytes = annotations
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    skip::check_room(pod, bytes)?;
    Ok(members(annotations))
}

fn written<T: Serialize>(value: &T) -> Result<String, Skipped> {
    let text = serde_json::to_string(value);
    text.map_err(|error| {
        Skipped::new(
            Skip::InvalidPool,
            format!("its plan can't be written: {error}"),
        )
    })
}

/// What is said of a value of our label that has no meaning.
fn misspelt(asked: &Asked<'_>) -> Option<String> {
    use siding_crds::names::{DISABLED, ENABLED};
    let value = asked.pod.label(INJECT)?;
    (value != ENABLED && value != DISABLED).then(|| {
        format!(
            "siding: label {INJECT} of {} is {}, which means nothing; write '{ENABLED}' or '{DISABLED}'",
            asked.pod_name(),
            quoted(value)
        )
    })
}
