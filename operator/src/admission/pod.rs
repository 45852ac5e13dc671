//! A pod as raw JSON, its shape checked as far as it is looked at.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// A pod. Where JSON has null, nothing is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pod<'a> {
    value: &'a Value,
    metadata: &'a Map<String, Value>,
    spec: &'a Map<String, Value>,
}

impl<'a> Pod<'a> {
    /// Looks whether a pod has the shape that the rest relies on.
    pub(super) fn read(value: &'a Value) -> Result<Self, String> {
        let object = |field: &str| {
            let found = value.get(field).and_then(Value::as_object);
            found.ok_or_else(|| format!("the pod's {field} is not an object"))
        };
        let pod = Self {
            value,
            metadata: object("metadata")?,
            spec: object("spec")?,
        };
        for (name, map) in [
            ("metadata.labels", pod.metadata.get("labels")),
            ("metadata.annotations", pod.metadata.get("annotations")),
        ] {
            check(name, map, |map| is_object_of(map, Value::is_string))?;
        }
        check(
            "spec.securityContext",
            pod.spec.get("securityContext"),
            Value::is_object,
        )?;
        for list in ["containers", "initContainers", "volumes", "resourceClaims"] {
            let name = format!("spec.{list}");
            check(&name, pod.spec.get(list), |list| {
                is_array_of(list, Value::is_object)
            })?;
        }
        for container in pod.all_containers() {
            let name = format!("env of container {}", name_of(container));
            check(&name, container.get("env"), |env| {
                is_array_of(env, Value::is_object)
            })?;
        }
        Ok(pod)
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    pub(super) fn name(&self) -> &'a str {
        text(self.metadata, "name")
    }

    pub(super) fn generate_name(&self) -> &'a str {
        text(self.metadata, "generateName")
    }

    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let pairs = self.metadata.get("labels").and_then(Value::as_object);
        let pairs = pairs.into_iter().flatten();
        pairs
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
            .collect()
    }

    pub(super) fn label(&self, key: &str) -> Option<&'a str> {
        self.metadata.get("labels")?.get(key)?.as_str()
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&'a str> {
        self.metadata.get("annotations")?.get(key)?.as_str()
    }

    /// Keys and values of its annotations.
    pub(super) fn annotations(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let pairs = self.metadata.get("annotations").and_then(Value::as_object);
        let pairs = pairs.into_iter().flatten();
        pairs.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    /// A field of the spec, e.g. `/os/name`.
    pub(super) fn spec(&self, pointer: &str) -> Option<&'a Value> {
        let value = self.value.get("spec")?.pointer(pointer);
        value.filter(|value| !value.is_null())
    }

    /// The items of a list of the spec.
    pub(super) fn list(&self, name: &str) -> &'a [Value] {
        let list = self.spec.get(name).and_then(Value::as_array);
        list.map_or(&[], Vec::as_slice)
    }

    /// The ordinary containers.
    pub(super) fn containers(&self) -> &'a [Value] {
        self.list("containers")
    }

    pub(super) fn init_containers(&self) -> &'a [Value] {
        self.list("initContainers")
    }

    /// Ordinary and init containers.
    pub(super) fn all_containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.containers().iter().chain(self.init_containers())
    }

    pub(super) fn volumes(&self) -> &'a [Value] {
        self.list("volumes")
    }

    pub(super) fn is_on_host_network(&self) -> bool {
        self.spec.get("hostNetwork").and_then(Value::as_bool) == Some(true)
    }
}

/// The name of a container, a volume, a variable.
pub(super) fn name_of(item: &Value) -> &str {
    item.get("name").and_then(Value::as_str).unwrap_or_default()
}

/// What a container may have most of a resource, or asks for where no limit is set.
pub(super) fn limit_of<'a>(container: &'a Value, resource: &str) -> Option<&'a Value> {
    let of = |kind: &str| {
        let value = container.get("resources")?.get(kind)?.get(resource);
        value.filter(|value| !value.is_null())
    };
    of("limits").or_else(|| of("requests"))
}

/// The names of all resources that a container has limits or requests of.
pub(super) fn resources_of(container: &Value) -> impl Iterator<Item = &str> {
    let of = |kind: &str| container.get("resources")?.get(kind)?.as_object();
    let names = of("limits").into_iter().chain(of("requests"));
    names.flat_map(|map| map.keys().map(String::as_str))
}

fn text<'a>(map: &'a Map<String, Value>, field: &str) -> &'a str {
    map.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn check(
    name: &str,
    value: Option<&Value>,
    is_right: impl Fn(&Value) -> bool,
) -> Result<(), String> {
    match value {
        Some(value) if !value.is_null() && !is_right(value) => {
            Err(format!("the pod's {name} is not what it should be"))
        }
        _ => Ok(()),
    }
}

fn is_object_of(value: &Value, is_right: impl Fn(&Value) -> bool) -> bool {
    let object = value.as_object();
    object.is_some_and(|object| object.values().all(is_right))
}

fn is_array_of(value: &Value, is_right: impl Fn(&Value) -> bool) -> bool {
    let array = value.as_array();
    array.is_some_and(|array| array.iter().all(is_right))
}
