//! What the engine's containers are told.

use serde_json::{Value, json};
use siding_crds::api::{EngineVariables, NicPolicy};
use siding_crds::names::CAP;
use siding_crds::quoted;

use super::pod::{Pod, name_of};
use super::seed::gpus;
use super::wish::Wish;

/// Variables for one container of the pod.
#[derive(Debug)]
pub(super) struct Told {
    /// Its place among the ordinary containers.
    pub(super) index: usize,
    pub(super) variables: Vec<Value>,
}

/// What each of the engine's containers is told. A variable that a container sets stays as it is; one that
/// it gets by `envFrom` is not seen here, and loses: what a ConfigMap holds is not known to a pure function.
pub(super) fn told(pod: &Pod<'_>, wish: &Wish<'_>) -> Vec<Told> {
    let variables = variables(wish);
    let engines = engines(pod, wish).into_iter();
    let told = engines.map(|(index, container)| Told {
        index,
        variables: variables
            .iter()
            .filter(|variable| !has(container, name_of(variable)))
            .cloned()
            .collect(),
    });
    told.filter(|told| !told.variables.is_empty()).collect()
}

/// Containers that the pool names and the pod has not.
pub(super) fn warnings(pod: &Pod<'_>, wish: &Wish<'_>) -> Vec<String> {
    let names = &wish.spec.engine.containers;
    let is_missing = |name: &&String| {
        !pod.containers()
            .iter()
            .any(|container| name_of(container) == *name)
    };
    let missing = names.iter().filter(is_missing);
    missing
        .map(|name| {
            format!(
                "siding: spec.engine.containers of StorePool {} names {}, a container that the pod does not have",
                quoted(wish.pool),
                quoted(name)
            )
        })
        .collect()
}

/// The containers that the pool names; else those that ask for GPUs; else all.
fn engines<'a>(pod: &Pod<'a>, wish: &Wish<'_>) -> Vec<(usize, &'a Value)> {
    let named = &wish.spec.engine.containers;
    let all = || pod.containers().iter().enumerate();
    if !named.is_empty() {
        return all()
            .filter(|(_, container)| named.iter().any(|name| name == name_of(container)))
            .collect();
    }
    let with_gpus: Vec<_> = all().filter(|(_, container)| gpus(container) > 0).collect();
    if with_gpus.is_empty() {
        all().collect()
    } else {
        with_gpus
    }
}

fn has(container: &Value, variable: &str) -> bool {
    let env = container.get("env").and_then(Value::as_array);
    env.into_iter()
        .flatten()
        .any(|other| name_of(other) == variable)
}

/// All variables. One whose mere presence means *on* is never set to 0 but left out.
fn variables(wish: &Wish<'_>) -> Vec<Value> {
    let engine = &wish.spec.engine;
    if engine.variables == EngineVariables::None {
        return Vec::new();
    }
    let value = |name: &str, value: &str| json!({"name": name, "value": value});
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut variables = vec![
        field(
            "MC_MAX_CONCURRENT_REG_MR",
            &format!("metadata.annotations['{CAP}']"),
        ),
        // Without it the engine takes the first interface that it finds.
        field("MC_TCP_BIND_ADDRESS", "status.podIP"),
    ];
    let registration = &wish.spec.registration;
    match registration.nics {
        NicPolicy::RailLocal => variables.push(value("MC_EFA_NIC_SELECTION", "local")),
        NicPolicy::Named if !registration.nic_names.is_empty() => {
            variables.push(value("MC_TE_FILTERS", &registration.nic_names.join(",")));
        }
        NicPolicy::Named | NicPolicy::All => {}
    }
    let mooncake = engine.mooncake.as_ref();
    let given = mooncake.map(|mooncake| {
        [
            ("MOONCAKE_MASTER", &mooncake.master),
            ("MOONCAKE_TE_META_DATA_SERVER", &mooncake.metadata_server),
            ("MOONCAKE_PROTOCOL", &mooncake.protocol),
        ]
    });
    let given = given.into_iter().flatten();
    variables.extend(given.filter_map(|(name, given)| Some(value(name, given.as_deref()?))));
    variables
}
