//! Which pods a quota counts.

use k8s_openapi::api::core::v1::{ResourceQuotaSpec, ScopedResourceSelectorRequirement};
use serde_json::Value;

use super::load::Load;

/// Where a term of affinity names other namespaces, which only some may.
const AFFINITIES: [&str; 2] = ["/affinity/podAffinity", "/affinity/podAntiAffinity"];

/// Its scopes, all of which a pod must be in.
pub(super) fn selectors(spec: &ResourceQuotaSpec) -> Vec<ScopedResourceSelectorRequirement> {
    let plain = spec.scopes.iter().flatten();
    let plain = plain.map(|name| ScopedResourceSelectorRequirement {
        scope_name: name.clone(),
        operator: "Exists".to_owned(),
        values: None,
    });
    let selector = spec.scope_selector.as_ref();
    let selectors = selector.and_then(|selector| selector.match_expressions.as_ref());
    plain
        .chain(selectors.into_iter().flatten().cloned())
        .collect()
}

/// Whether a pod is in a scope. What is not of pods has none.
pub(super) fn matches(scope: &ScopedResourceSelectorRequirement, load: &Load<'_>) -> bool {
    let ends = || {
        let deadline = load.pod.spec("/activeDeadlineSeconds");
        deadline
            .and_then(Value::as_i64)
            .is_some_and(|seconds| seconds >= 0)
    };
    match scope.scope_name.as_str() {
        "Terminating" => ends(),
        "NotTerminating" => !ends(),
        "BestEffort" => load.is_best_effort(),
        "NotBestEffort" => !load.is_best_effort(),
        "PriorityClass" => is_of_class(scope, load),
        "CrossNamespacePodAffinity" => crosses_namespaces(load),
        _ => false,
    }
}

fn is_of_class(scope: &ScopedResourceSelectorRequirement, load: &Load<'_>) -> bool {
    let class = load.pod.spec("/priorityClassName").and_then(Value::as_str);
    let class = class.filter(|class| !class.is_empty());
    let is_listed = || {
        let mut listed = scope.values.iter().flatten();
        class.is_some_and(|class| listed.any(|one| one == class))
    };
    match scope.operator.as_str() {
        "Exists" => class.is_some(),
        "DoesNotExist" => class.is_none(),
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        _ => false,
    }
}

fn crosses_namespaces(load: &Load<'_>) -> bool {
    let terms = |affinity: &'static str, kind: &str| {
        let terms = load
            .pod
            .spec(affinity)
            .and_then(|affinity| affinity.get(kind));
        terms.and_then(Value::as_array).into_iter().flatten()
    };
    AFFINITIES.iter().any(|affinity| {
        let required = terms(affinity, "requiredDuringSchedulingIgnoredDuringExecution");
        let preferred = terms(affinity, "preferredDuringSchedulingIgnoredDuringExecution");
        let preferred = preferred.filter_map(|weighted| weighted.get("podAffinityTerm"));
        required.chain(preferred).any(crosses)
    })
}

fn crosses(term: &Value) -> bool {
    let names = term.get("namespaces").and_then(Value::as_array);
    let selector = term.get("namespaceSelector");
    names.is_some_and(|names| !names.is_empty()) || selector.is_some_and(|any| !any.is_null())
}
