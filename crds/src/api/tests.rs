//! Tests of the definitions: their CEL rules are evaluated on the schema that is installed.
#![allow(clippy::unwrap_used)]

use kube_cel::Validator;
use serde_json::{Value, json};

use super::*;
use crate::reasons::{Reason, Skip};

fn schema(file: &str) -> Value {
    let all = definitions().unwrap();
    let (_, definition) = all.iter().find(|(name, _)| *name == file).unwrap();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn pool(spec: Value) -> Value {
    let mut spec = spec;
    spec["podSelector"] = json!({});
    json!({"apiVersion": "siding.dev/v1alpha1", "kind": "StorePool", "metadata": {"name": "p"}, "spec": spec})
}

/// What the rules of the installed schema say of a pool, defaults filled in as the server does.
fn refusals(spec: Value) -> Vec<String> {
    let object: StorePool = serde_json::from_value(pool(spec)).unwrap();
    let object = serde_json::to_value(object).unwrap();
    match Validator::new().validate(&schema("storepools.siding.dev.yaml"), &object, None) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.iter().map(|error| error.message.clone()).collect(),
    }
}

fn segment(size: Value, page: &str) -> Value {
    json!({"segments": [{"name": "kv", "size": size, "pageSize": page}]})
}

#[test]
fn sizes_that_work_are_let_through() {
    for (size, page) in [
        (json!("2Gi"), "2Mi"),
        (json!("4096"), "4Ki"),
        (json!("1e9"), "4Ki"),
        (json!("128Gi"), "1Gi"),
        (json!("20Ki"), "Transparent"),
    ] {
        let refusals = refusals(segment(size.clone(), page));
        // 1e9 is no multiple of 4096: the one that is refused.
        if size == json!("1e9") {
            assert_eq!(
                refusals,
                [
                    "segment kv: size 1e9 is not a whole number of 4Ki pages; 976560Ki or 976564Ki is"
                ]
            );
        } else {
            assert_eq!(refusals, [""; 0], "{size} {page}");
        }
    }
}

#[test]
fn a_size_that_can_not_work_is_refused_with_those_that_do() {
    for (size, page, wanted) in [
        (
            json!("5Mi"),
            "2Mi",
            "segment kv: size 5Mi is not a whole number of 2Mi pages; 4096Ki or 6144Ki is",
        ),
        (
            json!("1Mi"),
            "2Mi",
            "segment kv: size 1Mi is not a whole number of 2Mi pages; 2048Ki is",
        ),
        (
            json!("5000"),
            "4Ki",
            "segment kv: size 5000 is not a whole number of 4Ki pages; 4Ki or 8Ki is",
        ),
        (
            json!("lots"),
            "2Mi",
            "lots is not a quantity; write for example 2Gi or 512Mi",
        ),
        (
            json!("0"),
            "2Mi",
            "0 is not a whole number with a unit, from 1 byte to 99Ti; write for example 512Mi, or 1536Mi for 1.5Gi",
        ),
        (
            json!("-2Mi"),
            "2Mi",
            "-2Mi is not a whole number with a unit, from 1 byte to 99Ti; write for example 512Mi, or 1536Mi for 1.5Gi",
        ),
        (
            json!("1500m"),
            "4Ki",
            "1500m is not a whole number with a unit, from 1 byte to 99Ti; write for example 512Mi, or 1536Mi for 1.5Gi",
        ),
    ] {
        assert_eq!(refusals(segment(size, page)), [wanted]);
    }
}

#[test]
fn fields_that_go_together_are_held_together() {
    let with = |field: &str, value: Value| {
        let mut spec = segment(json!("2Gi"), "2Mi");
        spec[field] = value;
        refusals(spec)
    };
    let names =
        "registration.nicNames goes with registration.nics: Named, and that with at least one name";
    assert_eq!(with("registration", json!({"nics": "Named"})), [names]);
    assert_eq!(with("registration", json!({"nicNames": ["a"]})), [names]);
    let named = json!({"nics": "Named", "nicNames": ["rdmap79s0"]});
    assert_eq!(with("registration", named), [""; 0]);
    let resource = "deviceAccess.resource goes with mode: DevicePlugin, e.g. vpc.amazonaws.com/efa";
    assert_eq!(
        with("deviceAccess", json!({"mode": "DevicePlugin"})),
        [resource]
    );
    assert_eq!(with("deviceAccess", json!({"resource": "r"})), [resource]);
    let cpu = "0 is not a quantity of CPUs; write for example 100m or 2";
    assert_eq!(with("sidecar", json!({"cpu": "0"})), [cpu]);
}

