//! The descriptor: what a segment is, as its owner publishes it.
//!
//! Unknown keys are ignored; one bad buffer voids the whole descriptor.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the TCP frames that [`crate::frame`] speaks.
pub const TCP_VERSION: u32 = 2;

/// How a segment is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Protocol {
    /// Frames over TCP.
    Tcp,
    /// One-sided operations over RDMA verbs.
    Rdma,
    /// One-sided operations over EFA.
    Efa,
    /// Something that Siding does not speak.
    Other(String),
}

impl From<String> for Protocol {
    fn from(text: String) -> Self {
        match text.as_str() {
            "tcp" => Self::Tcp,
            "rdma" => Self::Rdma,
            "efa" => Self::Efa,
            _ => Self::Other(text),
        }
    }
}

impl From<Protocol> for String {
    fn from(protocol: Protocol) -> Self {
        protocol.to_string()
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Efa => "efa",
            Self::Other(other) => other,
        })
    }
}

/// A published piece of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Its location, such as `cpu:0`; never empty.
    pub name: String,
    /// Its first address: not 0, in whatever space its owner chose.
    #[serde(rename = "addr")]
    pub address: u64,
    /// Bytes, more than 0.
    #[serde(rename = "length")]
    pub length_bytes: u64,
    /// Keys for remote access, one for each device (rdma, efa).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rkey: Vec<u64>,
    /// Keys for local access, one for each device (rdma, efa).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lkey: Vec<u64>,
}

impl Buffer {
    /// A buffer that is reached over TCP.
    #[must_use]
    pub fn tcp(name: impl Into<String>, address: u64, length_bytes: u64) -> Self {
        Self {
            name: name.into(),
            address,
            length_bytes,
            rkey: Vec::new(),
            lkey: Vec::new(),
        }
    }

    /// Whether the whole of `[address, address + size_bytes)` lies in it; an empty range does not.
    #[must_use]
    pub fn holds(&self, address: u64, size_bytes: u64) -> bool {
        address
            .checked_sub(self.address)
            .and_then(|offset| offset.checked_add(size_bytes))
            .is_some_and(|end| size_bytes > 0 && end <= self.length_bytes)
    }
}

/// A NIC of the segment's owner (rdma, efa).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name, such as `rxe0`.
    pub name: String,
    /// Its local id; 0 on Ethernet.
    #[serde(default)]
    pub lid: u16,
    /// rdma: 16 bytes separated by colons; efa: the address in hexadecimal.
    pub gid: String,
}

/// The NICs for a location: those to prefer, and the others.
pub type DevicePriority = (Vec<String>, Vec<String>);

/// What a segment is. Checked: see [`Descriptor::parse`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The segment's name; peer to peer it is the `host:port` of the handshake endpoint.
    pub name: String,
    /// How it is reached.
    pub protocol: Protocol,
    /// tcp: the port of the data path; 0 where there is none.
    #[serde(default)]
    pub tcp_data_port: u16,
    /// tcp: the host of the data path; without it, that of the segment's name or of its `rpc_meta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_data_host: Option<String>,
    /// tcp: the newest version of frames that is understood; without it, 1.
    #[serde(default = "first_version")]
    pub tcp_proto_version: u32,
    /// When it was made, for people; any text.
    #[serde(default)]
    pub timestamp: String,
    /// Its memory.
    pub buffers: Vec<Buffer>,
    /// Its NICs (rdma, efa).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Which NICs to use for which location (rdma, efa).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub priority_matrix: BTreeMap<String, DevicePriority>,
}

fn first_version() -> u32 {
    1
}

