//! A [`Node`] as a file has it, which may have been written by hand.

use std::collections::HashSet;
use std::fmt::{self, Display};
use std::hash::Hash;
use std::num::NonZeroUsize;

use serde::de::{self, Error as _, IgnoredAny, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Gpu, MOST_CORES, MOST_GPUS, MOST_NICS, Nic, Node, NodeCores};
use crate::fields::{cut, unexpected};
use crate::hugepages::Pool;
use crate::numa::NumaNode;
use crate::root::Finding;

/// As long as a file's name can be, which a NIC's is.
const MOST_NAME: usize = 255;

/// The keys of a node, and of what is printed beside it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Written {
    instance_type: Option<String>,
    cores: Option<NodeCores>,
    numa: Option<Vec<NumaNode>>,
    // Unknown is written `null`: a key that is missing is a mistake.
    #[serde(deserialize_with = "Option::deserialize")]
    gpus: Option<Vec<Gpu>>,
    #[serde(deserialize_with = "Option::deserialize")]
    nics: Option<Vec<Nic>>,
    pools: Option<Vec<Pool>>,
    #[serde(default)]
    findings: Vec<Finding>,
    /// Follow from the rest.
    #[serde(default, rename = "distances")]
    _distances: IgnoredAny,
}

impl TryFrom<Written> for Node {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let (gpus, nics) = (written.gpus, written.nics);
        at_most(MOST_GPUS, "gpus", gpus.as_deref())?;
        at_most(MOST_NICS, "nics", nics.as_deref())?;
        let numa = written.numa.iter().flatten().map(|numa| numa.id);
        once("numa", "id", numa)?;
        let pages = written.pools.iter().flatten().map(|pool| pool.page_bytes);
        once("pools", "pageBytes", pages)?;
        if let Some(nic) = nics.iter().flatten().find(|nic| nic.name.len() > MOST_NAME) {
            let name = unexpected("a name of at most 255 bytes", &nic.name);
            return Err(format!("nics: name: {name}"));
        }
        let addresses = gpus.iter().flatten().map(|gpu| gpu.place.address);
        once("gpus", "place.address", addresses)?;
        once("nics", "name", nics.iter().flatten().map(|nic| &nic.name))?;
        let uverbs = nics.iter().flatten().filter_map(|nic| nic.uverbs.as_ref());
        once("nics", "uverbs", uverbs)?;
        Ok(Self {
            instance_type: written.instance_type,
            cores: written.cores,
            numa: written.numa,
            gpus,
            nics,
            pools: written.pools,
            findings: written.findings,
        })
    }
}

fn at_most<T>(most: usize, list: &str, all: Option<&[T]>) -> Result<(), String> {
    let len = all.map_or(0, <[T]>::len);
    if len <= most {
        return Ok(());
    }
    Err(format!(
        "{list}: {len} are listed; list at most {most}: more are not planned for"
    ))
}

/// That no two of a list are the same device.
fn once<T: Display + Eq + Hash + Clone>(
    list: &str,
    field: &str,
    values: impl Iterator<Item = T>,
) -> Result<(), String> {
    let mut seen = HashSet::new();
    for value in values {
        if !seen.insert(value.clone()) {
            return Err(format!(
                "{list}: {field}: two have {}; list each once",
                cut(&value.to_string())
            ));
        }
    }
    Ok(())
}

/// Whole hardware threads, at least one.
pub(super) fn cores<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NonZeroUsize, D::Error> {
    struct Cores;

    impl Visitor<'_> for Cores {
        type Value = NonZeroUsize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from 1 to {MOST_CORES}")
        }

        fn visit_u64<E: de::Error>(self, count: u64) -> Result<NonZeroUsize, E> {
            let cores = usize::try_from(count).ok().and_then(NonZeroUsize::new);
            let cores = cores.filter(|cores| cores.get() <= MOST_CORES);
            cores.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(count), &self))
        }
    }

    // Not `deserialize_u64`: of what is no number some readers say no more than that.
    deserializer.deserialize_any(Cores)
}

