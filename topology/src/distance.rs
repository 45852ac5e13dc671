//! How far apart two PCI devices are, in the words of `nvidia-smi topo -m`.

use std::fmt;

use serde::Serialize;

use crate::node::PciPlace;

/// What the way from one device to another leads through, the shortest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Distance {
    /// It is the same device.
    X,
    /// At most a single PCIe bridge: both hang on one bridge, or on ports of one switch.
    Pix,
    /// Multiple PCIe bridges, without the PCIe host bridge.
    Pxb,
    /// A PCIe host bridge (typically the CPU).
    Phb,
    /// The interconnect between PCIe host bridges within a NUMA node.
    Node,
    /// The interconnect between NUMA nodes.
    Sys,
}

impl Distance {
    /// As `nvidia-smi` writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::X => "X",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The distance; `None` where the host bridges differ and the NUMA nodes are unknown, or where the
/// tree does not show a host bridge and the NUMA nodes do not differ.
///
/// A switch shows as one upstream bridge with a downstream bridge for each device: two devices
/// each at most one bridge below the lowest that they share are on one switch.
#[must_use]
pub fn distance(a: &PciPlace, b: &PciPlace) -> Option<Distance> {
    if a.address == b.address {
        return Some(Distance::X);
    }
    if a.root == b.root {
        return Some(below_one_root(a, b));
    }
    match (a.numa, b.numa) {
        (Some(a), Some(b)) if a != b => Some(Distance::Sys),
        (Some(_), Some(_)) if a.has_known_root() && b.has_known_root() => Some(Distance::Node),
        _ => None,
    }
}

fn below_one_root(a: &PciPlace, b: &PciPlace) -> Distance {
    let pairs = a.bridges.iter().zip(&b.bridges);
    let shared = pairs.take_while(|(a, b)| a == b).count();
    let below = |place: &PciPlace| place.bridges.len() - shared;
    match shared {
        0 => Distance::Phb,
        _ if below(a) <= 1 && below(b) <= 1 => Distance::Pix,
        _ => Distance::Pxb,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(address: &str, root: &str, bridges: &[&str], numa: Option<u32>) -> PciPlace {
        PciPlace {
            address: address.parse().unwrap(),
            root: root.parse().unwrap(),
            bridges: bridges.iter().map(|text| text.parse().unwrap()).collect(),
            numa,
        }
    }

    #[test]
    fn every_distance() {
        let gpu = place(
            "53:00.0",
            "pci0000:44",
            &["44:00.0", "45:00.0", "46:04.0"],
            Some(0),
        );
        for (root, bridges, numa, want) in [
            (
                "pci0000:44",
                &["44:00.0", "45:00.0", "46:04.0"][..],
                Some(0),
                Some(Distance::Pix),
            ),
            (
                "pci0000:44",
                &["44:00.0", "45:00.0", "46:00.0"],
                Some(0),
                Some(Distance::Pix),
            ),
            (
                "pci0000:44",
                &["44:00.0", "45:00.0"],
                Some(0),
                Some(Distance::Pix),
            ),
            (
                "pci0000:44",
                &["44:00.0", "45:00.0", "46:00.0", "47:0.0"],
                Some(0),
                Some(Distance::Pxb),
            ),
            (
                "pci0000:44",
                &["44:00.0", "48:00.0", "49:00.0"],
                Some(0),
                Some(Distance::Pxb),
            ),
            (
                "pci0000:44",
                &["44:01.0", "45:00.0", "46:04.0"],
                Some(0),
                Some(Distance::Phb),
            ),
            ("pci0000:44", &[], Some(0), Some(Distance::Phb)),
            ("pci0000:44", &[], None, Some(Distance::Phb)),
            ("pci0000:55", &["55:00.0"], Some(0), Some(Distance::Node)),
            ("pci0000:55", &["55:00.0"], Some(1), Some(Distance::Sys)),
            ("pci0000:55", &["55:00.0"], None, None),
            ("?0000:4f:00.0", &[], Some(0), None),
            ("?0000:4f:00.0", &[], Some(1), Some(Distance::Sys)),
        ] {
            let nic = place("4f:00.0", root, bridges, numa);
            assert_eq!(distance(&gpu, &nic), want, "{nic:?}");
            assert_eq!(distance(&nic, &gpu), want, "either way: {nic:?}");
        }
        assert_eq!(distance(&gpu, &gpu), Some(Distance::X));
    }

    #[test]
    fn shown_ordered_and_serialized() {
        let all = [
            Distance::X,
            Distance::Pix,
            Distance::Pxb,
            Distance::Phb,
            Distance::Node,
            Distance::Sys,
        ];
        assert!(all.is_sorted());
        for distance in all {
            assert_eq!(
                serde_json::to_string(&distance).unwrap(),
                format!("\"{distance}\"")
            );
        }
    }
}
