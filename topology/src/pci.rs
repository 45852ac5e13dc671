//! PCI addresses: `0000:53:00.0` and its variants.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

    proptest! {
        #[test]
        fn printed_is_read_back(domain: u32, bus: u8, device in 0_u8..32, function in 0_u8..8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}