/// Why a descriptor is void.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// It is no JSON, or a field is missing or of another type or range.
    #[error("the descriptor can't be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A buffer has no name.
    #[error("buffers[{index}].name is empty; it is the buffer's location, such as 'cpu:0'")]
    NoName {
        /// Which buffer.
        index: usize,
    },
    /// A buffer starts at 0 or has no bytes.
    #[error("buffers[{index}] is empty or at address 0 (addr {address}, length {length_bytes})")]
    Empty {
        /// Which buffer.
        index: usize,
        /// Its address.
        address: u64,
        /// Its length, bytes.
        length_bytes: u64,
    },
    /// A buffer goes beyond the last address.
    #[error(
        "buffers[{index}] goes beyond the last address (addr {address}, length {length_bytes})"
    )]
    Overflow {
        /// Which buffer.
        index: usize,
        /// Its address.
        address: u64,
        /// Its length, bytes.
        length_bytes: u64,
    },
    /// A buffer has not one key for each device.
    #[error("buffers[{index}] has {rkeys} rkeys and {lkeys} lkeys for {devices} devices")]
    Keys {
        /// Which buffer.
        index: usize,
        /// Its remote keys.
        rkeys: usize,
        /// Its local keys.
        lkeys: usize,
        /// The descriptor's devices.
        devices: usize,
    },
}

impl Descriptor {
    /// A descriptor of memory that is reached over TCP, with version 2 frames.
    #[must_use]
    pub fn tcp(name: impl Into<String>, port: u16, buffers: Vec<Buffer>) -> Self {
        Self {
            name: name.into(),
            protocol: Protocol::Tcp,
            tcp_data_port: port,
            tcp_data_host: None,
            tcp_proto_version: TCP_VERSION,
            timestamp: String::new(),
            buffers,
            devices: Vec::new(),
            priority_matrix: BTreeMap::new(),
        }
    }

    /// Reads and checks a descriptor.
    ///
    /// # Errors
    /// [`DescriptorError`].
    pub fn parse(json: &[u8]) -> Result<Self, DescriptorError> {
        let descriptor: Self = serde_json::from_slice(json)?;
        descriptor.check()?;
        Ok(descriptor)
    }

    /// Checks one that was made in another way than by [`Descriptor::parse`].
    ///
    /// # Errors
    /// [`DescriptorError`], of the first bad buffer.
    pub fn check(&self) -> Result<(), DescriptorError> {
        let has_keys = matches!(self.protocol, Protocol::Rdma | Protocol::Efa);
        for (index, buffer) in self.buffers.iter().enumerate() {
            let (address, length_bytes) = (buffer.address, buffer.length_bytes);
            if buffer.name.is_empty() {
                return Err(DescriptorError::NoName { index });
            }
            if address == 0 || length_bytes == 0 {
                return Err(DescriptorError::Empty {
                    index,
                    address,
                    length_bytes,
                });
            }
            if address.checked_add(length_bytes).is_none() {
                return Err(DescriptorError::Overflow {
                    index,
                    address,
                    length_bytes,
                });
            }
            let keys = (buffer.rkey.len(), buffer.lkey.len());
            if has_keys && keys != (self.devices.len(), self.devices.len()) {
                return Err(DescriptorError::Keys {
                    index,
                    rkeys: keys.0,
                    lkeys: keys.1,
                    devices: self.devices.len(),
                });
            }
        }
        Ok(())
    }

