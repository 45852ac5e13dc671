//! A PCI function's folder below `/sys/devices`, and what its path tells.

use std::path::{Path, PathBuf};

use crate::fields;
use crate::node::PciPlace;
use crate::pci::{HostBridge, PciAddress};
use crate::root::{Finding, Root};

/// What the kernel has on any machine, and what it has below that only where it knows of PCI.
pub(super) const BUSES: &str = "sys/bus";
pub(super) const BUS: &str = "pci";
pub(super) const DEVICES: &str = "sys/bus/pci/devices";

/// A PCI function as the real path of a device shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    address: PciAddress,
    root: Option<HostBridge>,
    bridges: Vec<PciAddress>,
    /// Its folder: the path itself, or the part of it that ends here.
    pub(super) folder: PathBuf,
}

impl Function {
    /// The function that a real path leads to or through last:
    /// `sys/devices/pci0000:44/0000:44:00.0/0000:4f:00.0/virtio3`. What comes before the host
    /// bridge (a virtual bus, an outer bridge that hides it) is none of the tree's levels.
    pub(super) fn on(real: &Path) -> Option<Self> {
        let (mut root, mut chain, mut folder) = (None, Vec::new(), PathBuf::new());
        let mut walked = PathBuf::new();
        for part in real {
            walked.push(part);
            // What is no text is a level without a meaning, as a virtual bus is.
            let part = part.to_str().unwrap_or_default();
            if let Ok(bridge @ HostBridge::At { .. }) = part.parse() {
                (root, chain) = (Some(bridge), Vec::new());
            } else if let Ok(address) = part.parse() {
                chain.push(address);
                folder.clone_from(&walked);
            }
        }
        let address = chain.pop()?;
        Some(Self {
            address,
            root,
            bridges: chain,
            folder,
        })
    }

    /// Its place, with the NUMA node that its folder names.
    pub(super) fn place(&self, root: &Root, findings: &mut Vec<Finding>) -> PciPlace {
        let numa = numa_node(root, &self.folder).unwrap_or_else(|finding| {
            findings.push(finding);
            None
        });
        if self.root.is_none() {
            findings.push(root.finding(&self.folder, "is below no host bridge: shares none"));
        }
        PciPlace {
            address: self.address,
            root: self.root.unwrap_or(HostBridge::Unknown(self.address)),
            bridges: self.bridges.clone(),
            numa,
        }
    }
}

/// `None` for -1, and on a kernel without NUMA.
fn numa_node(root: &Root, folder: &Path) -> Result<Option<u32>, Finding> {
    let file = folder.join("numa_node");
    let Some(text) = root.read_if_there(&file)? else {
        return Ok(None);
    };
    node_number(text.trim())
        .ok_or_else(|| root.finding(&file, fields::unexpected("a NUMA node or -1", &text)))
}

fn node_number(text: &str) -> Option<Option<u32>> {
    if text == "-1" {
        return Some(None);
    }
    u32::try_from(fields::number(text)?).ok().map(Some)
}

/// The 24 bits of base class, subclass and interface.
pub(super) fn class(root: &Root, folder: &Path) -> Result<u32, Finding> {
    hexadecimal(root, &folder.join("class"), 0x00ff_ffff)
}

/// An id of 16 bits: `vendor` or `device`.
pub(super) fn id(root: &Root, folder: &Path, file: &str) -> Result<u16, Finding> {
    let number = hexadecimal(root, &folder.join(file), u32::from(u16::MAX))?;
    Ok(u16::try_from(number).unwrap_or(u16::MAX))
}

fn hexadecimal(root: &Root, file: &Path, most: u32) -> Result<u32, Finding> {
    let text = root.read(file)?;
    hex_number(text.trim())
        .filter(|number| *number <= most)
        .ok_or_else(|| root.finding(file, fields::unexpected("a number such as 0x10de", &text)))
}

fn hex_number(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x")?;
    let all_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    all_hex.then(|| u32::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_path_tells() {
        for (path, want) in [
            (
                "sys/devices/pci0000:44/0000:44:00.0/0000:45:00.0/0000:4f:00.0",
                Some((
                    "0000:4f:00.0",
                    Some("pci0000:44"),
                    vec!["0000:44:00.0", "0000:45:00.0"],
                )),
            ),
            (
                "sys/devices/pci0000:10/0000:10:1b.0",
                Some(("0000:10:1b.0", Some("pci0000:10"), vec![])),
            ),
            (
                "sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/\
                 47505500-0001-0000-3130-444531454233/pci0001:00/0001:00:00.0",
                Some(("0001:00:00.0", Some("pci0001:00"), vec![])),
            ),
            (
                "sys/devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0",
                Some(("10000:01:00.0", Some("pci10000:00"), vec!["10000:00:02.0"])),
            ),
            (
                "sys/devices/pci0000:00/0000:00:03.0/virtio0",
                Some(("0000:00:03.0", Some("pci0000:00"), vec![])),
            ),
            (
                "sys/bus/pci/devices/0000:4f:00.0",
                Some(("0000:4f:00.0", None, vec![])),
            ),
            ("sys/devices/virtual/net/veth0", None),
            (
                "sys/devices/pciABCDEF01:0A/ABCDEF01:0A:00.0",
                Some(("abcdef01:0a:00.0", Some("pciabcdef01:0a"), vec![])),
            ),
            ("sys/devices/pci0000:00", None),
            ("", None),
        ] {
            let got = Function::on(Path::new(path)).map(|function| {
                let bridges = function.bridges.iter().map(PciAddress::to_string);
                let bridges = bridges.collect::<Vec<_>>();
                assert!(path.starts_with(function.folder.to_str().unwrap()));
                (function.address.to_string(), function.root, bridges)
            });
            let want = want.map(|(address, root, bridges)| {
                let bridges = bridges.into_iter().map(str::to_owned).collect::<Vec<_>>();
                (
                    address.to_owned(),
                    root.map(|root| root.parse().unwrap()),
                    bridges,
                )
            });
            assert_eq!(got, want, "{path}");
        }
    }

    #[test]
    fn numbers_of_sysfs() {
        for (text, want) in [
            ("0x10de", Some(0x10de)),
            ("0x030200", Some(0x03_0200)),
            ("0xFFFFFFFF", Some(u32::MAX)),
            ("0x1ffffffff", None),
            ("0x", None),
            ("0x+1", None),
            ("10de", None),
            ("", None),
        ] {
            assert_eq!(hex_number(text), want, "{text:?}");
        }
        for (text, want) in [
            ("-1", Some(None)),
            ("0", Some(Some(0))),
            ("7", Some(Some(7))),
            ("-2", None),
            ("4294967296", None),
            ("", None),
        ] {
            assert_eq!(node_number(text), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn junk_never_panics(text in "(?s).{0,60}", path in "[/a-f0-9:.pci]{0,60}") {
            let _ = hex_number(&text);
            let _ = node_number(&text);
            let _ = Function::on(Path::new(&text));
            let _ = Function::on(Path::new(&path));
        }
    }
}