/// Whole Gbit/s above 0.
pub(super) fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    match Option::deserialize(deserializer)? {
        Some(0) => Err(D::Error::custom(
            "0 is no rate; write whole Gbit/s above 0, or null where it is unknown",
        )),
        rate => Ok(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made;
    use serde_json::{Value, json};

    fn written() -> Value {
        let gpus = ["10:00.0", "20:00.0"].map(|at| made::gpu(at, "pci0000:10", &[], Some(0)));
        let mut nics = ["30:00.0", "40:00.0"].map(|at| made::nic(at, at, "pci0000:10", &[], None));
        nics[1].uverbs = Some("uverbs1".to_owned());
        serde_json::to_value(made::node(&gpus, &nics)).unwrap()
    }

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        let mut node = written();
        change(&mut node);
        let read = serde_json::from_value::<Node>(node);
        read.map_or_else(|error| error.to_string(), |_| "taken".to_owned())
    }

    #[test]
    fn what_is_printed_is_read_back() {
        assert_eq!(
            refusal(|node| node["distances"] = json!({"a": {"b": "PIX"}})),
            "taken"
        );
        assert_eq!(refusal(|node| node["gpus"] = Value::Null), "taken");
        // As it was printed before ports were told.
        let forget = |node: &mut Value| {
            let nic = node["nics"][0].as_object_mut().unwrap();
            nic.remove("port").unwrap();
        };
        assert_eq!(refusal(forget), "taken");
        let mut unknown = made::node(&[], &[]);
        (unknown.gpus, unknown.nics) = (None, None);
        (unknown.numa, unknown.pools) = (None, None);
        let text = serde_json::to_string(&unknown).unwrap();
        assert!(
            text.contains("\"numa\":null,\"gpus\":null,\"nics\":null,\"pools\":null"),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Node>(&text).unwrap(), unknown);
    }

    #[test]
    fn no_more_devices_than_a_node_has() {
        let many = |list: &str, field: &str, len: usize| {
            refusal(|node| {
                let one = node[list][0].clone();
                let all = (0..len).map(|index| {
                    let mut one = one.clone();
                    let address = format!("{:04x}:{:02x}:00.0", index >> 8, index & 0xff);
                    *one.pointer_mut(field).unwrap() = json!(address);
                    if list == "nics" {
                        one["uverbs"] = Value::Null;
                    }
                    one
                });
                node[list] = all.collect();
            })
        };
        let (address, name) = ("/place/address", "/name");
        assert_eq!(many("gpus", address, 256), "taken");
        assert_eq!(many("nics", name, 1024), "taken");
        assert_eq!(
            many("gpus", address, 257),
            "gpus: 257 are listed; list at most 256: more are not planned for"
        );
        assert_eq!(
            many("nics", name, 1025),
            "nics: 1025 are listed; list at most 1024: more are not planned for"
        );
    }

    /// A key that nobody knows, wherever it stands, was meant to be another.
    #[test]
    fn misspelt_keys_are_named() {
        for at in [
            "",
            "/gpus/0",
            "/gpus/0/place",
            "/nics/0",
            "/nics/1/place",
            "/cores",
            "/numa/0",
            "/pools/0",
            "/pools/0/nodes/0",
            "/findings/0",
        ] {
            let said = refusal(|node| {
                node["cores"] = json!({"count": 1, "source": "Online"});
                let numa = json!({"id": 0, "cpus": "0"});
                node["numa"] = json!([numa]);
                let page = json!({"node": 0, "total": 1, "free": 1});
                node["pools"] = json!([{"pageBytes": 4096, "total": 1, "free": 1, "reserved": 0,
                    "surplus": 0, "overcommit": 0, "nodes": [page]}]);
                node["findings"] = json!([{"path": "/", "reason": "x"}]);
                node.pointer_mut(at).unwrap()["rateGpbs"] = json!(1);
            });
            assert!(
                said.starts_with("unknown field `rateGpbs`, expected"),
                "{at}: {said}"
            );
        }
        let said = refusal(|node| {
            node.as_object_mut().unwrap().remove("gpus");
        });
        assert_eq!(said, "missing field `gpus`");
    }

    #[test]
    fn what_can_not_be_is_named() {
        for (at, value, want) in [
            (
                "/gpus/1/place/address",
                json!("0000:10:00.0"),
                "gpus: place.address: two have \"0000:10:00.0\"; list each once",
            ),
            (
                "/nics/1/name",
                json!("30:00.0"),
                "nics: name: two have \"30:00.0\"; list each once",
            ),
            (
                "/nics/1/uverbs",
                json!("uverbs0"),
                "nics: uverbs: two have \"uverbs0\"; list each once",
            ),
            (
                "/numa",
                json!([{"id": 7, "cpus": null}, {"id": 7, "cpus": ""}]),
                "numa: id: two have \"7\"; list each once",
            ),
            (
                "/nics/1/name",
                json!("x".repeat(256)),
                &format!(
                    "nics: name: expected a name of at most 255 bytes, found \"{}\"…",
                    "x".repeat(60)
                ),
            ),
            (
                "/nics/0/rateGbps",
                json!(0),
                "0 is no rate; write whole Gbit/s above 0, or null where it is unknown",
            ),
        ] {
            let said = refusal(|node| *node.pointer_mut(at).unwrap() = value);
            assert_eq!(said, want, "{at}");
        }
    }
}