#[test]
fn numbers_are_auto_or_at_least_one_and_never_zero() {
    let definition = schema("storepools.siding.dev.yaml");
    let ranks = &definition["properties"]["spec"]["properties"]["ranks"];
    assert_eq!(
        [&ranks["minimum"], &ranks["maximum"], &ranks["pattern"]],
        [&json!(1.0), &json!(65535.0), &json!("^Auto$")]
    );
    for refused in [
        json!(0),
        json!(-1),
        json!(1_u64 << 32),
        json!("auto"),
        json!("8"),
    ] {
        assert!(
            serde_json::from_value::<AutoOr>(refused.clone()).is_err(),
            "{refused}"
        );
    }
}

#[test]
fn what_is_left_out_has_the_defaults_of_the_documentation() {
    let object: StorePool =
        serde_json::from_value(pool(json!({"segments": [{"name": "kv", "size": "2Gi"}]}))).unwrap();
    let spec = object.spec;
    assert_eq!(spec.segments[0].page_size, PageSize::Size2Mi);
    assert_eq!(
        (spec.ranks, spec.gpus_per_rank),
        (AutoOr::Auto, AutoOr::Auto)
    );
    assert_eq!(spec.registration.nics, NicPolicy::RailLocal);
    assert_eq!(spec.on_failure, OnFailure::Degrade);
    assert_eq!(
        (spec.sidecar.cpu.as_str(), spec.sidecar.http_port),
        ("100m", 9600)
    );
    assert_eq!(spec.device_access.mode, DeviceAccessMode::Auto);
    assert_eq!(spec.engine.variables, EngineVariables::Mooncake);
}

/// Every list and string that a rule looks at is bounded: the API server refuses rules that cost
/// too much, and `kubectl explain` has a line for every field.
#[test]
fn every_field_is_described_and_every_list_of_a_spec_is_bounded() {
    for (name, _) in definitions().unwrap() {
        let schema = schema(name);
        for part in ["spec", "status"] {
            look(
                &schema["properties"][part],
                &format!("{name}:{part}"),
                part == "spec",
            );
        }
    }
}

fn look(schema: &Value, path: &str, bounded: bool) {
    // Kubernetes' own types.
    if path.ends_with("Selector") || path.ends_with("conditions[]") {
        return;
    }
    if schema["type"] == "array" {
        assert!(
            !bounded || schema["maxItems"].is_u64(),
            "{path} has no bound"
        );
        look(&schema["items"], &format!("{path}[]"), bounded);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let described = field["description"]
            .as_str()
            .is_some_and(|text| !text.is_empty());
        assert!(described, "{path} is not described");
        look(field, &path, bounded);
    }
}

#[test]
fn lists_of_named_things_merge_by_name() {
    let pool = schema("storepools.siding.dev.yaml");
    let spec = &pool["properties"]["spec"]["properties"];
    assert_eq!(spec["segments"]["x-kubernetes-list-type"], "map");
    assert_eq!(
        spec["segments"]["x-kubernetes-list-map-keys"],
        json!(["name"])
    );
    let status = &pool["properties"]["status"]["properties"];
    assert_eq!(
        status["conditions"]["x-kubernetes-list-map-keys"],
        json!(["type"])
    );
}

#[test]
fn names_and_columns_are_what_people_type_and_read() {
    let pool = serde_json::to_value(StorePool::crd()).unwrap();
    assert_eq!(pool["spec"]["names"]["shortNames"], json!(["spool"]));
    assert_eq!(pool["spec"]["names"]["categories"], json!(["siding"]));
    let columns: Vec<&str> = pool["spec"]["versions"][0]["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        columns,
        [
            "Segments", "Desired", "Ready", "Degraded", "Failed", "Slowest", "Outdated", "Age"
        ]
    );
}

#[test]
fn no_format_that_the_api_server_warns_of() {
    for (name, definition) in definitions().unwrap() {
        let text = serde_json::to_string(&definition).unwrap();
        assert!(!text.contains(r#""format":"uint"#), "{name}");
        assert!(
            text.contains(r#""minimum":0"#),
            "{name}: never negative all the same"
        );
    }
}

#[test]
fn a_reason_is_one_word() {
    let words = Skip::ALL.iter().map(|reason| reason.as_str());
    let words = words.chain(Reason::ALL.iter().map(|reason| reason.as_str()));
    for word in words {
        assert!(word.chars().all(|c| c.is_ascii_alphanumeric()), "{word}");
        assert!(word.starts_with(|c: char| c.is_ascii_uppercase()), "{word}");
    }
}
