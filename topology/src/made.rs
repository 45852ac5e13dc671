//! Nodes for tests, made from a few words.

use crate::node::{Gpu, Nic, Node, PciPlace};
use crate::pci::HostBridge;

pub(crate) fn place(address: &str, root: &str, bridges: &[&str], numa: Option<u32>) -> PciPlace {
    PciPlace {
        address: address.parse().unwrap(),
        root: bridge(root),
        bridges: bridges.iter().map(|text| text.parse().unwrap()).collect(),
        numa,
    }
}

/// A host bridge by its name, or one of its own for any other text.
pub(crate) fn bridge(text: &str) -> HostBridge {
    text.parse().unwrap_or_else(|_| HostBridge::At {
        domain: text.bytes().fold(0, |sum, byte| sum << 8 | u32::from(byte)),
        bus: 0,
    })
}

pub(crate) fn gpu(address: &str, root: &str, bridges: &[&str], numa: Option<u32>) -> Gpu {
    Gpu {
        place: place(address, root, bridges, numa),
        vendor: 0x10de,
        device: Some(0x2330),
        uuid: None,
    }
}

/// A usable EFA device of 100 Gbit/s.
pub(crate) fn nic(
    name: &str,
    address: &str,
    root: &str,
    bridges: &[&str],
    numa: Option<u32>,
) -> Nic {
    Nic {
        name: name.to_owned(),
        place: Some(place(address, root, bridges, numa)),
        ids: Some((0x1d0f, 0xefa1)),
        driver: Some("efa".to_owned()),
        port: Some(1),
        port_state: Some("ACTIVE".to_owned()),
        link_layer: Some("Unspecified".to_owned()),
        rate_gbps: Some(100),
        netdev: None,
        uverbs: Some("uverbs0".to_owned()),
        unusable: None,
    }
}

pub(crate) fn node(gpus: &[Gpu], nics: &[Nic]) -> Node {
    Node {
        instance_type: None,
        cores: None,
        numa: Some(Vec::new()),
        gpus: Some(gpus.to_vec()),
        nics: Some(nics.to_vec()),
        pools: Some(Vec::new()),
        findings: Vec::new(),
    }
}
