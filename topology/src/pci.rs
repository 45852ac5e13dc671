//! PCI addresses: `0000:53:00.0` and its variants.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::fields;

/// The address of a PCI function. Ordered as numbers, printed as the kernel prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Domain (segment): 16 bits by the standard, 32 on some hosts.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, at most 31.
    pub device: u8,
    /// Function, at most 7.
    pub function: u8,
}

/// Not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a PCI address; write it as 0000:53:00.0")]
pub struct NotPci(String);

impl FromStr for PciAddress {
    type Err = NotPci;

    /// `[DOMAIN:]BUS:DEVICE.FUNCTION` in hexadecimal of any case, the domain of 1 to 8 digits.
    fn from_str(text: &str) -> Result<Self, NotPci> {
        parse(text).ok_or_else(|| NotPci(text.chars().take(64).collect()))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = text.split_once('.')?;
    let (rest, device) = rest.rsplit_once(':')?;
    let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
    let address = PciAddress {
        domain: hex(domain, 8)?,
        bus: u8::try_from(hex(bus, 2)?).ok()?,
        device: u8::try_from(hex(device, 2)?).ok()?,
        function: u8::try_from(hex(function, 1)?).ok()?,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

fn hex(text: &str, most_digits: usize) -> Option<u32> {
    let digits = (1..=most_digits).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl Serialize for PciAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A host bridge: `pci0000:44`. Printed as the kernel prints it, so that one that is written
/// otherwise is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostBridge {
    /// The one of this domain and bus.
    At {
        /// Domain (segment).
        domain: u32,
        /// Bus.
        bus: u8,
    },
    /// The tree shows none above this device, which then shares it with no other: `?` and its address.
    Unknown(PciAddress),
}

/// Not a host bridge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no host bridge; write it as pci0000:44")]
pub struct NotABridge(String);

impl FromStr for HostBridge {
    type Err = NotABridge;

    /// `pciDOMAIN:BUS` in hexadecimal of any case, or `?` and a PCI address.
    fn from_str(text: &str) -> Result<Self, NotABridge> {
        let at = || {
            let (domain, bus) = text.strip_prefix("pci")?.split_once(':')?;
            let bus = u8::try_from(hex(bus, 2)?).ok()?;
            let domain = hex(domain, 8)?;
            Some(Self::At { domain, bus })
        };
        let unknown = || Some(Self::Unknown(parse(text.strip_prefix('?')?)?));
        at().or_else(unknown)
            .ok_or_else(|| NotABridge(fields::cut(text)))
    }
}

impl fmt::Display for HostBridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At { domain, bus } => write!(f, "pci{domain:04x}:{bus:02x}"),
            Self::Unknown(address) => write!(f, "?{address}"),
        }
    }
}

impl Serialize for HostBridge {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostBridge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn variants_of_one_address() {
        for text in [
            "0:53:00.0",
            "0000:53:00.0",
            "00000000:53:00.0",
            "53:00.0",
            "0000:53:0.0",
        ] {
            assert_eq!(
                text.parse::<PciAddress>().unwrap().to_string(),
                "0000:53:00.0",
                "{text}"
            );
        }
        assert_eq!(
            "ABCDE:0F:1f.7".parse::<PciAddress>().unwrap().to_string(),
            "abcde:0f:1f.7"
        );
    }

    #[test]
    fn numeric_order() {
        let mut all: Vec<PciAddress> = [
            "10000:00:00.0",
            "9:00:00.0",
            "0:ff:00.0",
            "0:a:1f.7",
            "0:a:02.0",
        ]
        .map(|text| text.parse().unwrap())
        .into();
        all.sort();
        let shown: Vec<String> = all.iter().map(PciAddress::to_string).collect();
        assert_eq!(
            shown,
            [
                "0000:0a:02.0",
                "0000:0a:1f.7",
                "0000:ff:00.0",
                "0009:00:00.0",
                "10000:00:00.0"
            ]
        );
    }

    #[test]
    fn what_is_none() {
        for text in [
            "",
            "53",
            "0000:53:00",
            "53:20.0",
            "53:00.8",
            "000000000:53:00.0",
            "0x1:53:00.0",
            "g:53:00.0",
            " 53:00.0",
            "53:00.0 ",
            ":53:00.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn host_bridges() {
        for (text, shown) in [
            ("pci0000:44", "pci0000:44"),
            ("pci0000:AF", "pci0000:af"),
            ("pci0:f", "pci0000:0f"),
            ("pciABCDEF01:0A", "pciabcdef01:0a"),
            ("?0000:4F:00.0", "?0000:4f:00.0"),
        ] {
            let bridge: HostBridge = text.parse().unwrap();
            assert_eq!(bridge.to_string(), shown, "{text}");
            assert_eq!(shown.parse(), Ok(bridge));
        }
        for text in [
            "",
            "pci",
            "pci0000",
            "pci0000:",
            "pci0000:100",
            "0000:44",
            "?",
            "?x",
            "PCI0:0",
        ] {
            assert!(text.parse::<HostBridge>().is_err(), "{text}");
        }
        assert_eq!(
            "a".parse::<HostBridge>().unwrap_err().to_string(),
            "\"a\" is no host bridge; write it as pci0000:44"
        );
    }

    proptest! {
        #[test]
        fn printed_is_read_back(domain: u32, bus: u8, device in 0_u8..32, function in 0_u8..8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}