    /// The descriptor as it travels.
    ///
    /// # Errors
    /// None that this type can cause; serde's signature has one.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn published() -> Value {
        json!({
            "name": "10.0.0.1:12345", "protocol": "tcp", "tcp_data_port": 4000,
            "tcp_proto_version": 2, "timestamp": "2026-01-01 00:00:00", "later": [1],
            "buffers": [
                {"name": "cpu:0", "addr": 0x7000_0000_0000_u64, "length": 4096, "shm": "x"},
                {"name": "cpu:1", "addr": u64::MAX - 4096, "length": 4096},
            ],
        })
    }

    fn parse(value: &Value) -> Result<Descriptor, DescriptorError> {
        Descriptor::parse(value.to_string().as_bytes())
    }

    #[test]
    fn keys_that_are_not_known_are_passed_over() {
        let buffers = vec![
            Buffer::tcp("cpu:0", 0x7000_0000_0000, 4096),
            Buffer::tcp("cpu:1", u64::MAX - 4096, 4096),
        ];
        let want = Descriptor {
            timestamp: "2026-01-01 00:00:00".to_owned(),
            ..Descriptor::tcp("10.0.0.1:12345", 4000, buffers)
        };
        assert_eq!(parse(&published()).unwrap(), want);
        assert_eq!(Descriptor::parse(&want.to_json().unwrap()).unwrap(), want);
    }

    #[test]
    fn what_travels_has_what_a_tcp_client_needs_and_no_more() {
        let descriptor = Descriptor::tcp("a:1", 2, vec![Buffer::tcp("*", 1 << 46, 8)]);
        assert_eq!(
            serde_json::from_slice::<Value>(&descriptor.to_json().unwrap()).unwrap(),
            json!({
                "name": "a:1", "protocol": "tcp", "tcp_data_port": 2, "tcp_proto_version": 2,
                "timestamp": "", "buffers": [{"name": "*", "addr": 1_u64 << 46, "length": 8}],
            })
        );
    }

    #[test]
    fn a_descriptor_of_an_old_client_is_version_1_without_a_data_port() {
        let old = json!({"name": "a", "protocol": "tcp", "buffers": []});
        let old = parse(&old).unwrap();
        assert_eq!((old.tcp_proto_version, old.tcp_data_port), (1, 0));
        assert_eq!(old.tcp_data_host, None);
    }

    #[test]
    fn one_bad_buffer_voids_the_whole() {
        let cases = [
            (json!({"name": ""}), "buffers[1].name is empty"),
            (json!({"addr": 0}), "buffers[1] is empty or at address 0"),
            (json!({"length": 0}), "buffers[1] is empty or at address 0"),
            (json!({"length": 4097}), "beyond the last address"),
            (json!({"addr": -1}), "can't be read"),
            (json!({"length": "4096"}), "can't be read"),
            (json!({"name": null}), "can't be read"),
        ];
        for (change, why) in cases {
            let mut value = published();
            for (key, change) in change.as_object().unwrap() {
                value["buffers"][1][key] = change.clone();
            }
            let found = parse(&value).unwrap_err().to_string();
            assert!(found.contains(why), "{found}");
        }
    }

    #[test]
    fn rdma_needs_a_key_for_each_device() {
        let rdma = json!({
            "name": "a", "protocol": "rdma", "tcp_data_port": 0,
            "devices": [{"name": "rxe0", "lid": 0, "gid": "00:00"}],
            "priority_matrix": {"cpu:0": [["rxe0"], []]},
            "buffers": [{"name": "cpu:0", "addr": 1, "length": 1, "rkey": [u64::MAX], "lkey": [7]}],
        });
        let found = parse(&rdma).unwrap();
        assert_eq!(found.protocol, Protocol::Rdma);
        assert_eq!(found.buffers[0].rkey, [u64::MAX]);
        assert_eq!(
            found.priority_matrix["cpu:0"],
            (vec!["rxe0".to_owned()], vec![])
        );
        let mut without = rdma;
        without["buffers"][0]["lkey"] = json!([]);
        let found = parse(&without).unwrap_err().to_string();
        assert_eq!(found, "buffers[0] has 1 rkeys and 0 lkeys for 1 devices");
    }

    #[test]
    fn a_range_is_inside_as_a_whole_or_not_at_all() {
        let buffer = Buffer::tcp("cpu:0", 1000, 100);
        for (address, size, want) in [
            (1000, 100, true),
            (1099, 1, true),
            (1050, 50, true),
            (999, 1, false),
            (1000, 101, false),
            (1100, 1, false),
            (1000, 0, false),
            (1050, u64::MAX, false),
            (u64::MAX, 2, false),
        ] {
            assert_eq!(buffer.holds(address, size), want, "{address} {size}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes: Vec<u8>) {
            let _ = Descriptor::parse(&bytes);
        }

        #[test]
        fn any_change_of_one_byte_parses_or_is_refused(at in 0_usize..400, byte: u8) {
            let mut bytes = published().to_string().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(found) = Descriptor::parse(&bytes) {
                for buffer in found.buffers {
                    prop_assert!(buffer.address.checked_add(buffer.length_bytes).is_some());
                }
            }
        }
    }
}
